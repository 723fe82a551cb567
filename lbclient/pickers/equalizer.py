"""Weights that make utilization equal: the slow loop around a picker.

Integral control: a backend that reports more than the mean loses weight at every
step, one that reports less gains, until all report the same, whatever the cause of
the difference: slow machines, neighbours, other clients.
"""

from collections.abc import Sequence
from math import exp, log

from lbclient.load import Load
from lbclient.protocols import Node

NONSENSE = 1e6  # no utilization; it keeps what is computed finite


class Equalizer:
    """Log weights by address, moved by each new report. Owned by one picker."""

    def __init__(
        self, gain: float, bound: float, blackout: float, expiration: float
    ) -> None:
        self._gain = gain
        self._bound = bound
        self._blackout = blackout
        self._expiration = expiration
        self._logs: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # when the last report came that moved it

    def step(self, ready: Sequence[Node], now: float) -> None:
        """Moves the weights of those that reported since the last step.

        The same report is never used twice: it says nothing of what the weight has
        become since, and would drive it to the bound.
        """
        heights = {
            node.endpoint.address: log(utilization)
            for node in ready
            if (utilization := self._utilization(node.load, now))
        }
        logs, seen = self._logs, self._seen
        self._logs = {address: logs.get(address, 0.0) for address in heights}
        self._seen = {}
        if not heights:
            return
        level = sum(heights.values()) / len(heights)
        for node in ready:
            address = node.endpoint.address
            if address not in heights:
                continue
            self._seen[address] = node.load.reported_at
            if seen.get(address) != node.load.reported_at:
                self._logs[address] += self._gain * (level - heights[address])
        # Only differences matter: without this one liar drives all others to a bound.
        middle = sum(self._logs.values()) / len(heights)
        for address, value in self._logs.items():
            self._logs[address] = max(-self._bound, min(self._bound, value - middle))

    def weights(self, ready: Sequence[Node]) -> list[float]:
        """Of each node, the unknown ones having the mean; mean 1."""
        known = {address: exp(value) for address, value in self._logs.items()}
        mean = sum(known.values()) / len(known) if known else 1.0
        return [known.get(node.endpoint.address, mean) / mean for node in ready]

    def _utilization(self, load: Load, now: float) -> float:
        """What the backend says, failures added as if they cost all of it."""
        report = load.report
        if (
            report is None
            or not 0.0 < report.utilization < NONSENSE
            or load.ready_at is None
            or now - load.ready_at < self._blackout
            or now - load.reported_at >= self._expiration
        ):
            return 0.0
        failing = min(1.0, report.eps / report.qps) if report.qps > 0.0 else 0.0
        return report.utilization + max(failing, load.failure_ratio(now))
