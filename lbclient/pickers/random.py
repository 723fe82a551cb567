"""Random: each ready backend is equally likely.

It keeps no state that could be wrong, and many clients cannot get in step. But chance
is uneven: of 100 calls to 10 backends some get 5 and some 15; round robin gives each
10.
"""

from collections.abc import Sequence
from math import inf
from random import Random as Generator

from lbclient.core.protocols import N
from lbclient.pickers.options import between
from lbclient.pickers.slow_start import MOMENT, SLOW_START, STEP, SlowStart


class Random:
    """Picks each ready backend with equal probability, whatever its load.

    Use it as the baseline for other pickers, or where round robin is harmful because
    requests come in a pattern. Otherwise `RoundRobin` is as simple and more even.

    A newcomer is less likely for `slow_start` seconds.
    """

    rule = "A call goes to any ready backend by chance, in proportion to its weight."

    def __init__(self, rng: Generator, *, slow_start: float = SLOW_START) -> None:
        self._random = rng.random
        self._slow_start = SlowStart(between("slow_start", slow_start, 0.0, 3600.0))
        self._shares: list[float] = []
        self._is_ramping = False
        self._look_at = -inf
        self._built_for: Sequence[object] = ()

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for or now >= self._look_at:
            self._slow_start.look(ready, now)
            self._shares = self._slow_start.shares(ready, now)
            self._is_ramping = min(self._shares) < 1.0
            self._look_at = now + (STEP if self._is_ramping else MOMENT)
            self._built_for = ready
        chosen = int(self._random() * len(ready))
        # Ends: somebody has a full share.
        while self._is_ramping and self._random() >= self._shares[chosen]:
            chosen = int(self._random() * len(ready))
        return ready[chosen]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        shares = self._slow_start.shares(ready, now)
        mean = sum(shares) / len(shares)
        return [share / mean for share in shares]

    def __repr__(self) -> str:
        return f"<random over {len(self._built_for)}>"
