"""What counting over a window must keep to, whenever things happen."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.counting.window import Window

spans = st.floats(0.1, 1e4)
gaps = st.floats(0.0, 3.0)  # of a span
events = st.lists(st.tuples(gaps, st.integers(0, 2)), min_size=1, max_size=60)


@given(spans, st.integers(2, 10), events, gaps)
def test_it_counts_what_is_younger_than_the_span_less_a_bucket_and_none_older(
    span: float, buckets: int, events: list[tuple[float, int]], later: float
) -> None:
    """An event a rounding's breadth from either bound may be on either side of it."""
    window = Window(span, 3, buckets)
    times = list(accumulate(gap * span for gap, _ in events))
    for at, (_, which) in zip(times, events, strict=True):
        window.add(which, at)
    now = times[-1] + later * span
    seen = window.read(now)
    slack = 1e-9 * now
    for which in range(3):
        ages = [now - at for at, e in zip(times, events, strict=True) if e[1] == which]
        young = sum(age < span - span / buckets - slack for age in ages)
        assert young <= seen[which] <= sum(age <= span + slack for age in ages)


@given(spans, events, gaps)
def test_reading_says_what_turning_makes_of_the_totals(
    span: float, events: list[tuple[float, int]], later: float
) -> None:
    window = Window(span, 3)
    now = 0.0
    for gap, which in events:
        now += gap * span
        window.add(which, now)
    now += later * span
    seen = window.read(now)
    if now >= window.ends_at:
        window.turn(now)
    assert window.totals == seen
