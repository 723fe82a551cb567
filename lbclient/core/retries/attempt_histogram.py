"""Histogram of the attempt numbers that requests carry: do other servers refuse, too?

A client sends the number of the attempt with each retry: our channels in
`lbclient-attempt`, gRPC's own `retryPolicy` in `grpc-previous-rpc-attempts` (gRFC A6).
A server that sees many retries is not the only one that refuses. SRE book, ch. 21,
"Deciding to Retry". Unlike the book's, a retry of our channels goes to a server that
has not refused the request, so all that arrive were refused by others; but for hedges,
which carry a number, too, and are 2 % of the requests at most by default.

A client may lie. Each of its requests counts once, whatever its number, and all that is
concluded is what refused clients are told: it harms others by its share of requests.
"""

from lbclient.core.counting.tally import Tally
from lbclient.core.retries.retry import ATTEMPTS

LAST = ATTEMPTS - 1  # attempt, from 0
MEMORY = 4000  # requests: enough to tell 5 % retries from 9 %

# At a larger share of retries the others refuse, too: 9 % are retries where all refuse,
# as clients have no more than 10 % to spend, and 5 % where one of twenty refuses all.
IN_VAIN = 0.065
TOO_FEW = 30  # retries, whose share may be chance

# A stock client's retry counts half: it has no budget of its own. Where one task of
# eight refuses all, and lets stock clients retry, 11 % of all requests are retries.
STOCK_WEIGHT = 0.5


class StockAttempt(int):
    """The number of an attempt that gRPC's own retry has counted."""

    __slots__ = ()


class AttemptHistogram:
    """Counts requests by their attempt number. Owned by a server's admission. Attempts
    are numbered from 0; the last number stands for itself and all beyond."""

    def __init__(self) -> None:
        self.counts = [0] * ATTEMPTS  # of all requests so far
        # The first attempts, then our channels' retries, then stock clients'.
        self._recent = Tally(ATTEMPTS + LAST, MEMORY)
        self._recent.counts[1:] = [0.0] * (2 * LAST)  # none until one has come
        self._out_of_quota = 0

    def add(self, attempt: int) -> None:
        """A request has come. A number below 0 counts as 0."""
        if attempt <= 0:  # as almost always
            self.counts[0] += 1
            self._recent.add(0)
            return
        number = min(attempt, LAST)
        self.counts[number] += 1
        is_stock = isinstance(attempt, StockAttempt)
        self._recent.add(number + LAST if is_stock else number)

    def add_out_of_quota(self, attempt: int) -> None:
        """A request has come and was refused for its customer's quota.

        Nobody retries it, so it is in `counts` alone: one customer's flood would hide
        the share of retries among all others, and pay for retries.
        """
        self.counts[max(0, min(attempt, LAST))] += 1
        self._out_of_quota += 1

    def add_first(self, requests: int) -> None:
        """What so many calls of `add(0)` come to, at the cost of one."""
        self.counts[0] += requests
        self._recent.add_many(0, requests)

    @property
    def requests(self) -> int:
        """Without those that were refused for a quota."""
        return sum(self.counts) - self._out_of_quota

    @property
    def retries(self) -> int:
        return sum(self.counts[1:])

    def shares(self) -> list[float]:
        """The share of each attempt number among the last requests."""
        counts = self._recent.counts
        own, stock = counts[1:ATTEMPTS], counts[ATTEMPTS:]
        retries = [sum(pair) for pair in zip(own, stock, strict=True)]
        return [count / sum(counts) for count in (counts[0], *retries)]

    def is_in_vain(self) -> bool:
        """Whether other tasks are likely to refuse: if many attempts are retries."""
        counts = self._recent.counts
        retries = sum(counts[1:ATTEMPTS]) + STOCK_WEIGHT * sum(counts[ATTEMPTS:])
        return retries >= TOO_FEW and retries > IN_VAIN * sum(counts)

    def __repr__(self) -> str:
        told = ", ".join(f"{share:.1%}" for share in self.shares())
        return f"<attempts of {self.requests} requests, lately {told}>"
