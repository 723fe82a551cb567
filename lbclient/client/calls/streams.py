"""Streaming calls: read and written while attempts come and go beneath them.

What has been read cannot be taken back, and what was written is kept only where it
comes from an iterator: after that there is no other attempt. A call that nobody
iterates over or reads any more is cancelled when it is collected.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from lbclient.client.calls.sending import SendingCall, UnaryResponse
from lbclient.client.calls.wrapped import Call
from lbclient.grpc_seam import (
    Writable,
    is_interrupted,
)

# As grpc.aio says it.
FINISHED_DETAILS = "RPC already finished."
MIXED_DETAILS = "The iterator and read/write APIs may not be mixed on a single RPC."


class _StreamResponse(Call):
    _responses: "weakref.ref[_Responses] | None" = None
    _style = ""
    _has_read = False

    def _settle_on(self, style: str) -> None:
        """Reads or iterates, for good; grpc.aio's own call may come too late to say."""
        if self._style not in ("", style):
            raise grpc.aio.UsageError(MIXED_DETAILS)
        self._style = style

    def _finder(self) -> Callable[[], SendingCall | None]:
        return weakref.ref(self)

    def __aiter__(self) -> AsyncIterator[Any]:
        self._settle_on("iterate")
        # Weakly, for the iterator keeps the call.
        responses = None if self._responses is None else self._responses()
        if responses is None:
            responses = _Responses(self)
            self._responses = weakref.ref(responses)
        return responses

    async def read(self) -> Any:
        if not self.done():
            self._settle_on("read")
        try:
            message = await self._on_inner(self._sent_or_cancelled, "read")
            if not self._has_read:
                self._begin_reading(message)
            return message
        except Exception as error:
            self._release(error)
            raise

    def _begin_reading(self, message: Any) -> None:
        """The first message is there, or the end of a stream without any."""
        self._has_read = True
        if message is not grpc.aio.EOF:
            self._balancer.first_message(self._lbclient)

    def _is_committed(self) -> bool:
        return self._has_read

    def _release(self, error: Exception) -> None:
        """Ends a call that grpc.aio could not begin, for its metadata perhaps.

        It would wait for its status for ever, and the error's traceback keeps us.
        """
        known = isinstance(error, grpc.aio.AioRpcError | grpc.aio.UsageError)
        if not known and self._inner is not None:
            self._inner.cancel()

    def __del__(self) -> None:
        self._abandon()


class _Responses:
    """Iterates over a call and keeps it: who iterates is still interested."""

    def __init__(self, call: _StreamResponse) -> None:
        self._call = call
        self._inner = call._inner
        self._iterator: AsyncIterator[Any] | None = None
        if self._inner is not None:
            self._iterator = self._inner.__aiter__()

    def __aiter__(self) -> "_Responses":
        return self

    async def __anext__(self) -> Any:  # noqa: C901  # the hot path, written out
        call = self._call
        while True:
            if self._iterator is None:
                self._inner = await call._sent_or_cancelled()
                self._iterator = self._inner.__aiter__()
            # `cancellations`, as in `direct`
            task = asyncio.current_task(call._balancer.loop)
            before = 0 if task is None else task.cancelling()
            try:
                message = await self._iterator.__anext__()
                if (inner := call._inner) is self._inner or inner is None:
                    if not call._has_read:
                        call._begin_reading(message)
                    return message
                self._iterator = None  # the hedge has answered, an instant before
            except StopAsyncIteration:
                if call._inner in (self._inner, None):
                    raise
                self._iterator = None
            except asyncio.CancelledError:
                if not await call._was_given_up(self._inner, before):
                    call.cancel()  # what grpc.aio has not begun, it leaves alone
                    raise
                self._iterator = None
            except Exception as error:
                if not await call._goes_on(self._inner, error):
                    call._release(error)
                    call._raise(error)
                self._iterator = None


class _StreamRequest(Writable, Call):
    """Writes requests. A cancelled write does not cancel the call, as in grpc.aio."""

    streams_requests = True
    _has_written = False

    async def write(self, request: Any) -> None:
        self._refuse_if_fed()
        if self._is_unsent():
            raise asyncio.InvalidStateError(FINISHED_DETAILS)
        await self._on_inner(self._sent, "write", request)
        self._has_written = True

    async def done_writing(self) -> None:
        self._refuse_if_fed()
        if self._is_unsent():
            return
        await self._on_inner(self._sent_or_cancelled, "done_writing")
        self._has_written = True

    async def wait_for_connection(self) -> None:
        await self._on_inner(self._sent, "wait_for_connection")

    def _is_committed(self) -> bool:
        requests = self.attempts.requests
        if requests is None:
            return self._has_written  # what is written is not kept
        if not requests.are_repeatable or is_interrupted(self._inner):
            return True
        return super()._is_committed()

    def _refuse_if_fed(self) -> None:
        if self.attempts.requests is not None:
            raise grpc.aio.UsageError(MIXED_DETAILS)

    def _is_unsent(self) -> bool:
        return self._inner is None and self._error is not None


class UnaryStreamCall(_StreamResponse, grpc.aio.UnaryStreamCall[Any, Any]): ...


class StreamUnaryCall(
    _StreamRequest, UnaryResponse, grpc.aio.StreamUnaryCall[Any, Any]
):
    """Runs to its end when dropped, unless it waits for writes that cannot come."""

    def _finder(self) -> Callable[[], SendingCall | None]:
        # Weakly as long as it is written to: else it would keep itself.
        return weakref.ref(self) if self.attempts.requests is None else self._itself

    async def done_writing(self) -> None:
        await super().done_writing()
        if self._inner is not None:
            self._inner.add_done_callback(self._stay)

    def _stay(self, _: Any) -> None:
        """As this is to be called at the end, we are there until then."""

    def __del__(self) -> None:
        # One whose requests are all written stays until its end: see `_stay`.
        inner = self._inner
        if inner is None or inner.done():
            return
        if self.attempts.requests is None:
            self._abandon()


class StreamStreamCall(
    _StreamRequest, _StreamResponse, grpc.aio.StreamStreamCall[Any, Any]
): ...
