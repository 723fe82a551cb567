"""Who waits for a backend, who is next, and who has nothing to wait for."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from lbclient.client.pending import Pending
from lbclient.config import ChannelConfig
from lbclient.core.backends.pool import Limits, Pool
from lbclient.core.criticality import Criticality
from lbclient.core.model import Endpoint, State
from lbclient.testing import FakeNode
from lbclient.wire.local_errors import BackendsFull, LocalRpcError, NoBackend

CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE
PLUS, SHEDDABLE_PLUS = Criticality.CRITICAL_PLUS, Criticality.SHEDDABLE_PLUS


class Call:
    """A call without a backend, of a method of its own."""

    hints = None

    def __init__(
        self, criticality: Criticality = CRITICAL, wait_for_ready: bool = False
    ) -> None:
        self.criticality = criticality
        self.wait_for_ready = wait_for_ready
        self.counts: dict[int, int] = {}
        self.backend: Any = None
        self.error: LocalRpcError | None = None
        self.then: Callable[[], None] = lambda: None

    def start(self, backend: Any, now: float) -> None:
        self.backend = backend

    def fail(self, error: LocalRpcError) -> None:
        self.error = error
        self.then()

    def cancel(self) -> bool:
        return True


class Ejecting:
    """Of these methods nobody is allowed."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    @property
    def count(self) -> int:
        return len(self.calls)

    def allowed(self, key: int) -> tuple[str, ...]:
        return () if key in [id(one.counts) for one in self.calls] else ("one",)


class Waking:
    def __init__(self) -> None:
        self.waking: list[str] = []
        self.asked = 0

    def wake_for(self, pending: object) -> None:
        self.asked += 1


class Waits:
    """A queue, and all that it looks at; `choose` says who has which backend."""

    def __init__(self, count: int = 1, **settings: Any) -> None:
        self.pool: Pool[Any] = Pool(
            lambda endpoint: FakeNode(endpoint, State.CONNECTING),
            lambda members: members,
            Limits(max(count, 1), 1, 1.0, 10.0, 0),
        )
        endpoints = tuple(Endpoint(f"b{number}:1") for number in range(count))
        self.nodes: tuple[Any, ...] = self.pool.reconcile(endpoints, 0.0).opened
        for node in self.nodes:
            node.condition = type("Condition", (), {"reason": "connecting"})
        self.outliers = cast(Any, Ejecting())
        self.waking = cast(Any, Waking())
        self.trouble = ""
        self.choose: Callable[[], Any] = lambda: next(iter(self.pool.ready), None)
        self.pending = Pending(
            self.pool,
            self.outliers,
            ChannelConfig(**settings),
            self.waking,
            lambda: 0.0,
            lambda now, counts, hints: self.choose(),
            lambda: self.trouble,
        )

    def enter(self, state: State, *numbers: int) -> None:
        for number in numbers:
            self.pool.observe(self.nodes[number], state, 0.0)

    def join(self, *calls: Call) -> None:
        for call in calls:
            self.pending.join(call)


def test_the_most_critical_is_next_and_of_equals_the_first() -> None:
    waits, calls = Waits(), [Call(SHEDDABLE), Call(), Call(), Call(PLUS)]
    waits.join(*calls)
    order: list[Call] = []
    waits.choose = lambda: order.append(waits.pending._next()) or "backend"  # type: ignore[func-returns-value, arg-type]
    waits.enter(State.READY, 0)
    waits.pending.serve()
    assert order == [calls[3], calls[1], calls[2], calls[0]]
    assert not len(waits.pending)


def test_a_call_whose_backends_are_ejected_is_passed_by() -> None:
    waits, first, second = Waits(), Call(), Call()
    waits.join(first, second)
    waits.enter(State.READY, 0)
    waits.outliers.calls = [first]
    assert waits.pending.has_ready()
    waits.pending.serve()
    assert (first.backend, second.backend) == (None, waits.nodes[0])
    assert not waits.pending.has_ready()
    waits.outliers.calls = []
    assert waits.pending.has_ready()
    waits.enter(State.CONNECTING, 0)
    assert not waits.pending.has_ready()


