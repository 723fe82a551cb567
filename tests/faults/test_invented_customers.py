"""Names that somebody invents cost the real customers nothing, by real processes."""

from benchmarks.faults import invented_customers


async def test_no_real_customer_is_refused_for_invented_ones() -> None:
    """It was about a third of what new customers sent in these four seconds."""
    calm, greedy = await invented_customers.run(4.0)
    assert calm.holds, calm
    assert calm.ours.calls > 200
    assert calm.theirs is not None
    assert calm.theirs.failed == 0, "so many can be served"
    assert greedy.holds, greedy
