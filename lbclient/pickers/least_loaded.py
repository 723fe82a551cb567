"""Least loaded: who has the fewest of our requests, errors counting as requests.

The SRE book's "least-loaded round robin" (ch. 20): round robin among the backends
with the fewest active requests. Recent errors count as active requests because a
backend that fails at once otherwise always looks idle, and draws all the traffic.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from lbclient.core.load import FORGOTTEN_AFTER
from lbclient.core.protocols import N, Node
from lbclient.pickers.round_robin import resume


class LeastLoaded:
    """In turn among those with the fewest (requests in flight + recent errors).

    Use it when backends report nothing and a client has several requests in flight
    on each. Not when clients are many and each has few: it sees only its own
    requests, and the slow machines still get too much. It has no slow start: a cold
    backend is slow to finish what it has, and so gets little.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._built_for: Sequence[Node] = ()
        self._turn = 0

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            turn = resume(self._built_for, self._turn, ready)
            self._turn = self._rng.randrange(len(ready)) if turn is None else turn
            self._built_for = ready
        turn = self._turn
        forgotten_at = now - FORGOTTEN_AFTER
        fewest: float = inf
        chosen = 0
        for i, node in enumerate(ready):
            load = node.load
            count = load.in_flight
            if load.erred_at > forgotten_at:
                # Whole errors: a trace of an old one must not lose every tie.
                count += round(load.recent_errors(now))
            if count <= fewest and (count < fewest or chosen < turn <= i):
                fewest = count
                chosen = i
        self._turn = chosen + 1 if chosen + 1 < len(ready) else 0
        return ready[chosen]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return [1.0] * len(ready)

    def __repr__(self) -> str:
        return f"<least loaded over {len(self._built_for)}>"
