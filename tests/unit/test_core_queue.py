"""What waits before grpcio serves it: in its core, and once taken from there."""

import pytest

from lbclient.server.overload.core_queue import FEW, CoreQueue
from lbclient.server.overload.intake import (
    BEHIND,
    DROPPING,
    DROPPING_BESIDE_LONG,
    READY,
)

TICK = 0.1  # seconds
IN_CORE, COME = 300, 100  # requests, and in each sample


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
        queue.beside_long = sample % (2 * flips) < flips
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
    queue.chooses = True
    queue.sample(2 * TICK, 0)
    assert queue.intake._bounds is DROPPING
    queue.beside_long = True
    queue.sample(2 * TICK, 0)
    assert queue.intake._bounds is DROPPING_BESIDE_LONG
    queue.delay.is_core_enough = True
    queue.sample(2 * TICK, 0)
    assert queue.intake._bounds is BEHIND
    queue.delay.is_limited = False
    queue.sample(3 * TICK, 0)
    assert queue.intake._bounds is READY


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
