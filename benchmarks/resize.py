"""What resizing a backend job costs its clients: CACM's experiment, small and real.

    python -m benchmarks.resize              about 40 s
    python -m benchmarks.resize --quick      about 15 s
    python -m benchmarks.resize --json FILE --plot FILE.png

Two client jobs, equal but for `subset`, send calls at a steady rate to one backend
job, which is resized step by step and at last restarted, a few backends at a time.
For each step and each job:

    opened, closed   connections, counted at the servers, in the kernel's table
    churn()          the same, computed by `lbclient.subsets.properties`
    calls, failed    all that ended from one step to the next
    p99              of the calls while it happens, over that of the calls before

A restart is no churn: everybody loses a connection to each backend, which is replaced
until it is back. The jobs share two cores here with the backends, so that one would
slow down the other: they hear of a resize one after the other. Compare the jobs:
calls are cheap and loopback is near, so a fleet has other ratios.

"Reinventing Backend Subsetting at Google", CACM 2023, figure 5. Exit status 1 if a
resize made a call fail or moved other connections than computed.
"""

import asyncio
import os
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from benchmarks.harness.figures import BLUE, RED, blank, quantile
from benchmarks.harness.linux import tcp_sockets
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say
from benchmarks.harness.servers import handlers
from lbclient.core.model import Endpoint, Endpoints
from lbclient.subsets import ALGORITHMS
from lbclient.subsets.properties import balance, choose, churn
from tests.ports import free_ports

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JOBS = ("deterministic", "rocksteadier")  # client jobs, by their `subset`
COLORS = (RED, BLUE)
METHOD = "/resize.Backend/Work"

WORKERS = 2  # of a client, each with one call at a time: the load is bounded
PAUSE = 0.15  # seconds from one call of a worker to the next, on average
WORK = 0.005  # seconds that a backend takes for a call
DEADLINE = 10.0  # seconds; a call that takes longer fails

LOOK_EVERY = 0.1  # seconds between two looks at the kernel's table
STEADY = 3  # looks that must show the same, for a step to be over
SETTLED_WITHIN = 15.0  # seconds; then it is counted as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens, in this order. Times in seconds."""

    clients: int  # of each client job
    subset_size: int
    sizes: tuple[int, ...]  # of the backend job
    at_once: int  # backends that restart together, at the end
    before: float  # how long calls are looked at before a step
    during: float  # and from its begin


FULL = Plan(20, 8, (40, 41, 42, 44, 48, 40), at_once=4, before=1.2, during=1.5)
QUICK = Plan(10, 5, (20, 21, 24, 20), at_once=4, before=0.5, during=0.7)


@dataclass(slots=True)
class Step:
    """What one step did to one client job."""

    name: str
    job: str
    is_resize: bool
    computed_opened: int
    computed_closed: int
    opened: int = 0
    closed: int = 0
    calls: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    p99: float | None = None  # over that of the calls before; None: too few of them

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def is_sound(self) -> bool:
        """Whether a resize did what it should; of a restart nothing is said."""
        counted = self.opened, self.closed
        computed = self.computed_opened, self.computed_closed
        return not self.is_resize or (not self.failed and counted == computed)


# --- the backend job, in a process of its own -----------------------------------


