"""What sharing out by criticality must keep to, whatever is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.criticality import Criticality, shares

amounts = st.floats(0.0, 1e6)
fours = st.lists(amounts, min_size=len(Criticality), max_size=len(Criticality))
rooms = fours.map(sorted)


@given(rooms, fours)
def test_one_that_gets_less_than_all_leaves_nothing_to_those_below(
    room: list[float], demand: list[float]
) -> None:
    got = shares(room, demand)
    for c in Criticality:
        assert 0.0 <= got[c] <= 1.0
        if got[c] < 1.0:
            assert not any(got[:c])


@given(rooms, fours)
def test_no_more_gets_in_than_there_is_room(
    room: list[float], demand: list[float]
) -> None:
    got = shares(room, demand)
    for c in Criticality:
        inside = sum(got[i] * demand[i] for i in range(c, len(demand)))
        if got[c] > 0.0:
            assert inside <= room[c] + 1e-6


@given(rooms, fours)
def test_room_is_left_only_where_all_that_is_wanted_gets_in(
    room: list[float], demand: list[float]
) -> None:
    """At the lowest of those that may come at all, to within rounding."""
    got = shares(room, demand)
    for c in Criticality:
        if 0.0 < got[c] < 1.0:
            inside = sum(got[i] * demand[i] for i in range(c, len(demand)))
            assert inside >= room[c] - 1e-6


@given(fours)
def test_with_room_for_all_nobody_is_refused(demand: list[float]) -> None:
    assert shares([sum(demand) + 1.0] * len(demand), demand) == [1.0] * len(demand)
