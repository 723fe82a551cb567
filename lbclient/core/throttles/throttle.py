"""Adaptive throttling: a client stops sending what would be refused anyway.

The law is that of the SRE book, ch. 21: refuse here with probability (requests - K *
accepts) / (requests + 1), where requests counts what was refused here too. So a backend
gets at most K times what it accepts. A request is counted when its fate is known:
long calls that are under way must not look like refusals.

A client that sends too little to judge by its own outcomes goes by what backends say
they refuse: see `sparse_throttle`.

By that law alone a client would send K times more in each window until it finds that
the overload is over: after 23 minutes where K is 1.1. So it keeps the odds that the
overload is over. Each accepted request raises the odds, by more where few are accepted;
each refusal lowers them tenfold. While the odds are above `EVIDENCE`, what may be sent
grows, until nothing is held back; then the past is forgotten. And where the demand has
fallen to what backends accept, nothing is held back: see `fallen_demand`.
"""

from collections.abc import Callable
from functools import partial
from math import exp, log
from random import Random

from lbclient.core.counting.window import Window
from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.fallen_demand import FallenDemand
from lbclient.core.throttles.sparse_throttle import Loads, SparseThrottle

K = 2.0  # SRE book, ch. 21: lower spares backends, higher notices recovery sooner
WINDOW = 120.0  # seconds; likewise
INACTIVE_BELOW = 3.0  # requests a second: fewer tell too little of the backends
# Requests a second that are sent however many are refused: else, after two minutes of
# nothing but refusals, one would be sent in two minutes, and teach next to nothing.
PROBES = 0.5

# Odds are logarithms. 56 requests accepted in a row are enough where K is 1.1, 8 where
# K is 2: who has but one accepted a second needs a minute and more where K is near 1.
# With log(50) twenty clients of 2 accepted requests a second each believed so often by
# mistake that a backend had recovered that it got 1.16 K times what it accepted; with
# log(200), 1.03 K times. With log(100), or a quicker `GROWTH`, they recovered hardly
# any sooner.
EVIDENCE = log(200.0)
REFUSAL = log(10.0)  # backends that are not overloaded may refuse one in a hundred
# What one accepted request may count, at least: with K near 1 accepting is common.
LEAST, MOST = log(1.05), REFUSAL
GROWTH = 3.0  # seconds in which what may be sent grows e-fold, at most

# Where backends tell what they refuse, this many requests a second are still too few
# to judge by: with K = 2 a client of 3 a second, at ten times the capacity, would need
# 50 s of its own outcomes to recover, and one of 9 needs 17 s.
TOLD_BELOW = 9.0

# Backends that are sent K times what they accept accept 1 / (K - 1) requests for each
# that they refuse. A client that had this many times as many accepted ignores reports
# that say otherwise.
CONTRADICTED = 4.0

# The same rates as requests in a `WINDOW`.
COLD = INACTIVE_BELOW * WINDOW
TOLD = TOLD_BELOW * WINDOW
PROBED = PROBES * WINDOW

# A member is looked up in Python up to 3.11: 0.2 us at every call.
REJECTED, ABANDONED = Verdict.REJECTED, Verdict.ABANDONED

BY_CLIENT, BY_BACKEND, ACCEPTED = range(3)  # refused by whom, or accepted


class Throttle:
    """A channel's throttle, with a history for each criticality. Never waits.

    Call `admits` before a request is sent and, if it is sent, `observe` once when its
    outcome is known.
    """

    def __init__(self, rng: Random, k: float = K, loads: Loads | None = None) -> None:
        """`loads` returns the load of each ready backend; without it a client that
        sends little is not throttled."""
        self.k = k
        self._demand = demand = FallenDemand(k)
        self._histories = [
            _History(
                rng,
                k,
                partial(demand.fits, one),
                loads and SparseThrottle(rng, k, one, loads),
            )
            for one in Criticality
        ]

    def admits(self, criticality: Criticality, now: float) -> bool:
        self._demand.want(criticality, now)
        return self._histories[criticality].admits(now)

    def observe(self, criticality: Criticality, verdict: Verdict, now: float) -> None:
        """Records an outcome. A failure that is no refusal counts as accepted.

        This is no circuit breaker. An abandoned request counts as nothing.
        """
        if verdict is ABANDONED:
            return
        if verdict is REJECTED:
            self._demand.refuse(criticality, now)
        else:
            self._demand.accept(criticality, now)
        self._histories[criticality].observe(verdict, now)

    def is_needed(self, now: float) -> bool:
        """Whether anything was refused in the last two minutes, here or there."""
        return any(sum(one.window.read(now)[:ACCEPTED]) for one in self._histories)

    @property
    def refused(self) -> int:
        """Recent requests refused here or by backends; as of the last request."""
        return sum(sum(one.window.totals[:ACCEPTED]) for one in self._histories)

    def probability(self, criticality: Criticality, now: float) -> float:
        """The probability that the next request is refused here. Changes nothing."""
        return self._histories[criticality].probability(now)

    def counts(self, criticality: Criticality, now: float) -> tuple[int, int, int]:
        """Requests of the last two minutes refused here, refused there, accepted."""
        here, there, accepted = self._histories[criticality].window.read(now)
        return here, there, accepted

    def __repr__(self) -> str:
        totals = [one.window.totals for one in self._histories]
        here, there, accepted = (sum(counts) for counts in zip(*totals, strict=True))
        said = f"{here} refused here, {there} there, {accepted} accepted"
        return f"<K = {self.k:g}: {said}>"


