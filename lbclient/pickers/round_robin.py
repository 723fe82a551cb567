"""Round robin: each ready backend in turn.

The turn belongs to an address, not to an index: when backends come and go, it continues
after the last address. Starting again at the first backend after every change would
send that backend more than its share, and it is the same backend for every client.
"""

from collections.abc import Sequence
from itertools import chain
from math import inf
from random import Random

from lbclient.core.protocols import N, Node
from lbclient.pickers.options import between
from lbclient.pickers.slow_start import MOMENT, SLOW_START, STEP, SlowStart


def resume(before: Sequence[Node], turn: int, ready: Sequence[Node]) -> int | None:
    """Where in `ready` the turn is that was at `before[turn]`.

    If that node left it passes to the first after it that stayed; None if none did.
    """
    index = {node.endpoint.address: i for i, node in enumerate(ready)}
    for node in chain(before[turn:], before[:turn]):
        if (i := index.get(node.endpoint.address)) is not None:
            return i
    return None


class RoundRobin:
    """Picks each ready backend in turn, whatever its load.

    Use it when all backends are equally fast and requests cost about the same, or when
    neither is known. Otherwise the load is uneven: the SRE book (ch. 20) saw the
    busiest task use twice as much CPU as the least loaded one.

    A newcomer skips some of its turns for `slow_start` seconds.
    """

    rule = "Calls go to the ready backends in turn; one of little weight misses turns."

    def __init__(self, rng: Random, *, slow_start: float = SLOW_START) -> None:
        self._rng = rng
        self._slow_start = SlowStart(between("slow_start", slow_start, 0.0, 3600.0))
        self._shares: list[float] = []
        self._look_at = -inf
        self._built_for: Sequence[Node] = ()
        self._turn = 0

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            turn = resume(self._built_for, self._turn, ready)
            # A random start, so that many clients do not march in step.
            self._turn = self._rng.randrange(len(ready)) if turn is None else turn
            self._built_for = ready
            self._look_at = now
        if now >= self._look_at:
            self._slow_start.look(ready, now)
            self._shares = self._slow_start.shares(ready, now)
            self._look_at = now + (STEP if min(self._shares) < 1.0 else MOMENT)
        turn, shares = self._turn, self._shares
        # Ends: somebody has a full share.
        while shares[turn] < 1.0 and self._rng.random() >= shares[turn]:
            turn = turn + 1 if turn + 1 < len(ready) else 0
        self._turn = turn + 1 if turn + 1 < len(ready) else 0
        return ready[turn]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        shares = self._slow_start.shares(ready, now)
        mean = sum(shares) / len(shares)
        return [share / mean for share in shares]

    def __repr__(self) -> str:
        if not self._built_for:
            return "<round robin, not started>"
        address = self._built_for[self._turn].endpoint.address
        return f"<round robin over {len(self._built_for)}, next {address}>"
