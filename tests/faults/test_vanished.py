"""A draining backend is watched until its last call is over."""

import pytest

from benchmarks.faults.vanished import vanished
from tests import needs

SECONDS = 2.0


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_calls_on_a_drained_machine_that_vanished_end(kind: str) -> None:
    with needs.namespaces():
        row = await vanished(kind, SECONDS)
    assert row.holds, row
