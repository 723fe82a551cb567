"""Forwards calls of any method, without knowing it: bytes in, bytes out.

On the wire a unary call is a stream of one message, so each call is forwarded as a
stream in both directions, message by message: the next one is read when the last one
was taken, so a side that is slow slows the other, and nothing piles up here.

The proxy is a server to its clients and a client to its backends. What is said between
two neighbours ends here: attempts, load reports, refusals, compression. All else goes
through as it came. SRE book, ch. 21, "Load from Connections": the batch proxy.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from lbclient import wire
from lbclient.background.tasks import cancellations
from lbclient.client.kinds import is_channel
from lbclient.core.coroutines import step
from lbclient.server.report.health import ANY_SERVICE
from lbclient.wire import propagation

if TYPE_CHECKING:  # a proxy between grpc.aio's own loads nothing of it
    from lbclient.grpc_seam import Trailers

# Of health and load the proxy speaks for itself.
OWN = ("/grpc.health.v1.", "/lbclient.v1.", "/xds.service.orca.v3.")

KEPT = 1024  # methods; a client may invent any number of names

# Seconds. Headers that have nothing in them go with the first message, which is most
# often there at once; a client that waits for them alone has waited for less.
HOLD = 0.01

# A client that cancels looks at first as if it had sent all, and half of an upload must
# not pass for the whole. So the end of the requests is passed on in so many seconds: of
# 1,200 uploads that were cancelled none looked whole then, and 1 after 0.001.
PAUSE = 0.005
# But in so many turns of the loop where one request came and the end with it, as in a
# unary call: 2 to 8 of 1,200 looked whole then, and a thousand without.
TURNS = 3

# What gRPC says to its next neighbour, and what HTTP/2 forbids.
_GRPC = {
    "connection",
    "content-type",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-internal-encoding-request",
    "grpc-message",
    "grpc-message-type",
    "grpc-status",
    "grpc-timeout",
    "te",
    "user-agent",
}
# A retry of our client's is a first attempt to the backend: what refused was a proxy.
NOT_DOWN = frozenset(
    {*_GRPC, wire.STOCK_ATTEMPT_KEY, wire.ATTEMPT_KEY, wire.DECLINE_KEY}
)
NOT_UP = frozenset(
    {
        *_GRPC,
        wire.LOAD_KEY,
        wire.COST_KEY,
        wire.ORCA_KEY,
        "endpoint-load-metrics",  # ORCA's, as text
        "grpclb_client_stats",
        "lb-cost-bin",
    }
)


class Forwarder(grpc.ServiceRpcHandler):
    """Forwards the methods that are not the server's own to `channel`.

    It does not close the channel.

    To be added to a server of lbclient's before it starts, after all other handlers.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._not_down = NOT_DOWN
        if is_channel(channel):
            # Its calls inherit the customer and the criticality, of which the server
            # may know better than by what the client claims.
            self._not_down |= {wire.CUSTOMER_KEY, wire.CRITICALITY_KEY}
        self._handlers: dict[str, Any] = {}

    def service_name(self) -> str:
        return ANY_SERVICE

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method
        return None if path.startswith(OWN) else self._handler(path)

    def _handler(self, path: str) -> Any:
        """The same as before, by which a server finds what it keeps of a method."""
        handler = self._handlers.get(path)
        if handler is None:
            if len(self._handlers) >= KEPT:
                self._handlers.clear()
            begin: Any = self._channel.stream_stream(path)
            behavior = partial(_forward, begin, self._not_down)
            handler = grpc.stream_stream_rpc_method_handler(behavior)
            self._handlers[path] = handler
        return handler


