"""One customer's flood beyond its limit, beside another one, by real processes."""

from benchmarks.faults import quota_flood


async def test_who_is_within_its_limit_is_answered_beside_a_flood() -> None:
    """It was half of the calls, and the others ended as CANCELLED."""
    calm, flood = await quota_flood.ours_flooded(1.0)
    assert calm.total() > 25
    assert quota_flood.holds(calm, flood), (calm, flood)
