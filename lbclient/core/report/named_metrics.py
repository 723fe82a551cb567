"""Reports overload signals and an application's metrics as ORCA's named metrics.

See gRFC A51.

Each signal is told over its target, so 1.0 is where requests begin to be refused,
whatever the signal: so the largest of several is the one that is nearest to that. They
are smoothed, as utilization is.

A signal that nobody could read is left out. 0 means unknown in a report, so a signal
that is known is told as `LEAST` at least.
"""

from collections.abc import Mapping
from math import inf

from lbclient.core.counting.ewma import Ewma
from lbclient.core.text import is_printable

LEAST = 0.001  # of the target; the smallest value that is told
# Names, and bytes of a name. Every response carries them twice, and gRPC's clients
# refuse more than 8 KiB of metadata: these take a fifth of it at most.
MOST = 16  # names
LONGEST = 40  # bytes


class NamedMetrics:
    """Smooths a server's overload signals and reports them as ORCA named metrics. Owned
    by a load monitor."""

    def __init__(self, smoothing: float) -> None:
        self._smoothing = smoothing
        self._smoothed: dict[str, Ewma] = {}

    def take(self, values: Mapping[str, float], now: float) -> None:
        """Takes all signals that could be read, over their targets.

        Who is missing is not told until it is back, and then begins anew.
        """
        before, self._smoothed = self._smoothed, {}
        for name, value in values.items():
            if len(self._smoothed) < MOST and is_tellable(name) and 0.0 <= value < inf:
                ewma = before.get(name) or Ewma(self._smoothing)
                ewma.update(value, now)
                self._smoothed[name] = ewma

    def read(self) -> dict[str, float]:
        return {name: max(LEAST, one.value) for name, one in self._smoothed.items()}

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.3f}" for name, value in self.read().items())
        return f"<{told or 'no signals'}>"


def is_tellable(name: str) -> bool:
    """Whether reports may carry a metric of this name."""
    return is_printable(name) and len(name.encode()) <= LONGEST
