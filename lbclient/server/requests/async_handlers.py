"""Handlers that are coroutines or async generators: the hot path of a server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import update_wrapper
from math import inf
from types import FrameType
from typing import Any

from lbclient import grpc_seam
from lbclient.server.overload.run_queue import TUNING as RUN_QUEUE
from lbclient.server.quotas.cpu_timing import begun, billed
from lbclient.server.report.request_tally import Counts
from lbclient.server.requests.async_context import AsyncContext
from lbclient.server.requests.handler import (
    Handler,
    Serving,
    Wrapped,
    at_end_of_task,
)
from lbclient.wire import propagation


class AsyncResponse(Wrapped):
    def __init__(self, serving: Serving, counts: Counts, handler: Handler) -> None:
        super().__init__(serving, counts, handler)
        self.unary_unary = self.stream_unary = self._responder()

    def _measures_itself(self) -> bool:
        return not self.request_streaming

    def _responder(self) -> Callable[[Any, Any], Awaitable[Any]]:
        """What almost all requests are served by: the hot path of a server.

        A function that has what it needs in its own variables.
        """
        method, queue, quickest = self._method, self._queue, self._quickest
        behavior, received, sent = self._behavior, self._received, self._sent
        if self.request_streaming:
            behavior = self._in_turns
        enter, costs, charging = self._enter, self._costs, self._charging
        total = method.cost
        measures = method.measures and self._measures_itself()
        # Whether all have to ask, and not only those that may come too late, or come
        # while handlers have the loop for long.
        asks = self._gate.most < inf or self._charging.asks_context or self._is_stream

        async def respond(request: Any, context: Any) -> Any:
            call = AsyncContext(method, context)
            propagation.enter(call)
            left = context.time_remaining()
            if measures:
                call.sizes = len(request), 0
            try:
                if (
                    asks
                    or call.begun_at >= queue.clear_until
                    or (left is not None and left <= quickest.ample)
                ) and (entering := enter(call)) is not None:
                    await entering
                if costs is None or (cost := billed()) is None:
                    response = await behavior(received(request), call)
                    if call.said is None or call.is_ok():  # else grpcio drops it
                        response = sent(response)
                        if measures:
                            call.sizes = len(request), len(response)
                else:
                    cost.method = total
                    steps = begun(work(request, call), cost, charging.nesting)
                    if steps is not None:
                        await steps
                    response, call.response = call.response, None
            except BaseException as error:
                await call.failed(error)
                raise
            call.served()
            return response

        work = self._work_of(behavior)
        return update_wrapper(grpc_seam.KnownCoroutine(respond), respond)

    def _work_of(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """Makes what a timed handler does: it leaves its response in the call."""
        received, sent = self._received, self._sent

        async def work(request: Any, call: AsyncContext) -> None:
            response = await behavior(received(request), call)
            if call.said is None or call.is_ok():
                response = sent(response)
                if call.sizes is not None:
                    call.sizes = call.sizes[0], len(response)
            call.response = response

        return work

    def _in_turns(self, requests: Any, call: AsyncContext) -> Awaitable[Any]:
        return self._turns().run(self._behavior(requests, call))


class AsyncWriter(Wrapped):
    """A coroutine that writes its responses to the context."""

    async def respond(self, request: Any, context: Any) -> None:
        call = AsyncContext(self._method, context)
        propagation.enter(call)
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            await self._turns().run(self._timed(self._work(request, call)))
        except BaseException as error:
            await call.failed(error)
            raise
        call.served()

    async def _work(self, request: Any, call: AsyncContext) -> None:
        await self._behavior(self._received(request), call)

    unary_stream = stream_stream = respond


class AsyncResponses(Wrapped):
    async def respond(self, request: Any, context: Any) -> AsyncIterator[Any]:
        call = AsyncContext(self._method, context)
        propagation.enter(call)
        at_end_of_task(call.ended)  # which may come while a response is being sent
        call.preset()
        try:
            if (entering := self._enter(call)) is not None:
                await entering
            responses = self._behavior(self._received(request), call)
            is_paid = billed() is not None
            steps: Any = self._timed_each(responses) if is_paid else responses
            run, following = self._turns().run, steps.__anext__
            # What takes less than that cannot have had the loop for long: most answers
            # of most streams, where to look at each step would show.
            clock, may_be_long = self._clock, False
            async with aclosing(responses), aclosing(steps):
                while True:
                    began_at = clock()
                    try:
                        step = following()
                        response = await (run(step) if may_be_long else step)
                    except StopAsyncIteration:
                        break
                    may_be_long = clock() - began_at >= RUN_QUEUE.long
                    message = self._sent(response)
                    try:
                        yield message
                    except GeneratorExit:  # grpcio wants no more, and tells nobody
                        call.ended()
                        return
        except BaseException as error:
            await call.failed(error)
            raise
        call.served()

    async def _timed_each(self, responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
        over = object()

        async def following() -> Any:
            return await anext(responses, over)

        while (response := await self._timed(following())) is not over:
            yield response

    unary_stream = stream_stream = respond


def served_method_in(frame: FrameType) -> str:
    """The path of the method that a stack is in, or an empty text."""
    seen: FrameType | None = frame
    while seen is not None:
        if seen.f_code.co_filename == __file__:
            call = seen.f_locals.get("call")
            return call.path() if isinstance(call, AsyncContext) else ""
        seen = seen.f_back
    return ""
