"""The quota account of one customer: CPU time used beyond its limit on this task.

Two buckets for each criticality, of it and all above it: one for what is let in, which
the limit drains, and one for what arrives, which tells a flood from chance; while there
is one, less gets ahead. What is let in counts at once, by what such requests have cost:
how much this one does is known only when it has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf
from operator import mul

from lbclient.core.criticality import Criticality


@dataclass(frozen=True, slots=True)
class AccountTuning:
    """The numbers of an `Account`. Ours; tests/laws/test_quota.py and
    tests/laws/test_invented_customers.py play them."""

    smoothing: float = 5.0  # seconds, of what a request costs and of what is told. Ours
    tick: float = 0.5  # seconds between two looks at one account
    # The same until it is known what its requests cost, and twice that, ...
    moment: float = 0.05

    # How far an account may run ahead of its limit: so many requests, or so many
    # seconds' worth of the limit if that is more. Ours, from tests/laws: of Poisson
    # arrivals at 0.9 of the limit these refuse less than 0.5 %.
    ahead: tuple[float, float] = (24.0, 1.0)

    # What is more critical takes no notice of that, and puts those below it in debt. It
    # is remembered so far: else they got in again between two of the others.
    debt: float = 2.0  # times `ahead`

    # What arrives is a flood if it runs so far ahead of twice the limit, which by
    # chance it does not; then the account may be ahead by as much, and no more.
    flood: tuple[float, float] = (8.0, 0.25)
    flood_times: float = 2.0  # the limit

    # Where the buckets are half full at most, this part of a flood's bound is let in
    # before they are looked at again, and then counts as if it had come at once.
    unseen: float = 1 / 16
    # Seconds for which whoever was refused counts as in a flood, before what has come
    # since is counted: one that is let in meanwhile is no sign that it is over.
    lasts: float = 0.1
    unlimited: int = 1000  # requests: a bound where there is no limit
    # CPU seconds a second; a limit of nothing lets nothing in
    least_limit: float = 1e-09
    known: float = 1e-06  # requests a second: what fewer cost is not looked at


TUNING = AccountTuning()

KINDS = len(Criticality)  # of requests; each has a bucket
NONE = (0.0, 0.0)  # requests, and CPU seconds, a second
SAME = [1.0] * KINDS  # factors that change no bucket


class Usage:
    """Counts requests and CPU seconds, and estimates the cost of one request."""

    __slots__ = ("_looked_at", "_rates", "cpu", "each", "requests")

    def __init__(self) -> None:
        self.requests, self.cpu = 0, 0.0  # since the last look
        self._rates = NONE  # the same a second, smoothed
        self._looked_at = -inf
        self.each = 0.0  # CPU seconds, as far as it is known

    def update(self, now: float, total: "Usage | None" = None) -> float:
        """Updates the rates and returns the cost of one request in CPU seconds.

        Requests since the last look are added to `total`.
        """
        if now < self._looked_at + TUNING.moment:
            return self.each
        if self.is_unused:
            self._looked_at = now
            return self.each
        self._rates = requests, cpu = self.read(now)
        if total is not None:
            total.requests += self.requests
            total.cpu += self.cpu
        self.requests, self.cpu, self._looked_at = 0, 0.0, now
        if requests > TUNING.known and cpu > 0.0:
            self.each = cpu / requests
        return self.each

    @property
    def is_unused(self) -> bool:
        return self._rates is NONE and not self.requests and not self.cpu

    @property
    def rate(self) -> float:
        """Requests a second, at the last look."""
        return self._rates[0]

    def read(self, now: float) -> tuple[float, float]:
        """Requests and CPU seconds a second at `now`, smoothed. Changes nothing."""
        elapsed = now - self._looked_at
        if not 0.0 < elapsed < inf:
            return self._rates
        kept = exp(-elapsed / TUNING.smoothing)
        gain = (1.0 - kept) / elapsed
        requests, cpu = self._rates
        return requests * kept + self.requests * gain, cpu * kept + self.cpu * gain


class Payer(Usage):
    """The requests of one customer at one criticality."""

    __slots__ = ("__weakref__", "unsettled")

    def __init__(self) -> None:
        super().__init__()
        self.unsettled = 0  # requests let in unseen, which are in no bucket yet

    def pay(self, cpu: float) -> None:
        """Adds normalized CPU seconds. To be called on the server's loop."""
        self.cpu += cpu


