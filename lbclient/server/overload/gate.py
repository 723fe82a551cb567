"""Admits or refuses each request when grpcio looks up its handler.

That is before a message is read, let alone deserialized, and the request's metadata are
there: to refuse costs what grpcio takes to begin and end a call, and little more. What
is refused has not been executed, and is told so.

Signals and metadata are read here, `lbclient.core.overload.overload_signals` decides.
SRE book, ch. 21.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from math import inf
from random import Random

from grpc import StatusCode

from lbclient import wire
from lbclient.background.readers import readers_of
from lbclient.config import ServerConfig
from lbclient.core.criticality import DEFAULT, Criticality, current_or_default
from lbclient.core.overload.admission import MEMORY_NAME, PLACES_NAME
from lbclient.core.overload.late_binding import LateBinding
from lbclient.core.overload.latency_window import MethodBaseline
from lbclient.core.overload.overload_signals import TUNING as OVERLOAD_SIGNALS
from lbclient.core.overload.overload_signals import Pressure
from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.core.overload.refused_shares import RefusedShares
from lbclient.core.protocols import Clock
from lbclient.core.quotas.customer import adopt
from lbclient.core.quotas.quota import OTHERS
from lbclient.core.refusal import Refusal
from lbclient.core.report.load_monitor import LoadMonitor
from lbclient.core.retries.stock_budget import StockBudget
from lbclient.grpc_seam.wakeups import Wakeups, read_together
from lbclient.server.meters.event_loop import LoopMeter
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.adaptive import AdaptiveConcurrency
from lbclient.server.overload.arrival_counts import ArrivalCounts
from lbclient.server.overload.charging import Charging
from lbclient.server.overload.core_queue import CoreQueue
from lbclient.server.overload.intake import EACH_LONG, EACH_TURN, Intake
from lbclient.server.overload.metadata import WORDS, RequestMetadata
from lbclient.server.overload.refusal_counts import RefusalCounts
from lbclient.server.overload.refusal_status import (
    DECLINED,
    FULL,
    NO_PLACE,
    OURS_MAY_RETRY,
    OVERTAKEN,
    TOO_LATE,
    TOO_SHORT,
    TRAILERS,
    UNANSWERED,
    UNKNOWN,
    UNSEEN,
    RefusalStatus,
    Trailers,
)
from lbclient.server.overload.run_queue import RunQueue
from lbclient.server.overload.shedding import Shedding
from lbclient.server.overload.system_readings import SystemReadings
from lbclient.server.overload.threads import Threads
from lbclient.server.quotas.cpu_timing import bill_to
from lbclient.server.statistics import (
    AttemptStatistics,
    ServerStatistics,
    SignalStatistics,
)


class Gate:
    """Admits or refuses each request. Owned by the server. Used on its loop's thread
    only, except `too_late`."""

    loop: asyncio.AbstractEventLoop  # once started
    task = ""  # whom requests name that may be declined

    def __init__(
        self,
        config: ServerConfig,
        monitor: LoadMonitor,
        clock: Clock,
        own: UserSignals,
        rng: Random,
        read_memory: Callable[[float], float] | None = None,
        *,
        pool: Executor | None = None,
    ) -> None:
        """`pool`: of the handlers that run in threads; None is the loop's own."""
        self._own = own
        self.most: float = inf  # requests at a time
        delay = QueueDelay()
        self.pressure = Pressure(
            config.max_load,
            rng,
            max_cpu=config.max_cpu,
            max_memory=config.max_memory,
            own=own.names,
            delay=delay,
        )
        self.core = CoreQueue(delay)
        self.queue = RunQueue(clock, self.core.intake, self._is_overloaded)
        self.threads = Threads(pool=pool)
        self._monitor = monitor
        self._clock = clock
        self._system = SystemReadings(own.has_runnable, read_memory)
        self._is_calm = False  # nothing is, nor was lately; as last sampled
        self.adaptive = (
            AdaptiveConcurrency(clock, self.pressure.mix, rng)
            if config.adaptive_concurrency
            else None
        )
        self._arrivals = ArrivalCounts()
        self._refusals = RefusalCounts()
        self.refused_shares = RefusedShares()
        self.count = self._refusals.count
        self.charging = Charging(config, clock, own, self._refusals)
        highest = Criticality[str(config.highest_criticality)]
        self._metadata = RequestMetadata(highest)
        self._stock = StockBudget()
        self._binding = LateBinding()
        self.declined = 0
        self._shedding = Shedding(
            self.core,
            self._metadata.named,
            self._lets_in,
            self._count_dropped,
            self._has_used_up,
            self._count_used_up,
        )
        self._loop_meter = LoopMeter(clock)
        self._wakeups: Wakeups | None = None  # grpcio's, once they are read together

    def limit(self, requests: int) -> None:
        """Limits concurrent requests; the last places are for the most critical."""
        self.most = requests
        self.pressure.limit(requests)
        self._is_calm = False  # until the next sample

    def without_place(self) -> int:
        """How many requests have found none so far."""
        return self._refusals.of(NO_PLACE)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wakeups = read_together(loop, readers_of(loop))
        self._loop_meter.watch(loop)
        self.charging.start(loop)

    def stop(self) -> None:
        self._loop_meter.ignore()
        self.charging.stop()

    # What gRPC's core holds

    @property
    def intake(self) -> Intake:
        return self.core.intake

    def count_unseen_by(self, read: Callable[[], int | None], most: float) -> None:
        """`read` returns how many calls the core has begun.

        If more than `most` wait in the core, it ends some of them.
        """
        self.core.count_by(read, most)

    def count_unseen(self) -> int | None:
        """Requests that have arrived and whose handlers have not been looked up.

        Includes those that the core has ended. None if it is not known.
        """
        return self.core.count(self.queue.arrived)

    # Signals

    def sample_system(self, now: float) -> None:
        """Reads what the system tells, which takes long if many threads run."""
        self.charging.sample_speed(now)
        self.threads.sample(now)
        self._system.read(now)

    def sample(self, now: float, cpu: float) -> None:
        """Takes the signals that are not read for each request."""
        if self._system.read_at != now:
            self.sample_system(now)
        self.charging.take_speed()
        used_up = self._refusals.of(Refusal.QUOTA.value)
        # To decline takes as long. Who is beyond a quota is not kept out by the wait:
        # else it could not end as long as such requests come.
        refused = self._refusals.total() + self.declined - used_up
        wakeups = self._wakeups
        is_prompt = wakeups is not None and wakeups.is_alone()
        self._shedding.is_possible = is_prompt
        queue = self.queue
        self.intake.each_turn = EACH_LONG if queue.is_for_long else EACH_TURN
        self._shedding.sample(now, refused, queue.is_for_long, queue.cpu, used_up)
        busy = self._loop_meter.read()
        self.core.sample(
            now,
            refused,
            is_prompt,
            self._arrivals.let_by,
            busy=1.0 if busy is None else busy,
            in_line=queue.new,
        )
        if self.adaptive is not None:
            self.adaptive.take_time(self.core.typical_time)
        memory = self._system.memory
        self._monitor.memory = wire.sound(memory)
        load = self.load(now)
        self.pressure.sample(now, load, cpu, memory, self._own.values())
        report = self._monitor.report()
        self._binding.sample(
            now, load, report.utilization, report.qps, self._system.cpus
        )
        self._monitor.signals.take(self._metrics_told(), now)
        is_calm = self.pressure.is_calm(self._monitor.active)
        self._is_calm = is_calm and not self._own.has_runnable
        self._sample_shares(now, is_calm)

    def _metrics_told(self) -> dict[str, float]:
        """What reports carry: the application's own metrics come first where there are
        too many."""
        return {**self._own.named(), **self._known_signals()}

    def _known_signals(self) -> dict[str, float]:
        """Over their targets, without what has none or could not be read."""
        unknown = set(self._own.failed)
        if not self._monitor.memory:
            unknown.add(MEMORY_NAME)
        return {
            signal.name: signal.value / signal.target
            for signal in self.signals()
            if signal.name not in unknown and signal.target < inf
        }

    def _sample_shares(self, now: float, is_calm: bool) -> None:
        """Samples the shares of requests refused for load, which reports tell."""
        arrived = self._arrivals.by_criticality(self.queue.arrived)
        refused = self._refusals.for_load()
        self.refused_shares.sample(now, arrived, refused, self.core.ended, is_calm)

    def threads_used(self) -> float:
        """The share of the pool's threads that run requests."""
        return self.threads.used()

    def load(self, now: float) -> float:
        """Requests that run or want to, for each processor."""
        if self._own.has_runnable:
            return (self._own.runnable() or 0) / self._system.cpus
        on_loop = self.queue.load(now, self._monitor.active)
        if (wait := self.queue.wait()) > 0.0:
            time = self.core.typical_time
            on_loop = max(on_loop, self.pressure.load_of_line(wait, time))
        return max(on_loop, self.threads.load(now, self.pressure.are_alike))

    def refuses_stream(self) -> RefusalStatus | None:
        """The status to refuse a new stream with, if too many streams want to go on."""
        if self._own.has_runnable:
            return None
        load = self.queue.of_streams()
        criticality = current_or_default()
        refusal = self.pressure.refuses_stream(load, criticality)
        if refusal is None:
            return None
        self.count(refusal.value, criticality)
        why = self.pressure.why_stream(load, criticality)
        return RefusalStatus(StatusCode.UNAVAILABLE, why, self._told(refusal))

    def overtaken(self) -> RefusalStatus:
        """The status of a request whose turn a more critical one has taken.

        To be called in the request's task.
        """
        return self._giving_way(current_or_default())

    def _giving_way(self, criticality: Criticality) -> RefusalStatus:
        refusal = self.pressure.give_way(criticality, self._clock())
        self.count(refusal.value, criticality)
        return RefusalStatus(StatusCode.UNAVAILABLE, OVERTAKEN, self._told(refusal))

    def make_way(self) -> None:
        """Refuses one that waits for a thread, if it is less critical than a request
        that will, no thread is idle, and the task is overloaded.

        To be called in the task of that request, before it waits.
        """
        if not (
            self.threads.waiting and self.threads.are_busy() and self._is_overloaded()
        ):
            return
        first, lower = self.threads.first_below(current_or_default())
        if first is not None and lower is not None:
            first.lose_place(partial(self._giving_way, lower))

    # Requests

    def _lets_in(self, criticality: Criticality) -> bool:
        """Whether a request that has arrived, and is not grpcio's yet, may wait.

        Called only in a flood. The signals must let it in, and there must be room.
        """
        now = self._clock()
        self.pressure.observe(self.load(now), now)
        if self.pressure.refuses(criticality, 0, now) is not None:
            return False
        ahead = len(self.core.intake) + self.queue.count_ahead(criticality)
        return self.core.has_room(criticality, ahead)

    def _count_dropped(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        criticality: Criticality,
        reason: str = UNANSWERED,
    ) -> None:
        quotas = self.charging.early_quotas
        if quotas is not None:
            quotas.drop(self._metadata.customer(metadata), criticality)
        self.queue.arrived += 1
        self._arrivals.asked += 1
        self._arrivals.decided[criticality] += 1
        self.count(reason, criticality, is_for_load=reason is UNANSWERED)

    def _has_used_up(
        self, metadata: Iterable[tuple[str, str | bytes]], criticality: Criticality
    ) -> bool:
        """Whether the quota of a request's customer is used up. It is asked before
        grpcio has seen the request."""
        quotas = self.charging.early_quotas
        if quotas is None:
            return False
        return quotas.is_used_up(self._metadata.customer(metadata), criticality)

    def _count_used_up(
        self, metadata: Iterable[tuple[str, str | bytes]], criticality: Criticality
    ) -> None:
        self.pressure.add_out_of_quota(0)
        self._count_dropped(metadata, criticality, Refusal.QUOTA.value)

    def _is_overloaded(self) -> bool:
        """Whether a more critical request may take the turn of a less critical one."""
        return self.pressure.is_refusing() or self._shedding.is_choosing

    def refuses(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        method: MethodBaseline | None = None,
    ) -> RefusalStatus | None:
        """The status to refuse a request with, or None to admit it.

        To be called in the request's task: its criticality, customer and payer are set
        in the task's context. `method` is given for requests that the adaptive limit
        counts.
        """
        queue = self.queue
        queue.arrived += 1
        if self._is_calm and not (queue.is_closed or self.threads.waiting):
            customer = OTHERS
            for key, value in metadata:
                if key in WORDS:
                    if key != wire.CUSTOMER_KEY:
                        break
                    customer = str(value)
            else:  # as almost always: nothing to decide but who pays
                charging = self.charging
                if customer and not charging.asks_context:
                    adopt(customer)
                if method is not None and self._is_full(method, DEFAULT):
                    return self.full()
                if charging.early_costs is None:
                    return None
                return charging.charge(customer, DEFAULT)
        arrivals = self._arrivals
        if queue.arrived > arrivals.asked + 1:
            self.pressure.let_in(queue.arrived - arrivals.asked - 1)
        arrivals.asked = queue.arrived
        return self._decide(metadata, method)

    def look_closely(self) -> None:
        """Decides on each request until the next sample, as places are taken."""
        self._is_calm = False

    def let_by(self) -> None:
        """Counts a request that is always admitted, such as a health check."""
        self.queue.arrived += 1
        self._arrivals.asked += 1
        self._arrivals.let_by += 1

    def _decide(
        self, metadata: Iterable[tuple[str, str | bytes]], method: MethodBaseline | None
    ) -> RefusalStatus | None:
        criticality, attempt, customer, decliner = self._metadata.take(metadata)
        charging = self.charging
        if customer and not charging.asks_context:
            adopt(customer)
        self._arrivals.decided[criticality] += 1
        quotas = charging.early_quotas
        # Whoever has used it up is refused before anybody is for the load, and is told
        # so: another task would not help. What the load refuses is not charged. (Where
        # who pays is known only later, `Charging.asks` comes after all this.)
        if quotas is not None and quotas.refuses(customer, criticality):
            self.pressure.add_out_of_quota(attempt)
            return charging.out_of_quota(criticality)
        pressure, refusal = self.pressure, None
        if not self._shedding.has_asked(metadata):
            now = self._clock()
            pressure.observe(self.load(now), now)
            refusal = pressure.refuses(criticality, attempt, now)
        if refusal is not None:
            self.count(refusal.value, criticality)
            return RefusalStatus(
                StatusCode.UNAVAILABLE, pressure.why(), self._told(refusal)
            )
        if decliner and decliner == self.task and self._binding.declines(pressure.load):
            self.declined += 1
            return DECLINED
        active = self._monitor.active
        if pressure.places is not None and pressure.is_full(criticality, active):
            self.count(NO_PLACE, criticality)
            return self.full(attempt)
        if method is not None and self._is_full(method, criticality):
            return self.full(attempt)
        if charging.early_costs is not None:
            payer = None if quotas is None else quotas.admit(customer, criticality)
            bill_to(charging.early_costs.begin(customer, payer))
        return None

    def full(self, attempt: int = 0) -> RefusalStatus:
        """The status of a request for which there is no place."""
        return FULL[self._told(self.pressure.refusal(attempt))]

    def too_late(self, has_waited: bool) -> RefusalStatus:
        """The status of a request with too little time left. Called in any thread.

        `has_waited`: it lost that time in this task's queue.
        """
        statuses = TOO_LATE if has_waited else TOO_SHORT
        return statuses[self._told(self.pressure.refusal())]

    def _told(self, refusal: Refusal) -> Trailers:
        """The trailers of a refusal for load.

        A retry that they grant to stock clients is taken from their budget.
        """
        if refusal is not Refusal.OVERLOADED:
            return TRAILERS[refusal]
        seen, now = self.pressure.attempts, self._clock()
        requests = seen.requests + self._unasked()
        may_retry = self._stock.withdraw(requests, seen.retries, now)
        return TRAILERS[refusal] if may_retry else OURS_MAY_RETRY

    def _unasked(self) -> int:
        """Requests since admission was asked last: first attempts, let in in calm."""
        return self.queue.arrived - self._arrivals.asked

    def _is_full(self, method: MethodBaseline, criticality: Criticality) -> bool:
        """Whether the adaptive limit refuses this request; counts that."""
        assert self.adaptive is not None
        if not self.adaptive.refuses(method, criticality):
            return False
        self.count(NO_PLACE, criticality)
        return True

    def complete(self, statistics: ServerStatistics) -> ServerStatistics:
        """Adds to the statistics what the gate knows."""
        return replace(
            self.charging.complete(statistics),
            signal_failures=self._own.failures,
            load=self.load(self._clock()),
            refused=self.refused,
            signals=self.signals(),
            admitted=self.admitted(),
            attempts=self.attempts(),
            misread=dict(self._metadata.misread),
            declined=self.declined,
        )

    def attempts(self) -> AttemptStatistics:
        """The histogram of attempts, and what follows from it."""
        seen, stock = self.pressure.attempts, self._stock
        first, *later = seen.counts
        first += self._unasked()
        return AttemptStatistics(
            requests={str(n): count for n, count in enumerate((first, *later))},
            recent={str(n): share for n, share in enumerate(seen.shares())},
            others_refuse=seen.is_in_vain(),
            granted=stock.ratio,
            withheld=stock.withheld,
        )

    def admitted(self) -> dict[str, float]:
        """The share of requests that signals admit, by criticality."""
        shares = self.pressure.shares
        return {one.name: shares[one] for one in Criticality}

    def signals(self) -> tuple[SignalStatistics, ...]:
        """The signals as last read, each with its target."""
        seen = [SignalStatistics(*reading) for reading in self.pressure.readings()]
        limits = []
        if (taken := self.pressure.taken(self._monitor.active)) is not None:
            limits.append(taken)
        if self.adaptive is not None:
            limits.append(self.adaptive.signal())
        if limits:
            fullest = max(limits, key=lambda limit: limit[0] / limit[1])
            seen.append(SignalStatistics(PLACES_NAME, *fullest))
        return tuple(seen)

    @property
    def is_strained(self) -> bool:
        """Whether any signal is beyond half of what requests are refused at."""
        adaptive = self.adaptive
        if adaptive is not None and adaptive.taken > OVERLOAD_SIGNALS.strained:
            return True
        load = self.load(self._clock())
        return self.pressure.is_strained(self._monitor.active, load)

    @property
    def refused(self) -> dict[str, dict[str, int]]:
        """How many requests were refused, by reason and criticality."""
        return {**self._refusals.read(), UNSEEN: {UNKNOWN: self.core.ended}}

    def __repr__(self) -> str:
        return repr(self.pressure)
