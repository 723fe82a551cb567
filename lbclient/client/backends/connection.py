"""One connection of a backend: made, watched for its health, and ended by its loss."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import grpc

from lbclient import wire
from lbclient.background.flag import Flag
from lbclient.background.tasks import leaving_no_trace, until_one_ends
from lbclient.client.backend_context import BackendContext
from lbclient.client.driver import Driver
from lbclient.client.health.ordered_checks import LOOK_TIMEOUT, OrderedChecks
from lbclient.client.health.paced_watch import PacedWatch
from lbclient.client.health.statuses import reason_of
from lbclient.client.health.streams import STREAM_END_GRACE, Streams
from lbclient.core.model import State
from lbclient.grpc_seam import answer_of, without_interceptors

READY = grpc.ChannelConnectivity.READY
OVER = grpc.ChannelConnectivity.SHUTDOWN

# An answer may take so many times as long as the connecting did. TCP and HTTP/2 take
# two round trips, TLS one or two more; a question takes one for each health service.
ANSWER_PER_CONNECT = 3


class Connection:
    """Connects to a backend, and follows the connection until it is lost. Made by the
    backend for each connection. `is_kept` is clear while the backend drains: then no
    other connection is wanted."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        context: BackendContext,
        driver: Driver,
        watch: PacedWatch,
        checks: OrderedChecks,
        is_kept: Flag,
        calls: Callable[[], int],
    ) -> None:
        """`calls` tells how many are on it, as far as that is known."""
        self._channel = channel
        self._context = context
        self._lifecycle, self._take = driver.lifecycle, driver.take
        self._watch = watch
        self._checks = checks
        self._is_kept = is_kept
        self._calls = calls

    async def follow(self) -> None:
        """Follows the connection from its making to its end."""
        patience = await self._connect()
        if self._channel.get_state() is OVER:
            return
        self._take(self._lifecycle.connected(self._context.clock(), patience))
        streams = self._watch.begin(self._channel)
        jobs = (
            leaving_no_trace(self._watch.follow()),
            leaving_no_trace(self._channel.wait_for_state_change(READY)),
            leaving_no_trace(self._checks.check_as_ordered(self._channel, patience)),
            leaving_no_trace(self._look_beside()),
        )
        try:
            await until_one_ends(*jobs)
            for job in jobs:
                if job.done():
                    job.result()  # raises what made it end
            said_goaway = await self._outlives(streams)
        finally:
            self._watch.end()
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
        if said_goaway:
            self._take(self._lifecycle.goaway_received())
        else:
            self._take(self._lifecycle.connection_lost())

    # --- its making -----------------------------------------------------------

    async def _connect(self) -> float:
        """The core connects, again and again with its own jittered backoff.

        Returns how long one answer may then take, in seconds. The channel may be closed
        meanwhile.
        """
        channel, clock = self._channel, self._context.clock
        interval = self._context.health_interval
        if channel.get_state() is not READY:
            await self._context.pacer.wait_turn()
        began_at = clock()
        while (connectivity := channel.get_state(try_to_connect=True)) is not READY:
            if connectivity is OVER:
                return interval
            if connectivity is grpc.ChannelConnectivity.CONNECTING:
                began_at = clock()  # this attempt
            if (
                connectivity is grpc.ChannelConnectivity.TRANSIENT_FAILURE
                and self._lifecycle.state is not State.REFUSING
            ):
                reason = await self._why_refused()
                if channel.get_state() is not READY:
                    self._take(self._lifecycle.connect_failed(reason))
                continue
            await channel.wait_for_state_change(connectivity)
        took = min(clock() - began_at, LOOK_TIMEOUT)  # the loop may stand still
        return max(interval, ANSWER_PER_CONNECT * took)

    async def _why_refused(self) -> str:
        """The core tells its reason to a call that fails on it, and to nobody else."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        ask = without_interceptors(self._channel.unary_unary(wire.CHECK_METHOD))
        try:
            call = ask(b"", timeout=1.0)
            await answer_of(call, call)
        except grpc.aio.AioRpcError as error:
            return reason_of(error)
        return "cannot connect"

    # --- meanwhile ------------------------------------------------------------

    async def _look_beside(self) -> None:
        """Asks over a second connection whether the first one is worth waiting for."""
        while True:
            await self._checks.wait_for_look()
            if self._is_kept.is_set():
                await self._checks.look()

    # --- its end --------------------------------------------------------------

    async def _outlives(self, streams: Streams) -> bool:
        """Whether streams, or calls, go on though the core wants another connection."""
        if streams.is_broken.is_set() and not self._calls():
            return False
        # At once: calls may wait.
        self._channel.get_state(try_to_connect=self._is_kept.is_set())
        if streams.is_broken.is_set():
            return await self._calls_outlive()
        with suppress(TimeoutError):
            async with asyncio.timeout(STREAM_END_GRACE):
                await streams.is_broken.wait()
        return not streams.is_broken.is_set()

    async def _calls_outlive(self) -> bool:
        for _ in range(10):
            if not self._calls():
                return False
            await asyncio.sleep(STREAM_END_GRACE / 10)
        return self._calls() > 0

    def __repr__(self) -> str:
        return f"<{self._lifecycle!r}, {self._calls()} calls>"