class _History:
    """Recent requests of one criticality, and the evidence from them."""

    __slots__ = (
        "_accepted_at",
        "_fits",
        "_growth",
        "_k",
        "_odds",
        "_random",
        "sparse",
        "window",
    )

    def __init__(
        self,
        rng: Random,
        k: float,
        fits: Callable[[float], bool],
        sparse: SparseThrottle | None,
    ) -> None:
        """`fits`: what the client wants now was accepted lately, whatever the window
        remembers."""
        self._fits = fits
        self.window = Window(WINDOW, 3)
        self.sparse = sparse
        self._random = rng.random
        self._k = k
        self._odds = 0.0  # logarithm of the odds that the overload is over
        self._growth = 1.0  # so many times as much may be sent, for that reason
        self._accepted_at = 0.0

    def admits(self, now: float) -> bool:
        window = self.window
        if now >= window.ends_at:
            window.turn(now)
        here, there, accepted = window.totals
        requests = here + there + accepted
        if requests <= self._k * accepted:
            return True
        if self._may_send(there, accepted, requests, now) or self._fits(now):
            return True
        window.add(BY_CLIENT, now)
        return False

    def _may_send(self, there: int, accepted: int, requests: int, now: float) -> bool:
        """Draws whether the request is sent, with odds by this client's own outcomes
        or, if these are few, by what backends say they refuse."""
        if requests < TOLD:
            sparse = self.sparse
            if sparse and sparse.has_reports(now):
                return not self._trusts_reports(there, accepted) or sparse.admits(now)
            if requests < COLD:
                return True
        return self._random() * (requests + 1) >= requests - self._allowed(accepted)

    def _trusts_reports(self, there: int, accepted: int) -> bool:
        """Whether to believe backends that say they refuse much.

        Not if the client's own outcomes contradict them. A client that was not refused
        lately sends its request, whatever they say, and so finds out.
        """
        return accepted * (self._k - 1.0) < CONTRADICTED * there

    def _allowed(self, accepted: int) -> float:
        allowed = self._k * accepted
        return self._growth * (allowed if allowed > PROBED else PROBED)

    def probability(self, now: float) -> float:
        here, there, accepted = self.window.read(now)
        requests = here + there + accepted
        if requests <= self._k * accepted or self._fits(now):
            return 0.0
        sparse = self.sparse
        if requests < TOLD and sparse and sparse.is_told(now):
            trusts_reports = self._trusts_reports(there, accepted)
            return sparse.probability(now) if trusts_reports else 0.0
        if requests < COLD:
            return 0.0
        return max(0.0, (requests - self._allowed(accepted)) / (requests + 1))

    def observe(self, verdict: Verdict, now: float) -> None:
        if verdict is REJECTED:
            self.window.add(BY_BACKEND, now)
            self._odds = max(0.0, self._odds - REFUSAL)
            if self._odds <= EVIDENCE:
                self._growth = 1.0
            return
        self.window.add(ACCEPTED, now)
        here, there, accepted = self.window.totals
        if here + there + accepted > self._k * accepted:
            self._believe(now, log((there + accepted) / accepted))
        self._accepted_at = now

    def _believe(self, now: float, rarity: float) -> None:
        gain = min(MOST, max(LEAST, rarity))
        # So the next refusal ends the growth or all but ends it, however well it went.
        self._odds = min(self._odds + gain, EVIDENCE + REFUSAL)
        if self._odds <= EVIDENCE:
            return
        since = max(0.0, min(now - self._accepted_at, 1.0 / PROBES))
        speed = (self._odds - EVIDENCE) / REFUSAL  # as scant evidence often deceives
        self._growth *= exp(speed * since / GROWTH)
        here, there, accepted = self.window.totals
        if here + there + accepted <= self._allowed(accepted):
            self.window.clear()
            self._odds, self._growth = 0.0, 1.0
