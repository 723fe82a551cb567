"""Admits or refuses each request when grpcio looks up its handler.

That is before a message is read, let alone deserialized, and the request's metadata are
there: to refuse costs what grpcio takes to begin and end a call, and little more. What
is refused has not been executed, and is told so.

Signals and metadata are read here, `lbclient.core.overload_signals` decides. SRE book,
ch. 21.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from math import inf
from random import Random

from grpc import StatusCode

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.admission import MEMORY_NAME, PLACES_NAME
from lbclient.core.concurrency import RequestOutcome
from lbclient.core.costs import Costs
from lbclient.core.criticality import DEFAULT, Criticality, current
from lbclient.core.customer import adopt
from lbclient.core.latency_window import MethodBaseline
from lbclient.core.load_monitor import LoadMonitor
from lbclient.core.overload_signals import STRAINED, Pressure
from lbclient.core.protocols import Clock
from lbclient.core.queue_delay import QueueDelay
from lbclient.core.quota import OTHERS
from lbclient.core.refused_shares import RefusedShares
from lbclient.core.retry import Refusal
from lbclient.core.stock_budget import StockBudget
from lbclient.server.meters.cpu import available_cpus
from lbclient.server.meters.machine_speed import OF_PROCESS
from lbclient.server.meters.memory import MemoryMeter
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.adaptive import AdaptiveConcurrency, note_outcome
from lbclient.server.overload.core_queue import CoreQueue
from lbclient.server.overload.intake import Intake
from lbclient.server.overload.metadata import WORDS, RequestMetadata
from lbclient.server.overload.refusal_counts import RefusalCounts
from lbclient.server.overload.refusal_status import (
    FULL,
    NO_PLACE,
    OURS_MAY_RETRY,
    OUT_OF_QUOTA,
    PASSED,
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
from lbclient.server.overload.threads import Threads
from lbclient.server.quotas.cpu_timing import CpuTiming, Nesting, bill_to
from lbclient.server.quotas.quota_enforcer import QuotaEnforcer, customer_of_identity
from lbclient.server.statistics import (
    AttemptStatistics,
    QuotaStatistics,
    ServerStatistics,
    SignalStatistics,
)
from lbclient.wire import propagation


class Gate:
    """Admits or refuses each request. Owned by the server. Used on its loop's thread
    only, except `too_late`."""

    loop: asyncio.AbstractEventLoop  # once started

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
        self.queue = RunQueue(clock, self.core.intake, self.pressure.is_refusing)
        self.threads = Threads(pool=pool)
        self._monitor = monitor
        self._clock = clock
        self._has_runnable = own.has_runnable
        self._cpus = 1.0
        self._read_memory = MemoryMeter().read if read_memory is None else read_memory
        self._memory = 0.0
        self._read_at: float | None = None
        self._has_limit = False
        self._is_calm = False  # nothing is, nor was lately; as last sampled
        self._asked = 0  # of those that arrived, the last that admission knows of
        self.adaptive = (
            AdaptiveConcurrency(clock, self.pressure.mix, rng)
            if config.adaptive_concurrency
            else None
        )
        # By criticality, requests whose metadata was read. The others came in calm.
        self._decided = [0] * len(Criticality)
        self._let_by = 0  # of those that arrived, health checks and the like
        self._refusals = RefusalCounts()
        self.refused_shares = RefusedShares()
        self.count = self._refusals.count
        has_quotas = config.quotas is not None or config.default_quota is not None
        self.quotas = QuotaEnforcer(config, clock) if has_quotas else None
        # What requests cost is what quotas limit.
        factor = config.cpu_factor
        self.costs = (
            Costs(1.0 if factor is None else factor, config.quotas or ())
            if has_quotas or config.request_cost
            else None
        )
        self._measures_speed = self.costs is not None and factor is None
        self._cpu_timing = CpuTiming()
        self.nesting = Nesting()  # of the loop, once started
        named = config.customer
        self._customer = customer_of_identity if isinstance(named, str) else named
        # Whether who pays is known only later than all else. Without quotas it is asked
        # for, too: the request's own calls inherit that, and never a mere claim.
        self.asks_context = config.customer is not None
        self._early_quotas = None if self.asks_context else self.quotas
        self._early_costs = None if self.asks_context else self.costs
        highest = Criticality[str(config.highest_criticality)]
        self._metadata = RequestMetadata(highest)
        self._stock = StockBudget()
        self._shedding = Shedding(self.core, self._metadata.named, self._drops)

    def limit(self, requests: int) -> None:
        """Limits concurrent requests; the last places are for the most critical."""
        self.pressure.limit(requests)
        self._has_limit = True
        self._is_calm = False  # until the next sample

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        if self._measures_speed:
            OF_PROCESS.start()
            self._take_speed()
        if self.costs is not None:
            self.nesting = self._cpu_timing.install(loop)
        if self.quotas is not None:
            self.quotas.start(loop)

    def _take_speed(self) -> None:
        assert self.costs is not None
        self.costs.factor = OF_PROCESS.factor

    def stop(self) -> None:
        self._cpu_timing.remove()
        if self.quotas is not None:
            self.quotas.stop()

    # What gRPC's core holds

    @property
    def intake(self) -> Intake:
        return self.core.intake

    def count_unseen_by(self, read: Callable[[], int | None], most: int) -> None:
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
        if self._measures_speed:
            OF_PROCESS.sample(now)
        self._cpus = available_cpus() if self._has_runnable else 1.0
        self.threads.sample(now)
        self._memory = self._read_memory(now)
        self._read_at = now

    def sample(self, now: float, cpu: float) -> None:
        """Takes the signals that are not read for each request."""
        if self._read_at != now:
            self.sample_system(now)
        if self._measures_speed:
            self._take_speed()
        refused = self._refusals.total()
        self._shedding.sample(now, refused, self.queue.is_for_long)
        self.core.sample(now, refused)
        memory = self._memory
        self._monitor.memory = wire.sound(memory)
        self.pressure.sample(now, self.load(now), cpu, memory, self._own.values())
        self._monitor.signals.take(self._known_signals(), now)
        is_calm = self.pressure.is_calm(self._monitor.active)
        self._is_calm = is_calm and not self._has_runnable
        self._sample_shares(now, is_calm)

    def _known_signals(self) -> dict[str, float]:
        """Over their targets, without what has none or could not be read."""
        unknown = set(self._own.failed)
        if not self._monitor.memory:
            unknown.add(MEMORY_NAME)
        return {
            signal.name: signal.value / signal.target
            for signal in self.signals()
            if signal.name not in unknown and 0.0 < signal.target < inf
        }

    def _sample_shares(self, now: float, is_calm: bool) -> None:
        """Samples the shares of requests refused for load, which reports tell."""
        arrived = self._decided.copy()
        arrived[DEFAULT] += self.queue.arrived - self._let_by - sum(arrived)
        refused = self._refusals.for_load()
        self.refused_shares.sample(now, arrived, refused, self.core.ended, is_calm)

    def threads_used(self) -> float:
        """The share of the pool's threads that run requests."""
        return self.threads.used()

    def load(self, now: float) -> float:
        """Requests that run or want to, for each processor."""
        if self._has_runnable:
            return (self._own.runnable() or 0) / self._cpus
        on_loop = self.queue.load(now, self._monitor.active)
        if (wait := self.queue.wait()) > 0.0:
            time = self.core.typical_time
            on_loop = max(on_loop, self.pressure.load_of_line(wait, time))
        return max(on_loop, self.threads.load(now))

    def refuses_stream(self) -> RefusalStatus | None:
        """The status to refuse a new stream with, if too many streams want to go on."""
        load = 0.0 if self._has_runnable else self.queue.of_streams()
        if not load:
            return None
        found = current()
        criticality = DEFAULT if found is None else found
        refusal = self.pressure.refuses_stream(load, criticality)
        if refusal is None:
            return None
        self.count(refusal.value, criticality)
        why = self.pressure.why_stream(load, criticality)
        return RefusalStatus(StatusCode.UNAVAILABLE, why, self._told(refusal))

    def passed(self) -> RefusalStatus:
        """The status of a request whose turn a more critical one has taken.

        To be called in the request's task.
        """
        known = current()
        criticality = DEFAULT if known is None else known
        refusal = self.pressure.give_way(criticality, self._clock())
        self.count(refusal.value, criticality)
        return RefusalStatus(StatusCode.UNAVAILABLE, PASSED, self._told(refusal))

    # Requests

    def _drops(self, criticality: Criticality) -> bool:
        """Whether a request is ended unanswered that has come and that grpcio has not.

        Called only in a flood. Whoever is not dropped, signals let in.
        """
        now = self._clock()
        self.pressure.observe(self.load(now), now)
        if self.pressure.refuses(criticality, 0, now) is None:
            return False
        self.queue.arrived += 1
        self._asked += 1
        self._decided[criticality] += 1
        self.count(UNANSWERED, criticality)
        return True

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
                if customer and not self.asks_context:
                    adopt(customer)
                if method is not None and self._is_full(method, DEFAULT):
                    return self.full()
                if self._early_costs is None:
                    return None
                return self._charged(customer, DEFAULT)
        if queue.arrived > self._asked + 1:
            self.pressure.let_in(queue.arrived - self._asked - 1)
        self._asked = queue.arrived
        return self._decide(metadata, method)

    def let_by(self) -> None:
        """Counts a request that is always admitted, such as a health check."""
        self.queue.arrived += 1
        self._asked += 1
        self._let_by += 1

    def _decide(
        self, metadata: Iterable[tuple[str, str | bytes]], method: MethodBaseline | None
    ) -> RefusalStatus | None:
        criticality, attempt, customer = self._metadata.take(metadata)
        if customer and not self.asks_context:
            adopt(customer)
        self._decided[criticality] += 1
        quotas = self._early_quotas
        # Whoever has used it up is refused before anybody is for the load, and is told
        # so: another task would not help. What the load refuses is not charged. (Where
        # who pays is known only later, `asks` comes after all this.)
        if quotas is not None and quotas.refuses(customer, criticality):
            self.pressure.add_out_of_quota(attempt)
            return self._out_of_quota(criticality)
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
        if self._has_limit and pressure.is_full(criticality, self._monitor.active):
            self.count(NO_PLACE, criticality)
            return self.full(attempt)
        if method is not None and self._is_full(method, criticality):
            return self.full(attempt)
        if self._early_costs is not None:
            payer = None if quotas is None else quotas.admit(customer, criticality)
            bill_to(self._early_costs.begin(customer, payer))
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
        return self.queue.arrived - self._asked

    def _is_full(self, method: MethodBaseline, criticality: Criticality) -> bool:
        """Whether the adaptive limit refuses this request; counts that."""
        assert self.adaptive is not None
        if not self.adaptive.refuses(method, criticality):
            return False
        self.count(NO_PLACE, criticality)
        return True

    def _charged(self, customer: str, criticality: Criticality) -> RefusalStatus | None:
        quotas, costs, payer = self.quotas, self.costs, None
        if quotas is not None:
            clock = self._clock
            payer = quotas.enter(customer, criticality, clock())
            if payer is None:
                note_outcome(RequestOutcome.FAILED)
                return self._out_of_quota(criticality)
        assert costs is not None
        bill_to(costs.begin(customer, payer))
        return None

    def _out_of_quota(self, criticality: Criticality) -> RefusalStatus:
        self.count(Refusal.QUOTA.value, criticality, is_for_load=False)
        return OUT_OF_QUOTA

    def asks(self, context: object) -> RefusalStatus | None:
        """Charges who `ServerConfig.customer` names. Returns as `refuses` does.

        To be called in the request's context, where it sets the customer.
        """
        assert self._customer is not None
        try:
            customer = self._named(self._customer(context))
        except Exception as error:
            self._own.complain("customer", f"raised {error!r}")
            customer = OTHERS
        adopt(customer)
        if self.costs is None:
            return None
        found = current()
        return self._charged(customer, DEFAULT if found is None else found)

    def _named(self, said: object) -> str:
        """The customer's name as text; None, or another type, means no customer."""
        if isinstance(said, bytes):
            return said.decode(errors="replace")
        if isinstance(said, str):
            return said.encode(errors="replace").decode()
        if said is not None:
            self._own.complain("customer", f"returned a {type(said).__name__}")
        return OTHERS

    def complete(self, statistics: ServerStatistics) -> ServerStatistics:
        """Adds to the statistics what the gate knows."""
        quotas, costs = self.quotas, self.costs
        return replace(
            statistics,
            signal_failures=self._own.failures,
            load=self.load(self._clock()),
            refused=self.refused,
            signals=self.signals(),
            admitted=self.admitted(),
            attempts=self.attempts(),
            misread=dict(self._metadata.misread),
            usage={} if quotas is None else quotas.usage(),
            cpu_factor=1.0 if costs is None else costs.factor,
            method_costs={} if costs is None else costs.by_method(),
            customer_costs={} if costs is None else costs.by_customer(),
            quotas=QuotaStatistics() if quotas is None else quotas.statistics(),
            task_failures=0 if quotas is None else quotas.task_failures,
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
        if self.adaptive is not None and self.adaptive.taken > STRAINED:
            return True
        load = self.load(self._clock())
        return self.pressure.is_strained(self._monitor.active, load)

    @property
    def refused(self) -> dict[str, dict[str, int]]:
        """How many requests were refused, by reason and criticality."""
        return {**self._refusals.read(), UNSEEN: {UNKNOWN: self.core.ended}}

    def __repr__(self) -> str:
        return repr(self.pressure)


def degraded() -> bool:
    """Whether the server is near overload, so the handler should return a cheaper
    answer.

    False if no request is being served.
    """
    request = propagation.current()
    return request is not None and request.is_strained
