"""A `grpc.aio.Server` that reports its load and leaves in order.

It wraps a real one and hands everything on; what it adds begins at `start`.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from random import Random
from typing import Any
from weakref import WeakMethod

import grpc
import grpc.aio

from lbclient import grpc_seam, originals
from lbclient.background.forks import has_ended
from lbclient.config import ServerConfig
from lbclient.core import criticality
from lbclient.core.errors import ConfigError
from lbclient.core.model import TaskState
from lbclient.core.protocols import Clock
from lbclient.core.quotas import customer
from lbclient.core.statistics.registry import SERVERS
from lbclient.grpc_seam.intake import with_queue
from lbclient.server.loop_end import LoopEnd
from lbclient.server.parts import Parts, check_pool, checked
from lbclient.server.quotas.cpu_timing import account
from lbclient.server.report.health import HealthServices
from lbclient.server.reporting_server import ReportingServer
from lbclient.server.requests.async_handlers import served_method_in
from lbclient.server.requests.handler import Handler
from lbclient.server.requests.lookup import Interceptor, UnknownMethods, WrappedLookup
from lbclient.server.requests.uncounted import Uncounted
from lbclient.server.requests.wrapping import Wrapper
from lbclient.server.stopping import Stopping
from lbclient.server.warmup import Warming, Warmup, check
from lbclient.wire import propagation


class Server(ReportingServer, grpc.aio.Server):
    """A gRPC server that reports load, refuses excess requests and drains. Takes
    `grpc.aio.server`'s arguments and a config."""

    def __init__(
        self,
        migration_thread_pool: Executor | None = None,
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
        config = checked(config, most)
        if migration_thread_pool is not None:
            check_pool("migration_thread_pool", migration_thread_pool)
        options = grpc_seam.option_pairs(options)
        has_slots = grpc_seam.has_slots(options)
        parts = Parts(
            config,
            clock,
            Random(),
            has_slots=has_slots,
            pool=migration_thread_pool,
        )
        super().__init__(config, parts, clock)
        self._gate = gate = parts.gate
        self._intake = gate.intake
        self._loop_end = LoopEnd(self, self._intake)
        self._started = self._has_stopped = False
        self._wrapper = Wrapper(parts.serving)
        self._uncounted = Uncounted(clock)
        if most is not None:
            parts.limit(most)
        self._health: dict[str, grpc.GenericRpcHandler] = {}  # once it has started
        self._unknown: UnknownMethods | None = None  # the same, without interceptors
        # Weakly: grpcio's task keeps the interceptors, and a server that is dropped
        # stops.
        find_passing = WeakMethod(self._find_passing)
        ours = Interceptor(
            self._wrapper,
            self._uncounted,
            parts.monitor,
            lambda details: (find := find_passing()) and find(details),
        )
        options, pending = grpc_seam.with_pending_limit(options)
        # What instruments grpc.aio.server may add interceptors.
        with originals.making():
            (self._inner, self._intercepts), read = grpc_seam.counted(
                lambda: with_queue(
                    lambda interceptors: grpc.aio.server(
                        migration_thread_pool=migration_thread_pool,
                        interceptors=interceptors,
                        options=options,
                        compression=compression,
                    ),
                    self._intake,
                    ours,
                    interceptors or (),
                )
            )
        self._stopping = Stopping(self._inner)
        self._warming = Warming()
        gate.count_unseen_by(read, pending)
        self.add_generic_rpc_handlers(handlers or ())
        self._number = SERVERS.enter(self)

    def _wrapped(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        if self._intercepts:
            return handler
        return WrappedLookup(self._wrapper, self._uncounted, handler)

    def _enlist(self, handler: grpc.GenericRpcHandler) -> None:
        if self._unknown is None:
            super()._enlist(handler)
        else:  # grpcio asks no handler after that
            self._unknown.later.append(handler)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, Handler]
    ) -> None:
        # grpcio takes requests for registered methods from gRPC's core by themselves,
        # and finds their handlers without looking at metadata. We must see both.
        self.add_generic_rpc_handlers((self._generic(service_name, method_handlers),))

    def _health_handler(self, details: grpc.HandlerCallDetails) -> Handler | None:
        generic = self._health.get(details.method)
        return None if generic is None else generic.service(details)

    async def start(self, warmup: Warmup | None = None) -> None:
        """Begins to serve; tells clients that it does once `warmup` has returned.

        Until then it accepts connections and says that it is starting; a call that
        comes nevertheless is served. Raises what `warmup` raises: the server is then
        to be stopped. A warmup that has not returned when somebody has stopped the
        server is cancelled. Raises ConfigError for a warmup that comes too late.
        """
        check(warmup)
        if warmup is not None and self._started:
            raise ConfigError("warmup", warmup, "None: the server has started")
        if not self._started:
            self._started = True
            # After the user's, so that a service that the user brings goes first.
            health = HealthServices(
                self._reporter, self._streams, self._config, self._services
            )
            self._health = health.handlers()
            for handler in self._health.values():
                self._add(handler)
            if not self._intercepts:
                unknown = UnknownMethods(self._wrapper)
                self._enlist(unknown)
                self._unknown = unknown
            if self._config.udp_health:
                await self._udp.open()
                self._reporter.udp_port = self._udp.port
            # Requests inherit the context of whoever starts the server, as of
            # grpc.aio's, but for what is ours in it: none matters, ends or pays as the
            # request does within which the server may be started.
            context = copy_context()
            context.run(_forget_request)
            await asyncio.create_task(self._inner.start(), context=context)
            context.run(self._parts.start, asyncio.get_running_loop())
            loop = asyncio.get_running_loop()
            self._parts.sampler.warn_if_blocked(loop, served_method_in)
            context.run(self._loop_end.watch, asyncio.get_running_loop())
            if warmup is not None:
                await self._warming.run(warmup)
            if (member := self._member) is not None:
                member.period = self._config.lame_duck_period
                member.follow(self._reporter.tell_workers)
            if self.state is TaskState.STARTING:
                self._reporter.enter(TaskState.SERVING)
        else:
            await self._inner.start()

    async def stop(self, grace: float | None) -> None:
        """Tells the watchers and ends their streams, then stops as grpc.aio's does.

        Of several at once the shortest grace holds, for `drain` too. If a caller is
        cancelled the server stops all the same, within its grace.
        """
        if self._started:
            self.lame_duck()
            self._reporter.enter(TaskState.LAME_DUCK, stopping=True)
            # In the turn of the loop in which grpcio stops: all before that is served.
            asyncio.get_running_loop().call_soon(self._intake.close)
        try:
            await self._stopping.stop(grace)
            await self._intake.ended()
            self._has_stopped = self._started
            self._reporter.stopped()
        finally:
            self._parts.stop()
            self._loop_end.ignore()
            self._udp.close()
            SERVERS.leave(self._number)
            self._warming.end()
            has_ended(self)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped. Its caller may be cancelled without harm.

        Cancelling grpcio's own wait without a timeout cancels its shutdown too, and
        every later `stop` raises CancelledError.
        """
        if timeout is not None:
            return bool(await self._inner.wait_for_termination(timeout))
        while await self._inner.wait_for_termination(3600.0):
            pass
        return False

    def lame_duck(self) -> None:
        """Asks all clients to send new requests elsewhere; serves what arrives."""
        if self.state is not TaskState.LAME_DUCK:
            self._reporter.enter(TaskState.LAME_DUCK)
            self._intake.ask_for_few()
            self._udp.push()

    async def drain(self) -> None:
        """Becomes a lame duck, and stops with GOAWAY when its clients have left.

        GOAWAY is sent when no client that watches health has sent a request for
        `lame_duck_quiet`, or when two thirds of `lame_duck_period` are over. Requests
        in flight then have the rest of the period.
        """
        if self._has_stopped:
            return
        self.lame_duck()
        drain = self._begin_drain(self._gate.count_unseen)
        grace = await drain.wait_for_goaway()
        stopping = asyncio.ensure_future(self.stop(grace))
        # grpcio's own stop waits for streams that last as long as their connection.
        served = asyncio.ensure_future(drain.wait_until_served())
        try:
            await asyncio.wait((stopping, served), return_when=FIRST_COMPLETED)
        finally:
            served.cancel()
            await self.stop(None)
            await asyncio.gather(stopping, served, return_exceptions=True)

    def __del__(self) -> None:
        # grpc.aio's own server stops when it is dropped; so do our samples.
        if hasattr(self, "_loop_end"):  # not where grpc.aio's could not be made
            self._parts.stop()
            self._loop_end.drop()
            self._udp.drop()


def _forget_request() -> None:
    criticality.adopt(None)
    customer.adopt(None)
    propagation.enter(None)
    account.set(None)
