"""What handlers of all kinds have in common: when one may begin, and what it is told.

A wrapper keeps the handler's kind: a coroutine stays a coroutine and a function for
the thread pool stays one. Whatever can fail, coding messages included, fails inside
of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import grpc
import grpc.aio

from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusal_status import (
    EXPIRED,
    LATE,
    NO_PLACE,
    RefusalStatus,
)
from lbclient.server.overload.stream_turns import StreamTurns
from lbclient.server.quotas.cpu_timing import Steps, billed
from lbclient.server.report.reporter import Reporter
from lbclient.server.report.request_tally import Counts, RequestTally
from lbclient.server.requests.async_context import AsyncContext
from lbclient.server.requests.context import RequestContext
from lbclient.server.requests.messages import receiving, sending
from lbclient.server.requests.served_method import ServedMethod

# Of the time that a request has left, which it may have waited. What is begun is then
# answered within half of its deadline, with what it takes and what that is off by.
WAITS = 0.6

T = TypeVar("T")

if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
else:  # it takes no parameters at run time, when type hints are looked up
    Handler = grpc.RpcMethodHandler


def behavior_of(handler: Handler) -> Callable[..., Any]:
    """The user's function in the handler."""
    if handler.response_streaming:
        behavior = (
            handler.stream_stream if handler.request_streaming else handler.unary_stream
        )
    else:
        behavior = (
            handler.stream_unary if handler.request_streaming else handler.unary_unary
        )
    return behavior  # type: ignore[return-value]


def arity_of(handler: Handler) -> str:
    """As the client's side names it.

    >>> arity_of(grpc.unary_stream_rpc_method_handler(print))
    'unary_stream'
    """
    one, many = "unary", "stream"
    request = many if handler.request_streaming else one
    return f"{request}_{many if handler.response_streaming else one}"


class Serving(NamedTuple):
    """What all handlers of one server are served with; it makes each of them."""

    reporter: Reporter
    gate: Gate
    tally: RequestTally


class Wrapped:
    """A wrapped handler, with the attributes that grpcio reads of a handler."""

    # Of a single request `_received` does it, where a failure can be reported.
    request_deserializer: Callable[[bytes], Any] | None = None
    # `_sent` does it, before the request counts as served.
    response_serializer: Callable[[Any], bytes] | None = None
    begins_elsewhere = False  # than in its task, where it was looked up
    # Whether its messages are counted in the context where it was looked up.
    is_measured_apart: bool

    def __init__(self, serving: Serving, counts: Counts, handler: Handler) -> None:
        reporter, gate, tally = serving
        self.request_streaming = handler.request_streaming
        self.response_streaming = handler.response_streaming
        if self.request_streaming:
            self.request_deserializer = handler.request_deserializer
        # No methods that ask whether there is one: each is a frame for each message.
        deserializer = None if self.request_streaming else handler.request_deserializer
        self._received: Callable[[Any], Any] = deserializer or same
        self._sent: Callable[[Any], Any] = handler.response_serializer or same
        self.is_measured_apart = tally.measures and not self._measures_itself()
        if self.is_measured_apart:
            self._count_messages()
        self._behavior = behavior_of(handler)
        self._is_stream = self.request_streaming or self.response_streaming
        self._quickest = tally.quickest_of(counts)
        quickest = None if self._is_stream else self._quickest
        self._method = ServedMethod(reporter, gate, tally, counts, self._sent, quickest)
        self._clock = reporter.clock
        self._monitor = reporter.monitor
        self._gate = gate
        self._core = gate.core
        self._queue = gate.queue
        self._charging = gate.charging
        self._costs = gate.charging.costs
        self._tally = tally

    def _measures_itself(self) -> bool:
        """Whether it sets the sizes of a request's messages in the request's context,
        which is quicker than to count them where they are coded."""
        return False

    def _count_messages(self) -> None:
        if self.request_streaming:
            self.request_deserializer = receiving(self.request_deserializer)
        else:
            self._received = receiving(self._received)
        self._sent = sending(self._sent)

    def _timed(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Counts the coroutine's CPU time as a cost of the request, if it has one."""
        if self._costs is None or (cost := billed()) is None:
            return coroutine
        cost.method = self._method.cost
        return Steps(coroutine, cost, self._charging.nesting)

    def _turns(self) -> StreamTurns:
        """The turns of a stream. To be called in the stream's task."""
        return StreamTurns(self._queue, self._clock)

    def _too_late(self, call: RequestContext, now: float) -> RefusalStatus | None:
        """The status to refuse a request with that has too little time left, or None.

        A request that has lost much of its time in the queue counts as such.
        """
        left = call.inner.time_remaining()
        waited = self._core.waited(now - call.begun_at + self._queue.unseen(now), left)
        if left is None:
            return None
        if left <= 0.0:
            return EXPIRED
        has_waited = waited > WAITS * left and not self._core.delay.is_of_checks
        if has_waited or self._is_hopeless(call, left, now):
            return self._gate.too_late(has_waited)
        return None

    def _is_hopeless(self, call: RequestContext, left: float, now: float) -> bool:
        """Whether no request of this method was served in `left` seconds lately, and
        this one is not to try it."""
        if left > self._quickest.ample or self._method.quickest is None:
            return False
        self._tally.learn_served()
        quickest = self._quickest
        if quickest.tried_at == call.begun_at < now:
            return False  # it is the trial, and has waited for its turn since then
        return quickest.is_too_late(left, now) and not quickest.has_trial(now)

    def _enter(self, call: AsyncContext) -> Awaitable[None] | None:
        """What to await before the handler begins, or None; raises if it may not begin.

        Without a coroutine if there is nothing to wait for, as almost always.
        """
        if self._monitor.active > self._gate.most:
            return call.refuse(self._gate.full(), NO_PLACE)
        answer = self._too_late(call, call.begun_at)
        if answer is not None:
            return call.refuse(answer, LATE)
        if self._is_stream:
            answer = self._gate.refuses_stream()
            if answer is not None:
                return call.refuse(answer)
        turn = self._queue.enter(call.begun_at)
        if turn is None and not self._charging.asks_context:
            return None
        return self._wait(turn, call)

    async def _wait(self, turn: Awaitable[bool] | None, call: AsyncContext) -> None:
        if turn is not None:
            if not await turn:
                await call.refuse(self._gate.overtaken())
            answer = self._too_late(call, self._clock())
            if answer is not None:
                self._queue.refuse()
                await call.refuse(answer, LATE)
        charging = self._charging
        if charging.asks_context and (answer := charging.asks(call)) is not None:
            await call.refuse(answer)


def same(message: Any) -> Any:
    return message


def at_end_of_task(callback: Callable[[Any], None]) -> None:
    """Calls back when the current task, in which grpcio serves a request, has ended."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)
