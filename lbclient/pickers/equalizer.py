"""Weights that make utilization equal: the slow loop around a picker.

Integral control: a backend that reports more than the others loses weight at every
step, one that reports less gains, until all report the same, whatever the cause of
the difference: slow machines, neighbours, other clients.
"""

from collections.abc import Sequence
from math import exp, log
from statistics import median

from lbclient.load import Load
from lbclient.protocols import Node

NONSENSE = 1e6  # no utilization is; the bound keeps what is computed finite


class Weight:
    """What the control has come to for one address. Written by `Equalizer.step`."""

    __slots__ = ("log", "reported_at", "used_at")

    def __init__(self) -> None:
        self.log = 0.0
        self.reported_at = -1.0  # of the last report that moved it
        self.used_at = 0.0


class Equalizer:
    """Log weights by address, moved by each new report. Owned by one picker."""

    def __init__(
        self, gain: float, bound: float, blackout: float, expiration: float
    ) -> None:
        self._gain = gain
        self._bound = bound
        self._blackout = blackout
        self._expiration = expiration
        self._weights: dict[str, Weight] = {}

    def step(self, ready: Sequence[Node], now: float) -> None:
        """Moves the weights of those that reported since the last step.

        The same report is never used twice: it does not say what the last step did,
        and would drive the weight to its bound.
        """
        known: list[tuple[Weight, float, float]] = []
        for node in ready:
            if utilization := self._utilization(node.load, now):
                weight = self._weights.setdefault(node.endpoint.address, Weight())
                weight.used_at = now
                known.append((weight, log(utilization), node.load.reported_at))
        if known:
            level = median(height for _, height, _ in known)  # deaf to one liar
            for weight, height, reported_at in known:
                if weight.reported_at != reported_at:
                    weight.reported_at = reported_at
                    moved = weight.log + self._gain * (level - height)
                    weight.log = max(-self._bound, min(self._bound, moved))
            # Only differences matter: kept around 0, or one liar at its bound would
            # drive all others to the opposite one.
            middle = sum(weight.log for weight, _, _ in known) / len(known)
            for weight, _, _ in known:
                weight.log -= middle
        self._weights = {
            # Full, or restarting, a backend is not ready and yet has not changed.
            address: weight
            for address, weight in self._weights.items()
            if now - weight.used_at < self._expiration
        }

    def weights(self, ready: Sequence[Node]) -> list[float]:
        """Of each node, the unknown ones having the mean of the known; mean 1."""
        logs = [self._weights.get(node.endpoint.address) for node in ready]
        known = [exp(weight.log) for weight in logs if weight]
        mean = sum(known) / len(known) if known else 1.0
        return [exp(weight.log) / mean if weight else 1.0 for weight in logs]

    def _utilization(self, load: Load, now: float) -> float:
        """What the backend says, failures counting as much; 0.0 if unknown."""
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

    def __repr__(self) -> str:
        return f"<equalizer of {len(self._weights)} weights>"
