"""Call objects that wrap grpc.aio's: of calls that wait or are retried, and of streams.

A unary-unary call that finds a ready backend is grpc.aio's own call object (`direct`).
All others are wrapped. `sending` says when and where they are sent; here is what they
answer. A call that waits for a backend has no call of grpc.aio's yet. A streaming call
that is dropped half-read would never end in grpc.aio, so its wrapper cancels it when it
is collected. Hence nothing that outlives the caller's interest may hold a wrapper,
except the queue until it is the call's turn.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from lbclient.background.tasks import cancellations
from lbclient.client.calls.sending import OK, SendingCall, UnaryResponse
from lbclient.grpc_seam import error_of, is_provisional, marked

# As grpc.aio says it.
CANCELLED_DETAILS = "Locally cancelled by application!"


class Call(SendingCall):
    """Answers what a call of grpc.aio's is asked: by the call of the last attempt."""

    async def wait_for_connection(self) -> None:
        await self._on_inner(self._sent_or_cancelled, "wait_for_connection")

    async def _on_inner(
        self, inner_call: Callable[[], Any], act: str, *arguments: Any
    ) -> Any:
        """Awaits the method `act` of the inner call, and again of the next inner call
        if the attempt has failed and another one has followed."""
        while True:
            inner = self._inner or await inner_call()
            before = cancellations()
            try:
                answer = await getattr(inner, act)(*arguments)
                if self._inner in (inner, None) or act != "read":
                    return answer
            except asyncio.CancelledError:
                if not await self._was_given_up(inner, before):
                    if inner_call == self._sent_or_cancelled:
                        self.cancel()  # what grpc.aio has not begun, it leaves alone
                    raise
            except Exception as error:
                if not await self._goes_on(inner, error):
                    self._raise(error)

    # --- its status and metadata ----------------------------------------------------

    def cancelled(self) -> bool:
        if self._inner is not None:
            return bool(self._inner.cancelled())
        return isinstance(self._error, asyncio.CancelledError)

    async def initial_metadata(self) -> Any:
        # Does not wait for the end, which may come only once somebody reads.
        metadata = await self._ask("initial_metadata")
        if metadata is None and isinstance(self._error, grpc.aio.AioRpcError):
            metadata = self._error.initial_metadata()  # of a call that we gave up
        return grpc.aio.Metadata() if metadata is None else metadata

    async def trailing_metadata(self) -> Any:
        metadata = await self._ask_of_end("trailing_metadata")
        return grpc.aio.Metadata() if metadata is None else metadata

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode | None = await self._ask_of_end("code")
        error = self._error
        if code is not None:
            error = self._attempt_end.error or error_of(self._inner)
        if error is not None and code is not OK:
            self._explain(error)
        return self._unsent_status()[0] if code is None else code

    async def details(self) -> str:
        details: str | None = await self._ask_of_end("details")
        return self._unsent_status()[1] if self._inner is None else details or ""

    async def debug_error_string(self) -> str | None:
        debug: str | None = await self._ask_of_end("debug_error_string")
        if self._inner is None and not self.cancelled():
            return ""  # as in grpc.aio
        return debug

    async def _ask(self, question: str) -> Any:
        """What the last attempt answers to `question`, a method of grpc.aio's call;
        None if the call was not sent."""
        while (inner := await self._until_sent()) is not None:
            answer = await getattr(inner, question)()
            if inner is self._inner:
                return answer
        return None

    async def _ask_of_end(self, question: str) -> Any:
        """Like `_ask`, for a part of the status: grpc.aio tells a provisional status
        while it knows only that a write has failed."""
        answer = await self._ask(question)
        while (inner := self._inner) is not None and is_provisional(inner):
            await self._attempt_end.wait()
            if inner is self._inner:
                return self._attempt_end.answer_to(question, answer)
            answer = await self._ask(question)
        return answer

    def _unsent_status(self) -> tuple[grpc.StatusCode, str]:
        error = self._error
        if isinstance(error, grpc.aio.AioRpcError):
            return error.code(), error.details() or ""
        if isinstance(error, asyncio.CancelledError):
            return grpc.StatusCode.CANCELLED, CANCELLED_DETAILS
        return grpc.StatusCode.INTERNAL, str(error)

    def __repr__(self) -> str:
        if self._inner is not None:
            return repr(self._inner)
        name = type(self).__name__
        if self._error is None:
            return f"<{name} waiting for a backend: {self._balancer.pool!r}>"
        code, details = self._unsent_status()
        end = "was given up" if marked(self) is not None else "was not sent"
        return f'<{name} that {end}: {code}, "{details}">'


class UnaryUnaryCall(UnaryResponse, Call, grpc.aio.UnaryUnaryCall[Any, Any]): ...