class Account:
    """Tracks how far one customer is beyond its limit on this task. Owned by a `Quota`.
    Each bucket is kept as the time at which it will be empty."""

    __slots__ = (
        "_admitted",
        "_arrived",
        "_costs",
        "_debt",
        "_decides_by",
        "_few",
        "_limit",
        "_most",
        "_paces",
        "_pause",
        "_refused_at",
        "_total",
        "_undecided",
        "_unseen",
        "is_refusing",
        "looks_at",
        "payers",
        "spare",
    )

    def __init__(self, total: Usage, payers: Sequence[Payer]) -> None:
        self.payers = payers  # by criticality
        self._total = total  # of all accounts
        self._limit: Sequence[float] = [inf] * KINDS
        self._costs = [0.0] * KINDS
        self._paces = [0.0] * KINDS  # seconds of the limit in a CPU second
        self._admitted = [-inf] * KINDS  # when that bucket will be empty
        self._arrived = [-inf] * KINDS
        # Seconds that this may be ahead, and that it may be in debt.
        self._most = self._few = self._debt = [0.0] * KINDS
        self.looks_at = -inf
        self._pause = TUNING.moment  # until the next look, as long as little is known
        self.is_refusing = False
        self._refused_at = -inf
        # A request that is on its way to `refuses` in a flood, and until when.
        self._undecided, self._decides_by = Criticality.SHEDDABLE, -inf
        self._unseen = 0  # how many requests of a calm account are let in unseen
        self.spare = 0  # of those that may be, what is left

    def take(self, limit: Sequence[float], mean: float, now: float) -> None:
        """Takes a new limit, and estimates costs: `mean` where none is known."""
        self._fill_unsettled(now)
        paces = [1.0 / max(one, TUNING.least_limit) for one in limit]
        costs = [payer.update(now, self._total) for payer in self.payers]
        dearest = max(costs)
        mean = dearest or mean
        costs = [cost or mean for cost in costs]
        changes = self._changes(costs) if self._pause < TUNING.tick else SAME
        for until in (self._admitted, self._arrived):
            for c, pace in enumerate(self._paces):
                left = max(0.0, until[c] - now)
                until[c] = now + (left * changes[c] * paces[c] / pace if left else 0.0)
        self._limit, self._paces, self._costs = limit, paces, costs
        self._most = self._ahead(*TUNING.ahead)
        self._debt = [TUNING.debt * seconds for seconds in self._most]
        self._few = self._ahead(*TUNING.flood)
        self.looks_at = now + self._pause
        if dearest:
            self._pause = min(2.0 * self._pause, TUNING.tick)
        dearest = max(self._costs)
        few = TUNING.unseen * TUNING.flood[1] * min(limit) / dearest if dearest else 0.0
        self._unseen = int(min(few, TUNING.unlimited))

    def _changes(self, costs: Sequence[float]) -> list[float]:
        """The factors by which the buckets' contents change with the new costs.

        A bucket contains requests at the cost that was estimated when they came.
        """
        rates = [payer.rate for payer in self.payers]
        if not any(rates):
            return SAME  # it has just come
        # From the most critical down, as each bucket has those above it, too.
        before = accumulate(map(mul, reversed(rates), reversed(self._costs)))
        now = accumulate(map(mul, reversed(rates), reversed(costs)))
        pairs = zip(now, before, strict=True)
        return [new / old if old else 1.0 for new, old in pairs][::-1]

    def _ahead(self, requests: float, seconds: float) -> list[float]:
        """How many seconds the buckets may be ahead: more where requests are costly."""
        dearest = accumulate(self._costs, max)
        pairs = zip(dearest, self._paces, strict=True)
        return [max(requests * cost * pace, seconds) for cost, pace in pairs]

    def _fill_unsettled(self, now: float) -> None:
        self.spare = 0
        for criticality, payer in enumerate(self.payers):
            if requests := payer.unsettled:
                payer.unsettled = 0
                payer.requests += requests
                few, debt = self._few, self._debt
                self._fill(
                    self._arrived, criticality, now, few, TUNING.flood_times, requests
                )
                self._fill(self._admitted, criticality, now, debt, 1.0, requests)

    def refuses(self, criticality: Criticality, now: float) -> bool:
        """Whether to refuse a request.

        If a criticality is refused, all that are less critical are refused, too.
        """
        if self._unseen:
            self._fill_unsettled(now)
        self.arrive(criticality, now)
        self.is_refusing = self._is_beyond(criticality, now)
        self._decides_by = -inf
        if self.is_refusing:
            self._refused_at = now
        return self.is_refusing

    def arrive(self, criticality: Criticality, now: float) -> None:
        """Counts a request that has come; `refuses` does."""
        self._fill(self._arrived, criticality, now, self._few, TUNING.flood_times)

    def is_used_up(self, criticality: Criticality, now: float) -> bool:
        """Whether to refuse a request that nobody has counted yet.

        Many are asked about at once: whoever was refused of late is in a flood. Of
        those that might be let in the first one is, and none as critical or less before
        `refuses` has decided on it.
        """
        if now >= self._refused_at + TUNING.lasts:
            return False
        if self._is_beyond(criticality, now, True):
            self._refused_at = now
            return True
        if now < self._decides_by and criticality <= self._undecided:
            return True
        self._decides_by, self._undecided = now + TUNING.lasts, criticality
        return False

    def _is_beyond(
        self, criticality: Criticality, now: float, is_flood: bool = False
    ) -> bool:
        for c in range(criticality, KINDS):
            few = self._few[c]
            arrived = self._arrived[c] - now
            is_many = is_flood or arrived > few / TUNING.flood_times
            most = few if is_many else self._most[c]
            if self._admitted[c] - now > most or self._limit[c] <= 0.0:
                return True
        return False

    def admit(self, criticality: Criticality, now: float) -> None:
        self.payers[criticality].requests += 1
        self._fill(self._admitted, criticality, now, self._debt, 1.0)
        if self._unseen and self._is_calm(now):
            self.spare = self._unseen

    def _is_calm(self, now: float) -> bool:
        """Whether each bucket is less than half as full as it is in a flood."""
        for c, few in enumerate(self._few):
            most = now + few / (2.0 * TUNING.flood_times)
            if self._arrived[c] > most or self._admitted[c] > most:
                return False
        return True

    def _fill(
        self,
        until: list[float],
        criticality: int,
        now: float,
        most: Sequence[float],
        times: float,
        requests: int = 1,
    ) -> None:
        """Fills the buckets of a criticality and of those below, at `times` the limit.

        A bucket that is ahead of `most` seconds is cut down to that first.
        """
        cost = requests * self._costs[criticality] / times
        for c in range(criticality + 1):
            ahead, bound = until[c] - now, most[c] / times
            if ahead < 0.0:
                ahead = 0.0
            elif ahead > bound:
                ahead = bound
            until[c] = now + ahead + cost * self._paces[c]

    def empty_at(self, now: float) -> float:
        """When the account will be within its limit again if no request comes."""
        self._fill_unsettled(now)
        return max(*self._admitted, *self._arrived)

    def usage(self, now: float) -> float:
        return sum(payer.read(now)[1] for payer in self.payers)

    def __repr__(self) -> str:
        requests = sum(payer.requests + payer.unsettled for payer in self.payers)
        cpu = sum(payer.cpu for payer in self.payers)
        state = "at its limit" if self.is_refusing else "within its limit"
        return f"<{requests} requests, {cpu:.3f} CPU seconds of late, {state}>"
