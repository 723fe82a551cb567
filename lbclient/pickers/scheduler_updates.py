"""Counts of weighted round robin's scheduler, for the metrics of gRFC A78."""

from collections.abc import Sequence

from lbclient.core.statistics.call_times import Times

# Requests per second. OpenTelemetry's default bounds, for the gRFC names none.
BOUNDS = (
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0,
    5000.0, 7500.0, 10000.0,
)  # fmt: skip


class SchedulerUpdates:
    """Totals over all updates of one picker's scheduler. Owned by the picker.

    `fallbacks` counts updates with fewer than two usable weights. `not_yet_usable` and
    `stale` count backends without a usable weight. `weights` has the weight of every
    backend.
    """

    def __init__(self) -> None:
        self.fallbacks = self.not_yet_usable = self.stale = 0
        self.weights = Times(BOUNDS)

    def count(self, weights: Sequence[float], stale: int) -> None:
        """An update; 0.0 is a backend without a usable weight, `stale` of them old."""
        usable = 0
        for weight in weights:
            usable += weight > 0.0
            self.weights.observe(weight)
        self.fallbacks += usable < 2
        self.stale += stale
        self.not_yet_usable += len(weights) - usable - stale

    def __repr__(self) -> str:
        return f"<{self.fallbacks} fallbacks, {self.stale} stale weights>"
