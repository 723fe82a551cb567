"""The context of a handler on the loop: a coroutine or an async generator."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Never

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient.background.tasks import cancellations
from lbclient.server.overload.refusal_status import RefusalStatus
from lbclient.server.requests import raised
from lbclient.server.requests.context import (
    RequestContext,
    not_ok,
    stands_for,
)
from lbclient.wire import propagation

_OK = StatusCode.OK


class AsyncContext(RequestContext):
    """What a coroutine or an async generator is given."""

    __slots__ = ()

    @property
    def is_strained(self) -> bool:
        gate = self._method.gate
        return gate.is_strained

    def time_remaining(self) -> float | None:
        return self.inner.time_remaining()  # type: ignore[no-any-return]

    def read(self) -> Coroutine[Any, Any, Any]:
        return self.inner.read()  # type: ignore[no-any-return]

    def write(self, message: Any) -> Coroutine[Any, Any, None]:
        serialize: Any = self._method.serialize
        return self.inner.write(serialize(message))  # type: ignore[no-any-return]

    async def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        code = not_ok(code)
        trailers = self._aborting(code, trailing_metadata)
        await self.inner.abort(code, raised.encodable(details), trailers)
        raise AssertionError("grpcio's abort returned")

    async def abort_with_status(self, status: grpc.Status) -> Never:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def failed(self, error: BaseException) -> None:
        """Ends the request after its handler raised `error`.

        grpcio tells the client if it can, else the context does. Raises what grpcio is
        to see instead.
        """
        if (refusal := self._refused_below(error)) is not None:
            await self.abort(*refusal)
        if self._finished or raised.is_told(error):
            self._raised()
        elif isinstance(error, asyncio.CancelledError):
            await self._cancelled(error)
        elif isinstance(error, GeneratorExit) and propagation.current() is not self:
            self.ended()  # it is not raised, but ends what nobody runs any more
        else:
            await self._tell(error, self._code_of_error(), raised.told(error))

    async def _cancelled(self, error: BaseException) -> None:
        """Ends a request whose handler raised CancelledError.

        grpcio cancels the task if the client has gone. If nobody has cancelled the
        task, the error is from a call or a task that the handler awaited, and the
        client gets it like any other error. Others than grpcio can cancel the task,
        too; so this tries to tell the client, which shows whether the client is still
        there.
        """
        if not cancellations():
            words = f"Unexpected {type(error)}: {raised.CANCELLED}"
            await self._tell(error, self._code_of_error(), words)
        elif self._interrupted() is StatusCode.CANCELLED:
            await self._tell(error, StatusCode.CANCELLED, raised.TASK_CANCELLED)
        else:
            self.ended()

    async def _tell(self, error: BaseException, code: StatusCode, words: str) -> None:
        self._pass_on_refusal(code)
        try:
            await self.inner.abort(code, words, self._merged(self._trailers))
        except grpc.aio.AbortError:
            self._finish(lambda: code)
            raised.log_failure(error)
            if not isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        except grpc.aio.BaseError:
            self.ended()  # its client has gone
        except asyncio.CancelledError:
            self.ended()  # it has gone meanwhile
            raise

    async def refuse(self, answer: RefusalStatus, reason: str = "") -> Never:
        """Aborts with a refusal, and counts it if a `reason` is given."""
        if reason:
            gate = self._method.gate
            gate.count(reason, is_for_load=answer.is_for_load)
        await self.inner.abort(answer.code, answer.details, self._refusing(answer))
        raise AssertionError("grpcio's abort returned")

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.inner.add_done_callback(lambda _: callback(self))


stands_for(grpc.aio.ServicerContext, AsyncContext)
