"""What comes, goes or is lost at once costs each turn of the loop in proportion.

Judged by the number of function calls in the longest turn, with twice the backends:
that is the same on every machine, and four times as many where each backend looks at
all others.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import grpc
import pytest

from benchmarks import crowd
from benchmarks.crowd import Network, Probe, Told, balancer_of, fleet
from benchmarks.harness.load import until
from lbclient.background.tasks import AT_ONCE, Tasks
from lbclient.background.turns import Turns
from lbclient.client import connect_pacer
from lbclient.client.backends.backend import Backend
from lbclient.client.backends.connections import REVIEW_PAUSE
from lbclient.client.backends.waking import Waking
from lbclient.client.pending import Pending
from lbclient.config import ChannelConfig
from lbclient.core.backends.condition import Condition
from lbclient.core.backends.pool import Limits, Pool
from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import Criticality
from lbclient.core.model import State
from lbclient.core.outliers.outliers import Outliers
from lbclient.resolvers.following import Following
from lbclient.testing import FakeNode

FEW, MANY = 150, 300
RUNS = 5
MOST_GROWTH = 3.0  # 2 where each costs the same, 4 where each looks at all others


class Calls:
    """A clock that goes by function calls, Python's and C's."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        return self.count

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, _: object, event: str, __: object) -> None:
        self.count += event in ("call", "c_call")


async def longest_turns(count: int) -> dict[str, float]:
    calls = Calls()
    with calls.counting():
        found = await crowd.faked(count, calls)
    return {what: turn for what, (turn, _) in found.items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_pacer, "AT_ONCE", 10**9)
    monkeypatch.setattr(connect_pacer, "HOLD", 0.0)


@pytest.mark.slow
async def test_no_turn_grows_faster_than_the_number_of_backends() -> None:
    """By the shortest of some runs: on a busy machine more timers are due in a turn."""
    few, many = await longest_turns(FEW), await longest_turns(MANY)
    for _ in range(RUNS):
        growth = {what: many[what] / few[what] for what in few}
        if max(growth.values()) < MOST_GROWTH:
            break
        few = shorter(few, await longest_turns(FEW))
        many = shorter(many, await longest_turns(MANY))
    assert max(growth.values()) < MOST_GROWTH, (growth, few, many)
    assert {"lost", "refused", "healed", "listed again"} <= growth.keys()


