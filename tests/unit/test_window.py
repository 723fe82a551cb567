"""What a window counts, and when it lets go."""

from lbclient.core.counting.window import BUCKETS, Window


def test_what_happened_is_counted_each_for_itself() -> None:
    window = Window(60.0, 2)
    window.add(0, 1.0)
    window.add(1, 1.5)
    window.add(1, 1.5)
    assert window.totals == [1, 2]


def test_a_count_lives_for_the_span_less_one_bucket_at_least() -> None:
    window = Window(60.0, 1)
    window.add(0, 0.0)
    assert window.read(60.0 - 60.0 / BUCKETS) == [1]
    assert window.read(60.0) == [0]


def test_buckets_end_when_they_would_have_without_news() -> None:
    """Else each pause would make the window longer."""
    window = Window(60.0, 1)
    width = 60.0 / BUCKETS
    window.add(0, 0.0)
    for i in range(1, BUCKETS // 2 + 1):
        window.turn(1.9 * i * width)
    window.turn(60.0)
    assert window.totals == [0]


def test_reading_changes_nothing() -> None:
    window = Window(60.0, 1)
    window.add(0, 0.0)
    assert window.read(1e9) == [0]
    assert window.read(0.0) == window.totals == [1]


def test_a_window_is_brought_up_to_date_where_somebody_asks() -> None:
    window = Window(60.0, 1)
    window.add(0, 0.0)
    assert window.ends_at == 60.0 / BUCKETS
    window.turn(61.0)
    assert window.totals == [0]


def test_after_a_long_silence_counting_starts_anew() -> None:
    window = Window(60.0, 1)
    window.add(0, 0.0)
    window.add(0, 1e12)
    assert window.totals == [1]
    window.add(0, 1e12 + 30.0)
    assert window.totals == [2]


def test_time_that_goes_back_stands_still() -> None:
    window = Window(60.0, 1)
    window.add(0, 100.0)
    window.add(0, 1.0)
    assert window.totals == window.read(0.0) == [2]


def test_what_is_cleared_does_not_come_back_as_a_negative_count() -> None:
    window = Window(60.0, 1)
    window.add(0, 0.0)
    window.clear()
    window.turn(100.0)
    assert window.totals == [0]


def test_a_window_reads_as_english() -> None:
    window = Window(60.0, 2)
    window.add(1, 0.0)
    assert repr(window) == "<[0, 1] in 60 s>"
