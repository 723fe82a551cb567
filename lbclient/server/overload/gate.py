"""Whether a request gets in: asked where grpcio looks its handler up.

That is before a message is read, let alone deserialized, and the request's metadata are
there: to refuse costs what grpcio takes to begin and end a call, and little more. What
is refused has not been executed, and is told so.

Signals are read here, `lbclient.core.admission` decides. SRE book, ch. 21.
"""

import logging
from collections.abc import Callable, Iterable
from math import exp, inf
from random import Random

from grpc import StatusCode

from lbclient import wire
from lbclient.background.tasks import is_fatal
from lbclient.config import ServerConfig
from lbclient.core.admission import (
    CPU_NAME,
    LOAD,
    MEMORY_NAME,
    PATIENCE,
    PLACES_NAME,
    QUEUE_NAME,
    Admission,
    Places,
    Signal,
)
from lbclient.core.concurrency import Outcome
from lbclient.core.criticality import DEFAULT, Criticality, adopt, current, parse
from lbclient.core.ewma import Ewma
from lbclient.core.latency_window import Method
from lbclient.core.load_monitor import LoadMonitor
from lbclient.core.protocols import Clock
from lbclient.core.quota import OTHERS
from lbclient.core.retry import Refusal, parse_attempt
from lbclient.server.meters.cpu import available_cpus
from lbclient.server.meters.memory import MemoryMeter
from lbclient.server.overload.adaptive import AdaptiveConcurrency, note_outcome
from lbclient.server.overload.core_queue import CoreQueue
from lbclient.server.overload.refusals import (
    FULL,
    OUT_OF_QUOTA,
    REASONS,
    TRAILERS,
    UNKNOWN,
    UNSEEN,
    Answer,
)
from lbclient.server.overload.run_queue import RunQueue
from lbclient.server.overload.threads import Threads
from lbclient.server.quotas.accounting import bill_to
from lbclient.server.quotas.quotas import Quotas, customer_of_identity
from lbclient.server.statistics import SignalStatistics
from lbclient.wire import propagation

# Ours. A burst is no overload: up to three times the target may come at once. While it
# stays beyond the target patience goes, slower than a task that has twice the work it
# can do works off what it has; it comes back when that is over.
PATIENT = 3.0
TIRES = 0.5  # seconds
RECOVERS = 1.0  # seconds

# Widths of the other signals, in their own units: a tenth to all refused.
CPU_WIDTH = 0.05
CPU_SMOOTHING = 1.0  # seconds
MEMORY_WIDTH = 0.01
USER_WIDTH = 0.1

# Of the time that requests have, which they may wait for their turn.
LINE_SHARE = 0.15

# Seconds since something more critical was refused, in which a request is refused, too:
# a load swings, and what is let in where it is low would be missed where it is high.
YIELDS = 1.0

STRAINED = 0.5  # of the target: from here on cheaper answers are wanted
# Of memory's. Ours: half of it is in use where all is well, and a cheaper answer frees
# none of what is kept.
SHORT_OF_MEMORY = 0.9

# What a request says to us in its metadata.
_WORDS = frozenset({wire.CRITICALITY_KEY, wire.ATTEMPT_KEY, wire.CUSTOMER_KEY})

logger = logging.getLogger(__name__)


