"""What a server of ours is made of, without the server: no port, and no grpcio."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

from lbclient.config import ServerConfig
from lbclient.core.load_monitor import LoadMonitor
from lbclient.server.meters.user_signals import UserSignals
from lbclient.server.overload.gate import Gate
from lbclient.server.report.reporter import Reporter
from lbclient.server.report.streams import Streams
from lbclient.server.report.tally import RequestTally
from lbclient.server.requests.handler import Serving
from lbclient.server.sampler import Sampler
from lbclient.server.statistics import ServerStatistics


class Siblings:
    """Made and sampled as `Server` does it."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        read_cpu: Callable[[float], float] | None = None,
    ) -> None:
        config = ServerConfig() if config is None else config
        self.monitor = LoadMonitor(config.smoothing)
        self.own = UserSignals(config)
        self.tally = RequestTally(clock, self.monitor)
        self.gate = gate = Gate(config, self.monitor, clock, self.own, Random(1))
        most = config.max_streams, config.max_streams_per_connection
        self.streams = Streams(*most, clock, lambda: gate.is_strained)
        self.reporter = Reporter(
            clock, self.monitor, self.tally, self.own, self.streams
        )
        each = (gate.sample, self.reporter.sample)
        self.sampler = Sampler(clock, config.smoothing, each, read_cpu)
        self.serving = Serving(self.reporter, gate, self.tally, float("inf"))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gate.start(loop)
        self.sampler.start(loop)

    def stop(self) -> None:
        self.sampler.stop()
        self.gate.stop()

    def statistics(self) -> ServerStatistics:
        seen = self.gate.complete(self.reporter.statistics())
        failures = seen.task_failures + self.sampler.failures
        contention = self.sampler.statistics()
        return replace(seen, task_failures=failures, contention=contention)
