"""Picks for resumable streams: the backend with the fewest of them for its worth.

A stream stays for long, so what a backend has to do at the moment says little of it.
Streams are counted; what they are worth is told by `core.routing.stream_worth`. A
client with few streams goes by what backends report of all clients, and draws among
those that have less than their share: where all clients took the emptiest, it would
soon be the fullest.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from lbclient.core.protocols import N, Node
from lbclient.core.routing.stream_moves import BackendStreams, goes_by_own, shares
from lbclient.core.routing.stream_worth import StreamWorth
from lbclient.pickers.slow_start import SlowStart

FRESH = 30.0  # seconds; an older report of all clients' requests counts as none


class FewestStreams:
    """Spreads resumable streams. Made by channels; it takes the picker's place for
    their streams without keys.

    `own` tells this client's streams on a backend, and how many of them can be asked
    to move.
    """

    rule = (
        "to the backend with the fewest streams, of this client or of all, for "
        "its weight"
    )

    def __init__(
        self, rng: Random, slow_start: float, own: Callable[[Node], tuple[int, int]]
    ) -> None:
        self._rng = rng
        self._own = own
        self._slow_start = SlowStart(slow_start)
        self._worth: StreamWorth[Node] = StreamWorth()
        self._factors: Mapping[Node, float] = {}

    def pick(self, ready: Sequence[N], now: float) -> N:
        seen = dict(enumerate(self._seen(ready, now)))
        if goes_by_own(seen):
            scores = [(each.own + 1) / each.worth for each in seen.values()]
            least = min(scores)
            best = [index for index, score in enumerate(scores) if score == least]
            return ready[self._rng.choice(best)]
        counts = {index: each.told or 0.0 for index, each in seen.items()}
        counts[0] += 1.0  # the stream, wherever it goes
        found = shares(counts, {index: each.worth for index, each in seen.items()})
        counts[0] -= 1.0
        room = [max(0.0, found[index] - counts[index]) for index in seen]
        return self._rng.choices(ready, room)[0]

    def look(self, ready: Sequence[N], now: float) -> dict[N, BackendStreams]:
        """What streams these backends have, and should have. To be called about once a
        second: it also learns what they are worth."""
        self._slow_start.look(ready, now)
        seen = dict(zip(ready, self._seen(ready, now), strict=True))
        by_own = goes_by_own(seen)
        self._worth.observe(
            {
                node: (
                    float(each.own) if by_own else each.told or 0.0,
                    node.load.utilization(),
                )
                for node, each in seen.items()
            }
        )
        self._factors = self._worth.factors()
        return seen

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        ramps = self._slow_start.shares(ready, now)
        found = [
            node.endpoint.weight * ramp * self._factors.get(node, 1.0)
            for node, ramp in zip(ready, ramps, strict=True)
        ]
        mean = sum(found) / len(found)
        return [weight / mean for weight in found]

    def _seen(self, ready: Sequence[Node], now: float) -> list[BackendStreams]:
        worth = self.weights(ready, now)
        return [
            BackendStreams(*self._own(node), told(node, now), each)
            for node, each in zip(ready, worth, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<fewest streams: {self._worth!r}>"


def told(node: Node, now: float) -> float | None:
    """Requests in flight on a backend, of all clients; None: it does not tell."""
    load = node.load
    report = load.report
    if report is None or report.active is None or now - load.reported_at > FRESH:
        return None
    return float(max(report.active + load.sent_since_report, load.in_flight))
