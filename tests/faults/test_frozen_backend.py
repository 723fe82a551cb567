"""A backend that freezes, and the calls without deadline that it had."""

from benchmarks.faults import frozen_backend


async def test_every_call_ends_as_an_error_that_says_why() -> None:
    """Every way there is: see `benchmarks.faults.frozen_backend`."""
    rows = await frozen_backend.run(1.0)
    assert all(row.holds for row in rows), rows
    *ways, again = rows
    for row in ways:
        assert row.ours.failed == row.ours.calls > 0
    control = ways[0].theirs
    assert control is not None
    assert control.said == "4 still waiting"
    assert "2 retries" in again.ours.said
