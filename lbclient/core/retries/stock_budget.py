"""A retry budget for stock gRPC clients, which the server that refuses them keeps.

gRPC's `retryPolicy` has no budget: of eight tasks that refuse everything it makes three
times the load. Our channels obey the word of a refusal and keep their own budget; stock
clients obey `grpc-retry-pushback-ms`, so with it a server grants their retries, or not.

A tenth of the requests, as for our channels, is far too little for a task that refuses
much while all others have room. Such a task sees it: of the retries that it grants few
come back. Where n of N tasks refuse, about n / N of them do, and all where all refuse.
While few come back it grants more, in the end every one. SRE book, ch. 21, "Handling
Overload Errors": retry at once if a small subset is overloaded, not if a large one is.

The share of retries alone cannot say this. A client that calls in turn may bring all
its first attempts to one task and all its retries to the next, which each see only half
of what happens.
"""

from math import inf

from lbclient.core.retries.retry import RATIO

# Retries granted at once. Ours: half a client's, as a server of ours has many clients.
BURST = 5.0
# Granted in one round, at least, before it is judged. Ours: where all come back, no
# more than a quarter of 16 do by chance in one of 2,500 rounds.
ROUND = 16
ROUND_LASTS = 2.0  # seconds, at least: a client waits before it retries
COME_BACK = 0.25  # of those granted; at most, or the others refuse, too
GROWTH = 3.0  # factor from one round to the next: from 0.1 to 1.0 in three
FORGETS = 60.0  # seconds without a refusal


class StockBudget:
    """Grants or withholds retries of stock gRPC clients. Owned by the gate; `withdraw`
    is called in any thread.

    `ratio`: retries granted for each request. `withheld`: refusals that granted no
    retry.
    """

    def __init__(self) -> None:
        self.ratio = RATIO
        self.withheld = 0
        self._balance = BURST
        self._requests = 0  # as of the last refusal
        self._retries = 0  # when the round began
        self._granted = 0  # since then
        self._began_at = self._asked_at = -inf

    def withdraw(self, requests: int, retries: int, now: float) -> bool:
        """Whether a request that is refused may be sent again.

        `requests` have come so far, of which `retries` were retries, whoever granted
        them.
        """
        # Threads may bring their counts in another order than they read them.
        new, self._requests = max(0, requests - self._requests), requests
        self._balance = min(BURST, self._balance + new * self.ratio)
        if now > self._asked_at + FORGETS:
            self.ratio, self._granted = RATIO, 0
        self._asked_at = now
        # A copy, as another thread that refuses a request may begin a new round.
        granted = self._granted
        if granted >= ROUND and now >= self._began_at + ROUND_LASTS:
            self._learn((retries - self._retries) / granted)
        if self._balance < 1.0:
            self.withheld += 1
            return False
        self._balance -= 1.0
        if not self._granted:
            self._began_at, self._retries = now, retries
        self._granted += 1
        return True

    def _learn(self, came_back: float) -> None:
        if came_back <= COME_BACK:
            self.ratio = min(1.0, self.ratio * GROWTH)
        else:
            self.ratio = max(RATIO, self.ratio / GROWTH)
        self._granted = 0

    def __repr__(self) -> str:
        return f"<grants {self.ratio:.0%}, {self.withheld} withheld>"
