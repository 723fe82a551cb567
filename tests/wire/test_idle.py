"""The idle benchmark, tiny: what it finds of backends that are inactive."""

import pytest

from benchmarks import idle
from benchmarks.overhead import spawned

BACKENDS = 3


@pytest.mark.parametrize("is_traced", [False, True])
async def test_inactive_backends_have_no_connection_and_are_called_again(
    is_traced: bool,
) -> None:
    plan = idle.Plan(is_traced=is_traced, idle_after=0.4, stretches=2, stretch=0.2)
    async with spawned("lbclient", BACKENDS) as ports:
        found = await idle.client(ports, plan)
    assert found.states == {"inactive": BACKENDS}
    assert found.connections == 0
    assert len(found.cpu) == len(found.probes) == plan.stretches
    assert all(share > 0 for share in found.cpu)
    assert (found.traced is not None) == is_traced
