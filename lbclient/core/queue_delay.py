"""Estimates how long requests wait in gRPC's core, and limits them by it.

Before Python sees a request it waits in a queue of gRPC's core, first in, first out.
Only the number of requests in the queue is known. By Little's law the wait is this
number over the requests that are taken from the queue in a second.

If the wait stays longer than a part of the requests' time until their deadlines, the
rate of admitted requests is limited. The limit begins at the rate admitted so far, and
then follows the wait so that it stays at its target. Requests beyond the rate are
refused as soon as they are taken, so requests that are served have not waited long.

gRPC's core keeps some hundreds and ends the others, at no cost. With handlers that only
wait what it keeps is served in time, and to refuse takes a good part of what serving
does. So nobody need be refused there, and a little time goes into choosing whom to end.

Source: controlled delay, CoDel, RFC 8289; Breakwater, OSDI 2020.
"""

from math import exp, inf

SHARE = 0.2  # of the time that requests have, which they may wait
# Seconds for which they wait longer until that is no burst. A sample counts for LONGEST
# at most: much comes while a handler has the loop for long, and is soon worked off.
STANDING, LONGEST = 0.2, 0.1
SMOOTHING = 0.2  # seconds, of how many come and are taken
# The rate is multiplied by e for each 1 / FAST seconds by which the wait has become
# shorter, and where it is one second shorter than it may be, by e SLOW times a second.
# If e times as many come in as are served the wait grows by a second in each second or
# so, for any number: then these are critically damped (FAST * FAST = 4 * SLOW).
FAST, SLOW = 4.0, 4.0
# In one sample by no more than e to this power. Where the process stood still next to
# nothing was taken, so the wait looks endless, and then as if it had become so shorter.
STEEPEST = 10.0
# The rate at the least: requests a second, and a part of the most that were let in.
# From less it would take seconds to come back to what can be done.
LEAST, LEAST_PART = 1.0, 0.1
# Of the time that they may wait, added where nobody is let in any more, and less of it
# where some are: where refusing takes the time that serving would have, requests may
# wait longer.
DEARER = 0.6
# Refusing is in vain where it is as dear as serving, or more comes than can be refused.
# The sign: for IN_VAIN seconds the wait was too long, and it is still HARDLY times what
# it was, or more. Then requests may wait LONGER times as long as they do. That fades by
# e in FADES seconds, and is never more than LATEST, a share of their time as SHARE is:
# whoever waits longer is served too late.
IN_VAIN, HARDLY, LONGER, LATEST = 1.0, 0.97, 1.25, 0.8
FADES = 10.0
# Nobody need be refused if to refuse takes DEAR of what serving does, or more, and what
# waits behind all that the core keeps waits for BEHIND_ALL of its time at most. Then
# SPARE of a processor is for refusing the least critical. Without refusing it is taken
# to serve (1 + MORE) times as many, at most: a handler that sleeps on the loop keeps it
# without a processor.
DEAR, BEHIND_ALL, SPARE, MORE = 0.07, 0.5, 0.05, 2.0


