"""Whether requests cost this task more than they did, compared with the fleet.

A task knows what a request costs here, and not what it costs elsewhere. Its clients do:
they hear the reports of several tasks, and tell each the median. What its own cost is
over the median of what clients tell is followed as clients follow their backends: see
`relative_costs`. So other requests everywhere, or a new release, are no rise, and what
one of several clients tells wrongly changes little. It is told, and changes nothing.
"""

from math import log

from lbclient.core.counting.ewma import Ewma
from lbclient.core.counting.median import median
from lbclient.core.model import LoadReport
from lbclient.core.outliers.relative_costs import TUNING as RELATIVE_COSTS
from lbclient.core.outliers.relative_costs import CostHistory, RelativeCost, cost_of

PAUSE = 5.0  # seconds between two looks
MOST_CLIENTS = 64  # of whom it is known what they told: those who told it last
LEAST, MOST = 1e-9, 1e6  # seconds that a request may take; who tells others is ignored

# Seconds for which is taken what a client told, and of which the own cost is a mean:
# what clients tell is smoothed over 15 s, and then on average some 15 s old. Where all
# costs rise the own one must not seem to be the first.
FRESH = 30.0
SMOOTHING = 30.0

# Who tells a task what requests cost elsewhere pauses so long, in seconds, and so long
# for each of its clients: a task hears one client in 2 s, however many there are.
TELL_AFTER, TELL_AFTER_EACH = 10.0, 2.0


def tell_after(clients: int | None) -> float:
    """Seconds until a client tells a task with so many clients again.

    >>> tell_after(2), tell_after(1000), tell_after(None)
    (10.0, 2000.0, 20.0)
    """
    return max(TELL_AFTER, TELL_AFTER_EACH * (10 if clients is None else clients))


class FleetCost:
    """Tells whether requests cost this task more than usual, compared with the fleet.
    Owned by a server, used on its loop's thread only."""

    def __init__(self) -> None:
        # What each client told, and when; the last to tell comes last.
        self._told: dict[str, tuple[float, float]] = {}
        self._own = Ewma(SMOOTHING)
        self._history: CostHistory | None = None
        self._due_at = 0.0

    def hear(self, client: str, cost: float, now: float) -> None:
        """A client tells what a request costs elsewhere, in the median: seconds of a
        task's capacity. 0.0: it does not tell."""
        if not LEAST <= cost <= MOST:
            return
        self._told.pop(client, None)
        self._told[client] = cost, now
        if len(self._told) > MOST_CLIENTS:
            del self._told[next(iter(self._told))]

    def observe(self, report: LoadReport, now: float) -> bool:
        """Takes the own report, now and then. Returns whether the task has slowed down,
        or is as usual again."""
        if now < self._due_at:
            return False
        self._due_at = now + PAUSE
        if (own := cost_of(report)) is None:
            return False
        self._own.update(log(own), now)
        fresh = self._fresh(now)
        if not fresh:
            return False
        history = self._history = self._history or CostHistory(now)
        history.observe(self._own.value - log(median(fresh)), now, now)
        is_known = now >= history.since + RELATIVE_COSTS.learning
        return is_known and history.compare(0.0, 0.0, now)

    def _fresh(self, now: float) -> list[float]:
        return [cost for cost, at in list(self._told.values()) if now <= at + FRESH]

    def clients(self, now: float) -> int:
        """How many have told lately what requests cost elsewhere."""
        return len(self._fresh(now))

    def read(self, now: float) -> RelativeCost | None:
        """None while it is not known: there are too few requests or nobody tells, and
        for the first minute."""
        history = self._history
        return history.cost if history and now < history.known_until else None

    def __repr__(self) -> str:
        cost = self._history.cost if self._history else None
        rise = "unknown" if cost is None else f"{cost.rise:.2f}"
        return f"<rise {rise}, {len(self._told)} clients>"
