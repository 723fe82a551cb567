"""Notices a backend on which requests cost more than usual, and on others do not.

A request's cost is the share of a backend's capacity that it takes: utilization over
the requests served a second, as reported. A slow machine always has a higher cost than
its peers, so each backend is compared with its own past first. What all of them have in
common, such as other requests or a new release, is the median of these changes, and is
taken out. The rest is an antagonist on the machine, a throttled CPU, or a fault of this
task alone. It is told, and changes no pick: pickers go by utilization.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, log
from typing import NamedTuple

from lbclient.core.counting.ewma import Ewma
from lbclient.core.counting.median import median
from lbclient.core.load import Load
from lbclient.core.model import LoadReport


@dataclass(frozen=True, slots=True)
class CostTuning:
    """The numbers of `RelativeCosts`. Ours; tests/sim/test_relative_costs.py plays
    them, and `python -m benchmarks.antagonist` measures them."""

    # Requests differ: where the costs of single ones have a standard deviation as
    # large as their mean, that of 15 s of 5 requests a second has one of 10 %.
    smoothing: float = 15.0  # seconds
    # Seconds, of what is usual: what lasts for an hour is usual itself
    memory: float = 1800.0
    learning: float = 60.0  # seconds until something is usual of a backend
    slowed: float = 1.5  # rises at which it begins, and ends
    usual: float = 1.25

    # A backend that does less is left out: most of its utilization is no requests'.
    least_utilization: float = 0.1
    least_served: float = 5.0  # requests a second
    least_backends: int = 3  # of two nobody can say which one has changed
    fresh: float = 10.0  # seconds, of a report
    known: float = 30.0  # seconds, of what was concluded


TUNING = CostTuning()


class RelativeCost(NamedTuple):
    """`relative` is the cost over the median of all backends; `rise` is the cost over
    its usual value, over the median of the same of all backends. `is_slowed` from a
    rise of 1.5 until it is below 1.25."""

    relative: float
    rise: float
    is_slowed: bool


class CostHistory:
    """Follows the cost of one backend, now and usual: logarithms, as costs are compared
    by their ratio."""

    __slots__ = ("cost", "known_until", "now", "reported_at", "since", "usual")

    def __init__(self, now: float) -> None:
        self.since = now
        self.now, self.usual = Ewma(TUNING.smoothing), Ewma(TUNING.memory)
        self.reported_at = -inf
        self.cost: RelativeCost | None = None
        self.known_until = -inf

    def observe(self, height: float, reported_at: float, now: float) -> None:
        if reported_at > self.reported_at:  # and not the same report again
            self.reported_at = reported_at
            self.now.update(height, now)
            self.usual.update(height, now)

    @property
    def change(self) -> float:
        return self.now.value - self.usual.value

    def compare(self, height: float, change: float, now: float) -> bool:
        """Takes the medians of all. Returns whether it slowed down, or no longer is."""
        was_slowed = self.cost is not None and self.cost.is_slowed
        rise = exp(self.change - change)
        is_slowed = rise >= (TUNING.usual if was_slowed else TUNING.slowed)
        self.cost = RelativeCost(exp(self.now.value - height), rise, is_slowed)
        self.known_until = now + TUNING.known
        return is_slowed is not was_slowed


class RelativeCosts:
    """Finds backends whose requests cost more than usual, compared with the other
    backends. Owned by a balancer, which calls `observe` every few seconds."""

    def __init__(self) -> None:
        self._histories: dict[str, CostHistory] = {}
        # Seconds of a backend's capacity that a request takes; 0.0 while not known.
        self.median = 0.0
        self.counted: tuple[str, ...] = ()  # the backends whose costs are in it

    def observe(
        self, ready: Iterable[tuple[str, Load]], now: float
    ) -> list[tuple[str, RelativeCost]]:
        """Takes the last reports of all ready backends, by address; others are
        forgotten. Returns those that have slowed down, or are as usual again."""
        before, self._histories = self._histories, {}
        counted: dict[str, CostHistory] = {}
        for address, load in ready:
            history = before.get(address) or CostHistory(now)
            self._histories[address] = history
            if cost := _cost(load, now):
                history.observe(log(cost), load.reported_at, now)
                counted[address] = history
        self._count(counted)
        known = {
            address: history
            for address, history in counted.items()
            if now >= history.since + TUNING.learning
        }
        if len(known) < TUNING.least_backends:
            return []
        height = median(history.now.value for history in known.values())
        change = median(history.change for history in known.values())
        return [
            (address, history.cost)
            for address, history in known.items()
            if history.compare(height, change, now) and history.cost is not None
        ]

    def _count(self, histories: dict[str, CostHistory]) -> None:
        """Notes who is compared, new backends included, and their median cost."""
        self.counted, self.median = (), 0.0
        if len(histories) >= TUNING.least_backends:
            self.counted = tuple(histories)
            self.median = exp(median(each.now.value for each in histories.values()))

    def read(self, address: str, now: float) -> RelativeCost | None:
        """None while it is not known, as there are too few requests or backends, or
        for the first minute."""
        history = self._histories.get(address)
        return history.cost if history and now < history.known_until else None

    def __repr__(self) -> str:
        costs = [history.cost for history in self._histories.values()]
        slowed = sum(cost is not None and cost.is_slowed for cost in costs)
        return f"<{slowed} of {len(costs)} backends slowed>"


def _cost(load: Load, now: float) -> float | None:
    if load.report is None or now > load.reported_at + TUNING.fresh:
        return None
    return cost_of(load.report)


def cost_of(report: LoadReport) -> float | None:
    """The share of its capacity that a request takes, in seconds; None if the task does
    too little to tell."""
    served = report.qps - report.eps
    if (
        not TUNING.least_utilization <= report.utilization < inf
        or not served >= TUNING.least_served
    ):
        return None
    return report.utilization / served
