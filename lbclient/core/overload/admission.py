"""From values of overload signals to the share of requests admitted, by criticality.

Each signal of how busy the task is says what share may come in: all up to its target,
e times less for each width beyond that. An exponential answers twofold and tenfold
overload alike, each step being the same share of what gets in; a threshold would swing.
The signal that says least counts, and what comes in is shared out by criticality, the
highest first, after what has come lately of each. SRE book, ch. 21, "Utilization
Signals".

A signal must be quicker than what it controls: what comes in must not fill a width
before it is seen, or the two chase each other.
"""

from collections.abc import Sequence
from math import exp, inf
from random import Random
from typing import NamedTuple

from lbclient.core.counting.tally import Tally
from lbclient.core.criticality import DEFAULT, Criticality, shares
from lbclient.core.refusal import Refusal
from lbclient.core.retries.attempt_histogram import LAST, AttemptHistogram


class Signal(NamedTuple):
    """How busy a task is, in units of its own; refusing begins at `target`."""

    name: str
    target: float
    width: float


# The width as it is for each criticality: what is dearer gives way later, so that no
# wave of the signal reaches it while there are cheaper requests to refuse. Up to twice
# as late, the more of what comes is cheaper. Ours, from the simulation in tests/laws:
# beside 12 capacities of SHEDDABLE 99.2 to 99.9 % of half a one of CRITICAL got in
# without that, and 99.9 % or more do with it.
PATIENCE = (1.0, 1.7, 3.0, 4.5)

# Executor load average: requests that run or want to, for each processor. The first
# signal to have, wherever they can be counted at once. Ours, from the simulation in
# tests/laws: tenfold overload has twice the p99 of 0.8 of the capacity, where 0.2 % are
# refused, or 3 % if costs are exponential. A lower target has shorter queues.
LOAD = Signal("load", 8.0, 0.8)

CPU_NAME = "CPU utilization"
MEMORY_NAME = "memory"
PLACES_NAME = "concurrency"
QUEUE_NAME = "queue delay"
# A server's own signals go by these.
BUILT_IN_SIGNALS = (LOAD.name, CPU_NAME, MEMORY_NAME, PLACES_NAME, QUEUE_NAME)

# Of a limit of requests at a time, how many places are kept for the more critical: two
# standard deviations of what Poisson arrivals take, but no more than half of them; and
# how many widths these are. Ours, from the simulation in tests/laws: beside 12 limits'
# worth of SHEDDABLE half a limit of CRITICAL got 99.1 % of 30 places, and all of 100.
KEPT = 2.0  # standard deviations
WIDTHS = 7.0  # of `Signal.width`, in the places kept

MIX_MEMORY = 128  # requests: a spike is known for what it is after as many

MEMORY = 30.0  # seconds. Ours: a method may become faster, or slower, with its data
# Seconds between two requests that may try whether that is so. Ours: a task that was
# frozen during the only request it has served is found out as soon as a second.
TRIAL = 1.0


def _rooms(offered: Sequence[float], excess: float) -> list[float]:
    """The requests that each criticality and all above it may send, at this excess."""
    total, cheaper, rooms = sum(offered), 0.0, []
    for patience, demand in zip(PATIENCE, offered, strict=True):
        patience *= 1.0 + cheaper / total
        rooms.append(total * exp(-excess / patience))
        cheaper += demand
    return rooms


