"""One address for three tasks that are restarted one by one: the short form."""

import pytest

from benchmarks.faults.fronted import lost_by_us, roll
from tests import needs


@pytest.mark.parametrize("routed", [True, False], ids=["health", "no health"])
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_an_address_of_several_tasks_is_not_out_with_one(
    kind: str, routed: bool
) -> None:
    needs.program(kind)
    seen = await roll(kind, routed, 1.0)
    assert not lost_by_us(seen), seen.ours.failed()
    assert seen.fronts >= 2
    lame_duck = [state for state in seen.states if not state.startswith("ready")]
    assert seen.out < 1.0, (seen.out, lame_duck)
    assert seen.least_share > 0.1, "every task gets calls again"
