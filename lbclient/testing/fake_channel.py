"""A channel whose answers a test scripts: unit tests of client code, without a server.

What the code under test gets is a `grpc.aio.Channel`, so its generated stubs take it.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import grpc
import grpc.aio

from lbclient.core.text import printable
from lbclient.testing.fake_calls import (
    FakeCall,
    FakeMethod,
    FakeStreamStream,
    FakeStreamUnary,
    FakeUnaryStream,
    FakeUnaryUnary,
    ManyRequests,
)

Connectivity = grpc.ChannelConnectivity

MOST_NAMES = 10  # methods that an error names


def _method(kind: type[Any]) -> Callable[..., Any]:
    """What a generated stub calls for each of its methods of this kind."""

    def make(
        self: "FakeChannel",
        method: str | bytes,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Any:
        path = method if isinstance(method, str) else method.decode()
        answer = partial(self._next_answer, path)
        rpc = FakeMethod(path, request_serializer, response_deserializer, answer)
        begin = partial(self._begin, kind, rpc)
        has_many = issubclass(kind, ManyRequests)
        return _with_requests(begin) if has_many else _with_request(begin)

    return make


class FakeChannel(grpc.aio.Channel):
    """Answers calls as `answer` says, and keeps all of them in `calls`, in order."""

    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        self._scripts: dict[str, list[Any]] = {}
        self._is_closed = False
        self._closed = asyncio.Event()

    def answer(self, method: str, *answers: Any) -> None:
        """Sets the answers to the next calls of a method; the last one to all later.

        `method` is its name, `Search`, or path, `/search.Search/Search`, which goes
        first. Each answer is a message, `failure(...)` or another AioRpcError, or a
        `FakeReply`; for a response stream a list of them; or a function of the request,
        async or not, that returns one. The function gets the requests of a stream as
        an async iterator, and may be an async generator of messages.
        """
        if not answers:
            raise ValueError(f"answers to {method}: none, want at least one")
        self._scripts[method] = list(answers)

    def calls_of(self, method: str) -> list[FakeCall]:
        """Returns the calls of one method, by its name or path."""
        return [call for call in self.calls if method in _names(call.method)]

    def _next_answer(self, path: str) -> Any:
        for name in _names(path):
            if (answers := self._scripts.get(name)) is not None:
                return answers[0] if len(answers) == 1 else answers.pop(0)
        raise AssertionError(
            f"{path} was called, but has no answer: channel.answer({_names(path)[1]!r},"
            f" ...) sets one; answers are set for {self._answered()}"
        )

    def _answered(self) -> str:
        """The methods that have answers, for an error."""
        names = sorted(self._scripts)
        more = ", ..." if len(names) > MOST_NAMES else ""
        return printable(", ".join(names[:MOST_NAMES])) + more or "no method"

    def __repr__(self) -> str:
        return "\n".join(
            [f"<fake channel, {len(self.calls)} calls>", *map(repr, self.calls)]
        )

    # --- the interface of grpc.aio.Channel ----------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Cancels the calls that are still in flight after `grace` seconds."""
        self._is_closed = True
        self._closed.set()
        in_flight = [call for call in self.calls if not call.done()]
        if grace and in_flight:
            ends = [asyncio.ensure_future(call.code()) for call in in_flight]
            await asyncio.wait(ends, timeout=grace)
        for call in in_flight:
            call.cancel()

    def get_state(self, try_to_connect: bool = False) -> Connectivity:
        return Connectivity.SHUTDOWN if self._is_closed else Connectivity.READY

    async def wait_for_state_change(self, last_observed_state: Connectivity) -> None:
        """Returns at once if the state is another; it only changes by `close`."""
        self._check_open()
        if self.get_state() is last_observed_state:
            await self._closed.wait()

    async def channel_ready(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")

    def _begin(
        self, kind: type[Any], method: FakeMethod, request: Any, **how: Any
    ) -> Any:
        self._check_open()
        call = kind(method, **how)
        call.open(request)
        self.calls.append(call)
        return call

    unary_unary = _method(FakeUnaryUnary)
    unary_stream = _method(FakeUnaryStream)
    stream_unary = _method(FakeStreamUnary)
    stream_stream = _method(FakeStreamStream)


def _names(path: str) -> tuple[str, str]:
    """
    >>> _names("/search.Search/Pages")
    ('/search.Search/Pages', 'Pages')
    """
    return path, path.rpartition("/")[2]


def _with_request(begin: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return begin(
            request,
            timeout=timeout,
            metadata=metadata,
            credentials=credentials,
            wait_for_ready=wait_for_ready,
            compression=compression,
        )

    return call


def _with_requests(begin: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return begin(
            request_iterator,
            timeout=timeout,
            metadata=metadata,
            credentials=credentials,
            wait_for_ready=wait_for_ready,
            compression=compression,
        )

    return call
