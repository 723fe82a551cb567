"""The attempts that a server counts, our channels' and gRPC's own."""

import pytest

from lbclient import wire
from lbclient.core.counting.tally import STEP
from lbclient.core.retries.attempt_histogram import (
    LAST,
    MEMORY,
    AttemptHistogram,
    StockAttempt,
)
from lbclient.server.overload.metadata import RequestMetadata

OWN, STOCK = wire.ATTEMPT_KEY, wire.STOCK_ATTEMPT_KEY


@pytest.mark.parametrize(
    ("metadata", "attempt"),
    [
        ([], 0),
        ([(OWN, "1")], 1),
        ([(STOCK, "1")], 1),
        ([(OWN, "2"), (STOCK, "1")], 2),
        ([(OWN, "1"), (STOCK, "2")], 2),
        ([(STOCK, "3"), (OWN, "1")], 3),
    ],
)
def test_of_two_numbers_of_an_attempt_the_larger_counts(
    metadata: list[tuple[str, str]], attempt: int
) -> None:
    _, found, *_ = RequestMetadata().take(metadata)
    assert found == attempt
    is_stock = dict(metadata).get(STOCK) == str(attempt)
    assert isinstance(found, StockAttempt) is is_stock


def test_what_is_no_attempt_counts_as_a_first_and_as_misread() -> None:
    metadata = RequestMetadata()
    for value in ("-1", "many", "100", ""):
        assert metadata.take([(STOCK, value)])[1] == 0
    assert metadata.misread[STOCK] == 4


def fill(first: int, own: int = 0, stock: int = 0) -> AttemptHistogram:
    histogram = AttemptHistogram()
    for _ in range(STEP):
        histogram.add_first(first)
        for _ in range(own):
            histogram.add(1)
        for _ in range(stock):
            histogram.add(StockAttempt(1))
    return histogram


@pytest.mark.parametrize(
    ("own", "stock", "is_in_vain"),
    [
        (9, 0, True),
        (5, 0, False),
        # One task of eight that refuses all: an eighth of them, and of those again.
        (0, 12, False),
        (0, 20, True),
        (5, 6, True),
    ],
)
def test_a_stock_clients_retry_counts_half_as_it_has_no_budget(
    own: int, stock: int, is_in_vain: bool
) -> None:
    assert fill(first=100, own=own, stock=stock).is_in_vain() is is_in_vain


@pytest.mark.parametrize(
    ("attempt", "share", "is_in_vain"),
    [
        (99, 0.06, False),
        (99, 0.07, True),
        (StockAttempt(99), 0.12, False),
        (StockAttempt(99), 0.14, True),
    ],
)
def test_a_client_that_lies_about_attempts_counts_by_its_share_of_requests(
    attempt: int, share: float, is_in_vain: bool
) -> None:
    """And is forgotten with its last requests."""
    histogram, lies = AttemptHistogram(), 0
    for number in range(1, 4 * MEMORY):
        is_lie = lies < share * number
        lies += is_lie
        histogram.add(attempt if is_lie else 0)
    assert histogram.is_in_vain() is is_in_vain
    for _ in range(MEMORY):
        histogram.add(0)
    assert not histogram.is_in_vain()


def test_the_histogram_has_all_attempts_and_the_recent_shares() -> None:
    histogram = fill(first=90, own=5, stock=5)
    histogram.add(StockAttempt(4))
    assert histogram.counts == [90 * STEP, 10 * STEP, 1]
    assert histogram.requests == 100 * STEP + 1
    assert histogram.retries == 10 * STEP + 1
    assert histogram.shares() == pytest.approx([0.9, 0.1, 0.0], abs=0.01)
    assert sum(histogram.shares()) == pytest.approx(1.0)


def test_a_number_beyond_the_last_counts_as_the_last() -> None:
    histogram = AttemptHistogram()
    for attempt in (LAST, LAST + 1, StockAttempt(10**100)):
        histogram.add(attempt)
    histogram.add(-1)
    assert histogram.counts == [1, 0, 3]


def test_before_there_is_a_retry_its_share_is_none() -> None:
    """A server that had just begun showed a third of each."""
    histogram = AttemptHistogram()
    assert histogram.shares() == [1.0, 0.0, 0.0]
    histogram.add_first(100)
    assert histogram.shares() == [1.0, 0.0, 0.0]
