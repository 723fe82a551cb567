"""Builds a server's gate, reporter and sampler, without ports and without grpcio.

None of the parts owns another; each is given those that it asks.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from lbclient.config import ServerConfig
from lbclient.core.load_monitor import LoadMonitor
from lbclient.core.protocols import Clock
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.gate import Gate
from lbclient.server.report.reporter import Reporter
from lbclient.server.report.request_tally import RequestTally
from lbclient.server.report.streams import ReportStreams
from lbclient.server.requests.handler import Serving
from lbclient.server.sampler import Sampler
from lbclient.server.statistics import ServerStatistics


class Parts:
    """Builds the gate, the reporter and the sampler of a server. Owned by the server,
    used on its loop's thread."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        rng: Random,
        *,
        limit: float = inf,
        has_slots: bool = True,
        read_cpu: Callable[[float], float] | None = None,
        guard: AbstractContextManager[Any] | None = None,
        pool: Executor | None = None,
    ) -> None:
        """`limit` of requests at a time. Not `has_slots`: a connection has too few
        streams to spare one for health. `read_cpu` goes before the server's own.
        Samples are taken within `guard`, where requests are counted in other threads
        than the loop's. `pool` runs the handlers that are not asynchronous."""
        self.monitor = LoadMonitor(config.smoothing)
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
        self.reporter.tells_cost = config.request_cost
        self.reporter.sends_orca = config.orca_trailers
        each = (gate.sample, self._report)
        self.sampler = Sampler(
            clock, config.smoothing, each, read_cpu, guard, gate.sample_system
        )
        self.serving = Serving(self.reporter, gate, tally, limit)

    def _report(self, now: float, cpu: float) -> None:
        """Samples what is reported: of CPUs, loop and threads the one that limits."""
        self.reporter.sample(now, max(cpu, self.gate.threads_used()))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gate.start(loop)
        self.sampler.start(loop)

    def stop(self) -> None:
        self.sampler.stop()
        self.gate.stop()

    def statistics(self) -> ServerStatistics:
        """But for what only the server knows: its ports, services and UDP."""
        seen = self.gate.complete(self.reporter.statistics())
        failures = seen.task_failures + self.sampler.failures
        contention = self.sampler.statistics()
        return replace(seen, task_failures=failures, contention=contention)

    def __repr__(self) -> str:
        return repr(self.reporter)
