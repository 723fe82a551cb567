"""A real channel on virtual time, over connections and servers that are fakes.

What decides and what waits is lbclient's own: the channel, its balancer, backends,
calls and retries. Only grpc.aio's inner channels are replaced, and the servers behind
them do as a test says. So an hour of silence, backoff or doubt passes at once, and
every instant is exact.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any, Self

import grpc

from benchmarks.crowd import FakeChannel, FakeStream, Network, Told
from lbclient import wire
from lbclient.client.balancer import Balancer
from lbclient.client.channel import Channel
from lbclient.client.channel_context import channel_context
from lbclient.config import ChannelConfig
from lbclient.core.model import Endpoint, Endpoints, snapshot
from lbclient.pickers import picker_factory
from lbclient.v1 import compat_pb2, health_pb2, load_pb2

INTERVAL = 2.0  # seconds, of health
METHOD = "/search.Search/Search"
LONGEST = 7200.0  # virtual seconds of a test; a call that is never ended is no hang

Connectivity = grpc.ChannelConnectivity
Code = grpc.StatusCode

CHECKS = {wire.CHECK_METHOD, wire.SERVING_CHECK_METHOD}


class FakeStatus:
    """As grpcio's core tells it."""

    def __init__(self, code: Code, details: str, trailers: Any) -> None:
        self._code = code
        self._details = details
        self._trailers = trailers

    def code(self) -> int:
        number: int = self._code.value[0]
        return number

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailers

    def debug_error_string(self) -> str:
        return ""


class FakeCall:
    """As much of a unary grpc.aio call as lbclient uses. A test ends it."""

    def __init__(self, timeout: float | None, metadata: Any = ()) -> None:
        loop = asyncio.get_running_loop()
        self.began_at = loop.time()
        self.metadata = dict(metadata or ())
        self.answer = b""
        self._cython_call = self  # which has what lbclient asks of the core
        self._status: FakeStatus | None = None
        self._initial_metadata: Any = None
        self._deadline = None if timeout is None else self.began_at + timeout
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = loop.create_future()
        self._callbacks: list[Callable[[Any], None]] = []
        self._is_cancelled = False
        if timeout is not None:
            late = Code.DEADLINE_EXCEEDED
            self._timer = loop.call_later(timeout, self.fail, late, "too late")

    def serve(self, answer: bytes = b"", *trailers: tuple[str, Any]) -> None:
        self.answer = answer
        self._end(Code.OK, "", trailers)

    def fail(self, code: Code, details: str = "", *trailers: tuple[str, Any]) -> None:
        self._end(code, details, trailers)

    def _end(self, code: Code, details: str, trailers: Any) -> None:
        if self._status is not None:
            return
        self._status = FakeStatus(code, details, trailers)
        if self._timer is not None:
            self._timer.cancel()
        self._over.set_result(None)
        for callback in self._callbacks:
            callback(self)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._is_cancelled = True
        self._end(Code.CANCELLED, "cancelled", ())
        return True

    def is_locally_cancelled(self) -> bool:
        return self._is_cancelled

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        return self._status is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def __await__(self) -> Generator[Any, None, bytes]:
        yield from asyncio.shield(self._over).__await__()
        if self._is_cancelled:
            raise asyncio.CancelledError
        assert self._status is not None
        for code in Code:
            if code.value[0] == self._status.code() and code is not Code.OK:
                raise error(code, self._status.details())
        return self.answer

    async def trailing_metadata(self) -> Any:
        assert self._status is not None
        return self._status.trailing_metadata()


