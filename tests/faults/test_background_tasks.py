"""Every background task and timer, killed in every way: it is seen, and lives again.

The list is the class: a new task belongs on it. `CancelledError` is the one that
asyncio takes for an order to end; nobody gave it here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest

from benchmarks.crowd import Network, Told, balancer_of, fleet
from benchmarks.harness.load import until
from lbclient.background import tasks as tasks_module
from lbclient.background.tasks import Tasks
from lbclient.background.turns import Turns
from lbclient.client.backends.backend import Backend
from lbclient.client.backends.connection import Connection
from lbclient.client.backends.connections import Connections
from lbclient.client.backends.discovery import Discovery
from lbclient.client.backends.idleness import Idleness
from lbclient.client.backends.probing import Probing
from lbclient.client.backends.slowdowns import Slowdowns
from lbclient.client.backends.state_changes import StateChanges
from lbclient.client.backends.waking import Waking
from lbclient.client.balancer import Balancer
from lbclient.client.health.ordered_checks import OrderedChecks
from lbclient.client.health.own_stream import OwnStream
from lbclient.client.health.paced_watch import PacedWatch
from lbclient.client.health.unconnected import UnconnectedWatch
from lbclient.client.health.watch import HealthWatch
from lbclient.config import ServerConfig
from lbclient.core.backends.connection_state import Order
from lbclient.core.backends.lifecycle import Lifecycle
from lbclient.core.model import State
from lbclient.core.protocols import FleetUsage
from lbclient.resolvers.following import Following
from lbclient.server.quotas.quota_enforcer import QuotaEnforcer
from lbclient.server.sampler import Sampler
from tests.parts import parts

BACKENDS = 3


class Odd(BaseException):
    """As of a library that has its own way to end what runs."""


RAISED = [asyncio.CancelledError, GeneratorExit, Odd, OSError]
ERRORS = [*RAISED, None]  # None: it just returns


class Victim(NamedTuple):
    """A method that a task or a timer runs; `poke` makes a timer ring, or a task that
    is asked seldom begin. One that runs within another may not return by itself."""

    owner: type
    method: str
    poke: Callable[[Balancer, Network], object] = lambda balancer, network: None
    can_return: bool = True


def lose(balancer: Balancer, network: Network) -> None:
    network.lose_all()


def rest(balancer: Balancer, network: Network) -> None:
    for backend in balancer.pool.nodes.values():
        balancer.backends.idleness._disconnect_idle(backend)


def doubt(balancer: Balancer, network: Network) -> None:
    for backend in balancer.pool.nodes.values():
        backend._checks.order(Order.CHECK)


def empty(balancer: Balancer, network: Network) -> None:
    balancer.backends.discovery._believe_empty.set(0.0)


def ring(balancer: Balancer, network: Network) -> None:
    for backend in balancer.pool.nodes.values():
        backend._driver._ring()


TASKS = [
    Victim(Following, "follow"),
    Victim(Following, "_watch", can_return=False),
    Victim(Backend, "follow"),
    Victim(Connection, "follow"),
    Victim(Connection, "_connect", can_return=False),
    Victim(PacedWatch, "follow"),
    Victim(HealthWatch, "follow"),
    Victim(OwnStream, "_read"),
    Victim(OrderedChecks, "check_as_ordered", doubt),
    Victim(UnconnectedWatch, "follow", rest),
]
TIMERS = [
    Victim(StateChanges, "_follow_up_now"),
    Victim(Connections, "_review_pool", lambda b, _: b.connections._review.set(0.0)),
    Victim(Idleness, "_look_at_use", lambda b, _: b.backends.idleness._look.set(0.0)),
    Victim(Slowdowns, "look", lambda b, _: b.backends.slowdowns._look.set(0.0)),
    Victim(Discovery, "_apply_empty", empty),
    Victim(Connections, "_open"),
    Victim(Discovery, "_resolved", can_return=False),
    Victim(Lifecycle, "tick", ring, can_return=False),
    Victim(
        Waking, "_wake_more", lambda b, _: b.backends.idleness.waking._patience.set(0.0)
    ),
    Victim(
        Waking, "_wake_enough", lambda b, _: b.backends.idleness.waking._more.set(0.0)
    ),
    Victim(Following, "hint", lose),
]


KEPT = {(Following, "follow"), (Backend, "follow")}  # by the channel itself


def named(victim: Victim) -> str:
    return f"{victim.owner.__name__}.{victim.method}"


def killed(
    monkeypatch: pytest.MonkeyPatch, victim: Victim, error: type[BaseException] | None
) -> list[int]:
    """The first run dies; what is returned has an entry for each run."""
    original = getattr(victim.owner, victim.method)
    runs: list[int] = []

    def die() -> None:
        if error is not None:
            raise error("nobody asked for it")

    async def dies_first(self: Any, *arguments: Any) -> Any:
        runs.append(len(runs))
        return die() if len(runs) == 1 else await original(self, *arguments)

    def rings_in_vain(self: Any, *arguments: Any) -> Any:
        runs.append(len(runs))
        return die() if len(runs) == 1 else original(self, *arguments)

    is_async = asyncio.iscoroutinefunction(original)
    replacement = dies_first if is_async else rings_in_vain
    monkeypatch.setattr(victim.owner, victim.method, replacement)
    return runs


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to wait for a second each time."""
    monkeypatch.setattr(tasks_module, "PAUSE", 0.01)


