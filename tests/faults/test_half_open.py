"""Half-open connections cost the calls in flight and a few more, not a stream."""

import pytest

from benchmarks.faults.half_open import COUNT, half_open

SECONDS = 2.0


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_one_half_open_backend_costs_few_calls(kind: str) -> None:
    row = await half_open(kind, 1, SECONDS)
    assert row.holds, row


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_half_open_connections_to_all_are_replaced(kind: str) -> None:
    """Plain grpc.aio stays as it is until TCP gives up, after some 15 min."""
    row = await half_open(kind, COUNT, SECONDS)
    assert row.holds, row
    assert row.theirs is not None
    assert row.theirs.failed == row.theirs.calls, "the fault is none"
