"""Calls of a `FakeChannel`: they look and end like grpc.aio's, but nothing is sent.

A call begins when it is made. Like a real one it ends with its last message or error,
at its deadline, or by `cancel`, whichever is first; a response stream has ended when
its end was read. Its time is the loop's, so it works on a `VirtualLoop`.
"""

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, NamedTuple

import grpc
import grpc.aio

from lbclient.core.resumable import current as current_on_move
from lbclient.grpc_seam import flaw_of
from lbclient.testing.replies import FakeReply, played, played_in_turn

Code = grpc.StatusCode
Metadata = grpc.aio.Metadata

LATE = "Deadline Exceeded"
# As grpc.aio says it.
CANCELLED = "Locally cancelled by application!"
FINISHED = "RPC already finished."
HALF_CLOSED = 'RPC is half closed after calling "done_writing".'
MIXED = "The iterator and read/write APIs may not be mixed on a single RPC."

EOF = grpc.aio.EOF


class FakeMethod(NamedTuple):
    """What a stub knows of a method, and who answers it."""

    path: str
    serialize: Callable[[Any], bytes] | None
    deserialize: Callable[[bytes], Any] | None
    script: Callable[[], Any]  # the next answer

    def sent(self, request: Any) -> Any:
        """A copy of the request; raises as the serializer does for one it cannot take.

        A caller may use the message again for its next request.
        """
        if self.serialize is not None:
            self.serialize(request)
        return copy.deepcopy(request)

    def received(self, answer: Any) -> Any:
        """The answer as it comes out of the deserializer, hence a copy."""
        if self.deserialize is None:
            return answer
        if isinstance(answer, bytes):
            return self.deserialize(answer)
        is_message = hasattr(answer, "SerializeToString")
        # A generated stub decodes by a method of the message's class.
        wanted = getattr(self.deserialize, "__self__", None)
        if is_message:
            received = self.deserialize(answer.SerializeToString())
            wanted = type(received)
        if hasattr(wanted, "SerializeToString") and wanted is not type(answer):
            want, got = getattr(wanted, "__name__", wanted), type(answer).__name__
            raise TypeError(f"{self.path} answers with {want}, its script has {got}")
        return received if is_message else answer  # of another coding than protobuf


