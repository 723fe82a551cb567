"""P2c: of two random backends the one with fewer of this client's requests and errors.

The power of two choices: nearly as even as comparing all backends, at a cost that does
not grow with their number, and clients do not all choose the same idle backend.
Mitzenmacher, "The power of two choices in randomized load balancing" (1996).
"""

from collections.abc import Sequence
from random import Random

from lbclient.core.load import HELD_FOR
from lbclient.core.protocols import N, Node


def two(rng: Random, count: int) -> tuple[int, int]:
    """Two different numbers below `count`; twice 0 if there is no other."""
    if count == 1:
        return 0, 0
    one = int(rng.random() * count)
    other = int(rng.random() * (count - 1))
    return one, other + (other >= one)


def requests(node: Node, now: float) -> float:
    """Ours in flight, and errors of late, which count as such."""
    load = node.load
    if load.erred_at > now - HELD_FOR:
        return load.in_flight + load.recent_errors(now)
    return load.in_flight


class P2c:
    """Picks the less loaded of two random backends, as this client sees them.

    Use it like `LeastLoaded`, with several requests in flight on each of hundreds of
    backends. With a subset of 20, `LeastLoaded` costs as little and errs less often.
    With many clients that have few requests each, slow machines still get too many. It
    has no slow start, because a cold backend finishes slowly and so gets fewer
    requests.
    """

    rule = (
        "Of two backends drawn by chance a call goes to the one with less in flight + "
        "recent errors."
    )

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._count = 0

    def pick(self, ready: Sequence[N], now: float) -> N:
        self._count = len(ready)
        one, other = two(self._rng, len(ready))
        first, second = ready[one], ready[other]
        # Whole numbers: a trace of an old error must not lose every tie. Of equals the
        # first: it is as likely as the other to be that.
        here, there = round(requests(first, now)), round(requests(second, now))
        return second if there < here else first

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return [1.0] * len(ready)

    def __repr__(self) -> str:
        return f"<p2c over {self._count}>"
