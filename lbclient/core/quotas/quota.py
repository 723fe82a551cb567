"""What each customer may use of the fleet: CPU seconds per second, by criticality.

Limits are not in requests, as the cost of a request differs by customer and by day. A
customer that wants more than its limit gets as much as the limit, its most critical
requests first; other customers are not affected. Limits may add up to more than the
capacity. SRE book, ch. 21, "Per-Customer Limits".

A task knows what each customer used of it. From what customers used of all tasks
`allot` computes which part of a limit each task may serve. Names of customers come from
the network. Those that are listed have an account for good, others as long as
`quota_accounts` keeps it. Names that are too long or cannot be printed share one
account with requests that name no customer.
"""

from collections.abc import Collection, Mapping
from math import inf

from lbclient.core.criticality import Criticality, named
from lbclient.core.errors import ConfigError
from lbclient.core.quotas.quota_account import Account, Payer, Usage
from lbclient.core.quotas.quota_accounts import AccountTable
from lbclient.core.refusal import Refusal
from lbclient.core.text import is_printable

OTHERS = ""  # the account of customers that have none of their own

LONGEST = 100  # characters of a name with an account
TOTAL = "total"  # beside limits by criticality, what all requests may use
HIGHEST = 1_000_000  # CPU seconds a second; what is more is a mistake

INTERVAL = 1.0  # seconds between exchanges; ours: a fifth of `AccountTuning.smoothing`
RESERVE = 0.1  # of a limit, in equal parts for tasks that serve none of it yet
HOLD = 60.0  # seconds for which shares hold after the last exchange

Room = tuple[float, ...]
"""By criticality, what requests of it and of all higher ones may use together."""


def is_name(customer: str) -> bool:
    """Whether a customer whom nobody listed may have an account by that name."""
    return len(customer) <= LONGEST and is_printable(customer)


def room(
    total: float,
    below: Mapping[Criticality, float] | None = None,
    field: str = "quota",
) -> Room:
    """The limits of one customer; `below` has those that are less than `total`.

    >>> room(4.0, {Criticality.SHEDDABLE_PLUS: 1.0})
    (1.0, 1.0, 4.0, 4.0)

    Raises ConfigError if one is negative, or more than for what is more critical.
    """
    least, result = total, []
    for criticality in reversed(Criticality):
        limit = (below or {}).get(criticality, least)
        if not 0.0 <= limit <= least:
            of = f"{field}[{criticality.name!r}]"
            want = f"CPU seconds a second, 0 to {least:g}: what is above it may use"
            raise ConfigError(of, limit, want)
        least = limit
        result.append(limit)
    return tuple(reversed(result))


UNLIMITED = room(inf)


def rooms(quotas: object) -> dict[str, Room]:
    """What `ServerConfig.quotas` says, by customer.

    >>> rooms({"mail": {"total": 4.0, "SHEDDABLE_PLUS": 1.0}})
    {'mail': (1.0, 1.0, 4.0, 4.0)}
    >>> rooms(None)
    {}

    Raises ConfigError, which names the customer.
    """
    if quotas is None:
        return {}
    if not isinstance(quotas, Mapping):
        want = "CPU seconds a second, by customer: {'mail': 4.0}"
        raise ConfigError("quotas", quotas, want)
    result = {}
    for customer, limit in quotas.items():
        if not isinstance(customer, str) or not 0 < len(customer) <= LONGEST:
            want = f"customers' names of 1 to {LONGEST} characters"
            raise ConfigError("quotas", customer, want)
        result[customer] = limits(f"quotas[{customer!r}]", limit)
    return result


def limits(field: str, limit: object) -> Room:
    """Parses the limit of one customer, or the default limit.

    >>> limits("default_quota", 2.0)
    (2.0, 2.0, 2.0, 2.0)

    Raises ConfigError.
    """
    if not isinstance(limit, Mapping):
        return room(cpu_seconds(field, limit))
    below: dict[Criticality, float] = {}
    for name, part in limit.items():
        most = cpu_seconds(f"{field}[{name!r}]", part)
        if name == TOTAL:
            continue
        criticality = _criticality(field, name)
        if criticality in below:
            raise ConfigError(field, name, f"one limit for {criticality.name}, not two")
        below[criticality] = most
    if TOTAL not in limit:
        want = f"a {TOTAL!r}, the limit of this customer's requests together"
        raise ConfigError(field, limit, want)
    return room(limit[TOTAL], below, field)


def _criticality(field: str, name: object) -> Criticality:
    try:
        return named(field, name)
    except ConfigError as error:
        raise ConfigError(field, name, f"{error.want} or {TOTAL}") from None


def cpu_seconds(field: str, value: object) -> float:
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0.0 <= value <= HIGHEST
    ):
        return float(value)
    raise ConfigError(field, value, f"CPU seconds a second, 0 to {HIGHEST}")


