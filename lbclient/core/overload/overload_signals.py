"""The overload signals of a server with their targets; refuses by them (`admission`).

Signals are numbers that somebody else has read: the load, looked at for each request,
and CPU, memory, the user's own signals and the queue delay, sampled ten times a second.
`Admission` turns the worst of them into shares. Here is what belongs to a server beside
that: a burst is let in, the last places of a limit are kept, and what is less critical
than something refused lately is refused, too. SRE book, ch. 21.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random

from lbclient.core.counting.ewma import Ewma
from lbclient.core.counting.tally import Tally
from lbclient.core.criticality import DEFAULT, Criticality
from lbclient.core.overload.admission import (
    CPU_NAME,
    LOAD,
    MEMORY_NAME,
    PATIENCE,
    QUEUE_NAME,
    Admission,
    Places,
    Signal,
)
from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.core.refusal import Refusal
from lbclient.core.retries.attempt_histogram import AttemptHistogram


@dataclass(frozen=True, slots=True)
class SignalTuning:
    """The numbers of `Pressure`. Ours: `python -m benchmarks.overload` measures them,
    and tests/unit/test_overload_signals.py plays them."""

    # Ours. A burst is no overload: up to three times the target may come at once. While
    # it stays beyond the target patience goes, slower than a task that has twice the
    # work it can do works off what it has; it comes back when that is over.
    patience: float = 3.0
    tires: float = 0.5  # seconds
    recovers: float = 1.0  # seconds

    # Widths of the other signals, in their own units: a tenth to all refused.
    cpu_width: float = 0.05
    cpu_smoothing: float = 1.0  # seconds
    memory_width: float = 0.01
    user_width: float = 0.1

    # Of the time that requests have, in which their turn may come and end.
    line_share: float = 0.15

    # Seconds since something more critical was refused, in which a request is refused,
    # too: a load swings, and what is let in where it is low would be missed where it is
    # high.
    yields: float = 1.0

    strained: float = 0.5  # of the target: from here on cheaper answers are wanted

    alike: float = 0.98  # share of what has come lately, of one criticality

    # Of memory's. Ours: half of it is in use where all is well, and a cheaper answer
    # frees none of what is kept.
    short_of_memory: float = 0.9


TUNING = SignalTuning()


class Patience:
    """By how much a signal may be beyond its target, at the moment."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._read_at = 0.0
        self.factor = TUNING.patience

    def scaled(self, value: float, now: float) -> float:
        """`value` as if its target were always the same."""
        elapsed, self._read_at = max(0.0, now - self._read_at), now
        most = TUNING.patience
        if value <= self._target and self.factor == most:
            return value / most
        if value > self._target:
            left = (self.factor - 1.0) * exp(-elapsed / TUNING.tires)
            self.factor = 1.0 + left if left > 0.01 else 1.0
        else:
            missing = (most - self.factor) * exp(-elapsed / TUNING.recovers)
            self.factor = most - missing if missing > 0.01 else most
        return value / self.factor


