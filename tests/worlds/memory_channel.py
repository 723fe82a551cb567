"""In the places of `cygrpc.AioChannel` and `cygrpc._AioCall`, over a core in memory.

All above these two classes is grpcio's own code. What they promise is compared with the
real ones by `test_inner_channel`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc._cython import cygrpc

from tests.worlds.client_core import (
    CANCELLED,
    OVER,
    ClientCore,
    ClientStream,
    Status,
    set_result,
)
from tests.worlds.clock import EPOCH


class MemoryCall:
    """In the place of `cygrpc._AioCall`."""

    def __init__(self, core: ClientCore, stream: ClientStream, deadline: Any) -> None:
        self._core = core
        self.stream = stream
        self._deadline = deadline  # by the wall clock
        self._status: Any = None
        self._initial_metadata: Any = None
        self._is_locally_cancelled = False
        self._callbacks: list[Callable[[], None]] = []
        self._for_status: list[asyncio.Future[None]] = []
        self._for_initial: list[asyncio.Future[None]] = []

    def __del__(self) -> None:
        if self.stream.status is None:  # as the core does with a call nobody has
            self.stream.cancel("unref")

    def _set_status(self, status: Status, debug: str | None = "") -> None:
        self._status = cygrpc.AioRpcStatus(*status, debug)
        self._set_initial(())
        waiting, self._for_status = self._for_status, []
        for future in waiting:
            set_result(future, None)
        for callback in self._callbacks:
            callback()

    def _set_initial(self, metadata: tuple[Any, ...]) -> None:
        if self._initial_metadata is None:
            self._initial_metadata = metadata
            waiting, self._for_initial = self._for_initial, []
            for future in waiting:
                set_result(future, None)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        if self.done():
            callback()
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0, float(self._deadline) - self._core.clock.wall())

    def cancel(self, details: str) -> None:
        self._is_locally_cancelled = True
        self._set_status((CANCELLED, details, None), None)  # type: ignore[arg-type]
        self.stream.cancel(details)

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self.done() and bool(self._status.code() == CANCELLED)

    def is_ok(self) -> bool:
        return self.done() and bool(self._status.code() == 0)

    def is_locally_cancelled(self) -> bool:
        return self._is_locally_cancelled

    def set_internal_error(self, error: str) -> None:
        internal = grpc.StatusCode.INTERNAL.value[0]
        self._set_status((internal, "Internal error from Core", ()), error)

    async def status(self) -> Any:
        if self._status is None:
            future = self._core.loop.create_future()
            self._for_status.append(future)
            await future
        return self._status

    async def initial_metadata(self) -> Any:
        if self._initial_metadata is None:
            future = self._core.loop.create_future()
            self._for_initial.append(future)
            await future
        return self._initial_metadata

    def _debug(self, status: Status) -> str:
        return f"{_CODES[status[0]].name}:{status[1]}"

    async def _take_end(self) -> None:
        status: Status = await self.stream.end()
        self._set_status(status, self._debug(status) if status[0] else "")

    async def _handle_status_once_received(self) -> None:
        status: Status = await self.stream.end()
        if not self._is_locally_cancelled:
            self._set_status(status, self._debug(status) if status[0] else "")

    async def unary_unary(
        self, request: bytes, metadata: tuple[Any, ...], context: Any = None
    ) -> bytes | None:
        stream = self.stream
        stream.begin(checked(metadata))
        stream.send(request)
        stream.close()
        initial, message = stream.initial(), stream.message()
        status: Status = await stream.end()
        if initial.done() and initial.exception() is None:
            self._set_initial(initial.result())
        elif not initial.done():
            initial.cancel()
        answer = message.result() if message.done() else await message
        self._set_status(status, self._debug(status) if status[0] else "")
        return answer if status[0] == 0 else None

    async def initiate_unary_stream(
        self, request: bytes, metadata: tuple[Any, ...], context: Any = None
    ) -> None:
        stream, end = self.stream, self._watch_end()
        stream.begin(checked(metadata))
        sent = stream.send(request)
        stream.close()
        try:
            await sent
            self._set_initial(await stream.initial())
        except cygrpc.ExecuteBatchError:
            await end

    async def stream_unary(
        self,
        metadata: tuple[Any, ...],
        observe: Callable[[], None],
        context: Any = None,
    ) -> bytes | None:
        stream = self.stream
        try:
            stream.begin(checked(metadata))
            await stream.send_nothing()
            observe()
            self._set_initial(await stream.initial())
        except cygrpc.ExecuteBatchError:
            await self._handle_status_once_received()
            observe()
            return None
        message = stream.message()
        await self._take_end()
        answer: bytes | None = message.result() if message.done() else await message
        return answer if self.is_ok() else None

    async def initiate_stream_stream(
        self,
        metadata: tuple[Any, ...],
        observe: Callable[[], None],
        context: Any = None,
    ) -> None:
        stream, end = self.stream, self._watch_end()
        try:
            stream.begin(checked(metadata))
            await stream.send_nothing()
            observe()
            self._set_initial(await stream.initial())
        except cygrpc.ExecuteBatchError:
            await end
            observe()

    def _watch_end(self) -> "asyncio.Task[None]":
        return self._core.loop.create_task(self._handle_status_once_received())

    async def receive_serialized_message(self) -> Any:
        message = await self.stream.message()
        return cygrpc.EOF if message is None else message

    async def send_serialized_message(self, message: bytes) -> None:
        await self.stream.send(message)

    async def send_receive_close(self) -> None:
        await self.stream.close()

    def __repr__(self) -> str:
        kind = "_AioCall"
        if not self.done():
            return f"<{kind} object>"
        code = _CODES[self._status.code()]
        return (
            f"<{kind} of RPC that terminated with:\n\tstatus = {self._status.details()}"
            f'\n\tdetails = "{code}"\n'
            f'\tdebug_error_string = "{self._status.debug_error_string()}"\n>'
        )


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def checked(metadata: tuple[Any, ...]) -> tuple[Any, ...]:
    pairs = tuple((key, value) for key, value in metadata)
    for key, value in pairs:
        if not isinstance(value, bytes if key.endswith("-bin") else str | bytes):
            raise TypeError(f"metadata {key!r}: {value!r}")
    return tuple(pair for pair in pairs if not pair[0].startswith("grpc-"))


class MemoryChannel:
    """In the place of `cygrpc.AioChannel`."""

    def __init__(self, core: ClientCore, is_secure: bool) -> None:
        self.core = core
        self.loop = core.loop
        self._is_secure = is_secure
        self._is_closing = self._is_closed = False

    def check_connectivity_state(self, try_to_connect: bool) -> int:
        if self._is_closed:
            return OVER
        state = self.core.state
        if try_to_connect:
            self.core.connect()
        return state

    async def watch_connectivity_state(self, last: int, deadline: Any) -> bool:
        if self.closed():
            raise cygrpc.UsageError("Channel is closed.")
        return bool(await self.core.watch(last))

    def closing(self) -> None:
        self._is_closing = True

    def close(self) -> None:
        self._is_closing = self._is_closed = True
        self.core.close()

    def closed(self) -> bool:
        return self._is_closing or self._is_closed

    def get_registered_call_handle(self, method: bytes) -> int:
        return 0

    def call(
        self,
        method: bytes,
        deadline: float | None,
        credentials: Any,
        wait_for_ready: bool | None,
        registered_call_handle: int = 0,
    ) -> MemoryCall:
        if self.closed():
            raise cygrpc.UsageError("Channel is closed.")
        if credentials is not None and not self._is_secure:
            words = "Call credentials are only valid on secure channels"
            raise cygrpc.UsageError(words)
        at = None if deadline is None else deadline - EPOCH
        stream = ClientStream(self.core, method.decode(), at, bool(wait_for_ready))
        return MemoryCall(self.core, stream, deadline)
