"""What this task says of itself, as bytes that are ready to send.

Sampled every 0.1 s on the server's loop. What changes with every request, how many
are active, is appended to the sample's bytes: a protobuf message is the sum of its
fields in any order.
"""

from collections import Counter
from collections.abc import Callable
from random import SystemRandom
from typing import Any

from lbclient import wire
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.outliers.fleet_cost import FleetCost
from lbclient.core.overload.refused_shares import RefusedShares
from lbclient.core.protocols import Clock
from lbclient.core.report.load_monitor import LoadMonitor
from lbclient.log import Log
from lbclient.server.lame_duck import Drain
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.report.request_tally import RequestTally
from lbclient.server.report.streams import ReportStreams, StreamKind
from lbclient.server.report.udp_sessions import UdpSessions
from lbclient.server.statistics import (
    CostStatistics,
    ServerStatistics,
    WorkerUtilization,
)
from lbclient.server.workers.messages import Ports
from lbclient.v1 import health_pb2, load_pb2

logger = Log(__name__)

Trailers = tuple[tuple[str, str | bytes], ...]


class Reporter:
    """Encodes the task's state and load for clients. Owned by the server. Works on its
    loop's thread; `statistics` may be called in any."""

    def __init__(
        self,
        clock: Clock,
        monitor: LoadMonitor,
        tally: RequestTally,
        own: UserSignals,
        streams: ReportStreams,
        shares: RefusedShares,
    ) -> None:
        self.clock = clock
        self.monitor = monitor
        self._tally = tally
        self._own = own
        self._streams = streams
        self._shares = shares
        self.fleet_cost = FleetCost()
        self.state = TaskState.STARTING
        self.stopping = False
        self.udp_port = 0  # where this task answers UDP health checks
        self.udp_sessions: UdpSessions | None = None  # and where for who is given one
        self.drain: Drain | None = None  # once the server drains
        self._workers: health_pb2.Workers | None = None  # of the task
        # Of a worker: its own utilization, and the CPU time of all over their CPUs.
        self.utilizations: tuple[float, float] | None = None
        self.tells_cost = False  # of a request, to its client
        self.sends_orca = True  # in trailers, for clients that are not ours
        self.task_id = SystemRandom().randrange(1, 2**32)
        # Of the asyncio tasks in which grpcio serves requests of this server.
        self.request_name = f"request of lbclient server {self.task_id}"
        self._sampled = b""
        self._health = self._load = b""  # of this sample, once a stream is told
        self.ready: dict[int, Trailers] = {}  # by active requests, of this sample
        self._encode()

    def sample(self, now: float, cpu: float, cpus: float = 1.0) -> None:
        """`cpu` is the utilization of `cpus`, or of what limits more."""
        self._tally.sample()
        self.monitor.sample(now, cpu, self._own.utilization(cpu), cpus)
        if self.fleet_cost.observe(self.monitor.report(), now):
            self._log_cost(now)
        self._encode()
        self._streams.tick(now)
        if self._shares.is_news:
            self._streams.push(StreamKind.HEALTH)

    def _log_cost(self, now: float) -> None:
        if (cost := self.fleet_cost.read(now)) is None:
            return
        said = "is as usual again"
        if cost.is_slowed:
            said = f"is {cost.rise:.1f} times its usual one"
        logger.info("the cost of requests %s, compared with the fleet", said)

    def enter(self, state: TaskState, *, stopping: bool = False) -> None:
        """Enters a state, and tells every watcher at once."""
        self.state = state
        self.stopping = stopping
        self._encode()
        self._streams.push()

    def begin_drain(
        self,
        quiet: float,
        period: float,
        count_unseen: Callable[[], int | None],
        agree: Callable[[], bool],
    ) -> Drain:
        """Returns what says when this server may stop; all who drain it share one."""
        if self.drain is None:
            self.drain = Drain(
                self._streams.watched,
                quiet,
                period,
                self.clock,
                count_unseen,
                self.request_name,
                agree,
            )
        return self.drain

    def stopped(self) -> None:
        """The server has, so nobody who drains it need wait."""
        if self.drain is not None:
            self.drain.stopped()

    def encoded(self, active: int) -> bytes:
        """A serialized `lbclient.v1.LoadReport`, which is an ORCA report too."""
        own = self._own
        runnable = own.runnable() if own.has_runnable else self.monitor.runnable(active)
        live = load_pb2.LoadReport(active_requests=active, runnable_requests=runnable)
        return self._sampled + live.SerializeToString()

    def trailers(self, active: int | None = None) -> Trailers:
        """The load report as trailers; `active` defaults to the requests active now."""
        active = self.monitor.active if active is None else active
        ready = self.ready  # of one sample, also if a thread asks while it changes
        trailers = ready.get(active)
        if trailers is None:
            report = self.encoded(active)
            trailers = ((wire.LOAD_KEY, report),)
            if self.sends_orca:
                trailers += ((wire.ORCA_KEY, report),)
            if not self._own.has_runnable:
                ready[active] = trailers
        return trailers

    def with_cost(self, trailers: Trailers, cost: float) -> Trailers:
        """The load report's trailers, and normalized CPU seconds as the cost.

        ORCA's own report has it for other clients. It is not in our key, whose value a
        client parses only once for all requests that have the same.
        """
        own, *orca = trailers
        told = (wire.COST_KEY, f"{cost:.7f}")
        if not orca:
            return own, told
        [(key, report)] = orca
        field: Any = wire.cost_field(cost)
        return own, (key, report + field), told

    def load(self) -> load_pb2.LoadReport:
        self._tally.learn_served()
        active = self.monitor.active
        load = load_pb2.LoadReport.FromString(self.encoded(active))
        load.latency = self.monitor.latencies.at(active)
        return load

    def health(self) -> health_pb2.HealthReport:
        cost = self.fleet_cost.read(self.clock())
        if self._workers is not None and self.utilizations is not None:
            own, task = self.utilizations
            self._workers.own_utilization, self._workers.task_cpu = own, task
        return health_pb2.HealthReport(
            state=self.state.name,
            load=self.load(),
            udp_port=self.udp_port,
            report_floor=self._streams.floor,
            clients=len(self._streams.watched),
            cost_rise=None if cost is None else cost.rise,
            workers=self._workers,
        )

    def tell_workers(self, group: int, ports: Ports, serving: int) -> None:
        """The task's workers are these now; none while it is not known."""
        each = [health_pb2.WorkerPorts(shared=one, own=own) for one, own in ports]
        self._workers = health_pb2.Workers(group=group, ports=each, serving=serving)
        self._health = b""
        self._streams.push(StreamKind.HEALTH)

    def encoded_health(self) -> bytes:
        """The health report for streams, made once for each sample."""
        self._health = self._health or self.health().SerializeToString()
        return self._health

    def encoded_load(self) -> bytes:
        self._load = self._load or self.load().SerializeToString()
        return self._load

    def glance(self) -> tuple[TaskState, LoadReport]:
        """The state and load that an answer over UDP has room for."""
        return self.state, self.monitor.report()

    def statistics(self) -> ServerStatistics:
        """What the reporter knows of the server's statistics."""
        tally, report, streams = self._tally, self.monitor.report(), self._streams
        tally.count_served()
        methods = tally.call_counts.read()
        requests: Counter[str] = Counter(OK=0)
        for counts in methods.values():
            requests.update(counts)
        return ServerStatistics(
            state=self.state,
            utilization=report.utilization,
            qps=report.qps,
            eps=report.eps,
            active=self.monitor.active,
            requests={code: n for code, n in requests.items() if n or code == "OK"},
            methods=methods,
            watchers=len(streams),
            streams={kind.value: n for kind, n in streams.held.items()},
            streams_refused={why.value: n for why, n in streams.refused.items()},
            report_floor=streams.floor,
            latency_bounds=tally.latency.bounds,
            latency_counts=tuple(tally.latency.counts),
            latency_sum=tally.latency.sum,
            cost=self._cost(),
            worker=self.utilizations and WorkerUtilization(*self.utilizations),
        )

    def _cost(self) -> CostStatistics:
        now = self.clock()
        clients, cost = self.fleet_cost.clients(now), self.fleet_cost.read(now)
        if cost is None:
            return CostStatistics(clients=clients)
        return CostStatistics(cost.relative, cost.rise, cost.is_slowed, clients)

    def _encode(self) -> None:
        report = self.monitor.report()
        self._sampled = load_pb2.LoadReport(
            cpu_utilization=self.monitor.cpu,
            mem_utilization=self.monitor.memory,
            rps_fractional=report.qps,
            eps=report.eps,
            named_metrics=self.monitor.signals.read(),
            application_utilization=self.monitor.application,
            state=self.state.name,
            task_id=self.task_id,
            refused_percent=bytes(self._shares.percents),
        ).SerializeToString()
        self.ready = {}
        self._health = self._load = b""

    def __repr__(self) -> str:
        return f"<{self.state.name.lower().replace('_', ' ')}, {self.monitor!r}>"