def test_where_no_backend_is_chosen_all_wait_on() -> None:
    waits, call = Waits(), Call()
    waits.join(call)
    waits.enter(State.READY, 0)
    waits.choose = lambda: None
    waits.pending.serve()
    assert list(waits.pending.waiters) == [call]
    assert call.error is None


def test_who_left_while_a_backend_was_chosen_is_not_started() -> None:
    waits, call, other = Waits(), Call(), Call()
    waits.join(call, other)
    waits.enter(State.READY, 0)

    def choose() -> str:
        waits.pending.leave(call)
        return "backend"

    waits.choose = choose
    waits.pending.serve()
    assert (call.backend, other.backend) == (None, "backend")


def test_where_the_queue_is_full_the_least_critical_one_that_came_last_gives_way() -> (
    None
):
    waits = Waits(max_waiting=3)
    calls = [Call(SHEDDABLE_PLUS), Call(SHEDDABLE_PLUS), Call()]
    waits.join(*calls)
    late = Call(SHEDDABLE)
    waits.join(late)
    assert isinstance(late.error, BackendsFull)
    assert "3 calls wait already" in str(late.error)
    critical = Call()
    calls[1].then = lambda: waits.join(Call(PLUS, wait_for_ready=True))
    waits.join(critical)
    assert isinstance(calls[1].error, BackendsFull)
    assert critical in waits.pending.waiters
    assert isinstance(calls[0].error, BackendsFull), "whoever hears of it calls again"


def test_who_has_nothing_to_wait_for_is_told_why() -> None:
    waits, call, patient = Waits(2), Call(), Call(wait_for_ready=True)
    waits.join(call, patient)
    waits.enter(State.REFUSING, 0, 1)
    waits.pending.dismiss_hopeless()
    assert isinstance(call.error, NoBackend)
    assert "(as b0:1: connecting)" in str(call.error)
    assert list(waits.pending.waiters) == [patient]
    nobody, late = Waits(0), Call()
    nobody.join(late)
    assert late.error is None, "the resolver's first answer may still come"
    nobody.trouble = "no endpoints"
    nobody.pending.dismiss_hopeless()
    assert isinstance(late.error, NoBackend)
    assert "no endpoints (0 of 0" in str(late.error)


def test_who_leaves_as_another_is_dismissed_does_not_fail() -> None:
    waits, first, second = Waits(), Call(), Call()
    waits.join(first, second)
    first.then = lambda: waits.pending.leave(second)
    waits.enter(State.REFUSING, 0)
    waits.pending.dismiss_hopeless()
    assert first.error is not None
    assert second.error is None


def test_backends_are_woken_for_calls_alone() -> None:
    waits = Waits()
    waits.pending.dismiss_hopeless()
    assert waits.waking.asked == 0
    waits.join(Call())
    waits.pending.dismiss_hopeless()
    assert waits.waking.asked == 2


@pytest.mark.parametrize("other", [None, State.INACTIVE, "waking"])
def test_where_all_are_full_a_call_fails_if_it_must_not_wait(other: Any) -> None:
    waits, call = Waits(2, when_full="fail"), Call()
    waits.enter(State.READY, 0)
    waits.nodes[0].load.begin()
    if other == "waking":
        waits.waking.waking = ["b1:1"]
    elif other is not None:
        waits.enter(other, 1)
    waits.join(call)
    assert isinstance(call.error, BackendsFull) is (other is None)


def test_one_that_is_ready_for_others_lets_nobody_fail() -> None:
    waits, call = Waits(2, when_full="fail"), Call()
    waits.enter(State.READY, 1)
    waits.join(call)
    waits.outliers.calls = [call]
    waits.enter(State.READY, 0)
    waits.nodes[0].load.begin()
    waits.pending.serve()
    assert call.error is None