class FakeCall(grpc.aio.Call):
    """One call that was made: what it was given, and how it ended.

    `request` is the single request; `requests` are all that have been sent so far.
    `timeout`, `metadata`, `credentials`, `wait_for_ready` and `compression` are what
    the code under test gave.
    """

    def __init__(
        self,
        method: FakeMethod,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.method = method.path
        self.requests: list[Any] = []
        self.timeout = timeout
        pairs = () if metadata is None else tuple(metadata)
        # Of the script or the caller, not an end of the call.
        self._mistake: BaseException | None = flaw_of(pairs)
        self.metadata = Metadata() if self._mistake else Metadata(*pairs)
        self.credentials = credentials
        self.wait_for_ready = wait_for_ready
        self.compression = compression
        self._on_move = current_on_move()
        self._rpc = method
        self._loop = loop
        self._deadline = None if timeout is None else loop.time() + timeout
        self._initial_metadata = self._trailers = Metadata()
        self._status: tuple[Code, str] | None = None
        self._error: grpc.aio.AioRpcError | None = None  # as it was scripted
        self._is_cancelled = False
        self._begun, self._over = asyncio.Event(), asyncio.Event()
        self._callbacks: list[Callable[[Any], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            late = (Code.DEADLINE_EXCEEDED, LATE)
            self._timer = loop.call_later(max(0.0, timeout), self._end, late)

    @property
    def request(self) -> Any:
        return self.requests[0]

    def open(self, request: Any) -> None:
        """Begins the call; one that cannot be sent, or is late, is over at once."""
        self.begin(request)
        if self._mistake is not None:
            self._end((Code.UNKNOWN, repr(self._mistake)))
        elif self.timeout is not None and self.timeout <= 0.0:
            self._end((Code.DEADLINE_EXCEEDED, LATE))

    def begin(self, request: Any) -> None:
        raise NotImplementedError

    def _start(self, work: Callable[[Any], Awaitable[None]], request: Any) -> None:
        self._tasks.append(self._loop.create_task(self._guarded(work, request)))

    async def _guarded(
        self, work: Callable[[Any], Awaitable[None]], request: Any
    ) -> None:
        try:
            await work(request)
        except asyncio.CancelledError:
            self.cancel()  # perhaps it is scripted
            raise
        except grpc.aio.AioRpcError as error:
            self._error = error
            self._trailers = error.trailing_metadata() or Metadata()
            self._answered((error.code(), error.details() or ""))
        except Exception as error:
            self._mistake = error
            self._answered((Code.UNKNOWN, repr(error)))

    def _answer(self, request: Any) -> None:
        """Starts to answer the request, or the iterator of requests."""
        raise NotImplementedError

    def _answered(self, status: tuple[Code, str]) -> None:
        """There are no more answers, and this is how the call ends."""
        self._end(status)

    def _take_metadata(self, reply: FakeReply) -> None:
        if reply.initial_metadata:
            self._initial_metadata = Metadata(*reply.initial_metadata)
        if reply.trailers:
            self._trailers = Metadata(*reply.trailers)

    def _end(self, status: tuple[Code, str]) -> None:
        if self._status is not None:
            return
        self._status = status
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._begun.set()
        self._over.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _raise(self) -> None:
        """Raises what the call has ended with, unless that is OK."""
        if self._mistake is not None:
            raise self._mistake
        if self._is_cancelled:
            raise asyncio.CancelledError
        assert self._status is not None
        code, details = self._status
        error = self._error
        if error is not None and code is error.code():
            raise copy.copy(error)  # of its own class, such as NoBackend
        if code is not Code.OK:
            words = (self._initial_metadata, self._trailers, details, "")
            raise grpc.aio.AioRpcError(code, *words)

    def ask_to_move(self) -> None:
        """Asks a stream in flight to move, as a channel does when the fleet grows.
        Raises AssertionError if it is over, or is not made by `lbclient.resumed` or
        within `lbclient.resumable`."""
        if self.done() or self._on_move is None:
            why = "is not resumable" if self._on_move is None else "is over"
            raise AssertionError(f"{self!r} {why}, and cannot move")
        self._on_move()

    # --- the interface of grpc.aio.Call -------------------------------------------

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._is_cancelled = True
        self._end((Code.CANCELLED, CANCELLED))
        return True

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        return self._status is not None

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._loop.time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    async def initial_metadata(self) -> Metadata:
        await self._begun.wait()
        return self._initial_metadata

    async def trailing_metadata(self) -> Metadata:
        await self._over.wait()
        return self._trailers

    async def code(self) -> Code:
        await self._over.wait()
        assert self._status is not None
        return self._status[0]

    async def details(self) -> str:
        await self._over.wait()
        assert self._status is not None
        return self._status[1]

    async def wait_for_connection(self) -> None:
        """Waits until the first answer, or the end."""
        await self._begun.wait()

    async def debug_error_string(self) -> str:
        await self._over.wait()
        return ""

    def __repr__(self) -> str:
        code = "" if self._status is None else self._status[0].name
        how = "cancelled" if self._is_cancelled else code or "in flight"
        sent = ", ".join(" ".join(str(one).split()) for one in self.requests)
        return f"<{self.method}({sent}): {how}>"


class OneRequest(FakeCall):
    """A call with a single request."""

    def begin(self, request: Any) -> None:
        self.requests.append(self._rpc.sent(request))
        self._answer(self.request)


class ManyRequests(FakeCall):
    """A call with a stream of requests, from an iterator or by `write`."""

    def begin(self, requests: Any) -> None:
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._writes = requests is None
        self._has_written_all = False
        if not self._writes:
            self._start(self._consume, requests)
        self._answer(self._arriving())

    async def _consume(self, requests: Any) -> None:
        """As grpc.aio does: an iterator that fails cancels the call."""
        try:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    self._send(request)
            else:
                for request in requests:
                    self._send(request)
        except Exception:
            self.cancel()
        else:
            self._sent.put_nowait(EOF)

    def _send(self, request: Any) -> None:
        sent = self._rpc.sent(request)
        self.requests.append(sent)
        self._sent.put_nowait(sent)

    async def _arriving(self) -> AsyncIterator[Any]:
        """The requests, for who answers them."""
        while (request := await self._sent.get()) is not EOF:
            yield request

    async def write(self, request: Any) -> None:
        if not self._writes:
            raise grpc.aio.UsageError(MIXED)
        if self.done():
            raise asyncio.InvalidStateError(FINISHED)
        if self._has_written_all:
            raise asyncio.InvalidStateError(HALF_CLOSED)
        self._send(request)
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        if not self._writes:
            raise grpc.aio.UsageError(MIXED)
        if not self._has_written_all:
            self._has_written_all = True
            self._sent.put_nowait(EOF)


class OneAnswer(FakeCall):
    """A call that is awaited."""

    _result: Any = None

    def _answer(self, request: Any) -> None:
        self._start(self._play, request)

    async def _play(self, request: Any) -> None:
        script = self._rpc.script()
        answer = await played(script, request, self._take_metadata)
        if isinstance(self, ManyRequests) and not callable(script):
            async for _ in request:
                pass  # the answer is to all of them
        self._result = self._rpc.received(answer)
        self._answered((Code.OK, ""))

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            yield from self._over.wait().__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise()
        return self._result

    async def wait_for_connection(self) -> None:
        """Waits until the end, as with grpc.aio; raises the error of a call that
        failed."""
        await self._over.wait()
        self._raise()


class ManyAnswers(FakeCall):
    """A call whose answers are read, by `read` or `async for`."""

    _last: tuple[Code, str] | None = None  # with which it ends once all has been read
    _iterator: AsyncIterator[Any] | None = None
    _style = ""

    def _answer(self, request: Any) -> None:
        self._unread: deque[Any] = deque()
        self._news = asyncio.Event()
        self._start(self._play, request)

    async def _play(self, request: Any) -> None:
        script = self._rpc.script()
        async for answer in played_in_turn(script, request, self._take_metadata):
            self._unread.append(self._rpc.received(answer))
            self._begun.set()
            self._news.set()
        self._answered((Code.OK, ""))

    def _answered(self, status: tuple[Code, str]) -> None:
        self._last = status
        self._begun.set()
        self._news.set()

    def _end(self, status: tuple[Code, str]) -> None:
        super()._end(status)
        self._news.set()

    async def read(self) -> Any:
        """The next message; `grpc.aio.EOF` after the last."""
        if not self.done():
            self._settle_on("read")
        return await self._next()

    def _settle_on(self, style: str) -> None:
        if self._style not in ("", style):
            raise grpc.aio.UsageError(MIXED)
        self._style = style

    async def _next(self) -> Any:
        while not self.done():
            if self._unread:
                return self._unread.popleft()
            if self._last is not None:
                self._end(self._last)
                break
            await self._wait_for_news()
        self._raise()
        return EOF

    async def _wait_for_news(self) -> None:
        self._news.clear()
        try:
            await self._news.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __aiter__(self) -> AsyncIterator[Any]:
        self._settle_on("iterate")
        if self._iterator is None:
            self._iterator = self._iterate()
        return self._iterator

    async def _iterate(self) -> AsyncIterator[Any]:
        while (answer := await self._next()) is not EOF:
            yield answer


class FakeUnaryUnary(OneAnswer, OneRequest, grpc.aio.UnaryUnaryCall[Any, Any]):
    """As `stub.Search(request)` returns it."""

    def ask_to_move(self) -> None:
        raise AssertionError(f"{self!r} is no stream, and cannot move")


class FakeUnaryStream(ManyAnswers, OneRequest, grpc.aio.UnaryStreamCall[Any, Any]):
    """As `stub.Pages(request)` returns it."""


class FakeStreamUnary(OneAnswer, ManyRequests, grpc.aio.StreamUnaryCall[Any, Any]):
    """As `stub.Index(requests)` returns it."""


class FakeStreamStream(ManyAnswers, ManyRequests, grpc.aio.StreamStreamCall[Any, Any]):
    """As `stub.Chat(requests)` returns it."""
