"""A bounded table of quota accounts, as customers' names come from requests.

An account remembers how far its customer is ahead of the limit, so a customer who is
not ahead loses nothing by losing the account. When all places are taken, the account
that is ahead least makes way for the new one, which begins at nothing: it inherits no
debt. So nobody is refused for what others used. The error is on the other side: who is
ahead is forgotten while as many others as there are places are as far ahead.

Source: Misra, Gries, "Finding repeated elements", 1982: a bounded number of counters
may count too little, never too much.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from weakref import WeakValueDictionary

from lbclient.core.criticality import Criticality
from lbclient.core.quotas.quota_account import Account, Payer, Usage

MOST = 1000  # accounts of customers whose limit is the default one. Ours


class AccountTable:
    """Holds a bounded number of quota accounts. Owned by a `Quota`. Others read
    `by_name`, and look at and fill its accounts."""

    def __init__(self, total: Usage) -> None:
        self._total = total
        self.by_name: dict[str, Account] = {}
        # By when each is ahead of its limit no longer; of each account one entry, and
        # what has come since then is not in it.
        self._queue: list[tuple[float, str]] = []
        # Of accounts that went, as long as some request goes on.
        self._left: WeakValueDictionary[tuple[str, int], Payer] = WeakValueDictionary()
        self.forgotten = 0  # accounts that went while they were ahead of their limit

    def open(self, name: str) -> Account:
        """Makes an account, with its former payers, without a place in the table."""
        left = (self._left.pop((name, c), None) for c in Criticality)
        return Account(self._total, [payer or Payer() for payer in left])

    def place(self, name: str, now: float) -> Account:
        """Makes an account for a customer who has none, and gives it a place."""
        if len(self.by_name) >= MOST:
            self._make_room(now)
        account = self.by_name[name] = self.open(name)
        heappush(self._queue, (now, name))
        return account

    def _make_room(self, now: float) -> None:
        """Drops the account that is ahead least.

        An entry of the queue is out of date only if its account had a request since. So
        the cost per request is one step in the queue, however many accounts there are.
        """
        queue = self._queue
        while True:
            noted_at, name = queue[0]
            account = self.by_name[name]
            empty_at = account.empty_at(now)
            if empty_at <= noted_at:
                break
            heapreplace(queue, (empty_at, name))
        heappop(queue)
        del self.by_name[name]
        self.forgotten += empty_at > now
        for criticality, payer in enumerate(account.payers):
            if not payer.is_unused:
                payer.update(now, self._total)
                self._left[name, criticality] = payer

    def leavings(self, now: float) -> Iterator[tuple[str, float]]:
        """CPU seconds a second of requests whose accounts were dropped, by customer."""
        for (name, _), payer in self._left.items():
            yield name, payer.read(now)[1]
