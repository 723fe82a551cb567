"""One address for three tasks that are restarted one by one: the short form."""

from collections import Counter

import pytest

from benchmarks.faults.fronted import Seen, roll, roll_stock
from benchmarks.faults.goaway import is_no_worse, lost_of
from tests import needs

ROUNDS = 3


@pytest.mark.parametrize("routed", [True, False], ids=["health", "no health"])
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_an_address_of_several_tasks_is_not_out_with_one(
    kind: str, routed: bool
) -> None:
    """Calls that cross GOAWAY are lost by chance, hence the further rounds, which add
    their losses to those of the rounds before.
    """
    needs.program(kind)
    ours, theirs = Counter[str](), Counter[str]()
    for _ in range(ROUNDS):
        seen = await roll(kind, routed, 1.0)
        assert_fronted(seen)
        ours += seen.ours.by_ending()
        theirs += (await roll_stock(kind, 1.0)).by_ending()
        if is_no_worse(ours, theirs):
            return
    raise AssertionError((lost_of(ours), lost_of(theirs)))


def assert_fronted(seen: Seen) -> None:
    assert seen.fronts >= 2
    lame_duck = [state for state in seen.states if not state.startswith("ready")]
    # A task takes a second to restart; on a busy machine all takes longer.
    assert seen.out < max(1.0, seen.restarting / 3), (seen, lame_duck)
    assert seen.least_share > 0.1, "every task gets calls again"