class Pressure:
    """Refuses requests by a server's overload signals. Owned by a server, which calls
    `sample` often, and for each request `observe` with the load and then `refuses`."""

    def __init__(
        self,
        max_load: float,
        rng: Random,
        *,
        max_cpu: float = 0.0,
        max_memory: float = 0.0,
        own: Sequence[str] = (),
        delay: QueueDelay | None = None,
    ) -> None:
        """`own`: names of the user's signals, whose target is 1.

        Of a `max_...` 0 means that nothing is refused for it. `delay` is what somebody
        else samples.
        """
        self._most = most = max_load or inf
        signals = [LOAD._replace(target=most, width=LOAD.width * most / LOAD.target)]
        if most == inf:
            signals = [Signal(LOAD.name, inf, 1.0)]
        if max_cpu:
            signals.append(Signal(CPU_NAME, max_cpu, TUNING.cpu_width))
        if max_memory:
            signals.append(Signal(MEMORY_NAME, max_memory, TUNING.memory_width))
        signals += [Signal(name, 1.0, TUNING.user_width) for name in own]
        self._signals = {signal.name: signal for signal in signals}
        self._values = [0.0] * len(signals)
        self._cpu = Ewma(TUNING.cpu_smoothing)
        self._patience = Patience(most)
        self.load = 0.0  # when it was last looked at, without our patience
        self._is_beyond = False  # a signal that is not the load
        self._is_strained = False  # by a signal that is not the load
        self._delay = QueueDelay() if delay is None else delay
        self.admission = Admission(signals, rng)
        self._refused_at = [-inf] * len(Criticality)  # for what signals say
        self.places: Places | None = None
        self._rng = rng

    def limit(self, requests: int) -> None:
        """No more at a time: the last places are for the most critical."""
        self.places = Places(requests, self.admission.mix, self._rng)

    # What signals say

    def sample(
        self,
        now: float,
        load: float,
        cpu: float = 0.0,
        memory: float = 0.0,
        own: Sequence[float] = (),
    ) -> None:
        """Takes all signals; `own` in the order of their names. Smooths CPU."""
        self._cpu.update(cpu, now)
        values = [-1.0]  # the load, which `observe` takes
        if CPU_NAME in self._signals:
            values.append(self._cpu.value)
        if MEMORY_NAME in self._signals:
            values.append(memory)
        self._values = values = [*values, *own]
        pairs = list(zip(values, self._signals.values(), strict=True))
        self._is_beyond = any(value > signal.target for value, signal in pairs)
        self._is_strained = any(value > _strained_at(one) for value, one in pairs)
        if self._admissible() != self.admission.admissible:
            self.admission.observe(values, self._admissible())
        self.observe(load, now)

    def observe(self, load: float, now: float) -> None:
        """Takes the load as it is now: requests that run or want to, per processor."""
        self.load = load
        load = self._patience.scaled(load, now)
        if load == self._values[0]:
            return  # as in most of a flood: admission knows
        self._values[0] = load
        if self._is_beyond or self.admission.worst or load > self._most:
            self.admission.observe(self._values, self._admissible())

    def load_of_line(self, wait: float, time: float) -> float:
        """Converts the `wait` of one more request in line to a load.

        A few waiting requests are a full load if each takes long: once one more request
        would use a good part of the `time` that requests have.
        """
        return (
            0.0 if self._most == inf else self._most * wait / (TUNING.line_share * time)
        )

    def _admissible(self) -> float:
        """The share of what comes that may come in, by the queue delay."""
        return 1.0 if self._most == inf else self._delay.admissible

    # What is refused

    def refuses(
        self, criticality: Criticality, attempt: int, now: float
    ) -> Refusal | None:
        """Whether a request that has come is refused, and may it try elsewhere."""
        refusal = self.admission.refuses(criticality, attempt)
        if refusal is not None:
            self._refused_at[criticality] = now
        elif (
            now < max(self._refused_at[criticality + 1 :], default=-inf) + TUNING.yields
        ):
            refusal = self.admission.refusal(attempt)
        return refusal

    def is_refusing(self) -> bool:
        """Whether signals refuse some of what comes."""
        return bool(self.admission.worst)

    def give_way(self, criticality: Criticality, now: float) -> Refusal:
        """Refuses what had been let in: something more critical takes its turn."""
        self._refused_at[criticality] = now
        return self.admission.refusal()

    def is_full(self, criticality: Criticality, active: int) -> bool:
        """Whether it finds no place in the limit, while so many are not over."""
        places = self.places
        return places is not None and places.refuses(criticality, active)

    def refuses_stream(self, load: float, criticality: Criticality) -> Refusal | None:
        """Refuses a new stream while too many of those that are open want to go on.

        It may stay for minutes, so what decides is what open streams do now. Beyond a
        threshold all new streams of a criticality are refused: open ones do not end
        soon, so to let in a share of the new ones would only add to them.
        """
        if load <= self._most * PATIENCE[criticality]:
            return None
        return self.admission.refusal()

    def add_out_of_quota(self, attempt: int) -> None:
        """Counts a request that was refused for a quota, before it came here."""
        self.admission.attempts.add_out_of_quota(attempt)

    def let_in(self, requests: int) -> None:
        """Counts first attempts that were admitted in calm without a decision. They
        name neither criticality nor customer."""
        self.admission.let_in(requests)

    # What is told of it

    def why(self) -> str:
        """What a request is told that `refuses` has just refused."""
        worst = self.admission.worst
        if not worst:
            return "overloaded: what is more critical was refused a moment ago"
        if worst == QUEUE_NAME:
            value, target = self._delay.seconds, self._delay.target
            return f"overloaded: {worst} is {value:.2f} s, the limit {target:.2g} s"
        signal = self._signals[worst]
        value = signal.target + self.admission.excess * signal.width
        value = self.load if worst == LOAD.name else value
        return f"overloaded: {worst} is {value:.2f}, the limit {signal.target:g}"

    def why_stream(self, load: float, criticality: Criticality) -> str:
        most = self._most * PATIENCE[criticality]
        return f"overloaded: {load:.2f} streams want to go on, the limit is {most:g}"

    def is_calm(self, active: int) -> bool:
        """Whether all signals are below their targets, so that requests are admitted
        without a decision until the next sample."""
        return not (
            self._is_beyond
            or self.admission.worst
            or self.load >= 1.0
            or (self.places and self._places_are_few(self.places, active))
        )

    def _places_are_few(self, places: Places, active: int) -> bool:
        """All are taken, or not everybody may have them."""
        return active >= places.limit or places.is_kept_from(DEFAULT)

    def is_strained(self, active: int, load: float) -> bool:
        """Whether any signal is at half of the value at which requests are refused, or
        more."""
        if self.admission.worst or self._is_strained:
            return True
        places = self.places
        if places is not None and active > TUNING.strained * places.limit:
            return True
        return load > TUNING.strained * self._most

    def readings(self) -> list[tuple[str, float, float]]:
        """Each signal's name, its value as last read, and what is too much of it."""
        values = [self.load, *self._values[1:]]
        pairs = zip(self._signals.values(), values, strict=True)
        seen = [(signal.name, value, signal.target) for signal, value in pairs]
        return [*seen, (QUEUE_NAME, self._delay.seconds, self._delay.target)]

    def taken(self, active: int) -> tuple[float, float] | None:
        """The share of places taken, and what is too much; None: there is no limit."""
        places = self.places
        if places is None:
            return None
        if not places.limit:
            return 1.0, 1.0  # a limit of none is always full
        return active / places.limit, places.start / places.limit

    def refusal(self, attempt: int = 0) -> Refusal:
        """What is told, whether it may try elsewhere, where somebody else refuses."""
        return self.admission.refusal(attempt)

    @property
    def attempts(self) -> AttemptHistogram:
        """What has come lately, by the number of its attempt."""
        return self.admission.attempts

    @property
    def shares(self) -> Sequence[float]:
        """That get in, by criticality."""
        return self.admission.shares

    @property
    def mix(self) -> Tally:
        """What has come lately, by criticality."""
        return self.admission.mix

    def are_alike(self) -> bool:
        """Whether all that has come lately is of one criticality, or all but all."""
        counts = self.mix.counts
        return max(counts) >= TUNING.alike * sum(counts)

    def __repr__(self) -> str:
        return repr(self.admission)


def _strained_at(signal: Signal) -> float:
    return signal.target * (
        TUNING.short_of_memory if signal.name == MEMORY_NAME else TUNING.strained
    )
