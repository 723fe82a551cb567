"""A `grpc.Server` that reports its load and leaves in order.

It wraps a real one, so handlers, interceptors and whatever instruments `grpc.server`
find what they expect. What it adds runs on a loop in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random
from threading import Event, Lock, Thread
from typing import Any
from weakref import WeakMethod

import grpc

from lbclient import grpc_seam, originals
from lbclient.config import ServerConfig
from lbclient.core.model import TaskState
from lbclient.core.protocols import Clock
from lbclient.core.statistics.registry import SERVERS
from lbclient.log import Log
from lbclient.server.lame_duck import POLL_INTERVAL
from lbclient.server.parts import Parts, check_pool, checked
from lbclient.server.report.health import HealthServices
from lbclient.server.reporting_server import ReportingServer
from lbclient.server.requests.handler import Handler
from lbclient.server.sync.health import SyncHealth
from lbclient.server.sync.loop_thread import LoopThread
from lbclient.server.sync.requests import Counting, SyncRequests
from lbclient.server.warmup import Warmup, check, warm_up

logger = Log(__name__)


class SyncServer(ReportingServer, grpc.Server):
    """A synchronous gRPC server that reports load, refuses excess requests and drains.
    Takes `grpc.server`'s arguments and a config."""

    def __init__(
        self,
        thread_pool: ThreadPoolExecutor,
        handlers: Sequence[grpc.GenericRpcHandler] | None = None,
        interceptors: Sequence[Any] | None = None,
        options: Sequence[tuple[str, Any]] | None = None,
        maximum_concurrent_rpcs: int | None = None,
        compression: grpc.Compression | None = None,
        *,
        config: ServerConfig | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        most = maximum_concurrent_rpcs
        options = grpc_seam.option_pairs(options)
        config = checked(config, most)
        check_pool("thread_pool", thread_pool)
        if config.adaptive_concurrency:
            logger.warning("adaptive_concurrency has no effect on a synchronous server")
            config = replace(config, adaptive_concurrency=False)
        counting = Counting()
        self._loop = LoopThread()
        parts = Parts(
            config,
            clock,
            Random(),
            has_slots=grpc_seam.has_slots(options),
            guard=counting,
            pool=thread_pool,
        )
        if most is not None:
            # Not grpcio's: that one counts watchers, and refuses without a report.
            parts.limit(most)
        super().__init__(config, parts, clock)
        self._health: SyncHealth | None = None  # once it has started
        # Weakly: grpcio's thread keeps the interceptors, and a server that is dropped
        # stops.
        find_passing = WeakMethod(self._find_passing)
        self._requests = SyncRequests(
            parts.serving,
            counting,
            self._loop,
            lambda details: (find := find_passing()) and find(details),
        )
        with originals.making():
            self._inner = grpc.server(
                thread_pool,
                interceptors=[self._requests, *(interceptors or ())],
                options=options,
                compression=compression,
            )
        grpc_seam.put_first(self._inner, self._requests)
        self._starting = Lock()
        self._started = False
        self._ending: Thread | None = None
        self._ended = Event()
        self.add_generic_rpc_handlers(handlers or ())
        self._number = SERVERS.enter(self)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, Handler]
    ) -> None:
        self._brought.append(self._generic(service_name, method_handlers))
        self._inner.add_registered_method_handlers(service_name, method_handlers)

    def _health_handler(self, details: grpc.HandlerCallDetails) -> Handler | None:
        ours = self._health
        return None if ours is None else ours.handlers.get(details.method)

    def start(self, warmup: Warmup | None = None) -> None:
        """Begins to serve; tells clients that it does once `warmup` has returned.

        Until then it accepts connections and says that it is starting; a call that
        comes nevertheless is served. Raises what `warmup` raises: the server is then
        to be stopped. A warmup that has not returned when somebody has stopped the
        server is cancelled.
        """
        check(warmup)
        with self._starting:
            if self._started:
                self._inner.start()  # which raises, as grpcio's
            self._loop.start()
            self._started = True
        services = HealthServices(
            self._reporter, self._parts.streams, self._config, self._parts.services
        )
        self._health = SyncHealth(services, self._loop)
        # After the user's, so that a service that the user brings goes first.
        for path, handler in self._health.handlers.items():
            service, method = path.split("/")[1:]
            generic = grpc.method_handlers_generic_handler(service, {method: handler})
            self._inner.add_generic_rpc_handlers((generic,))
        if self._config.udp_health:
            self._loop.run(self._udp.open())
            self._reporter.udp_port = self._udp.port
        self._loop.call(self._parts.start, self._loop.loop)
        self._inner.start()
        if warmup is not None:
            self._warm_up(warmup)
        if (member := self._member) is not None:
            member.period = self._config.lame_duck_period
            member.follow(partial(self._loop.call, self._reporter.tell_workers))
        self._loop.call(self._serving)

    def _warm_up(self, warmup: Warmup) -> None:
        try:
            self._loop.run(warm_up(warmup))
        except CancelledError:
            if self._ending is None:
                raise  # it has cancelled itself

    def _serving(self) -> None:
        if self.state is TaskState.STARTING:
            self._reporter.enter(TaskState.SERVING)

    def stop(self, grace: float | None) -> Event:
        """Tells the watchers and ends their streams, then stops as grpcio's does.

        The event is set when the server has stopped, and its own thread has ended. A
        server that has not started yet may still be started, and stays listed as
        starting.
        """
        if not self._started:
            nothing_to_end = Event()
            nothing_to_end.set()
            return nothing_to_end
        if not self._ended.is_set():
            self._loop.call(self._leave, True)
            if self._loop.is_current():
                # In another thread: grpcio's stop waits for the lock that it holds as
                # it looks up a handler, and that may be waiting for this thread.
                stop = partial(self._inner.stop, grace)
                Thread(target=stop, name="lbclient stop", daemon=True).start()
            else:
                self._inner.stop(grace)
        with self._starting:
            if self._ending is None:
                self._ending = Thread(
                    target=self._end, name="lbclient stop", daemon=True
                )
                self._ending.start()
        return self._ended

    def _end(self) -> None:
        self._inner.wait_for_termination()
        self._loop.call(self._end_parts)
        self._loop.stop()
        self._requests.stop()
        if self._health is not None:
            self._health.stop()
        SERVERS.leave(self._number)
        self._ended.set()

    def _end_parts(self) -> None:
        self._reporter.stopped()
        self._parts.stop()
        self._udp.close()

    def wait_for_termination(self, timeout: float | None = None) -> bool:
        timed_out: bool = self._inner.wait_for_termination(timeout)
        return timed_out

    def lame_duck(self) -> None:
        """Asks all clients to send new requests elsewhere; serves what arrives."""
        if not self._ended.is_set():
            self._loop.call(self._leave)

    def _leave(self, stopping: bool = False) -> None:
        """Becomes a lame duck. Called on the loop."""
        if self.state is not TaskState.LAME_DUCK or stopping:
            self._reporter.enter(TaskState.LAME_DUCK, stopping=stopping)
        if self._started and not stopping:
            self._udp.push()

    def drain(self) -> None:
        """Becomes a lame duck, and stops with GOAWAY when its clients have left.

        As `lbclient.Server.drain`, but it blocks until the server has stopped, also by
        a `stop` of somebody else. Raises RuntimeError in a coroutine, such as a warmup,
        on the server's own event loop: await `asyncio.to_thread(server.drain)` there.
        """
        if not self._started or self._ended.is_set():
            return
        if self._loop.is_current():
            raise RuntimeError(
                "drain() blocks, and would hold up the event loop that drains:"
                " await asyncio.to_thread(server.drain)"
            )
        try:
            grace = self._loop.run(self._wait_for_goaway())
        except CancelledError:  # somebody has stopped it meanwhile
            self._ended.wait()
            return
        ended = self.stop(grace)
        # grpcio's own stop waits for streams that last as long as their connection.
        quiet, idle_since = self._config.lame_duck_quiet, self._clock()
        while not ended.wait(POLL_INTERVAL):
            now = self._clock()
            if self._parts.monitor.active:
                idle_since = now
            elif now - idle_since >= quiet:
                self.stop(None)

    async def _wait_for_goaway(self) -> float:
        self._leave()
        # None are unseen: grpcio asks for one request at a time.
        drain = self._begin_drain(count_unseen=lambda: None)
        return await drain.wait_for_goaway()

    @property
    def is_started(self) -> bool:
        return self._started

    def __del__(self) -> None:
        # grpcio's own server stops when it is dropped; so does what is beside it. The
        # pools are left to end by themselves: grpcio's thread may still submit to them,
        # and this may run within a submit, which holds the lock that a shutdown takes.
        if hasattr(self, "_number") and not self._ended.is_set():
            self._loop.drop(self._parts.stop, self._udp.close)