class Backends:
    """Servers by task number. Each has a port for every client job.

    So the kernel's table tells whose a connection is.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._servers: dict[int, lbclient.Server] = {}
        self._ports: dict[int, list[int]] = {}

    async def start(self, tasks: list[int]) -> list[list[int]]:
        """The ports of each; a task that was there before gets its old ones."""
        for task in tasks:
            self._servers[task] = server = lbclient.server(
                config=lbclient.ServerConfig(lame_duck_quiet=0.2),
                # Two servers on one port would share it unseen.
                options=[("grpc.so_reuseport", 0)],
            )
            server.add_generic_rpc_handlers(handlers({METHOD: work}))
            if task not in self._ports:
                self._ports[task] = free_ports(self._jobs)
            for port in self._ports[task]:
                server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
        return [self._ports[task] for task in tasks]

    async def drain(self, tasks: list[int]) -> None:
        """They leave in order: lame ducks first, until they have no calls."""
        await asyncio.gather(*(self._servers.pop(task).drain() for task in tasks))


async def work(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(WORK)
    return request


# --- a client job, in a process of its own ---------------------------------------


class Clients:
    """A client job: a channel for each task of it, and the calls that they make.

    It is the channels' resolver too, and answers what it was told last.
    """

    def __init__(self, subset: str, clients: int, subset_size: int) -> None:
        self._channels: list[lbclient.Channel] = []
        self._endpoints: Endpoints = ()
        self._news = asyncio.Event()
        self._latencies: list[float] = []
        self._failures: Counter[str] = Counter()
        self._channels = [
            lbclient.insecure_channel(
                self,
                config=lbclient.ChannelConfig(
                    subset=subset,
                    subset_size=subset_size,
                    task_index=task,
                    # Lame ducks are replaced at once; who is but slow, as all are
                    # that share this machine, is waited for.
                    replace_after=60.0,
                    settle_after=0.5,
                    # They tell changes of state at once. Of load a word is enough
                    # that comes with every answer.
                    health_interval=60.0,
                    connect_backoff=0.05,
                    max_connect_backoff=0.5,
                ),
            )
            for task in range(clients)
        ]
        self._workers: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<{len(self._channels)} clients of {len(self._endpoints)} backends>"

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            news = self._news
            if self._endpoints:
                yield self._endpoints
            await news.wait()

    async def resolve(self, addresses: list[str]) -> None:
        self._endpoints = tuple(
            Endpoint(address, task=task) for task, address in enumerate(addresses)
        )
        self._news.set()
        self._news = asyncio.Event()
        for channel in self._channels:
            channel.get_state(try_to_connect=True)

    async def begin(self) -> None:
        """From here on calls are made, until the process ends."""
        for worker in range(WORKERS * len(self._channels)):
            channel = self._channels[worker // WORKERS]
            self._workers.append(asyncio.create_task(self._call(channel, worker)))

    async def _call(self, channel: lbclient.Channel, worker: int) -> None:
        method = channel.unary_unary(METHOD)
        rng = Random(worker)  # the same in both jobs
        due = monotonic()
        while True:
            due += rng.expovariate(1 / PAUSE)
            await asyncio.sleep(max(0.0, due - monotonic()))
            try:
                await method(b"", timeout=DEADLINE)
            except grpc.aio.AioRpcError as error:
                self._failures[f"{error.code().name}: {error.details()}"] += 1
            except Exception as error:  # nothing else may come from a call
                self._failures[repr(error)] += 1
            # Since it was due: a client that stands still is slow as well.
            self._latencies.append(monotonic() - due)

    async def report(self) -> dict[str, Any]:
        """Of the calls that ended since the last report."""
        latencies, self._latencies = self._latencies, []
        failures, self._failures = self._failures, Counter()
        p99 = quantile(latencies, 0.99)
        return {"calls": len(latencies), "failures": failures, "p99": p99}


# --- processes ---------------------------------------------------------------------


async def be(kind: str, *given: Any) -> None:
    """Carries out orders, and says what they return."""
    subject: Any = Backends(*given) if kind == "backends" else Clients(*given)
    async for order, *arguments in orders():
        say(await getattr(subject, order)(*arguments))


def settings() -> dict[str, str]:
    """An environment in which all settings are ours."""
    return {k: v for k, v in os.environ.items() if not k.startswith("LBCLIENT_")}


# --- the experiment ----------------------------------------------------------------

Connections = set[tuple[int, int]]
"""Pairs of a server's port and a client's."""


def established() -> Connections:
    """All connections of this machine, from both ends."""
    return {(one.local, one.remote) for one in tcp_sockets() if one.is_established}


class Job:
    """A client job as the servers see it."""

    def __init__(self, name: str, process: Process, plan: Plan) -> None:
        self.name = name
        self.ask = process.ask
        self.ports: dict[int, int] = {}  # by task: where it listens for this job
        self.step = Step("", name, False, 0, 0)
        self._plan = plan
        self._before: Connections = set()
        self._seen: Connections = set()  # in this step, however short
        self._now: Connections = set()

    def begin(self, step: Step) -> None:
        self.step = step
        self._before = self._now
        self._seen = set(self._now)

    def look(self, connections: Connections) -> None:
        ports = set(self.ports.values())
        self._now = {pair for pair in connections if pair[0] in ports}
        self._seen |= self._now
        self.step.opened = len(self._seen - self._before)
        self.step.closed = len(self._seen - self._now)

    def is_as_chosen(self, backends: int) -> bool:
        """Whether each server has as many connections as the algorithm promises."""
        counts = Counter(port for port, _ in self._now)
        promised = balance(self.subsets(backends), backends).connections
        return all(
            counts[port] == (promised[task] if task < backends else 0)
            for task, port in self.ports.items()
        )

    def subsets(self, backends: int) -> Sequence[Sequence[int]]:
        rule = ALGORITHMS[self.name]
        return choose(rule, self._plan.clients, backends, self._plan.subset_size)

    async def tell(self, backends: int) -> None:
        ports = (self.ports[task] for task in range(backends))
        await self.ask("resolve", [f"127.0.0.1:{port}" for port in ports])

    async def count_calls(self) -> float | None:
        """Counts the calls since the last count; returns their p99."""
        report = await self.ask("report")
        self.step.calls += report["calls"]
        for failure, count in report["failures"].items():
            self.step.failures[failure] = self.step.failures.get(failure, 0) + count
        p99: float | None = report["p99"]
        return p99


class Experiment:
    """Plays the plan; `steps` fills up as it does."""

    def __init__(self, plan: Plan, backends: Process, jobs: list[Job]) -> None:
        self.steps: list[Step] = []
        self._plan = plan
        self._backends = backends
        self._jobs = jobs

    async def play(self, say: Callable[[Step], None]) -> None:
        first, *_, last = self._plan.sizes
        await self._start(range(first))
        for job in self._jobs:
            await job.tell(first)
        await self._settle(self._jobs, first)
        for job in self._jobs:
            await job.ask("begin")
        for old, new in pairwise(self._plan.sizes):
            await self._resize(old, new)
            self._end_step(say)
        await self._restart(last)
        self._end_step(say)

    async def keep_looking(self) -> None:
        while True:
            connections = established()
            for job in self._jobs:
                job.look(connections)
            await asyncio.sleep(LOOK_EVERY)

    async def _resize(self, old: int, new: int) -> None:
        self._begin_step(f"{old} -> {new}", old, new)
        await self._start(range(old, new))
        for job in self._jobs:
            await self._measure([job], new, partial(job.tell, new))
        # As the resolver named them no more, nobody is left who would notice.
        await self._backends.ask("drain", [*range(new, old)])
        await self._count_calls()

    async def _restart(self, backends: int) -> None:
        self._begin_step("restart", backends, backends)

        async def restart() -> None:
            for first in range(0, backends, self._plan.at_once):
                some = range(first, min(backends, first + self._plan.at_once))
                await self._backends.ask("drain", [*some])
                await self._start(some)

        await self._measure(self._jobs, backends, restart)
        await self._count_calls()

    async def _measure(
        self, jobs: list[Job], backends: int, act: Callable[[], Awaitable[None]]
    ) -> None:
        await self._count_calls()
        await asyncio.sleep(self._plan.before)
        before = [await job.count_calls() for job in jobs]
        await act()
        await asyncio.sleep(self._plan.during)
        for job, was in zip(jobs, before, strict=True):
            p99 = await job.count_calls()
            job.step.p99 = p99 / was if p99 and was else None
        await self._settle(jobs, backends)

    async def _settle(self, jobs: list[Job], backends: int) -> None:
        steady = 0
        for _ in range(round(SETTLED_WITHIN / LOOK_EVERY)):
            await asyncio.sleep(LOOK_EVERY)
            is_settled = all(job.is_as_chosen(backends) for job in jobs)
            steady = steady + 1 if is_settled else 0
            if steady == STEADY:
                return

    async def _start(self, tasks: Iterable[int]) -> None:
        tasks = [*tasks]
        started = await self._backends.ask("start", tasks)
        for task, ports in zip(tasks, started, strict=True):
            for job, port in zip(self._jobs, ports, strict=True):
                job.ports[task] = port

    async def _count_calls(self) -> None:
        for job in self._jobs:
            await job.count_calls()

    def _begin_step(self, name: str, old: int, new: int) -> None:
        for job in self._jobs:
            moved = churn(job.subsets(old), job.subsets(new))
            opened, closed = sum(moved.opened), sum(moved.dropped)
            job.begin(Step(name, job.name, name != "restart", opened, closed))

    def _end_step(self, say: Callable[[Step], None]) -> None:
        for job in self._jobs:
            self.steps.append(job.step)
            say(job.step)


async def run(plan: Plan, say: Callable[[Step], None]) -> list[Step]:
    """Plays the plan and tells of each step when it is over.

    No process is left behind, however it ends. Raises ProcessError.
    """
    async with AsyncExitStack() as stack:

        async def started(*what: Any) -> Process:
            return await stack.enter_async_context(running(be, *what, env=settings()))

        backends = await started("backends", len(JOBS))
        jobs = [
            Job(n, await started("clients", n, plan.clients, plan.subset_size), plan)
            for n in JOBS
        ]
        experiment = Experiment(plan, backends, jobs)
        looking = asyncio.create_task(experiment.keep_looking())
        try:
            await experiment.play(say)
        finally:
            looking.cancel()
        return experiment.steps


# --- what is said ------------------------------------------------------------------

HEAD = (
    f"{'step':10}{'subset':15}{'opened':>7}{'churn()':>9}{'closed':>9}{'churn()':>9}"
    f"{'calls':>9}{'failed':>8}{'p99':>9}"
)


def say_step(step: Step) -> None:
    p99 = "-" if step.p99 is None else f"{step.p99:.2f} x"
    print(
        f"{step.name:10}{step.job:15}{step.opened:7}{step.computed_opened:9}"
        f"{step.closed:9}{step.computed_closed:9}{step.calls:9,}{step.failed:8}{p99:>9}"
        + ("" if step.is_sound else "  WRONG"),
        flush=True,
    )
    for failure, count in step.failures.items():
        print(f"{'':10}{count} x {failure}")


def as_json(plan: Plan, steps: Iterable[Step]) -> dict[str, Any]:
    return {
        "plan": asdict(plan),
        "steps": [asdict(step) | {"failed": step.failed} for step in steps],
    }


def told(steps: Sequence[Step]) -> Iterator[Measured]:
    """By step, what the second job opened and how it fared, over the first."""
    both = zip(steps[::2], steps[1::2], strict=True)
    for book, ours in both:
        assert (book.job, ours.job) == JOBS
        name = f"{ours.name}, {ours.job}"
        if book.opened:
            ratio = ours.opened / book.opened
            opened = f"{name} / {book.job}: connections opened"
            yield Measured(name=opened, value=ratio, better="less")
        if ours.p99 is not None:
            yield Measured(name=f"{name}: p99, over before", value=ours.p99)
        yield Measured(name=f"{name}: failed", value=ours.failed, unit="calls")


def draw(steps: Sequence[Step]) -> "Figure":
    """A group of bars for each step; a dash is what was computed."""
    figure = blank(8, 5.6)
    opened, slower, failed = figure.subplots(3, 1, height_ratios=(3, 2, 1))
    _bars(opened, steps, "connections opened", lambda step: step.opened, "{:.0f}")
    _bars(slower, steps, "p99, over before", lambda step: step.p99 or 0, "{:.1f}")
    _bars(failed, steps, "calls failed", lambda step: step.failed, "{:.0f}")
    for place, step in _places(steps):
        if step.is_resize:
            opened.plot(place, step.computed_opened, "k_", markersize=18)
    slower.axhline(1, color="grey", linewidth=0.8)
    failed.set_ylim(0, max(1, *(step.failed for step in steps)) * 1.4)
    opened.plot([], [], "k_", label="computed by churn()")
    opened.legend(loc="upper left")
    return figure


def _places(steps: Sequence[Step]) -> Iterable[tuple[float, Step]]:
    """Where the bar of each is: next to that of the other job."""
    for number, step in enumerate(steps):
        yield number // len(JOBS) + (JOBS.index(step.job) - 0.5) * 0.4, step


def _bars(
    axes: "Axes",
    steps: Sequence[Step],
    title: str,
    height: Callable[[Step], float],
    form: str,
) -> None:
    for job, color in zip(JOBS, COLORS, strict=True):
        places, ours = zip(*(p for p in _places(steps) if p[1].job == job), strict=True)
        heights = [height(step) for step in ours]
        bars = axes.bar(places, heights, 0.4, label=job, color=color)
        axes.bar_label(bars, fmt=form, fontsize=8)
    names = dict.fromkeys(step.name for step in steps)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(title)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> int:
    given = parser_of(
        "resize", __doc__, quick="a smaller fleet", plot=True
    ).parse_args()
    plan = QUICK if given.quick else FULL
    print(
        f"{plan.clients} clients a job, subsets of {plan.subset_size}; "
        f"{plan.at_once} backends restart at once\n\n{HEAD}",
        flush=True,
    )
    steps = asyncio.run(run(plan, say_step))
    wrong = [f"{step.name}, {step.job}" for step in steps if not step.is_sound]
    found = as_json(plan, steps)
    return conclude(given, found, wrong, lambda: draw(steps), measured=told(steps))


if __name__ == "__main__":
    exit_with(main)
