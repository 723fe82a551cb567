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
does. So nobody need be refused there, unless it is known whom to end instead.

Source: controlled delay, CoDel, RFC 8289; Breakwater, OSDI 2020.
"""

from dataclasses import dataclass
from math import exp, inf


@dataclass(frozen=True, slots=True)
class QueueDelayTuning:
    """The numbers of `QueueDelay`. Ours: `python -m benchmarks.overload` measures
    them, and tests/laws/test_queue_delay.py plays them."""

    share: float = 0.2  # of the time that requests have, which they may wait

    # Seconds for which they wait longer until that is no burst. A sample counts for
    # `longest_sample` at most: much comes while a handler has the loop for long, and is
    # soon worked off.
    standing: float = 0.2
    longest_sample: float = 0.1
    smoothing: float = 0.2  # seconds, of how many come and are taken

    # The rate is multiplied by e for each 1 / `change_gain` seconds by which the wait
    # has become shorter, and where it is one second shorter than it may be, by e
    # `level_gain` times a second. If e times as many come in as are served the wait
    # grows by a second in each second or so, for any number: then these are critically
    # damped (`change_gain` * `change_gain` = 4 * `level_gain`).
    change_gain: float = 4.0
    level_gain: float = 4.0

    # The wait in the core alone, where what may wait there is bounded, counts from this
    # part of its target on. The target is short where much comes: far below it, it
    # would let the rate grow too slowly.
    near: float = 0.5

    # Where each request that comes is asked for, as many may wait in Python as are
    # served in this share of their time, but `fewest` at least. So short a line is
    # never empty while more comes than is served, and nobody waits for too long where
    # the machine has become slow since. A lower rate shortens the line by e in
    # `line_holds` seconds: at once, it would let in fewer, and be lower still. The
    # flood is over when `nearly_all` that come are let in.
    line_share: float = 0.1
    fewest: int = 16
    line_holds: float = 0.5
    least_busy: float = 0.1  # the least share of its time that a loop counts as busy
    nearly_all: float = 0.95

    # In one sample by no more than e to this power. Where the process stood still next
    # to nothing was taken, so the wait looks endless, and then as if it had become so
    # shorter.
    steepest: float = 10.0

    # The rate at the least: requests a second, and a part of the most that were let in.
    # From less it would take seconds to come back to what can be done.
    least_rate: float = 1.0
    least_part: float = 0.1

    # Of the time that they may wait, added where nobody is let in any more, and less of
    # it where some are: where refusing takes the time that serving would have, requests
    # may wait longer.
    dearer: float = 0.6

    # Refusing is in vain where it is as dear as serving, or more comes than can be
    # refused. The sign: for `in_vain_after` seconds the wait was too long, and it is
    # still `hardly_less` times what it was, or more. Then requests may wait `longer`
    # times as long as they do. That fades by e in `longer_fades` seconds, and is never
    # more than `latest_share`, a share of their time as `share` is: whoever waits
    # longer is served too late.
    in_vain_after: float = 1.0
    hardly_less: float = 0.97
    longer: float = 1.25
    latest_share: float = 0.8
    longer_fades: float = 10.0

    # Of what is handed on, health checks and the like, which are never refused: where
    # they are more than this, to refuse the others would hardly shorten the wait.
    never_refused: float = 0.9

    # Nobody need be refused if to refuse takes `dear` of what serving does, or more,
    # and what waits behind all that the core keeps waits for `kept_share` of its time
    # at most. Without refusing it is taken to serve (1 + `most_more`) times as many, at
    # most: a handler that sleeps on the loop keeps it without a processor.
    dear: float = 0.07
    kept_share: float = 0.5
    most_more: float = 2.0


TUNING = QueueDelayTuning()


class QueueDelay:
    """The queue delay of one server, which calls `sample` ten times a second."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that what is taken now has waited
        self.target = TUNING.share  # seconds: what waits longer is too much
        # gRPC's core ends what would wait for too long, so nobody need be refused.
        self.is_core_enough = False
        self.refusing_costs = 0.0  # one, of what serving one does; 0.0: not known
        self.admissible = 1.0  # the share of what comes that may come in
        # What waits are checks, nearly all: refusing the others would shorten nothing.
        self.is_of_checks = False
        self._in_core = 0.0  # of these seconds
        self._could_hand_on = 0.0  # requests a second
        self._is_by_line = False  # who is let in, and not by a rate
        self._longest = 0.0  # seconds since nothing waited
        self._stood = 0.0  # seconds for which it was too much
        self.is_limited = False
        self._waiting = 0  # in the core
        self._rate = 0.0  # requests a second that may come in while that is limited
        # Means of late, in requests a second.
        self._coming = self._taken = self._handed_on = 0.0
        self._let_in = self._never_refused = 0.0
        self._running = 0.0  # the loop, of a processor; of late, too
        self._most_let_in = TUNING.least_rate  # since what comes in is limited
        # Seconds since the wait was too long, `in_vain_after` at the most.
        self._beyond = 0.0
        self._first_beyond = 0.0  # the wait then
        self._in_vain = 0.0  # the share of their time that they may wait longer for it
        self._core_bound = inf  # that may wait in the core

    def sample(
        self,
        elapsed: float,
        *,
        waiting: int,
        taken: int,
        let_in: int,
        in_python: int = 0,
        handed_on: int | None = None,
        time: float,
        core_bound: float = inf,
        core_capacity: float = inf,
        refusal_cpu: float = 0.0,
        loop_cpu: float = 0.0,
        drops_by_criticality: bool = False,
        never_refused: int = 0,
        busy: float = 1.0,
    ) -> None:
        """Takes the counts of the last `elapsed` seconds.

        `waiting`: requests that wait, in the core or in Python. `in_python`: those of
        them that do so in Python. `taken`: requests that Python took from the core.
        `handed_on`: requests that Python handed on to grpcio; None: all that it took.
        `let_in`: requests that were admitted. `never_refused`: of those handed on, the
        ones that may not be refused, such as health checks.

        `time`: seconds that arriving requests have until their deadlines. `busy`: the
        share of the time in which the loop had something to do. `loop_cpu`: CPU seconds
        that its thread used. `refusal_cpu`: CPU seconds that refusing one takes.

        `core_bound`: how many may wait in the core, where refusing is cheap, so that it
        need not end any itself. `core_capacity`: how many wait there when it is full.
        `drops_by_criticality`: each request that comes is asked for, and dropped unless
        `has_room`.
        """
        # What the core has ended, as more waited than it keeps, has not come.
        in_core = waiting - in_python
        came, self._waiting = taken + in_core - self._waiting, in_core
        on = taken if handed_on is None else handed_on
        self._average(elapsed, came, taken, on, let_in, never_refused, loop_cpu)
        # A loop that waits for who comes could serve more.
        could = self._handed_on / max(TUNING.least_busy, busy)
        held = self._could_hand_on * exp(-elapsed / TUNING.line_holds)
        self._could_hand_on = max(could, held)
        # Nothing has waited for longer than since nothing did, however few were
        # taken, as where the process stood still.
        self._longest = self._longest + elapsed if waiting else 0.0
        before, before_in_core = self.seconds, self._in_core
        self._estimate(waiting, in_python)
        self.target = self._share(elapsed, time, core_bound) * time
        target_in_core = min(self.target, core_bound / max(1.0, self._taken))
        # Of what it may be, the longer one of both waits.
        part = max(self.seconds / self.target, self._in_core / target_in_core)
        self.is_of_checks = self._never_refused > TUNING.never_refused * self._handed_on
        if self.is_of_checks:
            self.is_limited = self.is_core_enough = self._is_by_line = False
            self.admissible, self._stood = 1.0, 0.0
            return
        if self.is_limited:
            change = _change(before, self.seconds, self.target, elapsed)
            if self._in_core > TUNING.near * target_in_core:
                waits = before_in_core, self._in_core
                change = min(change, _change(*waits, target_in_core, elapsed))
            is_enough = self._is_enough(core_capacity, refusal_cpu, time)
            self.is_core_enough = is_enough and not drops_by_criticality
            least = self._least()
            self._rate = max(least, self._rate * exp(min(change, TUNING.steepest)))
            self._is_by_line = drops_by_criticality
            if drops_by_criticality:
                self._rate = max(TUNING.least_rate, self._let_in)
        elif self._stands(part, elapsed):
            self.is_limited, self.is_core_enough = True, False
            self._most_let_in = max(TUNING.least_rate, self._let_in, let_in / elapsed)
            self._rate = max(TUNING.least_rate, self._let_in / part)
        else:
            return
        self._admit(part)

    def _average(
        self,
        elapsed: float,
        came: int,
        taken: int,
        handed_on: int,
        let_in: int,
        never_refused: int,
        loop_cpu: float,
    ) -> None:
        """Takes the counts of a sample into the means."""
        news = 1.0 - exp(-elapsed / TUNING.smoothing)
        self._coming += (came / elapsed - self._coming) * news
        self._taken += (taken / elapsed - self._taken) * news
        self._handed_on += (handed_on / elapsed - self._handed_on) * news
        self._let_in += (let_in / elapsed - self._let_in) * news
        self._never_refused += (never_refused / elapsed - self._never_refused) * news
        self._running += (loop_cpu / elapsed - self._running) * news

    def _estimate(self, waiting: int, in_python: int) -> None:
        """Estimates the waits, by Little's law."""
        self.seconds = self._in_core = 0.0
        if waiting and self._taken:
            self._in_core = min(self._longest, self._waiting / self._taken)
            seconds = self._in_core + in_python / max(1.0, self._handed_on)
            self.seconds = min(self._longest, seconds)

    def _admit(self, part: float) -> None:
        """Sets the share that may come in, and ends the limit where all may. `part`:
        how long the wait is, of what it may be."""
        # More than comes would take time to undo when more comes.
        self._rate = min(self._rate, max(TUNING.least_rate, self._coming))
        room = min(1.0, self._rate / max(1.0, self._coming))
        self.admissible = 1.0 if self._is_by_line else room
        if part <= 1.0 and room >= (TUNING.nearly_all if self._is_by_line else 1.0):
            self.is_limited = self._is_by_line = False

    def has_room(self, criticality: int, in_python: int, time: float) -> bool:
        """Whether a request that comes may wait behind those that wait `in_python`.

        The higher its criticality, from 0 to 3, the more may wait. So the line is never
        empty while anybody comes, whatever a rate would let in.
        """
        if not self._is_by_line:
            return True
        most = max(TUNING.fewest, TUNING.line_share * time * self._could_hand_on)
        return in_python < most * (criticality + 1) / 4

    def emptied(self) -> None:
        """What waited in Python was dropped: that tells nothing of the rate."""
        self.seconds = self._in_core

    def _least(self) -> float:
        """The rate: that of all that come, if the core ends what would be too late."""
        least = max(TUNING.least_rate, TUNING.least_part * self._most_let_in)
        return max(least, self._coming) if self.is_core_enough else least

    def _is_enough(self, core_capacity: float, refusal_cpu: float, time: float) -> bool:
        """Whether the core ends what would wait for too long if nobody were refused."""
        refusing = refusal_cpu * (self._taken - self._let_in)  # of a processor
        as_cheap = refusal_cpu * self._let_in  # it would take to refuse who is let in
        serving = max(as_cheap, self._running - refusing)
        self.refusing_costs = as_cheap / serving if serving else 0.0
        if self.refusing_costs < TUNING.dear:
            return False
        could = self._let_in * (1.0 + min(TUNING.most_more, refusing / serving))
        return core_capacity <= TUNING.kept_share * time * could

    def _share(self, elapsed: float, time: float, core_bound: float) -> float:
        """The share of their time that requests may wait."""
        self._in_vain *= exp(-elapsed / TUNING.longer_fades)
        if core_bound < self._core_bound:  # refusing has just become cheaper
            self._in_vain = self._beyond = 0.0
        self._core_bound = core_bound
        share = TUNING.share
        if not self.is_limited:
            return share
        self._most_let_in = max(self._most_let_in, self._let_in)
        share *= 1.0 + TUNING.dearer * (1.0 - self._let_in / self._most_let_in)
        # Twice as many the core keeps: until then what is refused makes a difference.
        is_short = core_bound < inf and self._waiting <= 2.0 * core_bound
        if is_short or self.seconds <= (share + self._in_vain) * time:
            self._beyond = 0.0
        else:
            if not self._beyond:
                self._first_beyond = self.seconds
            self._beyond += min(elapsed, TUNING.longest_sample)
            if self._beyond >= TUNING.in_vain_after:
                self._beyond = 0.0
                if self.seconds >= TUNING.hardly_less * self._first_beyond:
                    longer = TUNING.longer * self.seconds / time
                    self._in_vain = min(TUNING.latest_share, longer) - share
        return min(TUNING.latest_share, share + self._in_vain)

    def _stands(self, part: float, elapsed: float) -> bool:
        if part <= 1.0:
            self._stood = 0.0
            return False
        self._stood += min(elapsed, TUNING.longest_sample)
        return self._stood >= TUNING.standing

    def __repr__(self) -> str:
        return f"<{self.seconds:.3f} s, and {self.target:.3f} are enough>"


def _change(before: float, now: float, target: float, elapsed: float) -> float:
    """The change of the rate's logarithm; all arguments are in seconds."""
    slow: float = TUNING.level_gain * max(1.0, TUNING.share / target) ** 0.5
    return TUNING.change_gain * (before - now) + slow * (target - now) * elapsed