class Room:
    """The streams that one connection may have; what is beyond that waits, unseen."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._inside: dict[object, None] = {}
        self._waiting: dict[object, Callable[[], None]] = {}

    def enter(self, one: object, arrive: Callable[[], None]) -> None:
        self._waiting[one] = arrive
        self._admit()

    def leave(self, one: object) -> None:
        self._waiting.pop(one, None)
        self._inside.pop(one, None)
        self._admit()

    def _admit(self) -> None:
        most = self._server.slots
        while self._waiting and (most is None or len(self._inside) < most):
            one = next(iter(self._waiting))
            self._inside[one] = None
            self._waiting.pop(one)()


class Reports(FakeStream):
    """A health stream: a report at once, one every so often, and at every change.

    That of grpc.health.v1 says nothing every so often. Behind a front it is that of one
    task.
    """

    def __init__(self, server: "Server", path: str, request: bytes, room: Room) -> None:
        super().__init__()
        self.task = 0
        self._server = server
        self._path = path
        self._room = room
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._code = Code.UNAVAILABLE
        self._timer: asyncio.TimerHandle | None = None
        self._every = 0.0
        if path == wire.WATCH_METHOD:
            self._every = health_pb2.HealthRequest.FromString(request).report_interval
        elif path == wire.ORCA_METHOD:
            every = compat_pb2.LoadReportRequest.FromString(request).report_interval
            self._every = every.seconds + every.nanos / 1e9
        room.enter(self, self._arrive)

    def _arrive(self) -> None:
        self._server.streams[self] = None
        self.task = self._server.next_task()
        self._tick()

    def _tick(self) -> None:
        if self._every:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._every, self._tick)
        self.say()

    def say(self) -> None:
        if self._server.answers_streams and not self._server.is_frozen:
            self._said.put_nowait(self._server.words(self._path, self.task))

    def end(self, code: Code) -> None:
        self._code = code
        self.fail()

    async def read(self) -> bytes:
        message = asyncio.ensure_future(self._said.get())
        try:
            await asyncio.wait((message, self._end), return_when="FIRST_COMPLETED")
            if message.done():
                return message.result()
            raise error(self._code, "over")
        finally:
            message.cancel()

    def fail(self) -> None:
        self._stop()
        super().fail()

    def cancel(self) -> None:
        self._stop()
        super().cancel()

    def _stop(self) -> None:
        self._server.streams.pop(self, None)
        self._room.leave(self)
        if self._timer is not None:
            self._timer.cancel()


class Refused(FakeStream):
    def __init__(self, code: Code) -> None:
        super().__init__()
        self._code = code

    async def read(self) -> bytes:
        raise error(self._code, "no")


class Server(Network):
    """One address, and what listens there. A test sets what is not a method.

    `refuses` are health methods by the status that they end with; `serve` is what
    becomes of a call: it is answered at once unless a test says otherwise.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.is_frozen = False  # it answers nothing and reports nothing
        self.connects_in: float | None = 0.0  # seconds; None: never
        self.answers_checks = True
        self.answers_streams = True  # those of health
        self.check_takes = 0.0  # seconds
        self.slots: int | None = None  # MAX_CONCURRENT_STREAMS, health included
        self.state: load_pb2.TaskState = load_pb2.SERVING
        self.utilization = 0.5
        self.refuses: dict[str, Code] = {}
        self.serve: Callable[[FakeCall], None] = FakeCall.serve
        self.calls: list[FakeCall] = []
        self.asked: list[str] = []  # health methods, as they were called
        self.dialled_at: list[float] = []
        self.connecting_at: list[float] = []
        self.streams: dict[Reports, None] = {}

    def dial(self, endpoint: Endpoint, more: object = ()) -> Any:
        self.dialled_at.append(asyncio.get_running_loop().time())
        return Line(self, endpoint)

    def be_a_stranger(self) -> None:
        """A server that has grpc.health.v1 alone."""
        ours = (wire.WATCH_METHOD, wire.CHECK_METHOD, wire.ORCA_METHOD)
        self.refuses = dict.fromkeys(ours, Code.UNIMPLEMENTED)
        self.lose_all()

    def hang_health_checks(self) -> None:
        """As a proxy may that holds paths it does not know: calls are answered."""
        self.answers_checks = self.answers_streams = False

    def next_task(self) -> int:
        """Which one gets the next stream or call; 0: there is one, without a number."""
        return 0

    def state_of(self, task: int) -> load_pb2.TaskState:
        return self.state

    def words(self, path: str, task: int) -> bytes:
        if path in (wire.WATCH_METHOD, wire.CHECK_METHOD):
            return self.report(task)
        if path == wire.ORCA_METHOD:
            return self.load(task).SerializeToString()
        is_serving = self.state_of(task) == load_pb2.SERVING
        reply = compat_pb2.ServingReply
        status = reply.SERVING if is_serving else reply.NOT_SERVING
        return reply(status=status).SerializeToString()

    def load(self, task: int) -> load_pb2.LoadReport:
        return load_pb2.LoadReport(
            application_utilization=self.utilization,
            task_id=task,
            state=self.state_of(task),
        )

    def report(self, task: int = 0) -> bytes:
        return health_pb2.HealthReport(
            state=self.state_of(task), load=self.load(task)
        ).SerializeToString()

    def enter(self, state: load_pb2.TaskState) -> None:
        """And tells it at once."""
        self.state = state
        for stream in list(self.streams):
            stream.say()

    def say_goaway(self) -> None:
        """On every connection; what runs on them goes on."""
        for channel in list(self.channels):
            assert isinstance(channel, Line)
            channel.take_goaway()

    def in_flight(self) -> int:
        return sum(not call.done() for call in self.calls)


