"""After a partition new connections are made as soon as they work."""

import pytest

from benchmarks.faults.healed import healed
from tests import needs

SECONDS = 3.0


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_calls_are_answered_soon_after_a_partition(kind: str) -> None:
    with needs.namespaces():
        row = await healed(kind, SECONDS)
    assert row.holds, row