class Patience:
    """By how much a signal may be beyond its target, at the moment."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._read_at = 0.0
        self.factor = PATIENT

    def read(self, value: float, now: float) -> float:
        """`value` as if its target were always the same."""
        elapsed, self._read_at = max(0.0, now - self._read_at), now
        if value <= self._target and self.factor == PATIENT:
            return value / PATIENT
        if value > self._target:
            left = (self.factor - 1.0) * exp(-elapsed / TIRES)
            self.factor = 1.0 + left if left > 0.01 else 1.0
        else:
            missing = (PATIENT - self.factor) * exp(-elapsed / RECOVERS)
            self.factor = PATIENT - missing if missing > 0.01 else PATIENT
        return value / self.factor


class Gate:
    """Owned by the server, used on its loop's thread only."""

    def __init__(
        self,
        config: ServerConfig,
        monitor: LoadMonitor,
        clock: Clock,
        read_runnable: Callable[[], int | None],
        complain: Callable[[str, str], None],
        rng: Random,
        read_memory: Callable[[float], float] | None = None,
    ) -> None:
        self.core = CoreQueue()
        self.queue = RunQueue(clock, self.core.intake)
        self.threads = Threads()
        self._monitor = monitor
        self._clock = clock
        self._has_runnable = config.runnable is not None
        self._read_runnable = read_runnable
        self._complain = complain
        self._cpus = 1.0
        self._cpu = Ewma(CPU_SMOOTHING)
        self._read_memory = MemoryMeter().read if read_memory is None else read_memory
        self._user = config.signals or {}
        most = config.max_load or inf
        self._most = most
        self._patience = Patience(most)
        self._load = 0.0  # when the last request came
        self._max_cpu = config.max_cpu
        signals = [LOAD._replace(target=most, width=LOAD.width * most / LOAD.target)]
        if most == inf:
            signals = [Signal(LOAD.name, inf, 1.0)]
        if config.max_cpu:
            signals.append(Signal(CPU_NAME, config.max_cpu, CPU_WIDTH))
        self._has_memory = bool(config.max_memory)
        if self._has_memory:
            signals.append(Signal(MEMORY_NAME, config.max_memory, MEMORY_WIDTH))
        signals += [Signal(name, 1.0, USER_WIDTH) for name in self._user]
        self._signals = {signal.name: signal for signal in signals}
        self._strained_at = [
            signal.target
            * (SHORT_OF_MEMORY if signal.name == MEMORY_NAME else STRAINED)
            for signal in signals
        ]
        self._is_strained = False  # by a signal that is not the load
        self._values = [0.0] * len(signals)
        self._is_beyond = False  # a signal that is not the load
        self._is_calm = False  # nothing is, nor was lately; as last sampled
        self._asked = 0  # of those that arrived, the last that admission knows of
        self.admission = Admission(signals, rng)
        self._refused_at = [-inf] * len(Criticality)  # for what signals say
        self._rng = rng
        self._places: Places | None = None
        self.adaptive = (
            AdaptiveConcurrency(clock, self.admission.mix, rng)
            if config.adaptive_concurrency
            else None
        )
        self._refused: dict[str, list[int]] = {
            reason: [0] * len(Criticality) for reason in REASONS
        }
        has_quotas = config.quotas is not None or config.default_quota is not None
        self.quotas = Quotas(config, clock) if has_quotas else None
        named = config.customer
        self._customer = customer_of_identity if isinstance(named, str) else named
        # Whether who pays is known only later than all else.
        self.asks_context = has_quotas and config.customer is not None
        self._early_quotas = None if self.asks_context else self.quotas
        self.misread = {wire.CRITICALITY_KEY: 0, wire.ATTEMPT_KEY: 0}

    def limit(self, requests: int) -> None:
        """No more at a time: the last places are for the most critical."""
        self._places = Places(requests, self.admission.mix, self._rng)

    # Signals

    def sample(self, now: float, cpu: float) -> None:
        """Reads those that are not read for each request."""
        self._cpus = available_cpus() if self._has_runnable else 1.0
        self.threads.sample(now)
        self._sample_core(now)
        self._cpu.update(cpu, now)
        values = [-1.0]  # the load, which is looked at now
        if self._max_cpu:
            values.append(self._cpu.value)
        if self._has_memory:
            values.append(self._read_memory(now))
        values += [self._ask(name) for name in self._user]
        self._values = values
        targets = [signal.target for signal in self._signals.values()]
        self._is_beyond = any(
            value > target for value, target in zip(values, targets, strict=True)
        )
        self._is_strained = any(
            value > most for value, most in zip(values, self._strained_at, strict=True)
        )
        self._look(now)
        self._is_calm = (
            not self._has_runnable
            and not self._is_beyond
            and not self.admission.worst
            and self._load < 1.0
            and not (self._places and self._places_are_few(self._places))
        )

    def _places_are_few(self, places: Places) -> bool:
        """All are taken, or not everybody may have them."""
        return self._monitor.active >= places.limit or places.is_kept_from(DEFAULT)

    def _sample_core(self, now: float) -> None:
        self.core.sample(now, sum(map(sum, self._refused.values())))
        if self._admissible() != self.admission.admissible:
            self.admission.observe(self._values, self._admissible())

    def _admissible(self) -> float:
        """The share of what comes that may come in, by the queue delay."""
        return 1.0 if self._most == inf else self.core.delay.admissible

    def _ask(self, name: str) -> float:
        try:
            value = float(self._user[name]())
        except BaseException as error:
            if is_fatal(error):
                raise
            self._complain(f"signals[{name!r}]", f"raised {error!r}")
            return 0.0
        if 0.0 <= value < inf:
            return value
        self._complain(f"signals[{name!r}]", f"returned {value}")
        return 0.0

    def load(self, now: float) -> float:
        """Requests that run or want to, for each processor.

        Few are too many where each takes long: as many as there may be at most, once
        the last of them would wait for a good part of the time that it has.
        """
        if self._has_runnable:
            return (self._read_runnable() or 0) / self._cpus
        on_loop = self.queue.load(now, self._monitor.active)
        if (wait := self.queue.wait()) > 0.0 and self._most < inf:
            longest = LINE_SHARE * self.core.deadlines.typical
            on_loop = max(on_loop, self._most * wait / longest)
        return max(on_loop, self.threads.load(now))

    def refuses_stream(self) -> Answer | None:
        """Refuses a new stream while too many of those that are open want the loop.

        It may stay for minutes, so what decides is what open streams do now. Beyond a
        threshold all new streams of a criticality are refused: open ones do not end
        soon, so to let in a share of the new ones would only add to them.
        """
        load = 0.0 if self._has_runnable else self.queue.of_streams()
        if load <= self._most:
            return None
        found = current()
        criticality = DEFAULT if found is None else found
        most = self._most * PATIENCE[criticality]
        if load <= most:
            return None
        refusal = self.admission.refusal()
        self.count(refusal.value, criticality)
        why = f"overloaded: {load:.2f} streams want to go on, and {most:g} is enough"
        return Answer(StatusCode.UNAVAILABLE, why, TRAILERS[refusal])

    def count_unseen(self) -> int | None:
        """Requests that have arrived and whose handlers nobody has looked up.

        Those that the core has ended count, too; None: nobody knows.
        """
        dropped = self.core.intake.dropped_at_stop
        return self.core.unseen.count(self.queue.arrived + dropped)

    def _look(self, now: float) -> None:
        self._load = self.load(now)
        load = self._patience.read(self._load, now)
        if load == self._values[0]:
            return  # as in most of a flood: admission knows
        self._values[0] = load
        if self._is_beyond or self.admission.worst or load > self._most:
            self.admission.observe(self._values, self._admissible())

    # Requests

    def refuses(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        method: Method | None = None,
    ) -> Answer | None:
        """What to answer in place of a handler, if anything.

        To be called in the task of the request, whose context learns who asks.
        `method` is for requests that the adaptive limit is for.
        """
        queue = self.queue
        queue.arrived += 1
        if self._is_calm and not (queue.is_closed or self.threads.waiting):
            customer = OTHERS
            for key, value in metadata:
                if key in _WORDS:
                    if key != wire.CUSTOMER_KEY:
                        break
                    customer = str(value)
            else:  # as almost always: nothing to decide but who pays
                if method is not None and self._is_full(method, DEFAULT):
                    return FULL
                if self._early_quotas is None:
                    return None
                return self._charged(customer, DEFAULT)
        if queue.arrived > self._asked + 1:
            self.admission.let_in(queue.arrived - self._asked - 1)
        self._asked = queue.arrived
        return self._decide(metadata, method)

    def let_by(self) -> None:
        """What has come is none of the requests that matter more or less."""
        self.queue.arrived += 1
        self._asked += 1

    def _decide(
        self, metadata: Iterable[tuple[str, str | bytes]], method: Method | None
    ) -> Answer | None:
        criticality, attempt, customer = self._read(metadata)
        quotas = self._early_quotas
        # Whoever has used it up is refused before anybody is for the load, and is told
        # so: another task would not help. What the load refuses is not charged. (Where
        # who pays is known only later, `asks` comes after all this.)
        if quotas is not None and quotas.refuses(customer, criticality):
            return self._out_of_quota(criticality)
        now = self._clock()
        self._look(now)
        answer = self._has_no_room(criticality, attempt, method, now)
        if answer is None and quotas is not None:
            quotas.admit(customer, criticality)
        return answer

    def _has_no_room(
        self, criticality: Criticality, attempt: int, method: Method | None, now: float
    ) -> Answer | None:
        refusal = self.admission.refuses(criticality, attempt)
        if refusal is not None:
            self._refused_at[criticality] = now
        elif now < max(self._refused_at[criticality + 1 :], default=-inf) + YIELDS:
            refusal = self.admission.refusal(attempt)
        if refusal is not None:
            self.count(refusal.value, criticality)
            return Answer(StatusCode.UNAVAILABLE, self._why(), TRAILERS[refusal])
        places = self._places
        if places is not None and places.refuses(criticality, self._monitor.active):
            self.count("concurrency", criticality)
            return FULL
        if method is not None and self._is_full(method, criticality):
            return FULL
        return None

    def _is_full(self, method: Method, criticality: Criticality) -> bool:
        """By the limit that finds itself."""
        assert self.adaptive is not None
        if not self.adaptive.refuses(method, criticality):
            return False
        self.count("concurrency", criticality)
        return True

    def _charged(self, customer: str, criticality: Criticality) -> Answer | None:
        assert self.quotas is not None
        clock = self._clock
        payer = self.quotas.quota.enter(customer, criticality, clock())
        if payer is None:
            note_outcome(Outcome.FAILED)
            return self._out_of_quota(criticality)
        bill_to(payer)
        return None

    def _out_of_quota(self, criticality: Criticality) -> Answer:
        self.count(Refusal.QUOTA.value, criticality)
        return OUT_OF_QUOTA

    def asks(self, context: object) -> Answer | None:
        """The same, where `ServerConfig.customer` says who pays."""
        assert self._customer is not None
        try:
            customer = self._named(self._customer(context))
        except Exception as error:
            self._complain("customer", f"raised {error!r}")
            customer = OTHERS
        found = current()
        return self._charged(customer, DEFAULT if found is None else found)

    def _named(self, said: object) -> str:
        """Text that can be told to others; None: nobody."""
        if isinstance(said, bytes):
            return said.decode(errors="replace")
        if isinstance(said, str):
            return said.encode(errors="replace").decode()
        if said is not None:
            self._complain("customer", f"returned a {type(said).__name__}")
        return OTHERS

    def _read(
        self, metadata: Iterable[tuple[str, str | bytes]]
    ) -> tuple[Criticality, int, str]:
        criticality, attempt, customer = DEFAULT, 0, OTHERS
        for key, value in metadata:
            if key == wire.CRITICALITY_KEY:
                criticality, is_known = parse(value)
                if is_known:
                    adopt(criticality)
                else:
                    self.misread[key] += 1
            elif key == wire.ATTEMPT_KEY and isinstance(value, str):
                attempt, is_known = parse_attempt(value)
                self.misread[key] += not is_known
            elif key == wire.CUSTOMER_KEY:
                customer = str(value)
        return criticality, attempt, customer

    def _why(self) -> str:
        worst = self.admission.worst
        if not worst:
            return "overloaded: what is more critical was refused a moment ago"
        if worst == QUEUE_NAME:
            delay = self.core.delay
            value, target = delay.seconds, delay.target
            return f"overloaded: {worst} is {value:.2f} s, and {target:.2g} is enough"
        signal = self._signals[worst]
        value = signal.target + self.admission.excess * signal.width
        value = self._load if worst == LOAD.name else value
        return f"overloaded: {worst} is {value:.2f}, and {signal.target:g} is enough"

    def count(self, reason: str, criticality: Criticality | None = None) -> None:
        if criticality is None:
            found = current()
            criticality = DEFAULT if found is None else found
        self._refused[reason][criticality] += 1

    def signals(self) -> tuple[SignalStatistics, ...]:
        """As last read, each with what is too much of it."""
        values = [self._load, *self._values[1:]]  # the load without our patience
        seen = [
            SignalStatistics(signal.name, value, signal.target)
            for signal, value in zip(self._signals.values(), values, strict=True)
        ]
        delay = self.core.delay
        seen.append(SignalStatistics(QUEUE_NAME, delay.seconds, delay.target))
        limits = []
        if (places := self._places) is not None:
            taken = self._monitor.active / places.limit
            limits.append((taken, places.start / places.limit))
        if self.adaptive is not None:
            limits.append(self.adaptive.signal())
        if limits:
            taken, target = max(limits, key=lambda limit: limit[0] / limit[1])
            seen.append(SignalStatistics(PLACES_NAME, taken, target))
        return tuple(seen)

    @property
    def is_strained(self) -> bool:
        """At half of what it refuses at, or beyond, by any signal."""
        if self.admission.worst or self._is_strained:
            return True
        places = self._places
        if places is not None and self._monitor.active > STRAINED * places.limit:
            return True
        if self.adaptive is not None and self.adaptive.taken > STRAINED:
            return True
        return self.load(self._clock()) > self._strained_at[0]

    @property
    def refused(self) -> dict[str, dict[str, int]]:
        seen = {
            reason: {one.name: counts[one] for one in Criticality}
            for reason, counts in self._refused.items()
        }
        unseen = self.core.unseen.ended + self.core.intake.dropped_at_stop
        return {**seen, UNSEEN: {UNKNOWN: unseen}}

    def __repr__(self) -> str:
        return repr(self.admission)


def degraded() -> bool:
    """Whether the server of the request being served would like a cheaper answer.

    False where no request is being served.
    """
    request = propagation.current()
    return request is not None and request.is_strained
