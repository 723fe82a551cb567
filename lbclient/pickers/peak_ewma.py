"""Peak EWMA: of two random backends the one that should be faster.

The expected time is latency x (this client's requests in flight + recent errors + 1).
The latency follows a slow answer immediately, and fast ones as a mean over 10 s.
Without answers it moves towards the mean of all backends, so no backend is avoided for
ever. In Twitter's Finagle, the source, it then decays to zero, and a backend that fails
all requests immediately becomes the fastest of all.
"""

from collections.abc import Sequence
from math import exp
from random import Random

from lbclient.core.load import LATENCY_GAIN, Load
from lbclient.core.model import Verdict
from lbclient.core.protocols import N, Node
from lbclient.pickers.options import between
from lbclient.pickers.p2c import requests, two

SERVED = Verdict.SERVED
SHORTEST, LONGEST = 1e-9, 1e9  # seconds; the bounds keep shares finite


class Peak:
    """The peak latency of one backend. Owned by the picker."""

    __slots__ = ("at", "mean", "served", "value")

    def __init__(self, load: Load, now: float) -> None:
        self.value = load.latency  # at `at`; 0.0: unknown
        self.at = now
        self.mean = load.latency  # the load's, and of how many, when last looked at
        self.served = load.counts[SERVED]

    def relative_to(self, mean: float, now: float, decay: float) -> float:
        """What it takes now, `mean` being what all take."""
        if not self.value:
            return mean
        return mean + (self.value - mean) * exp(min(0.0, self.at - now) / decay)

    def learn(self, load: Load, now: float, decay: float) -> float:
        """Takes what was served since the last time; most often it is one request.

        Returns what it takes now, 0.0 if that is no news.
        """
        count = load.counts[SERVED] - self.served
        if not count:
            return 0.0
        kept = (1.0 - LATENCY_GAIN) ** count
        before, mean = self.mean, load.latency
        # What was blended into the mean; exact for one request.
        sample = max(0.0, (mean - before * kept) / (1.0 - kept)) if before else mean
        fade = exp(min(0.0, self.at - now) / decay)
        faded = self.value * fade + sample * (1.0 - fade)
        self.value = sample if sample > self.value else faded
        self.at = now
        self.mean = mean
        self.served += count
        return self.value


class PeakEwma:
    """Picks, of two random backends, the one with the smaller peak latency x requests.

    Use it when backends differ in speed and do not report, and a request spends most of
    its time in the backend's queue or on its processors. Do not use it when requests
    wait for other services, because latency then says nothing about load. Do not use it
    when clients differ much, because each client sees only its own latencies. It has no
    slow start, because a cold backend is slow.

    `decay`: seconds in which an old latency decays to a third.
    """

    rule = (
        "Of two backends drawn by chance a call goes to the one with the least "
        "(in flight + recent errors + 1) / weight, which falls as latency grows."
    )

    def __init__(self, rng: Random, *, decay: float = 10.0) -> None:
        self._rng = rng
        self._decay = between("decay", decay, 0.01, 3600.0)
        self._built_for: Sequence[Node] = ()
        self._peaks: dict[Load, Peak] = {}
        self._written: list[Load] = []
        self._mean = 0.0  # of the peaks of all

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._follow(ready, now)
        if self._written:
            self._take_news(now)
        one, other = two(self._rng, len(ready))
        first, second = ready[one], ready[other]
        here = self._expected(first.load, now) * (requests(first, now) + 1.0)
        there = self._expected(second.load, now) * (requests(second, now) + 1.0)
        return second if there < here else first

    def _expected(self, load: Load, now: float) -> float:
        """How long a request there takes; all the same while nothing is known."""
        peak = self._peaks.get(load)
        return (
            peak.relative_to(self._mean, now, self._decay) if peak else self._mean
        ) or 1.0

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        """In proportion to speed."""
        expected = (self._expected(node.load, now) for node in ready)
        speeds = [1.0 / min(max(each, SHORTEST), LONGEST) for each in expected]
        mean = sum(speeds) / len(speeds)
        return [speed / mean for speed in speeds]

    def _take_news(self, now: float) -> None:
        for load in self._written:
            load.is_written = False
            peak = self._peaks.get(load)
            if peak and (value := peak.learn(load, now, self._decay)):
                mean = self._mean
                self._mean = mean + (value - mean) * LATENCY_GAIN if mean else value
        self._written.clear()

    def _follow(self, ready: Sequence[Node], now: float) -> None:
        """Takes new members, and forgets who has left; a full one has not."""
        here = [node.load for node in ready]
        for load in here:
            if load not in self._peaks:
                self._peaks[load] = Peak(load, now)
                load.tell(self._written)
        self._peaks = {
            load: peak
            for load, peak in self._peaks.items()
            if load.ready_at is not None or load in here
        }
        self._built_for = ready

    def __repr__(self) -> str:
        return f"<peak ewma over {len(self._built_for)}>"