def allot(limit: float, own: float, total: float, tasks: int) -> float:
    """The share of a customer's limit that this task may serve, one of so many `tasks`.

    `total` is what the customer used lately of all tasks, `own` what it used of this
    one. The shares of all tasks add up to 1. Below the limit a task may serve what it
    does and an equal part of what is left. At the limit its share is `own / total`, but
    for a reserve.

    >>> allot(4.0, 2.0, 2.0, 2), allot(4.0, 0.0, 2.0, 2)
    (0.75, 0.25)
    >>> round(allot(4.0, 30.0, 40.0, 2), 3), round(allot(4.0, 10.0, 40.0, 2), 3)
    (0.725, 0.275)
    >>> round(allot(4.0, 1.0, 3.6, 2), 3), round(allot(4.0, 1.0, 3.7, 2), 3)
    (0.3, 0.293)
    """
    even = 1.0 / tasks
    if total <= limit * (1.0 - RESERVE):
        left = 1.0 - total / limit if limit else 1.0
        return (own / limit if limit else 0.0) + left * even
    return (1.0 - RESERVE) * (own / total) + RESERVE * even


class Quota:
    """The accounts of one task. Owned by its server.

    `limits` are of the whole fleet; `default` is that of each customer who is not among
    them. If there was no exchange for `HOLD` seconds, each customer gets the share
    `fallback` of its limit on this task.
    """

    def __init__(
        self,
        limits: Mapping[str, Room],
        default: Room = UNLIMITED,
        fallback: float = 1.0,
    ) -> None:
        self._limits = limits
        self._default = default
        self._fallback = fallback
        self._all = Usage()
        self._unlisted = AccountTable(self._all)
        self._known = {name: self._unlisted.open(name) for name in (OTHERS, *limits)}
        self._accounts = self._unlisted.by_name
        self._shares: Mapping[str, float] = {}
        self._taken_at = -inf
        # Looks at the shared account for names that are too long or cannot be printed.
        self.pooled = 0

    def refuses(
        self, customer: str, criticality: Criticality, now: float
    ) -> Refusal | None:
        """Whether the customer of a request has used up its limit."""
        name, account = self._find(customer, now)
        if now >= account.looks_at:
            limit = self._limits.get(name, self._default)
            share = self._share(name, now)
            # The requests of a new customer are taken to cost what others' cost.
            mean = self._all.update(now)
            # No share of what has no limit is one: 0 times infinity is no number.
            parts = [one * share if one < inf else inf for one in limit]
            account.take(parts, mean, now)
        return Refusal.QUOTA if account.refuses(criticality, now) else None

    def is_used_up(self, customer: str, criticality: Criticality, now: float) -> bool:
        """Whether a customer that has an account has used up its limit, by the requests
        that have arrived so far."""
        account = self._opened(customer)
        return account is not None and account.is_used_up(criticality, now)

    def drop(self, customer: str, criticality: Criticality, now: float) -> None:
        """Counts a request that arrived and was dropped without a call of `refuses`."""
        account = self._opened(customer)
        if account is not None:
            account.arrive(criticality, now)

    def admit(self, customer: str, criticality: Criticality, now: float) -> Payer:
        """Admits a request that was not refused, and charges what such requests cost.

        Returns the payer of the CPU seconds that the request uses.
        """
        account = self._known.get(customer) or self._accounts.get(customer)
        account = account or self._known[OTHERS]
        account.admit(criticality, now)
        return account.payers[criticality]

    def enter(
        self, customer: str, criticality: Criticality, now: float
    ) -> Payer | None:
        """`refuses` and `admit` in one; None if refused. Quick far below the limit."""
        account = self._known.get(customer) or self._accounts.get(customer)
        if account is not None and account.spare and now < account.looks_at:
            # Not methods of theirs, as this is the hot path.
            account.spare -= 1
            payer = account.payers[criticality]
            payer.unsettled += 1
            return payer
        if self.refuses(customer, criticality, now) is not None:
            return None
        return self.admit(customer, criticality, now)

    def usage(self, now: float) -> dict[str, float]:
        """Recent CPU seconds per second by account, the argument `own` of `allot`."""
        accounts = {**self._known, **self._accounts}
        used = {name: account.usage(now) for name, account in accounts.items()}
        for name, cpu in self._unlisted.leavings(now):
            used[name] = used.get(name, 0.0) + cpu
        return used

    def take(self, shares: Mapping[str, float], now: float) -> None:
        """Takes the shares of the customers' limits that this task may serve."""
        self._shares = shares
        self._taken_at = now

    def _share(self, name: str, now: float) -> float:
        if now > self._taken_at + HOLD:
            return self._fallback
        return self._shares.get(name, self._fallback)

    def _opened(self, customer: str) -> Account | None:
        """The account that pays; None: it would be opened now."""
        account = self._known.get(customer) or self._accounts.get(customer)
        if account is None and not is_name(customer):
            return self._known[OTHERS]
        return account

    def _find(self, customer: str, now: float) -> tuple[str, Account]:
        account = self._known.get(customer) or self._accounts.get(customer)
        if account is not None:
            return customer, account
        if is_name(customer):
            return customer, self._unlisted.place(customer, now)
        self.pooled += 1
        return OTHERS, self._known[OTHERS]

    @property
    def forgotten(self) -> int:
        """Accounts that were dropped while they were ahead of their limit."""
        return self._unlisted.forgotten

    def refusing(self) -> Collection[str]:
        """Accounts whose last request was refused."""
        accounts = {**self._known, **self._accounts}
        return [name for name, one in accounts.items() if one.is_refusing]

    def __repr__(self) -> str:
        count = len(self._known) + len(self._accounts)
        return f"<{count} accounts, {len(self.refusing())} at their limits>"