async def _forward(
    begin: Callable[..., Any],
    not_down: Collection[str],
    _requests: Any,
    context: Any,
) -> None:
    requests = _Requests(context)
    call = begin(
        requests.follow(),
        timeout=context.time_remaining(),
        metadata=_without(not_down, context.invocation_metadata()),
    )
    end, headers = _End(call), _Headers(call, context)
    try:
        with suppress(grpc.aio.AioRpcError):  # of which `end` knows, and the server
            await _respond(call, headers, context)
        await headers.send()
        code, details, trailers = await end.status
        if code is not grpc.StatusCode.OK:
            # The error that was raised may not have known of a refusal.
            said = grpc.aio.Metadata.from_tuple(trailers)
            propagation.learn(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), said))
            await context.abort(code, details, trailers)
        context.set_trailing_metadata(trailers)
    finally:
        requests.is_over = True
        headers.stop()
        call.cancel()


async def _respond(call: Any, headers: "_Headers", context: Any) -> None:
    await headers.begin()
    # Not by `read`, which leaves out what came before a write that failed.
    async for message in call:
        await headers.send()
        await context.write(message)


class _End:
    """How a call has ended: what was true when its done callbacks ran.

    grpcio's status is another one before that, and after, if the backend has answered
    and a request cannot be written any more.
    """

    def __init__(self, call: Any) -> None:
        self.status: asyncio.Future[tuple[grpc.StatusCode, str, Trailers]]
        self.status = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._take_status)

    def _take_status(self, call: Any) -> None:
        trailers = _without(NOT_UP, step(call.trailing_metadata()))
        found = step(call.code()), step(call.details()) or "", trailers
        if not self.status.done():
            self.status.set_result(found)


class _Requests:
    """What one client sends. After the end nobody must read: grpcio would crash."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._task = asyncio.current_task()
        # An interceptor may have cancelled the task, and taken that for its own.
        self._cancelled_before = cancellations()
        self.is_over = False

    async def follow(self) -> AsyncIterator[bytes]:
        """Each is taken when the backend has taken the one before."""
        loop = asyncio.get_running_loop()
        taken = 0
        while not self.is_over:
            asked_at = loop.time()
            message = await self._read()
            if message is grpc.aio.EOF:
                is_prompt = taken <= 1 and loop.time() - asked_at < PAUSE
                await self._make_sure(is_prompt)
                return
            taken += 1
            yield message

    async def _read(self) -> Any:
        try:
            return await self._context.read()
        except grpc.aio.UsageError:  # the backend has answered meanwhile
            return grpc.aio.EOF

    async def _make_sure(self, is_prompt: bool) -> None:
        """Raises where the client has not said all, but has cancelled."""
        for _ in range(TURNS):
            await asyncio.sleep(0 if is_prompt else PAUSE / TURNS)
        if self._task and self._task.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError


class _Headers:
    """The initial metadata, sent once, and before all else."""

    def __init__(self, call: Any, context: Any) -> None:
        self._call = call
        self._context = context
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_sent = False

    async def begin(self) -> None:
        """Sends what the backend has sent, or if that is empty, a little later.

        Empty is also what a call begins with that fails, and may then be sent to
        another backend, whose headers count.
        """
        if await self._call.initial_metadata():
            await self.send()
        elif not self._call.done():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HOLD, self._send_alone)

    async def send(self) -> None:
        """Before a message, and before the end."""
        if self._sending is not None:
            await self._sending
        elif not self._is_sent:
            self.stop()
            self._is_sent = True
            if metadata := await self._metadata():
                await self._context.send_initial_metadata(metadata)

    def _send_alone(self) -> None:
        self._is_sent = True
        self._sending = asyncio.ensure_future(self._send_empty())
        self._sending.add_done_callback(_retrieve)

    async def _send_empty(self) -> None:
        await self._context.send_initial_metadata(await self._metadata())

    async def _metadata(self) -> "Trailers":
        return _without(NOT_UP, await self._call.initial_metadata())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Takes the exception of a task that nobody waits for when the client has gone."""
    if not task.cancelled():
        task.exception()


def _without(keys: Collection[str], metadata: Iterable[Any] | None) -> "Trailers":
    return tuple((key, value) for key, value in metadata or () if key not in keys)