class QueueDelay:
    """The queue delay of one server, which calls `sample` ten times a second."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that what is taken now has waited
        self.target = SHARE  # seconds: what waits longer is too much
        # gRPC's core ends what would wait for too long, so nobody need be refused.
        self.is_core_enough = False
        self.admissible = 1.0  # the share of what comes that may come in
        self._longest = 0.0  # seconds since nothing waited
        self._stood = 0.0  # seconds for which it was too much
        self.is_limited = False
        self._waiting = 0
        # All in requests a second: what may come in while that is limited; and what
        # comes, is taken, and is let in.
        self._rate = 0.0
        self._comes = self._is_taken = self._is_let_in = 0.0
        self._runs = 0.0  # the loop, of a processor
        self._most_let_in = LEAST  # since what comes in is limited
        self._beyond = 0.0  # seconds since the wait was too long, at the most IN_VAIN
        self._first_beyond = 0.0  # the wait then
        self._in_vain = 0.0  # the share of their time that they may wait longer for it
        self._most = inf  # that may wait

    def sample(
        self,
        elapsed: float,
        *,
        waiting: int,
        taken: int,
        let_in: int,
        time: float,
        most: float = inf,
        full: float = inf,
        cost: float = 0.0,
        ran: float = 0.0,
    ) -> None:
        """Takes the counts of the last `elapsed` seconds: requests that wait, were
        taken, admitted.

        `time`: seconds that arriving requests have until their deadlines. `most`: half
        of the core's queue, which may wait where refusing is cheap; then the core need
        not end any itself. `full`: who waits if the core keeps all that it can. Of the
        processor `cost` is what refusing one takes, and the loop `ran` for so long.
        """
        # What the core has ended, as more waited than it keeps, has not come.
        came, self._waiting = taken + waiting - self._waiting, waiting
        kept = exp(-elapsed / SMOOTHING)
        self._comes += (came / elapsed - self._comes) * (1.0 - kept)
        self._is_taken += (taken / elapsed - self._is_taken) * (1.0 - kept)
        self._is_let_in += (let_in / elapsed - self._is_let_in) * (1.0 - kept)
        # Nothing has waited for longer than since nothing did, however few were
        # taken, as where the process stood still.
        self._longest = self._longest + elapsed if waiting else 0.0
        self._runs += (ran / elapsed - self._runs) * (1.0 - kept)
        before, self.seconds = self.seconds, 0.0
        if waiting and self._is_taken:
            self.seconds = min(self._longest, waiting / self._is_taken)
        self.target = self._share(elapsed, time, most) * time
        if self.is_limited:
            change = FAST * (before - self.seconds)
            slow = SLOW * max(1.0, SHARE / self.target) ** 0.5
            change += slow * (self.target - self.seconds) * elapsed
            self.is_core_enough = self._is_enough(full, cost, time)
            least = self._least(SPARE / cost if cost and most < inf else 0.0)
            self._rate = max(least, self._rate * exp(min(change, STEEPEST)))
        elif self._stands(elapsed):
            self.is_limited, self.is_core_enough = True, False
            self._most_let_in = max(LEAST, self._is_let_in, let_in / elapsed)
            fits = self._is_let_in * self.target / self.seconds
            self._rate = max(LEAST, fits)
        else:
            return
        # More than comes would take time to undo when more comes.
        self._rate = min(self._rate, max(LEAST, self._comes))
        self.admissible = min(1.0, self._rate / max(1.0, self._comes))
        if self.admissible == 1.0 and self.seconds <= self.target:
            self.is_limited = False

    def _least(self, spare: float) -> float:
        """The rate. `spare`: requests a second to be refused without need."""
        least = max(LEAST, LEAST_PART * self._most_let_in)
        return max(least, self._comes - spare) if self.is_core_enough else least

    def _is_enough(self, full: float, cost: float, time: float) -> bool:
        """Whether the core ends what would wait for too long if nobody were refused."""
        refusing = cost * (self._is_taken - self._is_let_in)  # of a processor
        as_cheap = cost * self._is_let_in  # it would take to refuse who is let in
        serving = max(as_cheap, self._runs - refusing)
        if as_cheap < DEAR * serving or not serving:
            return False
        could = self._is_let_in * (1.0 + min(MORE, refusing / serving))
        return full <= BEHIND_ALL * time * could

    def _share(self, elapsed: float, time: float, most: float) -> float:
        """The share of their time that requests may wait."""
        self._in_vain *= exp(-elapsed / FADES)
        if most < self._most:  # refusing has just become cheaper
            self._in_vain = self._beyond = 0.0
        self._most = most
        share = min(SHARE, most / max(1.0, self._is_taken) / time)
        if not self.is_limited:
            return share
        self._most_let_in = max(self._most_let_in, self._is_let_in)
        share *= 1.0 + DEARER * (1.0 - self._is_let_in / self._most_let_in)
        # Twice as many the core keeps: until then what is refused makes a difference.
        is_short = most < inf and self._waiting <= 2.0 * most
        if is_short or self.seconds <= (share + self._in_vain) * time:
            self._beyond = 0.0
        else:
            if not self._beyond:
                self._first_beyond = self.seconds
            self._beyond += min(elapsed, LONGEST)
            if self._beyond >= IN_VAIN:
                self._beyond = 0.0
                if self.seconds >= HARDLY * self._first_beyond:
                    longer = LONGER * self.seconds / time
                    self._in_vain = min(LATEST, longer) - share
        return min(LATEST, share + self._in_vain)

    def _stands(self, elapsed: float) -> bool:
        if self.seconds <= self.target:
            self._stood = 0.0
            return False
        self._stood += min(elapsed, LONGEST)
        return self._stood >= STANDING

    def __repr__(self) -> str:
        return f"<{self.seconds:.3f} s, and {self.target:.3f} are enough>"
