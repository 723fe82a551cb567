"""In the places of `cygrpc.AioServer` and `cygrpc._ServicerContext`, in memory.

These are in Cython: how they serve a request is told here once more. All above them,
lbclient's server among it, is unmodified.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
from grpc._cython import cygrpc

from lbclient.v1.health_pb2 import HealthReport
from lbclient.v1.load_pb2 import LoadReport
from lbclient.wire import LOAD_KEY, WATCH_METHOD
from tests.worlds.client_core import CANCELLED
from tests.worlds.clock import ProcessLoop
from tests.worlds.network import Host
from tests.worlds.server_core import ServerCore, ServerStream

UNKNOWN: int = grpc.StatusCode.UNKNOWN.value[0]

logger = logging.getLogger("tests.worlds.server")


class Details(NamedTuple):
    """`grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[Any, ...]


class Request:
    """A call, as the server's process knows it."""

    def __init__(self, server: "MemoryServer", stream: ServerStream) -> None:
        self.server = server
        self.stream = stream
        self.code = 0
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.trailers: tuple[Any, ...] = ()
        self.aborted: BaseException | None = None
        self.has_sent_metadata = self.is_answered = self.has_client_gone = False
        self.callbacks: list[Callable[[], None]] = []

    def __del__(self) -> None:
        core = self.stream.core
        if not (core.is_dead or self.stream.is_over):  # the core does so, too
            self.stream.reset(CANCELLED, "CANCELLED")

    def check(self) -> None:
        """Raises if the handler can say no more."""
        if self.aborted is not None:
            raise self.aborted
        if self.is_answered:
            raise cygrpc.UsageError("RPC already finished.")
        if self.server.has_stopped:
            raise cygrpc._ServerStoppedError("Server already stopped.")

    def begin_response(self) -> None:
        if not self.has_sent_metadata:
            self.has_sent_metadata = True
            self.stream.send_initial(())

    async def finish(self, code: int, details: str, trailers: tuple[Any, ...]) -> None:
        self.is_answered = True
        garbles = self.stream.connection.host.garbles
        if garbles is not None:
            trailers = tuple(
                (key, garbles(value, LoadReport) if key == LOAD_KEY else value)
                for key, value in trailers
            )
        await self.stream.finish((code, details, _visible(trailers)))


def _visible(trailers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without what a client's core keeps for itself."""
    hidden = ("endpoint-load-metrics-bin", "lb-cost-bin", "grpc-server-stats-bin")
    return tuple((key, value) for key, value in trailers if key not in hidden)


def _check_trailers(trailers: Any) -> tuple[Any, ...]:
    for pair in trailers:
        key, value = pair
        if not isinstance(value, bytes if key.endswith("-bin") else str):
            raise TypeError(f"trailing metadata {key!r}: {value!r}")
    return tuple(trailers)


class MemoryContext(grpc.aio.ServicerContext[Any, Any]):
    """In the place of `cygrpc._ServicerContext`."""

    def __init__(
        self, request: Request, deserialize: Any, serialize: Any, loop: Any
    ) -> None:
        self._request = request
        self._deserialize = deserialize
        self._serialize = serialize

    async def read(self) -> Any:
        self._request.check()
        message = await self._request.stream.message()
        self._request.check()
        return cygrpc.EOF if message is None else _coded(self._deserialize, message)

    async def write(self, message: Any) -> None:
        request = self._request
        request.check()
        raw = _coded(self._serialize, message)
        request.begin_response()
        garbles = request.stream.connection.host.garbles
        if garbles is not None and request.stream.method == WATCH_METHOD:
            raw = garbles(raw, HealthReport)
        await request.stream.send(raw)

    async def send_initial_metadata(self, metadata: Any) -> None:
        request = self._request
        request.check()
        if request.has_sent_metadata:
            raise cygrpc.UsageError("Send initial metadata failed: already sent")
        request.has_sent_metadata = True
        request.stream.send_initial(tuple(metadata))

    async def abort(
        self, code: Any, details: str = "", trailing_metadata: Any = ()
    ) -> Any:
        request = self._request
        if request.aborted is not None:
            raise cygrpc.UsageError("Abort already called!")
        request.aborted = cygrpc.AbortError("Locally aborted.")
        if trailing_metadata or not request.trailers:
            request.trailers = _check_trailers(trailing_metadata)
        request.details = details or request.details
        self.set_code(code)
        if not request.has_sent_metadata:
            request.has_sent_metadata = True
        await request.finish(request.code, request.details, request.trailers)
        raise request.aborted

    async def abort_with_status(self, status: Any) -> Any:
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._request.trailers = _check_trailers(metadata)

    def trailing_metadata(self) -> Any:
        return self._request.trailers

    def invocation_metadata(self) -> Any:
        return self._request.stream.metadata

    def set_code(self, code: Any) -> None:
        self._request.status = code
        self._request.code = code.value[0]

    def code(self) -> Any:
        return self._request.status

    def set_details(self, details: str) -> None:
        self._request.details = details

    def details(self) -> str:
        return self._request.details

    def set_compression(self, compression: Any) -> None:
        if self._request.has_sent_metadata:
            raise RuntimeError("initial metadata are sent")

    def disable_next_message_compression(self) -> None:
        pass

    def peer(self) -> str:
        return f"ipv4:10.1.0.1:{40_000 + self._request.stream.connection.number}"

    def peer_identities(self) -> Any:
        return None

    def peer_identity_key(self) -> Any:
        return None

    def auth_context(self) -> Any:
        if not self._request.server.is_secure:
            return {}
        return {"security_level": [b"TSI_PRIVACY_AND_INTEGRITY"]}

    def time_remaining(self) -> Any:
        deadline = self._request.stream.deadline
        clock = self._request.stream.core.clock
        return None if deadline is None else max(deadline - clock.now, 0)

    def add_done_callback(self, callback: Any) -> None:
        self._request.callbacks.append(functools.partial(callback, self))

    def done(self) -> bool:
        return self._request.is_answered

    def cancelled(self) -> bool:
        return self._request.code == CANCELLED


def _coded(coder: Any, message: Any) -> Any:
    return message if coder is None else coder(message)


class _Requests:
    """The requests of a stream, as a handler iterates over them."""

    def __init__(self, context: MemoryContext) -> None:
        self._context = context

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        message = await self._context.read()
        if message is cygrpc.EOF:
            raise StopAsyncIteration
        return message


def _is_async(behavior: Any) -> bool:
    return (
        inspect.isawaitable(behavior)
        or inspect.iscoroutinefunction(behavior)
        or inspect.isasyncgenfunction(behavior)
    )


class MemoryServer:
    """In the place of `cygrpc.AioServer`. `host_of` finds a machine by its address."""

    host_of: Callable[[str], Host]  # set while a world is installed

    def __init__(
        self,
        loop: ProcessLoop,
        thread_pool: Any,
        generic_handlers: Sequence[Any] | None,
        interceptors: Sequence[Any] | None,
        options: Any,
        maximum_concurrent_rpcs: int | None = None,
        *_: Any,
    ) -> None:
        self._loop = loop
        self._handlers: list[Any] = list(generic_handlers or ())
        self._registered: dict[str, Any] = {}
        self._interceptors = tuple(interceptors or ())
        self._options = dict(options)
        self._most = maximum_concurrent_rpcs
        self.is_secure = False
        self._active = 0
        self._state = "new"
        self._cores: list[ServerCore] = []
        self._hosts: list[Host] = []
        self._over: list[asyncio.Future[None]] = []
        self._all_over: asyncio.Future[None] = loop.create_future()
        self._serving: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    has_stopped = property(lambda self: self._state == "stopped")

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, handlers: dict[str, Any]) -> None:
        self._registered.update(handlers)

    def add_insecure_port(self, address: bytes) -> int:
        host = type(self).host_of(address.decode())
        self._hosts.append(host)
        return int(host.address.rpartition(":")[2])

    def add_secure_port(self, address: bytes, credentials: Any) -> int:
        """Encryption itself is not in the world, only that there is some."""
        self.is_secure = True
        return self.add_insecure_port(address)

    @property
    def begun(self) -> int:
        """Calls that the core has begun."""
        return sum(core.begun for core in self._cores)

    def is_running(self) -> bool:
        is_dead = any(core.is_dead for core in self._cores)
        return self._state == "running" and not is_dead

    async def start(self) -> None:
        if self._state == "running":
            return
        if self._state != "new":
            raise cygrpc.UsageError("Server not in ready state")
        self._state = "running"
        self._core = ServerCore(self._hosts, self._loop, self._options)
        self._cores.append(self._core)
        self._core.listen()
        self._serving = self._loop.create_task(self._serve())
        await asyncio.sleep(0)

    async def _request_call(self) -> Request:
        return Request(self, await self._core.ask())

    def _make_request_call_future(self, _: bytes | None) -> "asyncio.Task[Request]":
        """By which grpcio waits since 1.84. Here it waits by what this calls."""
        return self._loop.create_task(self._request_call())

    async def _serve(self) -> None:
        while self._state == "running":
            try:
                request = await self._request_call()
            except cygrpc._RequestCallError:
                continue
            is_full = self._most is not None and self._active >= self._most
            task = self._loop.create_task(self._handle(request, is_full))
            del request
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _handle(self, request: Request, is_full: bool) -> None:
        """Has a request served in a task, which ends with its client."""
        self._active += not is_full
        task = self._loop.create_task(self._guarded(request, is_full))
        task.add_done_callback(lambda _: [each() for each in request.callbacks])
        was_cancelled = await request.stream.closed()
        request.has_client_gone = True
        if was_cancelled and not task.done() and not request.is_answered:
            task.cancel()
        try:
            await task
        finally:
            self._active -= not is_full

    async def _guarded(self, request: Request, is_full: bool) -> None:
        try:
            await self._answer(request, is_full)
        except cygrpc.AbortError:
            pass
        except (asyncio.CancelledError, cygrpc._ServerStoppedError) as error:
            logger.debug("%s ends: %r", request.stream.method, error)
        except cygrpc.ExecuteBatchError:
            if not request.has_client_gone:
                logger.debug("%s: its client has gone", request.stream.method)
        except Exception as error:
            logger.debug("%s: %r", request.stream.method, error)
            if not request.is_answered and not self.has_stopped:
                words = f"Unexpected {type(error)}: {error}"
                code = request.code or UNKNOWN
                try:
                    await request.finish(code, words, request.trailers)
                except cygrpc.ExecuteBatchError:
                    logger.debug("%s: no error sent", request.stream.method)

    async def _answer(self, request: Request, is_full: bool) -> None:
        stream = request.stream
        handler = await self._find(Details(stream.method, stream.metadata))
        if handler is None:
            code = grpc.StatusCode.UNIMPLEMENTED.value[0]
            await request.finish(code, "Method not found!", ())
            return
        if is_full:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            await request.finish(code, "Concurrent RPC limit exceeded!", ())
            return
        context = MemoryContext(
            request,
            handler.request_deserializer,
            handler.response_serializer,
            self._loop,
        )
        sent: Any = _Requests(context)
        if not handler.request_streaming:
            raw = await stream.message()
            if raw is None:
                return  # it was cancelled at once
            sent = _coded(handler.request_deserializer, raw)
        if handler.response_streaming:
            await self._respond_in_turn(handler, request, sent, context)
        else:
            await self._respond(handler, request, sent, context)

    async def _find(self, details: Details) -> Any:
        def look(found: Any) -> Any:
            if (known := self._registered.get(found.method)) is not None:
                return known
            answers = (handler.service(found) for handler in self._handlers)
            return next((one for one in answers if one is not None), None)

        async def ask(interceptors: Any, found: Any) -> Any:
            first = next(interceptors, None)
            if first is None:
                return look(found)
            onward = functools.partial(ask, interceptors)
            return await first.intercept_service(onward, found)

        return await ask(iter(self._interceptors), details)

    async def _respond(
        self, handler: Any, request: Request, sent: Any, context: MemoryContext
    ) -> None:
        behavior = handler.stream_unary if handler.request_streaming else None
        behavior = behavior or handler.unary_unary
        answer = await behavior(sent, context)
        request.check()
        raw = b"" if request.code else _coded(handler.response_serializer, answer)
        request.begin_response()
        request.stream.send(raw)  # in one batch with the status
        await request.finish(request.code, request.details, request.trailers)

    async def _respond_in_turn(
        self, handler: Any, request: Request, sent: Any, context: MemoryContext
    ) -> None:
        behavior = handler.stream_stream if handler.request_streaming else None
        behavior = behavior or handler.unary_stream
        if inspect.iscoroutinefunction(behavior):
            await behavior(sent, context)
        else:
            async for answer in behavior(sent, context):
                request.check()
                await context.write(answer)
        request.check()
        request.begin_response()
        await request.finish(request.code, request.details, request.trailers)

    async def shutdown(self, grace: float | None) -> None:
        if self._state in ("new", "stopped"):
            return
        if self._state == "running":
            self._state = "stopping"
            self._over = [core.leave() for core in self._cores]
            self._loop.create_task(self._stopped())
        if grace is not None:
            await asyncio.wait((self._all_over,), timeout=grace)
        if not self._all_over.done():
            for core in self._cores:
                core.cancel_all()
        await asyncio.wait((self._all_over,))
        self._state = "stopped"

    async def _stopped(self) -> None:
        for future in self._over:
            await future
        if self._serving is not None:
            await self._serving
        self._all_over.set_result(None)

    async def wait_for_termination(self, timeout: float | None) -> bool:
        done, _ = await asyncio.wait((self._all_over,), timeout=timeout)
        return not done
