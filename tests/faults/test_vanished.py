"""A draining backend is watched until its last call is over."""

import pytest

from benchmarks.faults.network import NoNetworkError
from benchmarks.faults.vanished import vanished

SECONDS = 2.0


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_calls_on_a_drained_machine_that_vanished_end(kind: str) -> None:
    try:
        row = await vanished(kind, SECONDS)
    except NoNetworkError as error:
        pytest.skip(str(error))
    assert row.holds, row
