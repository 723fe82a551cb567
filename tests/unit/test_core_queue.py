"""What waits before grpcio serves it: in its core, and once taken from there."""

import pytest

from lbclient.server.overload.core_queue import CoreQueue

TICK = 0.1  # seconds
IN_CORE, COME = 300, 100  # requests, and in each sample


def delayed(held: int) -> float:
    """`held`: those that were taken, and that grpcio does not serve yet."""
    queue = CoreQueue()
    intake = queue.intake
    intake.was_behind = lambda: True  # type: ignore[method-assign]
    queue.unseen.count_by(lambda: intake.taken + IN_CORE, most=1000)
    for _ in range(held):
        intake._take(object())
    for sample in range(1, 21):
        for _ in range(COME):
            intake._take(object())
            intake._waiting.popleft()
        queue.sample(sample * TICK, 0)
    return queue.delay.seconds


def test_what_was_taken_and_is_not_served_yet_waits() -> None:
    assert delayed(held=0) == pytest.approx(IN_CORE / COME * TICK, rel=0.01)
    assert delayed(held=200) == pytest.approx((IN_CORE + 200) / COME * TICK, rel=0.01)
