"""What waits before grpcio serves it: in its core, and once taken from there."""

from typing import Any

import pytest

from lbclient.server.meters.machine_speed import OF_PROCESS
from lbclient.server.overload.core_queue import (
    DEAR_DROP,
    DROP_SECONDS,
    FEW,
    CoreQueue,
)
from lbclient.server.overload.intake import (
    BEHIND,
    DROPPING,
    DROPPING_BESIDE_LONG,
    EACH_TURN,
    READY,
)

TICK = 0.1  # seconds
MEASURED = 1e-4  # seconds
IN_CORE, COME = 300, 100  # requests, and in each sample


class Core:
    drop_seconds = MEASURED

    def ask(self, take: Any, fail: Any) -> None:
        """Nothing comes."""


def delayed(held: int, in_core: int = IN_CORE, in_line: int = 0) -> float:
    """`held`: those that were taken, and that grpcio does not serve yet."""
    queue = CoreQueue()
    intake = queue.intake
    intake.was_behind = lambda: in_core > 0  # type: ignore[method-assign]
    queue.unseen.count_by(lambda: intake.taken + in_core, most=1000)

    def take() -> None:
        intake.asked += 1
        intake._take(object())

    for _ in range(held):
        take()
    for sample in range(1, 21):
        for _ in range(COME):
            take()
            intake._waiting.popleft()
        queue.sample(sample * TICK, 0, in_line=in_line)
    return queue.delay.seconds


def test_what_was_taken_and_is_not_served_yet_waits() -> None:
    assert delayed(held=0) == pytest.approx(IN_CORE / COME * TICK, rel=0.01)
    assert delayed(held=200) == pytest.approx((IN_CORE + 200) / COME * TICK, rel=0.01)


def test_a_burst_that_was_taken_waits_though_none_wait_in_the_core() -> None:
    assert delayed(held=500, in_core=0) == pytest.approx(500 / COME * TICK, rel=0.01)


def test_who_waits_for_a_handler_to_begin_waits_as_well() -> None:
    """grpcio begins several requests in a turn of the loop: a flood waits there."""
    waits = delayed(held=100, in_core=0, in_line=400)
    assert waits == pytest.approx(500 / COME * TICK, rel=0.01)


@pytest.mark.parametrize("flips", [1, 3])
def test_what_becomes_load_and_waits_again_was_not_handed_on(flips: int) -> None:
    """Handlers take about as long as from which on their line is load."""
    queue, seen = CoreQueue(), []
    queue.delay.sample = lambda *_, handed_on, **__: seen.append(handed_on)  # type: ignore
    for sample in range(1, 21):
        queue.intake.taken += COME
        queue.has_long_handlers = sample % (2 * flips) < flips
        queue.sample(sample * TICK, 0, in_line=400)
    assert set(seen[1:]) == {COME}


def test_a_few_that_were_taken_are_none_that_wait() -> None:
    assert delayed(held=FEW - 1, in_core=0) == 0.0


def test_while_it_is_limited_few_are_taken_from_the_core() -> None:
    queue = CoreQueue()
    queue.delay.sample = lambda *_, **__: None  # type: ignore[method-assign]
    queue.sample(TICK, 0)
    assert queue.intake._bounds is READY
    queue.delay.is_limited = True
    queue.sample(2 * TICK, 0)
    assert queue.intake._bounds is BEHIND
    queue.drops_by_criticality = True
    queue.sample(2 * TICK, 0)
    assert queue.intake._bounds is DROPPING
    queue.has_long_handlers = True
    queue.sample(2 * TICK, 0)
    assert queue.intake._bounds is DROPPING_BESIDE_LONG
    queue.delay.is_limited = False
    queue.sample(3 * TICK, 0)
    assert queue.intake._bounds is READY


@pytest.mark.parametrize("costs", [0.02, 0.2, 0.35, 0.8])
def test_the_dearer_it_is_to_drop_the_fewer_are_taken_to_be_dropped(
    costs: float,
) -> None:
    """Handlers that only wait: with 128 in each turn most of the loop's time went into
    that, and a tenth of the capacity was served."""
    queue = CoreQueue()
    queue.delay.sample = lambda *_, **__: None  # type: ignore[method-assign]
    queue.delay.is_limited, queue.drops_by_criticality = True, True
    queue.delay.refusing_costs = costs
    queue.sample(TICK, 0)
    dropped = queue.intake._bounds.ahead - EACH_TURN
    assert 0 < dropped <= DROPPING.ahead - EACH_TURN
    assert dropped * costs < EACH_TURN  # so most of the time is for serving
    assert dropped + 1 > EACH_TURN * (DEAR_DROP / costs) ** 2 or dropped > 100


def test_what_a_drop_takes_is_measured_where_it_can_be() -> None:
    queue, costs = CoreQueue(), []

    def sample(*_: object, refusal_cpu: float, **__: object) -> None:
        costs.append(refusal_cpu)

    queue.delay.sample = sample  # type: ignore[assignment, method-assign]
    queue.drops_by_criticality = True
    queue.sample(TICK, 0)
    queue.intake.take_from(Core())
    queue.sample(2 * TICK, 0)
    assert costs == [pytest.approx(DROP_SECONDS / OF_PROCESS.factor), MEASURED]


def test_what_the_core_ended_in_a_flood_refuses_nobody_after_it() -> None:
    """As if it waited, beside requests that have been asked for and do not come."""
    queue = CoreQueue()
    intake, in_core = queue.intake, 0
    is_behind = True
    intake.was_behind = lambda: is_behind  # type: ignore[method-assign]
    queue.unseen.count_by(lambda: intake.taken + in_core, most=1000)
    intake.asked = DROPPING.ahead
    for sample in range(1, 51):
        in_core = min(500, in_core + 100)
        is_behind = sample < 10
        intake.taken += 20
        queue.sample(sample * TICK, 0, is_prompt=True)
        if sample == 9:
            assert queue.delay.is_limited
    assert queue.delay.seconds == 0.0
    assert not queue.delay.is_limited