class Admission:
    """Decides what share of requests is admitted, by criticality, from overload
    signals. Owned by a server, which calls `observe` often and `refuses` for each
    request."""

    def __init__(self, signals: Sequence[Signal], rng: Random) -> None:
        self._signals = tuple(signals)
        self._random = rng.random
        self.mix = Tally(len(Criticality), MIX_MEMORY)
        self.attempts = AttemptHistogram()
        # The share of what comes that may come in at most, whatever signals say.
        self.admissible = 1.0
        self.excess = 0.0  # widths by which the worst signal is beyond its target
        self.worst = ""  # the name of that signal; "": all are well
        self.shares = [1.0] * len(Criticality)  # that get in, by criticality

    def observe(self, values: Sequence[float], admissible: float = 1.0) -> None:
        """Takes the present values of all signals, in the order of `signals`.

        `admissible` is the largest share of requests that may be admitted, by the queue
        delay.
        """
        self.admissible = admissible
        self.excess, self.worst = 0.0, ""
        for signal, value in zip(self._signals, values, strict=True):
            excess = (value - signal.target) / signal.width
            if excess > self.excess:
                self.excess, self.worst = excess, signal.name
        if admissible < 1.0 and not self.worst:
            self.worst = QUEUE_NAME
        self._share_out()

    def _share_out(self) -> None:
        offered = self.mix.counts
        if not self.worst:
            self.shares = [1.0] * len(offered)
            return
        most = sum(offered) * self.admissible
        rooms = [min(room, most) for room in _rooms(offered, self.excess)]
        self.shares = shares(rooms, offered)

    def refuses(self, criticality: Criticality, attempt: int = 0) -> Refusal | None:
        """Whether to refuse a request, and if so whether it may be retried elsewhere.

        `attempt` is the number that the client sent.
        """
        self.attempts.add(attempt)
        if self.mix.add(criticality):
            self._share_out()
        share = self.shares[criticality]
        if share >= 1.0 or self._random() < share:
            return None
        return self.refusal(attempt)

    def refusal(self, attempt: int = 0) -> Refusal:
        """What a refused request is told: whether it may try elsewhere."""
        if attempt >= LAST or self.attempts.is_in_vain():
            return Refusal.DONT_RETRY
        return Refusal.OVERLOADED

    def let_in(self, requests: int) -> None:
        """Counts requests that were admitted without being asked for a decision.

        All of them are first attempts of the default criticality.
        """
        self.mix.add_many(DEFAULT, requests)
        self.attempts.add_first(requests)
        self._share_out()

    def __repr__(self) -> str:
        if not self.worst:
            return "<admits all>"
        got = ", ".join(
            f"{share:.0%} of {one.name}"
            for one, share in zip(Criticality, self.shares, strict=True)
            if share < 1.0
        )
        return (
            f"<{self.worst} {self.excess:.1f} widths too high: admits {got or 'all'}>"
        )


class Places:
    """A limit of concurrent requests, whose last places are for the more critical.

    Places are kept only while more critical requests arrive, as `mix` says, which
    counts recent requests by criticality. A full limit refuses everybody, so less
    critical requests must be refused before it is full.
    """

    def __init__(
        self, limit: int, mix: Tally, rng: Random, most_kept: float = 0.5
    ) -> None:
        """`most_kept`: the share of places kept for the more critical, at most."""
        self.limit = limit
        kept = min(limit * most_kept, KEPT * limit**0.5)
        self.start = limit - kept  # requests: from here on some are refused
        self._width = kept / WIDTHS
        self._mix = mix
        self._random = rng.random

    def refuses(self, criticality: Criticality, active: int) -> bool:
        """Whether to refuse a new request while `active` requests are in progress."""
        if active >= self.limit:
            return True
        excess = (active - self.start) / self._width
        if excess <= 0.0 or not self.is_kept_from(criticality):
            return False
        return self._random() >= self._shares(excess)[criticality]

    def is_kept_from(self, criticality: Criticality) -> bool:
        """Whether more critical requests have arrived lately."""
        return any(count > 1.0 for count in self._mix.counts[criticality + 1 :])

    def _shares(self, excess: float) -> list[float]:
        offered = self._mix.counts
        kept_from = [self.is_kept_from(one) for one in Criticality]
        rooms = _rooms(offered, excess)
        total = sum(offered)
        pairs = zip(rooms, kept_from, strict=True)
        return shares([room if kept else total for room, kept in pairs], offered)

    def __repr__(self) -> str:
        return f"<{self.limit} places, those from {self.start:.0f} on by criticality>"


class Quickest:
    """The shortest time in which a request of one method was served lately.

    A request with less time left cannot be served before its deadline, however idle the
    task is.
    """

    __slots__ = ("_before", "_trial_at", "ample", "tried_at", "turns_at")

    def __init__(self) -> None:
        # Least since the last turn, and before that. Whoever has more than the first
        # left is not too late, nor does it learn from what takes longer until it turns:
        # the hot path asks no further.
        self.ample = self._before = inf
        self.turns_at = self._trial_at = -inf
        self.tried_at = -inf  # when the last trial came in

    def observe(self, seconds: float, now: float) -> None:
        """A request was served in `seconds`, from its arrival on."""
        if now >= self.turns_at:
            is_recent = now < self.turns_at + MEMORY
            self._before = self.ample if is_recent else inf
            self.ample = inf
            self.turns_at = now + MEMORY
        self.ample = min(self.ample, seconds)
        self._trial_at = now + TRIAL

    def has_trial(self, now: float) -> bool:
        """Whether a request that is too late may come in all the same, to learn whether
        others would be, too. One may, `TRIAL` seconds after anything was learned."""
        if now < self._trial_at:
            return False
        self.tried_at, self._trial_at = now, now + TRIAL
        return True

    def is_too_late(self, left: float, now: float) -> bool:
        """Whether `left` seconds are too few; only 0 or less if nothing is known.

        What is known expires: a task that refuses all requests as too late learns
        nothing new.
        """
        if left <= 0.0:
            return True
        if now < self.turns_at:
            return left < min(self.ample, self._before)
        return now < self.turns_at + MEMORY and left < self.ample
