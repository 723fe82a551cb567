"""What each customer may use: CPU seconds a second, of the fleet, by criticality.

Not requests: what one costs differs by customer and by day. A customer who wants more
than the limit gets the limit's worth, the most critical first; nobody else notices.
Limits may add up to more than there is. SRE book, ch. 21, "Per-Customer Limits".

A task knows what it gave; from what all tasks gave, `allot` says what each may give.
Names come from the network: long ones and too many of them share one account with those
who give none, so memory is bounded.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from math import exp, inf
from random import Random

from lbclient.criticality import Criticality, shares
from lbclient.errors import ConfigError
from lbclient.retry import Refusal

OTHERS = ""  # the account of whoever has none of their own

LONGEST = 100  # characters of a name with an account
MOST = 1000  # accounts of customers whose limit is the default one
IDLE = 60.0  # seconds; whoever asked for nothing so long may lose the account

# Seconds. Ours: whoever suddenly wants ten times the limit has it for half a second,
# and twice the limit after 3.5 s. A shorter one would refuse a rare dear request.
SMOOTHING = 5.0
TICK = 0.5  # seconds between two looks at one account
RESERVE = 0.1  # of a limit, in equal parts for tasks that give nothing yet
HOLD = 60.0  # seconds that the fleet's last word is believed
KNOWN = 1e-6  # requests a second: what fewer cost is not looked at

KINDS = len(Criticality)

Room = tuple[float, ...]
"""By criticality, what requests of that one and all above may use together."""


def room(total: float, below: Mapping[Criticality, float] | None = None) -> Room:
    """The limits of one customer; `below` has those that are less than `total`.

    >>> room(4.0, {Criticality.SHEDDABLE_PLUS: 1.0})
    (1.0, 1.0, 4.0, 4.0)

    Raises ConfigError if one is negative, or more than for what is more critical.
    """
    least, result = total, []
    for criticality in reversed(Criticality):
        limit = (below or {}).get(criticality, least)
        if not 0.0 <= limit <= least:
            field = f"quota.{criticality.name}"
            raise ConfigError(field, limit, f"CPU seconds a second, 0 to {least:g}")
        least = limit
        result.append(limit)
    return tuple(reversed(result))


UNLIMITED = room(inf)


def allot(limit: float, usages: Sequence[float]) -> list[float]:
    """What share of a customer's limit each task may give, by what each gave lately.

    They make 1 together. Below the limit each may give what it gives and an equal part
    of what is left; at the limit a part as large as it gave, but for a reserve.

    >>> allot(4.0, [2.0, 0.0])
    [0.75, 0.25]
    >>> [round(share, 3) for share in allot(4.0, [30.0, 10.0])]
    [0.725, 0.275]
    """
    used, even = sum(usages), 1.0 / len(usages)
    if used <= limit * (1.0 - RESERVE):
        left = 1.0 - used / limit if limit else 1.0
        return [(usage / limit if limit else 0.0) + left * even for usage in usages]
    return [(1.0 - RESERVE) * usage / used + RESERVE * even for usage in usages]


class Quota:
    """The accounts of one task. Owned by its server.

    `limits` are of the whole fleet; `default` is that of each customer who is not among
    them. `factor` is what a CPU second of this machine is worth. Without a word of the
    fleet for `HOLD` seconds each customer gets `fallback` of the limit here.
    """

    def __init__(
        self,
        limits: Mapping[str, Room],
        rng: Random,
        default: Room = UNLIMITED,
        factor: float = 1.0,
        fallback: float = 1.0,
    ) -> None:
        self._limits = limits
        self._default = default
        self._factor = factor
        self._fallback = fallback
        self._random = rng.random
        self._known = {name: _Account() for name in limits}
        self._known.setdefault(OTHERS, _Account())
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._shares: Mapping[str, float] = {}
        self._taken_at = -inf
        self.pooled = 0  # requests of customers who should have had their own account

    def refuses(
        self, customer: str, criticality: Criticality, now: float
    ) -> Refusal | None:
        """Whether the customer has used it up, for a request of that criticality."""
        name, account = self._find(customer, now)
        if now >= account.looks_at:
            limit = self._limits.get(name, self._default)
            share = self._share(name, now)
            account.look([one * share for one in limit], now)
        account.offered[criticality] += 1
        share = account.shares[criticality]
        if share < 1.0 and self._random() >= share:
            return Refusal.QUOTA
        account.admitted[criticality] += 1
        return None

    def charge(self, customer: str, criticality: Criticality, cpu: float) -> None:
        """A request that was let in has used `cpu` seconds, so far or once more."""
        account = self._known.get(customer) or self._accounts.get(customer)
        account = account or self._known[OTHERS]
        account.used[criticality] += cpu * self._factor

    def usage(self, now: float) -> dict[str, float]:
        """What each account used lately, a second: for `allot`, by whoever asks all."""
        accounts = {**self._known, **self._accounts}
        return {name: account.usage(now) for name, account in accounts.items()}

    def take(self, shares: Mapping[str, float], now: float) -> None:
        """The fleet's word: what share of each customer's limit is for this task."""
        self._shares = shares
        self._taken_at = now

    def _share(self, name: str, now: float) -> float:
        if now > self._taken_at + HOLD:
            return self._fallback
        return self._shares.get(name, self._fallback)

    def _find(self, customer: str, now: float) -> tuple[str, "_Account"]:
        if known := self._known.get(customer):
            return customer, known
        if account := self._accounts.get(customer):
            if now >= account.looks_at:
                self._accounts.move_to_end(customer)
            return customer, account
        if len(customer) <= LONGEST and self._has_place(now):
            account = self._accounts[customer] = _Account()
            return customer, account
        self.pooled += 1
        return OTHERS, self._known[OTHERS]

    def _has_place(self, now: float) -> bool:
        if len(self._accounts) < MOST:
            return True
        oldest = next(iter(self._accounts))
        if now < self._accounts[oldest].looks_at + IDLE:
            return False
        del self._accounts[oldest]
        return True

    def refusing(self) -> Collection[str]:
        """Accounts of which something is refused."""
        accounts = {**self._known, **self._accounts}
        return [name for name, one in accounts.items() if min(one.shares) < 1.0]

    def __repr__(self) -> str:
        count = len(self._known) + len(self._accounts)
        return f"<{count} accounts, {len(self.refusing())} at their limits>"


class _Account:
    """One customer on this task: what was asked for and used, by criticality."""

    __slots__ = (
        "_costs",
        "_looked_at",
        "_rates",
        "admitted",
        "looks_at",
        "offered",
        "shares",
        "used",
    )

    def __init__(self) -> None:
        self._begin()
        self._rates = [(0.0, 0.0, 0.0)] * KINDS  # offered, admitted, used; a second
        self._costs = [0.0] * KINDS  # of one request, as far as it is known
        self.shares = [1.0] * KINDS  # that get in
        self._looked_at = self.looks_at = -inf

    def _begin(self) -> None:
        """Since the last look:"""
        self.offered, self.admitted = [0] * KINDS, [0] * KINDS
        self.used = [0.0] * KINDS

    def look(self, limit: Sequence[float], now: float) -> None:
        """Shares `limit` out among what is wanted: requests by what each costs."""
        self._rates = self._read(now)
        self._looked_at, self.looks_at = now, now + TICK
        self._begin()
        for c, (_, admitted, used) in enumerate(self._rates):
            if admitted > KNOWN:
                self._costs[c] = used / admitted
        demand = [
            offered * cost
            for (offered, _, _), cost in zip(self._rates, self._costs, strict=True)
        ]
        got = shares(limit, demand)
        self.shares = [
            share if most > 0.0 else 0.0 for share, most in zip(got, limit, strict=True)
        ]

    def usage(self, now: float) -> float:
        return sum(used for _, _, used in self._read(now))

    def _read(self, now: float) -> list[tuple[float, float, float]]:
        """The rates at `now`, each by what came since the last look, and before."""
        elapsed = now - self._looked_at
        if not 0.0 < elapsed < inf:
            return self._rates
        kept = exp(-elapsed / SMOOTHING)
        gain = (1.0 - kept) / elapsed
        counts = zip(self.offered, self.admitted, self.used, strict=True)
        return [
            (o * kept + oo * gain, a * kept + aa * gain, u * kept + uu * gain)
            for (o, a, u), (oo, aa, uu) in zip(self._rates, counts, strict=True)
        ]
