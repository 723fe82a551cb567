"""A backend job is resized step by step: connections that its clients open.

CACM 2023, figure 5, shows errors of two client jobs that differ in their subsets only.
New connections cause these errors, so connections are counted here. The pools are the
ones of production. docs/subsetting.md has what a resize does to calls on real channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean

from lbclient.core.backends.pool import Limits, Pool
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, Endpoints, State, snapshot
from lbclient.sim.book.claims import ANY, Claim
from lbclient.subsets import order

JOBS = ("deterministic", "rocksteadier")
CLIENTS = 60  # of each job
SUBSET_SIZE = 20  # backends of a client
# Backends of the job, step by step: doubling the change, and back.
SIZES = (200, 201, 202, 204, 208, 216, 232, 264, 240, 220, 210, 205, 202, 200)
STEP = 60.0  # seconds
SHOWS = ("CACM 2023, figure 5",)
WHERE = "CACM 2023"


class Member:
    """A backend in a pool. It gets no calls."""

    __slots__ = ("endpoint", "load", "state")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.state = State.CONNECTING
        self.load = Load()


@dataclass(frozen=True, slots=True)
class Resized:
    """The steps of the resize, and new connections of a client in each step.

    Both the mean that any algorithm needs, and those of each client of each job.
    """

    steps: list[tuple[int, int]]
    needed: list[float]
    opened: dict[str, list[list[int]]]

    def mean(self, job: str) -> list[float]:
        return [fmean(step) for step in self.opened[job]]

    def most(self, job: str) -> list[int]:
        return [max(step) for step in self.opened[job]]

    def claims(self) -> list[Claim]:
        steady = self.mean("rocksteadier")
        over = sum(steady) / sum(self.needed)
        times = [
            shaken / calm
            for shaken, calm in zip(self.mean("deterministic"), steady, strict=True)
        ]
        return [
            Claim(f"{WHERE}, Connection churn",
                  "deterministic: an unlucky client's subset is 'completely different'"
                  f", of {SUBSET_SIZE}",
                  max(self.most("deterministic")), SUBSET_SIZE - 1, SUBSET_SIZE,
                  "all", "one is shared by chance at times"),
            Claim(f"{WHERE}, Testing and Deployment, figure 5",
                  "rocksteadier: 'largely unaffected'; opened over what is needed",
                  over, 0.9, 1.6, "", "words; 1 would be the least over many resizes"),
            Claim(f"{WHERE}, Testing and Deployment, figure 5",
                  "'a spike of errors' every time with deterministic only: connections"
                  " opened over rocksteadier's, at each step at least",
                  min(times), 2.0, ANY, "", "a picture of spikes: twice at least"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Resized:
    """The result is the same for all seeds: nothing is random."""
    sizes = SIZES[:4] if quick else SIZES
    steps = [*pairwise(sizes)]
    return Resized(steps, [_needed(*step) for step in steps], dict(_play(sizes)))


def _needed(before: int, after: int) -> float:
    """New connections that any even algorithm needs: for backends that came or left."""
    return SUBSET_SIZE * abs(after - before) / max(before, after)


def _play(sizes: tuple[int, ...]) -> Iterator[tuple[str, list[list[int]]]]:
    for job in JOBS:
        pools = [_pool(job, client) for client in range(CLIENTS)]
        opened = [
            [_resize(pool, size, step * STEP) for pool in pools]
            for step, size in enumerate(sizes)
        ]
        yield job, opened[1:]


def _pool(job: str, client: int) -> Pool[Member]:
    def prefer(endpoints: Endpoints) -> Iterator[Endpoint]:
        numbers = order(job, client, len(endpoints), SUBSET_SIZE)
        return (endpoints[number] for number in islice(numbers, SUBSET_SIZE))

    return Pool(Member, prefer, Limits(SUBSET_SIZE, 100, 1.0, 10.0, 0))


def _resize(pool: Pool[Member], size: int, now: float) -> int:
    """How many connections a pool opens. All are made before the next step."""
    endpoints = snapshot([Endpoint(f"b{i:05}:1", task=i) for i in range(size)])
    opened = pool.reconcile(endpoints, now).opened
    for member in opened:
        pool.observe(member, State.READY, now + 1.0)
    pool.review(now + STEP / 2.0)
    return len(opened)
