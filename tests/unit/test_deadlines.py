"""How much time requests have: what a server lets them wait follows from it."""

import pytest

from lbclient.core.overload.deadlines import ASSUMED, MEMORY, Deadlines


def seen(*times: float | None) -> Deadlines:
    deadlines = Deadlines()
    for time in times:
        deadlines.observe(time)
    return deadlines


def test_a_second_is_assumed_until_one_is_known() -> None:
    assert seen().typical == ASSUMED
    assert seen(0.05).typical == pytest.approx(0.05)


def test_an_hour_does_not_make_a_second_longer_than_two() -> None:
    assert seen(3600.0, 1.0).typical == pytest.approx(2.0, rel=0.001)


def test_a_flood_of_short_deadlines_is_forgotten_where_none_has_one() -> None:
    flood = [0.05] * 1000
    assert seen(*flood).typical == pytest.approx(0.05)
    after = [None] * 10 * MEMORY
    assert seen(*flood, *after).typical == pytest.approx(ASSUMED, rel=0.01)


def test_a_few_short_deadlines_do_not_decide_for_those_that_have_none() -> None:
    one_of_twenty = ([0.05] + [None] * 19) * 50
    assert seen(*one_of_twenty).typical > ASSUMED / 4


def test_what_had_no_time_when_it_came_tells_nothing() -> None:
    assert seen(5.0, 0.0, -1.0).typical == pytest.approx(5.0)
