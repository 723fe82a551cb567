"""What the measurements say: balance, latency, and who paid for a fault. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean
from typing import NamedTuple

FEWEST_SLICES = 8  # between readings: an error told from fewer is too small by chance


class Call(NamedTuple):
    """One call as its client saw it. Times are of the machine's monotonic clock."""

    sent_at: float
    ended_at: float
    backend: str  # "" when it was sent to none
    code: str


class Usage(NamedTuple):
    """A backend's own account since its start."""

    busy: float  # core seconds
    elapsed: float
    cores: float


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly the backends were used, each over what it has."""

    utilization: tuple[float, ...]
    error: float | None = None  # standard error of max/mean, where it is known

    @property
    def mean(self) -> float:
        return sum(self.utilization) / len(self.utilization)

    @property
    def max_over_mean(self) -> float | None:
        return max(self.utilization) / self.mean if self.mean else None

    @property
    def max_over_min(self) -> float | None:
        least = min(self.utilization)
        return max(self.utilization) / least if least else None

    @property
    def wasted(self) -> float:
        """What cannot be used once the busiest backend is full.

        SRE book, ch. 20: the sum of CPU[0] - CPU[i] over all, CPU[0] being the most
        loaded; here as a share of what is reserved, equal cores for each.
        """
        return max(self.utilization) - self.mean


def balance(readings: Sequence[Sequence[Usage]]) -> Balance:
    """From the first reading of all backends to the last; those between tell the error.

    The error is the jackknife's: how much max/mean changes when any one of the slices
    between two readings is left out.
    """
    before, after = readings[0], readings[-1]
    whole = Balance(_utilization(before, after))
    slices = list(pairwise(readings))
    if len(slices) < FEWEST_SLICES:
        return whole
    without = [
        Balance(_utilization(before, after, left_out)).max_over_mean
        for left_out in slices
    ]
    ratios = [ratio for ratio in without if ratio is not None]
    if len(ratios) < len(slices):
        return whole
    center, count = fmean(ratios), len(ratios)
    squares = sum((ratio - center) ** 2 for ratio in ratios)
    return replace(whole, error=sqrt((count - 1) / count * squares))


def _utilization(
    before: Sequence[Usage],
    after: Sequence[Usage],
    left_out: tuple[Sequence[Usage], Sequence[Usage]] | None = None,
) -> tuple[float, ...]:
    from_, to = left_out or (before, before)
    return tuple(
        (new.busy - old.busy - (end.busy - begin.busy))
        / (new.cores * (new.elapsed - old.elapsed - (end.elapsed - begin.elapsed)))
        for old, new, begin, end in zip(before, after, from_, to, strict=True)
    )


def differ(one: Balance, other: Balance) -> bool:
    """Whether their max/mean differ by more than chance: by two standard errors.

    >>> differ(Balance((1.5, 0.5), 0.1), Balance((1.1, 0.9), 0.1))
    True
    >>> differ(Balance((1.5, 0.5), 0.3), Balance((1.1, 0.9), 0.1))
    False
    """
    if one.error is None or other.error is None:
        return False
    gap = abs((one.max_over_mean or 0.0) - (other.max_over_mean or 0.0))
    return gap > 2.0 * sqrt(one.error**2 + other.error**2)


def percentile(sorted_values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([], 0.5)
    (2.0, None)
    """
    if not sorted_values:
        return None
    return sorted_values[max(0, ceil(share * len(sorted_values)) - 1)]


@dataclass(slots=True)
class Phase:
    """What one phase measured; `facts` are the figures of its kind alone."""

    name: str
    title: str
    calls: int = 0
    failed: int = 0
    skipped: int = 0
    p50: float | None = None
    p99: float | None = None
    balance: Balance | None = None
    failures: dict[str, int] = field(default_factory=dict)  # by status and details
    facts: dict[str, float | int | str | None] = field(default_factory=dict)

    def count(self, calls: Iterable[Call], since: float = 0.0) -> None:
        """Counts all calls; latencies only of those sent at `since` or later."""
        latencies = []
        for call in calls:
            self.calls += 1
            self.failed += call.code != "OK"
            if call.sent_at >= since:
                latencies.append(call.ended_at - call.sent_at)
        latencies.sort()
        self.p50 = percentile(latencies, 0.50)
        self.p99 = percentile(latencies, 0.99)


def in_flight(calls: Iterable[Call], backend: str, since: float, until: float) -> int:
    """Calls that were on the backend at some time between `since` and `until`."""
    return sum(
        call.backend == backend and call.sent_at <= until and call.ended_at >= since
        for call in calls
    )


def failed_on(calls: Iterable[Call], backend: str) -> int:
    return sum(call.backend == backend and call.code != "OK" for call in calls)


def last_sent(calls: Iterable[Call], backend: str, until: float) -> float | None:
    """When the last call before `until` was sent to the backend."""
    sent = [
        call.sent_at
        for call in calls
        if call.backend == backend and call.sent_at <= until
    ]
    return max(sent, default=None)