class Front(Server):
    """A proxy in front of several tasks: each stream and call goes to any of them.

    `tasks` are their states, by number.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.tasks = dict.fromkeys((11, 22), load_pb2.SERVING)
        self.serve = self.serve_by_any
        self._rng = Random(7)

    def next_task(self) -> int:
        return self._rng.choice(list(self.tasks))

    def state_of(self, task: int) -> load_pb2.TaskState:
        return self.tasks[task]

    def serve_by_any(self, call: FakeCall) -> None:
        load = self.load(self.next_task()).SerializeToString()
        call.serve(b"", (wire.LOAD_KEY, load))

    def enter_one(self, task: int, state: load_pb2.TaskState) -> None:
        """One task says so at once, on the streams that it has."""
        self.tasks[task] = state
        for stream in list(self.streams):
            if stream.task == task:
                stream.say()

    def restart(self, task: int, number: int) -> None:
        """It is another one from now on, and its streams end."""
        del self.tasks[task]
        self.tasks[number] = load_pb2.SERVING
        for stream in list(self.streams):
            if stream.task == task:
                stream.fail()


class Line(FakeChannel):
    """A connection to a server."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        super().__init__(server, endpoint)
        self._server = server
        self._calls: list[FakeCall] = []
        # Of connections that said GOAWAY.
        self._old_calls: list[FakeCall] = []
        self._old_streams: list[FakeStream] = []
        self._room = Room(server)

    def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._server.connecting_at.append(loop.time())
        if self._server.connects_in:
            loop.call_later(self._server.connects_in, super()._connect)
        elif self._server.connects_in is not None:
            super()._connect()

    def take_goaway(self) -> None:
        if self._state is Connectivity.READY:
            self._old_streams += self._streams
            self._old_calls += self._calls
            self._streams, self._calls = [], []
            self._room = Room(self._server)
            self.enter(Connectivity.IDLE)

    def enter(self, state: Connectivity) -> None:
        super().enter(state)
        if self._state is Connectivity.SHUTDOWN:
            self._calls += self._old_calls
            for stream in self._old_streams:
                stream.fail()
        if self._state in (Connectivity.IDLE, Connectivity.SHUTDOWN):
            calls, self._calls = self._calls, []
            for call in calls:
                call.fail(Code.UNAVAILABLE, "lost")

    def unary_unary(self, path: str, **options: Any) -> Callable[..., Any]:
        def begin(
            request: bytes, timeout: float | None = None, metadata: Any = (), **_: Any
        ) -> FakeCall:
            call, room = FakeCall(timeout, metadata), self._room
            self._calls = [one for one in self._calls if not one.done()] + [call]
            arrive = partial(self._arrive, path, call)
            call.add_done_callback(room.leave)
            room.enter(call, arrive)
            return call

        return begin

    def _arrive(self, path: str, call: FakeCall) -> None:
        if path in CHECKS:
            self._check(path, call)
            return
        self._server.calls.append(call)
        if not self._server.is_frozen:
            asyncio.get_running_loop().call_soon(self._server.serve, call)

    def _check(self, path: str, call: FakeCall) -> None:
        server = self._server
        server.asked.append(path)
        self.get_state(try_to_connect=True)  # as any call does
        loop = asyncio.get_running_loop()
        if not server.is_up:
            loop.call_soon(call.fail, Code.UNAVAILABLE, "last error: refused")
        elif path in server.refuses:
            loop.call_soon(call.fail, server.refuses[path], "no")
        elif server.answers_checks and not server.is_frozen:
            said = server.words(path, server.next_task())
            loop.call_later(server.check_takes, call.serve, said)

    def unary_stream(self, path: str) -> Callable[[bytes], FakeStream]:
        def begin(request: bytes) -> FakeStream:
            server = self._server
            server.asked.append(path)
            if path in server.refuses:
                return Refused(server.refuses[path])
            stream = Reports(server, path, request, self._room)
            self._streams.append(stream)
            return stream

        return begin


