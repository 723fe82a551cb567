"""Builds a server's gate, reporter and sampler, without grpcio.

None of the parts owns another; each is given those that it asks.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace
from random import Random
from typing import Any

from lbclient.config import ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Clock
from lbclient.core.report.load_monitor import LoadMonitor
from lbclient.server.meters.task_cpu import TaskCpuMeter
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.task_places import TaskPlaces
from lbclient.server.report.reporter import Reporter
from lbclient.server.report.request_tally import RequestTally
from lbclient.server.report.streams import ReportStreams
from lbclient.server.report.udp import host_of
from lbclient.server.report.udp_ports import UdpPorts
from lbclient.server.requests.handler import Serving
from lbclient.server.sampler import Sampler
from lbclient.server.statistics import ServerStatistics
from lbclient.server.workers.membership import membership


def checked(config: ServerConfig | None, max_rpcs: int | None) -> ServerConfig:
    """The config of a server. Raises ConfigError if it is none, or if `max_rpcs`, the
    server's `maximum_concurrent_rpcs`, is not a number of requests."""
    if max_rpcs is not None and (type(max_rpcs) is not int or max_rpcs < 1):
        want = "a whole number of at least 1, or None"
        raise ConfigError("maximum_concurrent_rpcs", max_rpcs, want)
    config = ServerConfig.from_environment() if config is None else config
    if not isinstance(config, ServerConfig):
        # By its type: it may hold a secret.
        raise ConfigError("config", type(config), "a ServerConfig")
    return config


def check_pool(field: str, pool: object) -> None:
    """Raises ConfigError for what can run no handler, which grpcio notices at the first
    request."""
    if not hasattr(pool, "submit"):
        most = pool if type(pool) is int else 10
        want = f"an executor, such as ThreadPoolExecutor(max_workers={most})"
        raise ConfigError(field, pool, want)


class Parts:
    """Builds the gate, the reporter and the sampler of a server, and knows where it is
    reached. Owned by the server, used on its loop's thread.

    `ports` are its addresses, `services` the names of its services, in order.
    """

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        rng: Random,
        *,
        has_slots: bool = True,
        read_cpu: Callable[[float], float] | None = None,
        guard: AbstractContextManager[Any] | None = None,
        pool: Executor | None = None,
    ) -> None:
        """`has_slots`: connections have streams to spare for health.
        `read_cpu` goes before the server's own. Samples are taken within `guard`, where
        requests are counted in other threads than the loop's. `pool` runs the handlers
        that are not asynchronous."""
        self.monitor = LoadMonitor(
            config.smoothing, estimates_runnable=config.estimate_runnable
        )
        own = UserSignals(config)
        self.tally = tally = RequestTally(clock, self.monitor)
        self.gate = gate = Gate(config, self.monitor, clock, own, rng, pool=pool)
        self.streams = ReportStreams(
            config.max_streams,
            config.max_streams_per_connection if has_slots else 0,
            clock,
            lambda: gate.is_strained,
        )
        self.reporter = Reporter(
            clock, self.monitor, tally, own, self.streams, gate.refused_shares
        )
        gate.task = str(self.reporter.task_id)
        self.reporter.tells_cost = config.request_cost
        self.reporter.sends_orca = config.orca_trailers
        self.udp = UdpPorts(self.reporter.glance, clock, config.udp_secret)
        self.reporter.udp_sessions = self.udp.sessions
        member = membership()
        self._places: TaskPlaces | None = None
        self._task_cpu = None if member is None else TaskCpuMeter(lambda: member.pids)
        self.ports: list[str] = []
        self.services: dict[str, None] = {}
        each = (gate.sample, self._report)
        self.sampler = Sampler(
            clock, config.smoothing, each, read_cpu, guard, gate.sample_system
        )
        self.serving = Serving(self.reporter, gate, tally)

    def _report(self, now: float, cpu: float) -> None:
        """Samples what is reported: of CPUs, loop and threads the one that limits; of a
        worker the CPUs of the whole task, too."""
        if self._places is not None:
            self._places.seen(self.monitor.active)
        used = max(cpu, self.gate.threads_used())
        if self._task_cpu is not None:
            task = self._task_cpu.read(now)
            self.reporter.utilizations = used, task
            used = max(used, task)
        self.reporter.sample(now, used, self.sampler.cpus)

    def limit(self, requests: int) -> None:
        """Limits the requests that are served at a time, of a worker's whole task."""
        if (member := membership()) is None:
            self.gate.limit(requests)
        else:
            self._places = TaskPlaces(
                member, requests, self.gate.limit, self.gate.without_place
            )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._places is not None:
            self._places.start()
        self.gate.start(loop)
        self.sampler.start(loop)

    def stop(self) -> None:
        if self._places is not None:
            self._places.stop()
        self.sampler.stop()
        self.gate.stop()

    def listen(
        self, address: str, port: int, *, is_secure: bool, own: int | None = None
    ) -> None:
        """The server has a gRPC port; UDP ports are opened beside it later, or beside
        the worker's `own`: what lets clients through to that may do so for both."""
        host = address.rpartition(":")[0]
        self.ports.append(address if host_of(address) is None else f"{host}:{port}")
        self.udp.add(address, own or port, is_secure=is_secure)

    def statistics(self) -> ServerStatistics:
        seen = self.gate.complete(self.reporter.statistics())
        failures = seen.task_failures + self.sampler.failures
        if self._places is not None:
            failures += self._places.tasks.failures
        contention = self.sampler.statistics()
        return replace(
            seen,
            task_failures=failures,
            contention=contention,
            ports=tuple(self.ports),
            services=tuple(self.services),
            udp=self.udp.statistics(),
        )

    def __repr__(self) -> str:
        return repr(self.reporter)
