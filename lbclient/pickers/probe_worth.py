"""Decides whether a picker's probes are worth their cost.

A client that sends one request a second has old news of each backend, and so have all
other clients: they all choose the backend that was idle long ago. A probe costs a
backend about 0.2 ms. It is worth that only if requests are long, if the client has too
few of its own to know the load, and if backends are busy. Busy clients do not probe.
"""

from lbclient.core.counting.allowance import Allowance
from lbclient.pickers.means import Means

LONG = 0.05  # seconds that requests take: 200 times what it costs to be asked
FEW = 0.5  # of our requests in flight on each backend
QUIET = 0.5  # requests of anybody on each backend; with fewer it takes turns anyway
BURST = 2.0  # asked at once, at most
MOST_WANTED = 64  # whoever wraps a picker may not know that it asks


class ProbeWorth:
    """Decides whether a picker sends probes, and how often. Owned by one picker.

    `rate`: the most probes a second.
    """

    __slots__ = ("_allowance", "_rate", "is_on")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._allowance = Allowance(BURST, rate)
        self.is_on = False

    def update(self, means: Means) -> None:
        """Takes what is usual of the backends."""
        wanted = means.latency > LONG and means.own < FEW and means.requests > QUIET
        self.is_on = wanted and self._rate > 0.0

    def spend(self, now: float) -> bool:
        """Whether one more may be asked now; counts it if so."""
        return self._allowance.take(now)

    def __repr__(self) -> str:
        return f"<asking {self._rate:g} a second, {'on' if self.is_on else 'off'}>"
