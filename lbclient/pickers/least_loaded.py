"""Least loaded: the backend with the fewest of this client's requests and errors.

The SRE book's "least-loaded round robin" (ch. 20): round robin among the backends with
the fewest active requests. Recent errors count as active requests. Otherwise a backend
that fails immediately would always look idle and attract all traffic.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from lbclient.core.load import HELD_FOR
from lbclient.core.protocols import N, Node
from lbclient.pickers.round_robin import resume


class LeastLoaded:
    """Takes turns among the backends with the fewest requests and errors.

    Use it when backends do not report and a client has several requests in flight on
    each backend. Do not use it with many clients that have few requests each: a client
    sees only its own requests, and slow machines still get too many. It has no slow
    start, because a cold backend finishes slowly and so gets fewer requests.
    """

    rule = (
        "A call goes to the backend with the least in flight + recent errors, and of "
        "equals to the next one in turn."
    )

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
        forgotten_at = now - HELD_FOR
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
