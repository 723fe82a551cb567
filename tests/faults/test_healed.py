"""After a partition new connections are made as soon as they work."""

import pytest

from benchmarks.faults.healed import healed
from benchmarks.faults.network import NoNetworkError
from tests import needs

SECONDS = 3.0


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_calls_are_answered_soon_after_a_partition(kind: str) -> None:
    needs.program("ip")
    try:
        row = await healed(kind, SECONDS)
    except NoNetworkError as error:
        needs.skip(str(error))
    assert row.holds, row
