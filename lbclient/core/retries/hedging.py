"""Whether and when a call is hedged: sent to a second backend before the first answers.

Hedging cuts the tail of latencies that one backend makes now and then. It cannot help
where all backends are slow, and would then add load. Hence a hedge is late, is taken
from two budgets, and is withheld while many calls are slow. gRFC A6 has a fixed
`hedgingDelay`; a delay that follows the p95 is that of Dean and Barroso, "The Tail at
Scale" (CACM 2013).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from lbclient.core.counting.call_counts import MOST
from lbclient.core.retries.retry import Budget, Retry, RetryPolicy, max_attempts

BUDGET = 0.02  # hedges a request
# Hedges at once after a time without any. Ours: the calls that meet a short stall.
BURST = 10


@dataclass(frozen=True, slots=True)
class HedgingTuning:
    """When a hedge is sent. The p95 is that of "The Tail at Scale", the rest ours:
    `python -m benchmarks.hedging`."""

    kept: int = 1000  # latencies; enough for a p98.5: 15 are above it
    least_known: int = 100  # latencies; a p95 of fewer is chance
    # Latencies between two looks at the quantiles: sorting takes 50 us
    review: int = 50
    beyond_p95: float = 0.05  # of the calls, beyond the p95

    # The share of the budget that the delay spends. Ours: what is left makes it
    # unlikely that a hedge is wanted while the budget happens to be spent.
    spent: float = 0.75
    # Times the p95. Ours: 0.25 % of exponential latencies are longer
    most_p95: float = 2.0

    # The share of slow calls above which hedging stops. Ours: ten times the budget.
    most_slow: float = 0.2
    # Of each call, in the share of slow calls: some 50 calls count
    slow_gain: float = 0.02


TUNING = HedgingTuning()

THROTTLED = "throttled"
WAITING = "waiting"
NO_BACKEND = "no-backend"
SLOW = "slow"
SPENT_BUDGET = "budget"
REASONS = (THROTTLED, WAITING, NO_BACKEND, SLOW, SPENT_BUDGET)
"""Why a hedge was withheld."""


class HedgedMethod:
    """The latency of one method, and the share of its calls that outlive the delay.

    Owned by `Hedging`, written by calls: `observe` at the end of a first attempt,
    `outlived` when the delay is over before, else `answered_in_time`.

    `delay` is in seconds; None: too little is known, so no call is hedged.
    """

    __slots__ = ("_budget", "_is_fixed", "_latencies", "_new", "delay", "path", "slow")

    def __init__(self, path: str, budget: float, delay: float | None) -> None:
        self.path = path
        self.delay = delay
        self.slow = 0.0
        self._is_fixed = delay is not None
        self._budget = budget
        self._latencies: deque[float] = deque(maxlen=TUNING.kept)
        self._new = 0

    def observe(self, latency: float) -> None:
        """Takes the latency of a first attempt that was served, or lost to its hedge.

        The latter would have taken longer. For a quantile this does not matter, as it
        counts among the calls beyond the delay in either case.
        """
        if self._is_fixed:
            return
        self._latencies.append(latency)
        self._new += 1
        if self._new >= TUNING.review and len(self._latencies) >= TUNING.least_known:
            self._new = 0
            self.delay = hedging_delay(sorted(self._latencies), self._budget)

    def outlived(self) -> None:
        """Counts a call that took longer than the delay, and so is to be hedged."""
        self.slow += (1.0 - self.slow) * TUNING.slow_gain

    def answered_in_time(self) -> None:
        self.slow -= self.slow * TUNING.slow_gain

    def __repr__(self) -> str:
        told = "unknown" if self.delay is None else f"{self.delay:.3f} s"
        return f"<{self.path}: hedged after {told}, {self.slow:.0%} are slow>"


def hedging_delay(latencies: list[float], budget: float) -> float:
    """Seconds before a hedge, by sorted latencies of calls, for a budget of hedges.

    It is at least the p95, and later where a twentieth of the calls is more than the
    budget: at the quantile that spends three quarters of the budget. If more calls than
    that are far beyond the p95, the delay is twice the p95, and not what a stall takes.

    >>> even = [number / 1000 for number in range(1, 1001)]
    >>> hedging_delay(even, 0.1), hedging_delay(even, 0.02)
    (0.95, 0.985)
    >>> hedging_delay(even[:980] + [30.0] * 20, 0.02)
    1.9
    """
    p95 = _quantile(latencies, 1.0 - TUNING.beyond_p95)
    affordable = _quantile(
        latencies, 1.0 - min(TUNING.beyond_p95, TUNING.spent * budget)
    )
    return min(affordable, TUNING.most_p95 * p95)


def _quantile(latencies: list[float], share: float) -> float:
    return latencies[ceil(round(share * len(latencies), 6)) - 1]


class Hedging:
    """Decides on the hedges of one channel. Owned by its balancer.

    `sent` and `won` count hedges; a hedge won if the call ended with its answer.
    `withheld` counts those that were not sent, by reason. Only read them.
    """

    def __init__(
        self,
        retry_policy: RetryPolicy,
        attempts: int | Mapping[str, int],
        is_idempotent: Callable[[str], bool],
        budget: float = BUDGET,
        delay: float | None = None,
    ) -> None:
        """`delay` in seconds; None: it follows each method's own latency. `attempts` is
        as in `max_attempts`."""
        self.sent = self.won = 0
        self.withheld = dict.fromkeys(REASONS, 0)
        self._retry_policy = retry_policy
        self._attempts = attempts
        self._is_idempotent = is_idempotent
        self._ratio = budget
        self._delay = delay
        self._budget = Budget(budget, BURST)
        self._deposited = 0  # requests
        self._methods: dict[str, HedgedMethod] = {}

    def find(self, path: str) -> HedgedMethod | None:
        """The method at this path; None: its calls are not hedged."""
        known = self._methods.get(path)
        if known is not None:
            return known
        if max_attempts(path, self._attempts) < 2 or not self._is_idempotent(path):
            return None
        if len(self._methods) >= MOST:
            return None
        method = self._methods[path] = HedgedMethod(path, self._ratio, self._delay)
        return method

    def decide(
        self,
        method: HedgedMethod,
        sent: int,
        *,
        is_throttled: bool,
        is_waiting: bool,
        is_other: bool,
    ) -> Retry | None:
        """Decides on a hedge. Returns what decides on the attempts after it; None: the
        hedge is withheld.

        To be called when a call has outlived the delay. `sent` is the number of
        requests ever sent, which fill the budget. `is_throttled`: backends refused
        requests lately. `is_waiting`: calls wait for a backend. `is_other`: a backend
        other than the first is ready. A decision to hedge is final: both budgets pay
        for it.
        """
        method.outlived()
        self._budget.deposit(sent - self._deposited)
        self._deposited = sent
        reason = ""
        if is_throttled:
            reason = THROTTLED
        elif is_waiting:
            reason = WAITING
        elif not is_other:
            reason = NO_BACKEND
        elif method.slow > TUNING.most_slow:
            reason = SLOW
        retry = None
        if not reason and self._budget.left() > 0.0:
            retry = self._retry_policy.hedge(method.path, sent)
        if retry is None:
            self.withheld[reason or SPENT_BUDGET] += 1
            return None
        self._budget.withdraw()
        self.sent += 1
        return retry

    def take_back(self) -> None:
        """The hedge was not sent: no other backend was left. The budgets have paid."""
        self.sent -= 1
        self.withheld[NO_BACKEND] += 1

    def hedge_won(self) -> None:
        """Counts a hedge with whose answer the call ended."""
        self.won += 1

    def __repr__(self) -> str:
        withheld = sum(self.withheld.values())
        return f"<{self.sent} hedges, {self.won} won, {withheld} withheld>"
