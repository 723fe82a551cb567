"""How busy a loop is, with a selector that takes as long as a test says."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbclient.server.meters.event_loop import LoopMeter


class Selector:
    """Each `select` that may wait takes its whole timeout."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[float | None] = []

    def select(self, timeout: float | None = None) -> str:
        self.asked.append(timeout)
        self.now += max(0.0, timeout or 0.0)
        return "events"


class FixedSelector(Selector):
    """As one in C: an attribute of it cannot be replaced."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "select":
            raise AttributeError(name)
        super().__setattr__(name, value)


def watching(selector: Selector) -> LoopMeter:
    meter = LoopMeter(lambda: selector.now)
    meter.watch(cast(Any, SimpleNamespace(_selector=selector)))
    return meter


def test_what_is_not_spent_in_select_is_busy() -> None:
    selector = Selector()
    meter = watching(selector)
    assert selector.select(3.0) == "events"
    selector.now += 1.0
    assert meter.read() == pytest.approx(0.25)
    selector.now += 1.0
    assert meter.read() == pytest.approx(1.0)
    selector.select(0.5)
    assert meter.read() == pytest.approx(0.0)
    assert meter.read() is None  # no time has passed
    assert selector.asked == [3.0, 0.5]


def test_servers_of_one_loop_share_a_timer_and_the_last_one_removes_it() -> None:
    selector = Selector()
    first, second = watching(selector), watching(selector)
    first.watch(cast(Any, SimpleNamespace(_selector=selector)))  # as at each sample
    selector.select(1.0)
    selector.now += 1.0
    assert first.read() == second.read() == pytest.approx(0.5)
    first.ignore()
    first.ignore()
    assert first.read() is None
    selector.select(1.0)
    assert second.read() == pytest.approx(0.0)
    assert repr(second) == "<of <1 servers, 2.000 s idle>>"
    second.ignore()
    assert "select" not in vars(selector)


def test_what_others_have_put_in_the_place_of_select_stays() -> None:
    selector = Selector()
    others: Any = lambda timeout=None: "theirs"  # noqa: E731
    selector.select = others  # type: ignore[method-assign]
    meter = watching(selector)
    assert selector.select(1.0) == "theirs"
    meter.ignore()
    assert selector.select is others

    meter = watching(selector)
    ours = selector.select
    later: Any = lambda timeout=None: ours(timeout)  # noqa: E731
    selector.select = later  # type: ignore[method-assign]
    meter.ignore()
    assert selector.select is later
    assert selector.select(1.0) == "theirs"


@pytest.mark.parametrize("selector", [None, 7, FixedSelector()])
def test_of_a_loop_of_another_kind_it_is_unknown(selector: Any) -> None:
    meter = LoopMeter(lambda: 0.0)
    meter.watch(cast(Any, SimpleNamespace(_selector=selector)))
    assert meter.read() is None
    meter.watch(cast(Any, SimpleNamespace()))
    assert meter.read() is None
    meter.ignore()


def test_who_asks_at_once_learns_nothing() -> None:
    """Nothing was waited for yet, and the loop would look full."""
    selector = Selector()
    meter = watching(selector)
    selector.now += 1e-4
    assert meter.read() is None
    selector.now += 0.5
    assert meter.read() == 1.0