def error(code: Code, details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details)


class Says(Told):
    """A resolver that says what it is told to, or raises it, and notes hints."""

    def __init__(self) -> None:
        super().__init__()
        self.hinted_at: list[float] = []

    def fail(self, error: Exception) -> None:
        self._answers.put_nowait(error)  # type: ignore[arg-type]

    def refresh(self) -> None:
        self.hinted_at.append(asyncio.get_running_loop().time())

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        async for answer in super().watch():
            if isinstance(answer, Exception):
                raise answer
            yield answer


class Fleet:
    """Servers `b0:1`, `b1:1`, ... and a channel to them, which is open within `with`.

    The order of preference is that of the addresses.
    """

    def __init__(
        self, count: int, make: Callable[[str], Server] = Server, **fields: Any
    ) -> None:
        endpoints = snapshot([Endpoint(f"b{number}:1") for number in range(count)])
        self.endpoints = endpoints
        self.servers = [make(endpoint.address) for endpoint in endpoints]
        self.resolver = Says()
        usual: dict[str, Any] = {"idle_after": 0.0, "subset": "whole"}
        usual["health_interval"] = INTERVAL
        self.config = ChannelConfig(**usual | fields)
        self.channel = Channel(self.resolver, None, None, None, None, self.config)
        self.channel._make_balancer = self._make_balancer
        self._by_address = {server.address: server for server in self.servers}
        self._begin: Any = self.channel.unary_unary(METHOD)
        self._end = AsyncExitStack()

    def _make_balancer(self) -> Balancer:
        config = self.config
        return Balancer(
            channel_context(
                "fleet", config, asyncio.get_running_loop().time, Random(7)
            ),
            self.resolver,
            lambda endpoints: endpoints,
            picker_factory(config.picker, config.slow_start)(Random(7)),
            lambda endpoint, more=(): self[endpoint.address].dial(endpoint, more),
            observers=self.channel._observers,
        )

    def __getitem__(self, address: str) -> Server:
        return self._by_address[address]

    @property
    def balancer(self) -> Balancer:
        return self.channel.balancer()

    async def __aenter__(self) -> Self:
        await self._end.enter_async_context(asyncio.timeout(LONGEST))
        self._end.push_async_callback(self.channel.close)
        self.resolver.tell(self.endpoints)
        self.channel.get_state(try_to_connect=True)
        await asyncio.sleep(1.0)
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._end.__aexit__(*details)

    def states(self) -> list[str]:
        """Of the backends that there are, in order of preference."""
        return [backend.state for backend in self.channel.statistics().backends]

    def call(self, timeout: float | None = None, **options: Any) -> Any:
        return self._begin(b"", timeout=timeout, **options)

    def reasons(self) -> list[str]:
        """Why each backend is in its state."""
        return [backend.reason for backend in self.channel.statistics().backends]