@pytest.mark.parametrize(
    ("victim", "error"),
    [
        pytest.param(victim, error, id=f"{named(victim)}-{error}")
        for victim in [*TASKS, *TIMERS]
        for error in ERRORS
        if error is not None or (victim in TASKS and victim.can_return)
    ],
)
async def test_it_lives_again_whatever_it_died_of(
    victim: Victim,
    error: type[BaseException] | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, resolver = Network(), Told()
    runs = killed(monkeypatch, victim, error)
    balancer = balancer_of(network, resolver)
    pool = balancer.pool
    monkeypatch.setattr(balancer.connections._context.pacer, "wait_turn", at_once)

    def are_well() -> bool:
        counts = pool.counts
        return counts[State.READY] + counts[State.INACTIVE] == BACKENDS

    try:
        resolver.tell(fleet(BACKENDS, 0))
        if victim.method == "_resolved":
            await until(lambda: balancer.backends.tasks.failures, "seen")
            resolver.tell(fleet(BACKENDS, 0))
        await until(
            are_well, lambda: f"{pool!r} {balancer.backends.tasks!r} {caplog.text}"
        )
        victim.poke(balancer, network)
        if victim.method == "hint":
            await until(lambda: runs and are_well(), "found lost, and back")
            network.lose_all()
        if victim.method == "tick":
            await until(lambda: balancer.backends.tasks.failures and are_well(), "seen")
            victim.poke(balancer, network)
        if victim.method == "_apply_empty":
            await until(lambda: not pool.nodes, "believed")
            resolver.tell(fleet(BACKENDS, 0))
        each_has_one = (
            Backend,
            Connection,
            PacedWatch,
            OrderedChecks,
            UnconnectedWatch,
            HealthWatch,
        )
        enough = BACKENDS if victim.owner in each_has_one else 1
        is_counted = error is not None or (victim.owner, victim.method) in KEPT
        await until(
            lambda: len(runs) > enough and are_well(),
            lambda: f"{runs} {pool!r} {balancer.backends.tasks!r} {caplog.text}",
        )
        if is_counted:
            await until(lambda: balancer.backends.tasks.failures, "counted")
            errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
            assert errors
        if error is not None:
            assert error.__name__ in caplog.text
    finally:
        await balancer.close(None)


async def at_once() -> None:
    """No turn to wait for."""


# --- the server's -------------------------------------------------------------


class Store:
    """A quota store of the user's own; it may take a cancel of its own doing for done,
    and leave its task's count above zero."""

    def __init__(
        self, error: type[BaseException], cancels_itself: bool = False
    ) -> None:
        self.error = error
        self.cancels_itself = cancels_itself
        self.asked = 0

    async def exchange(self, task: str, usage: Any) -> FleetUsage:
        self.asked += 1
        if self.cancels_itself and (current := asyncio.current_task()):
            current.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if self.asked == 1:
            raise self.error("nobody asked for it")
        return FleetUsage(2, {}, {}, 0.1)


@pytest.mark.parametrize("cancels_itself", [False, True])
@pytest.mark.parametrize("error", RAISED)
async def test_a_quota_store_is_asked_again_whatever_it_raises(
    error: type[BaseException], cancels_itself: bool
) -> None:
    store = Store(error, cancels_itself)
    config = ServerConfig(quotas={"a": 1.0}, quota_store=store)
    quotas = QuotaEnforcer(config, asyncio.get_running_loop().time)
    quotas.start()
    try:
        await until(lambda: quotas.statistics().exchanges > 0, "asked again")
        assert quotas.statistics().failures == 1
        assert quotas.tasks.failures == 0
    finally:
        quotas.stop()


@pytest.mark.parametrize("error", ERRORS, ids=str)
async def test_the_exchange_of_quotas_lives_again(
    error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = killed(monkeypatch, Victim(QuotaEnforcer, "_exchange"), error)
    config = ServerConfig(quotas={"a": 1.0}, quota_store=Store(OSError))
    server = parts(config, asyncio.get_running_loop().time)
    server.start(asyncio.get_running_loop())
    try:
        await until(lambda: len(runs) > 1, "begun again")
        assert server.statistics().task_failures == 1
    finally:
        server.stop()


@pytest.mark.parametrize("error", RAISED)
async def test_a_server_samples_on_whatever_a_sample_raised(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = killed(monkeypatch, Victim(Sampler, "sample"), error)
    server = parts(clock=asyncio.get_running_loop().time)
    server.start(asyncio.get_running_loop())
    try:
        await until(lambda: len(runs) > 2, "sampled again")
        assert server.statistics().task_failures == 1
    finally:
        server.stop()


@pytest.mark.parametrize("error", RAISED)
async def test_signals_of_the_user_may_raise_anything(
    error: type[BaseException],
) -> None:
    def fail() -> int:
        raise error("nobody asked for it")

    config = ServerConfig(utilization=fail, runnable=fail, signals={"mine": fail})
    server = parts(config, asyncio.get_running_loop().time)
    server.start(asyncio.get_running_loop())
    server.stop()
    assert server.statistics().signal_failures >= 3
    assert server.statistics().task_failures == 0


# --- one by one ---------------------------------------------------------------


async def test_a_timer_that_fails_beside_no_job_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend that drains and has lost its connection waits, perhaps for ever."""
    network, resolver = Network(), Told()
    balancer = balancer_of(network, resolver)
    monkeypatch.setattr(balancer.connections._context.pacer, "wait_turn", at_once)
    pool = balancer.pool
    try:
        resolver.tell(fleet(1, 0))
        await until(lambda: pool.counts[State.READY], lambda: repr(pool))
        (backend,) = pool.nodes.values()
        backend.drain()
        network.lose_all()
        await until(lambda: not backend.lifecycle.is_connected(), lambda: repr(backend))
        for _ in range(10):  # until `follow` has gone on
            await asyncio.sleep(0)
        monkeypatch.setattr(backend.lifecycle, "tick", lambda *_: 1 / 0)
        backend._driver._ring()
        await until(
            lambda: balancer.backends.tasks.failures, lambda: repr(backend._job)
        )
        backend.keep()
        monkeypatch.undo()
        await until(lambda: pool.counts[State.READY], lambda: repr(pool))
        assert balancer.backends.tasks.failures == 1
    finally:
        await balancer.close(None)


@pytest.mark.parametrize("error", [asyncio.CancelledError, Odd])
async def test_a_job_of_many_that_fails_keeps_no_other_from_being_done(
    error: type[BaseException],
) -> None:
    tasks, done = Tasks("test", Random(7)), list[int]()
    turns = Turns(tasks)

    def job(number: int) -> None:
        if number % 2 and tasks.failures < 50:
            raise error
        done.append(number)

    for number in range(100):
        turns.do(lambda number=number: job(number))  # type: ignore[misc]
    await until(lambda: len(done) == 100, lambda: done)
    assert sorted(done) == list(range(100))
    assert tasks.failures == 50


async def test_a_probe_that_is_cancelled_by_nobody_counts_as_no_answer() -> None:
    class Asked:
        class reported:
            is_ours = True

        class channel:
            @staticmethod
            def unary_unary(_: str) -> Callable[..., Awaitable[bytes]]:
                async def ask(_: bytes, timeout: float) -> bytes:
                    raise asyncio.CancelledError

                return ask

    class Asking:
        def __init__(self) -> None:
            self.probes: list[Any] = [Asked()]
            self.heard: list[Any] = []

        def probed(self, *what: Any) -> None:
            self.heard.append(what[1])

    picker: Any = Asking()
    probing = Probing("test", picker, asyncio.get_running_loop().time)
    probing.ask()
    await until(lambda: picker.heard, "heard")
    assert picker.heard == [None]


async def test_a_channel_that_somebody_else_closed_is_dialled_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its backend was followed no more, and begun again in vain, for ever."""
    network, resolver = Network(), Told()
    balancer = balancer_of(network, resolver)
    try:
        resolver.tell(fleet(1, 0))
        await until(lambda: balancer.pool.ready, "ready")
        [backend] = balancer.pool.ready
        await backend.channel.close()
        await until(lambda: "its channel was closed" in caplog.text, "seen")
        await until(lambda: balancer.pool.ready, "ready again")
    finally:
        await balancer.close(None)