def shorter(turns: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    return {what: min(turn, others[what]) for what, turn in turns.items()}


@pytest.mark.slow
async def test_what_begins_and_ends_is_spread_over_turns() -> None:
    """So that these turns hardly grow, once those that were begun in some turns are on
    their way at the same time."""
    few, many = await longest_turns(AT_ONCE * 16), await longest_turns(AT_ONCE * 32)
    assert many["closed"] < 1.5 * few["closed"], (few, many)


async def test_a_lost_backend_is_never_picked_and_all_are_found_by_one_pick() -> None:
    network, resolver = Network(), Told()
    balancer = balancer_of(network, resolver)
    try:
        resolver.tell(fleet(50, 0))
        await until(lambda: balancer.pool.counts[State.READY] == 50)
        tell = network.cut_all()
        kept = balancer.pool.ready[7]
        channel: Any = kept.channel
        channel.is_cut = False
        assert balancer.pick(0.0, {}) is kept
        network.is_up = False
        channel.is_cut = True
        assert balancer.pick(0.0, {}) is None
        assert balancer.pool.ready == ()
        tell()
    finally:
        await balancer.close(None)


def counted(
    monkeypatch: pytest.MonkeyPatch, owner: type, *methods: str
) -> Counter[str]:
    counts = Counter[str]()

    def count(method: str) -> None:
        original = getattr(owner, method)

        def run(self: Any, *arguments: Any) -> Any:
            counts[method] += 1
            return original(self, *arguments)

        monkeypatch.setattr(owner, method, run)

    for method in methods:
        count(method)
    return counts


async def test_what_follows_from_the_losses_of_one_moment_follows_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tuple of all who are ready, a review of all, a word to the resolver."""
    made = counted(monkeypatch, Pool, "_find_ready", "review")
    told = counted(monkeypatch, Following, "hint")
    network, resolver = Network(), Told()
    balancer = balancer_of(network, resolver)
    try:
        resolver.tell(fleet(MANY, 0))
        await until(lambda: balancer.pool.counts[State.READY] == MANY)
        assert len(balancer.pool.ready) == MANY
        made.clear()
        tell = network.cut_all()
        assert balancer.pick(0.0, {}) is None
        assert made["_find_ready"] <= 4, "each is found by a look, not by a pick"
        made.clear()
        network.is_up = False
        tell()
        await until(lambda: not balancer.pool.is_promising())
        assert balancer.pool.ready == ()
        assert made["_find_ready"] <= 10
        assert made["review"] == 0, "nobody can stand in for them"
        assert told["hint"] <= 20
    finally:
        await balancer.close(None)


async def test_a_large_subset_is_reviewed_seldom_while_it_is_lost_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = counted(monkeypatch, Pool, "review")
    network, resolver = Network(), Told()
    config = ChannelConfig(subset_size=MANY, max_replacements=5, idle_after=0.0)
    balancer = balancer_of(network, resolver, config)
    try:
        resolver.tell(fleet(MANY + 50, 0))
        await until(lambda: balancer.pool.counts[State.READY] == MANY)
        made.clear()
        began_at = asyncio.get_running_loop().time()
        for channel in list(network.channels)[: MANY // 2]:
            channel.enter(grpc.ChannelConnectivity.IDLE)
            await asyncio.sleep(0.001)
        took = asyncio.get_running_loop().time() - began_at
        assert 1 <= made["review"] <= took / (REVIEW_PAUSE * MANY) + 5
    finally:
        await balancer.close(None)


# --- calls that wait, one by one ----------------------------------------------


class Waiter:
    wait_for_ready = False
    criticality = Criticality.CRITICAL
    hints: CallHints | None = None

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.error: grpc.aio.AioRpcError | None = None

    def start(self, backend: Backend, now: float) -> None:
        raise AssertionError("there is none")

    def fail(self, error: Any) -> None:
        self.error = error

    def cancel(self) -> bool:
        return True


def calls_to_refuse(backends: int, waiters: int) -> tuple[float, str]:
    """Function calls that it takes, while all backends refuse."""
    config = ChannelConfig(subset="whole")
    pool: Pool[Any] = Pool(
        lambda endpoint: FakeNode(endpoint, State.CONNECTING),
        lambda endpoints: endpoints,
        Limits(backends, 100, 1.0, 10.0, 0),
    )
    pool.reconcile(fleet(backends, 0), 0.0)
    for node in pool.nodes.values():
        node.condition = Condition(0.0)
        node.condition.changed(State.REFUSING, "refused", 0.0)
    tasks = Tasks("test", Random(7))
    waiting = Pending(
        pool,
        Outliers(pool, Random(7)),
        config,
        Waking(tasks, Turns(tasks), Random(7), lambda: bool(pool.ready)),
        clock=lambda: 0.0,
        choose=lambda _now, _counts, _hints: None,
        trouble=lambda: "",
    )
    some = [Waiter() for _ in range(waiters)]
    for waiter in some:
        waiting.join(waiter)
    for node in pool.nodes.values():
        pool.observe(node, State.REFUSING, 0.0)
    calls = Calls()
    with calls.counting():
        waiting.dismiss_hopeless()
        late = Waiter()
        waiting.join(late)
    assert late.error is not None
    assert all(waiter.error is not None for waiter in some)
    return calls.count, late.error.details() or ""


def test_a_call_without_hope_costs_the_same_however_many_backends_refuse() -> None:
    (few, _), (many, words) = calls_to_refuse(100, 50), calls_to_refuse(1000, 50)
    # Ten times as many backends; a garbage collection calls something, too.
    assert many < 3.0 * few
    assert words.startswith("0 of 1000 backends ready: 1000 refusing")


# --- the benchmark itself -----------------------------------------------------


async def test_the_probe_finds_the_longest_turn() -> None:
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    with Probe(lambda: now) as probe:
        for seconds in (1.0, 5.0, 2.0):
            asyncio.get_running_loop().call_soon(work, seconds)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert probe.longest == 5.0
