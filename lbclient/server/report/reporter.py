"""What this task says of itself, as bytes that are ready to send.

Sampled every 0.1 s on the server's loop. What changes with every request, how many
are active, is appended to the sample's bytes: a protobuf message is the sum of its
fields in any order.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random, SystemRandom
from threading import RLock, get_ident
from typing import Any

from grpc import StatusCode

from lbclient import wire
from lbclient.background.tasks import Tasks, is_fatal
from lbclient.config import ServerConfig
from lbclient.core.admission import Quickest
from lbclient.core.call_counts import Handled
from lbclient.core.histogram import Histogram
from lbclient.core.load_monitor import LoadMonitor
from lbclient.core.model import LoadReport, TaskState, Verdict
from lbclient.core.protocols import Clock
from lbclient.core.recent import Recent
from lbclient.core.text import printable
from lbclient.server.lame_duck import Drain
from lbclient.server.meters.contention import ContentionMeter
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusals import Answer
from lbclient.server.report.streams import TICK, Streams
from lbclient.server.statistics import QuotaStatistics, ServerStatistics
from lbclient.v1 import health_pb2, load_pb2
from lbclient.wire.codes import verdict_of

SAMPLE_INTERVAL = TICK  # seconds; how often reports change in lbclient's simulations

# The hot path has no enum in it: a member's lookup, hash and name are slow.
_OK = StatusCode.OK

Trailers = tuple[tuple[str, str | bytes], ...]
Counts = dict[str, int]
"""Finished requests of one method, by the name of their status code."""

logger = logging.getLogger(__name__)


class Method:
    """What the requests of one method have in common; shared by those of others.

    `serialize` is for what a handler writes itself. `quickest` is None where a request
    takes what its client takes, as with streams.
    """

    __slots__ = ("counts", "quickest", "reporter", "serialize")

    def __init__(
        self,
        reporter: "Reporter",
        counts: Counts,
        serialize: Callable[[Any], Any] | None = None,
        quickest: Quickest | None = None,
    ) -> None:
        self.reporter = reporter
        self.counts = counts
        self.serialize = serialize
        self.quickest = quickest


class Reporter:
    """Owned by the server. Works on its loop's thread, and `statistics` on any."""

    loop: asyncio.AbstractEventLoop  # once started

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        read_cpu: Callable[[float], float] | None = None,
        has_slots: bool = True,
    ) -> None:
        """`has_slots`: a connection has streams to spare for health and load."""
        self.clock = clock
        self.state = TaskState.STARTING
        self.stopping = False
        self.udp_port = 0  # where this task answers UDP health checks
        self.monitor = LoadMonitor(config.smoothing)
        self.gate = Gate(
            config, self.monitor, clock, self._read_runnable, self._complain, Random()
        )
        self.streams = Streams(
            config.max_streams,
            config.max_streams_per_connection if has_slots else 0,
            clock,
            lambda: self.gate.is_strained,
        )
        self._config = config
        self._contention = ContentionMeter(config.smoothing)
        self._read_cpu = self._contention.read if read_cpu is None else read_cpu
        self.handled = Handled(code.name for code in StatusCode)
        self.recent: Recent | None = None  # as long as somebody looks
        self._latency = Histogram()
        self.drain: Drain | None = None  # once the server drains
        self._failures = 0
        self._complained: set[str] = set()
        self.tasks = Tasks("server", Random())
        self._timer: asyncio.TimerHandle | None = None
        self._due_at: float | None = None  # that timer
        self._task_id = SystemRandom().randrange(1, 2**32)
        # Of the asyncio tasks in which grpcio serves requests of this server.
        self.request_name = f"request of lbclient server {self._task_id}"
        self._sampled = b""
        self._health = self._load = b""  # of this sample, once a stream is told
        self._thread = get_ident()  # of the loop
        self._telling = RLock()
        self.ready: dict[int, Trailers] = {}  # by active requests, of this sample
        self._encode()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Samples from now on, until `stop`."""
        if self._timer is None and self.gate.quotas is not None:
            self.gate.quotas.start(loop)
        self.loop = loop
        self._thread = get_ident()
        now = self.clock()
        if self._due_at is not None:
            self._contention.note_lag(now - self._due_at, now)
        self._due_at = now + SAMPLE_INTERVAL
        self._timer = loop.call_later(SAMPLE_INTERVAL, self.start, loop)
        self.tasks.attempt(self.sample)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.gate.quotas is not None:
            self.gate.quotas.stop()

    def sample(self) -> None:
        self.settle()
        now = self.clock()
        cpu = wire.sound(self._read_cpu(now))
        self.monitor.sample(now, cpu, self._read_utilization(cpu))
        self.gate.sample(now, cpu)
        self._encode()
        self.streams.tick(now)

    def enter(self, state: TaskState, *, stopping: bool = False) -> None:
        """Tells every watcher at once."""
        self.state = state
        self.stopping = stopping
        self._encode()
        self.streams.push()

    def finish(
        self, code: StatusCode, begun_at: float, method: Method, is_error: bool = True
    ) -> None:
        """Ends one of the active requests; the report then leaves it out.

        What is no error of this task is in no rate.
        """
        took = self.clock() - begun_at
        if code is _OK:
            self.monitor.active -= 1
            self.monitor.untold.append((method, self.monitor.active, took))
            return
        verdict = verdict_of(code) if is_error else Verdict.ABANDONED
        self.monitor.finish(verdict)
        method.counts[code.name] += 1
        if verdict is not Verdict.ABANDONED:
            with self._telling:
                self._observe(took)

    def _tell(self) -> None:
        """Counts what was served for `statistics`, in whichever thread."""
        untold, told = self.monitor.untold, self.monitor.told
        observe = self._observe if self.recent else self._latency.observe
        with self._telling:
            while untold:
                try:
                    one = untold.popleft()
                except IndexError:  # a signal's handler has asked, too
                    return
                method, _, took = one
                method.counts["OK"] += 1
                observe(took)
                told.append(one)

    def settle(self) -> None:
        """Counts what was served for all else; on the loop's thread only."""
        if get_ident() != self._thread:
            return
        self._tell()
        now = self.clock()
        for method, _, took in self.monitor.settle():
            quickest = method.quickest
            if quickest and (took < quickest.ample or now >= quickest.turns_at):
                quickest.observe(took, now)

    def look(self) -> Recent:
        """The last latencies, which are kept from now on, for a minute."""
        self._tell()
        self.recent = Recent.look(self.recent, self.clock())
        return self.recent

    def _observe(self, took: float) -> None:
        self._latency.observe(took)
        if self.recent is not None:
            self._remember(took)

    def _remember(self, took: float) -> None:
        now, recent = self.clock(), self.recent
        if recent is None or recent.is_over(now):
            self.recent = None
        else:
            recent.latencies.add(took, now)

    def refuse(self, answer: Answer, counts: Counts) -> None:
        """A request that never began: an error to whoever looks for one."""
        self.monitor.active += 1
        rejected, no_error = Verdict.REJECTED, Verdict.ABANDONED
        self.monitor.finish(rejected if answer.is_error else no_error)
        counts[answer.code.name] += 1

    def encoded(self, active: int) -> bytes:
        """A serialized `lbclient.v1.LoadReport`, which is an ORCA report too."""
        live = load_pb2.LoadReport(
            active_requests=active, runnable_requests=self._read_runnable()
        )
        return self._sampled + live.SerializeToString()

    def trailers(self, active: int) -> Trailers:
        ready = self.ready  # of one sample, also if a thread asks while it changes
        trailers = ready.get(active)
        if trailers is None:
            report = self.encoded(active)
            trailers = ((wire.LOAD_KEY, report), (wire.ORCA_KEY, report))
            if self._config.runnable is None:
                ready[active] = trailers
        return trailers

    def load(self) -> load_pb2.LoadReport:
        self.settle()
        active = self.monitor.active
        load = load_pb2.LoadReport.FromString(self.encoded(active))
        load.latency = self.monitor.latencies.at(active)
        return load

    def health(self) -> health_pb2.HealthReport:
        return health_pb2.HealthReport(
            state=self.state.name,
            load=self.load(),
            udp_port=self.udp_port,
            report_floor=self.streams.floor,
        )

    def encoded_health(self) -> bytes:
        """For streams: made once for each sample, however many there are."""
        self._health = self._health or self.health().SerializeToString()
        return self._health

    def encoded_load(self) -> bytes:
        self._load = self._load or self.load().SerializeToString()
        return self._load

    def glance(self) -> tuple[TaskState, LoadReport]:
        """What an answer over UDP has room for."""
        return self.state, self.monitor.report()

    def statistics(self) -> ServerStatistics:
        self._tell()
        report = self.monitor.report()
        quotas, methods = self.gate.quotas, self.handled.read()
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
            watchers=len(self.streams),
            streams={kind.value: n for kind, n in self.streams.held.items()},
            streams_refused={why.value: n for why, n in self.streams.refused.items()},
            report_floor=self.streams.floor,
            signal_failures=self._failures,
            task_failures=self.task_failures(),
            latency_bounds=self._latency.bounds,
            latency_counts=tuple(self._latency.counts),
            latency_sum=self._latency.sum,
            contention=self._contention.statistics(),
            load=self.gate.load(self.clock()),
            refused=self.gate.refused,
            signals=self.gate.signals(),
            admitted=self.gate.admitted(),
            misread=dict(self.gate.misread),
            usage={} if quotas is None else quotas.usage(),
            quotas=QuotaStatistics() if quotas is None else quotas.statistics(),
        )

    def task_failures(self) -> int:
        quotas = self.gate.quotas
        return self.tasks.failures + (0 if quotas is None else quotas.tasks.failures)

    def _encode(self) -> None:
        report = self.monitor.report()
        self._sampled = load_pb2.LoadReport(
            cpu_utilization=self.monitor.cpu,
            rps_fractional=report.qps,
            eps=report.eps,
            application_utilization=self.monitor.application,
            state=self.state.name,
            task_id=self._task_id,
        ).SerializeToString()
        self.ready = {}
        self._health = self._load = b""

    def _read_utilization(self, cpu: float) -> float | None:
        signal = self._config.utilization
        if signal is None:
            return None
        try:
            value = float(signal())
        except BaseException as error:
            if is_fatal(error):
                raise
            self._complain("utilization", f"raised {error!r}")
            return cpu
        if 0.0 <= value < inf:
            return value
        self._complain("utilization", f"returned {value}")
        return cpu

    def _read_runnable(self) -> int | None:
        signal = self._config.runnable
        if signal is None:
            return None
        try:
            value = int(signal())
        except BaseException as error:
            if is_fatal(error):
                raise
            self._complain("runnable", f"raised {error!r}")
            return None
        if 0 <= value < 2**32:
            return value
        self._complain("runnable", f"returned {value}")
        return None

    def _complain(self, signal: str, what: str) -> None:
        self._failures += 1
        if signal not in self._complained:
            self._complained.add(signal)
            said = printable(what)  # of code that may have read a request
            logger.warning("the signal ServerConfig.%s %s: not used", signal, said)

    def __repr__(self) -> str:
        return f"<{self.state.name.lower().replace('_', ' ')}, {self.monitor!r}>"
