"""Requests of a synchronous server: admitted, counted, and answered with a report.

`grpc.server` looks up every handler in one thread, where a request is admitted and
begins. The handler runs in a thread of the pool. A request ends when grpcio has sent
its status, or drops it: a request whose client leaves while it waits for a thread gets
none. What several threads count, they count under one lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, update_wrapper
from threading import Lock
from typing import Any, Literal, Never

import grpc
from grpc import StatusCode

from lbclient.core.counting.call_counts import OTHERS
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusal_status import NO_PLACE, RefusalStatus
from lbclient.server.report.reporter import Trailers
from lbclient.server.report.request_tally import Counts
from lbclient.server.requests import messages
from lbclient.server.requests.handler import (
    Handler,
    Serving,
    arity_of,
    behavior_of,
    same,
)
from lbclient.server.requests.lookup import Lookup
from lbclient.server.requests.served_method import MOST_METHODS, ServedMethod
from lbclient.server.requests.thread_context import ThreadContext
from lbclient.server.requests.thread_handlers import SyncResponse, SyncResponses
from lbclient.server.requests.uncounted import UNCOUNTED
from lbclient.server.sync.loop_thread import LoopThread

NO_DEADLINE = 1e9  # seconds; grpcio says some centuries where there is none
THREADS = ("experimental_thread_pool", "experimental_non_blocking")  # of a behavior


class Counting:
    """The lock within which requests are counted, also by the sampler.

    Whoever enters ends the requests that grpcio has dropped without a thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._dropped: deque[SyncContext] = deque()

    def drop(self, call: "SyncContext") -> None:
        """Notes a request that grpcio dropped. A garbage collection may call it within
        the lock."""
        self._dropped.append(call)

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            while self._dropped:
                self._dropped.popleft().end()
        except BaseException:
            self._lock.release()  # nobody calls __exit__
            raise

    def __exit__(self, *_: object) -> Literal[False]:
        self._lock.release()
        return False

    def __repr__(self) -> str:
        return f"<{len(self._dropped)} dropped>"


class SyncRequests(grpc.ServerInterceptor):
    """Admits and counts requests of a synchronous server, as its outermost interceptor.
    Owned by the server.

    `find_passing` finds the handlers that bypass the user's interceptors.
    """

    def __init__(
        self,
        serving: Serving,
        counting: Counting,
        loop: LoopThread,
        find_passing: Lookup,
    ) -> None:
        self._serving = serving
        self._gate: Gate = serving.gate
        self._counting = counting
        self._loop = loop
        self._find_passing = find_passing
        self._tally = serving.tally
        self._monitor = serving.reporter.monitor
        self._methods: dict[str, tuple[Handler, _Response | _Responses]]
        self._methods = self._tally.kept_handlers()
        # These do not wait for one of the threads for which requests wait.
        self._refusing = ThreadPoolExecutor(1, "lbclient refusals")
        behavior = partial(_unknown_method)
        setattr(behavior, THREADS[0], self._refusing)
        # As in asyncio's servers, of whatever arity.
        self._unknown: Handler = grpc.stream_stream_rpc_method_handler(behavior)
        counts = self._counts("", None)
        self._unknown_method = _Responses(serving, counts, self._unknown)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        path = handler_call_details.method
        if path in UNCOUNTED:
            with self._counting:
                self._gate.let_by()
            passing = self._find_passing(handler_call_details)
            return passing or continuation(handler_call_details)
        answer = self._refuses(handler_call_details.invocation_metadata or ())
        if answer is not None:
            return self._refused(answer, path)
        handler = continuation(handler_call_details)
        method: _Response | _Responses
        if handler is None:
            handler, method = self._unknown, self._unknown_method
        elif getattr(behavior_of(handler), THREADS[1], False):
            return handler  # it keeps a callback, and has no end that could be counted
        else:
            method = self._method(path, handler)
        sizes = messages.begin() if self._tally.measures else None
        call = self._begin(method)
        if isinstance(call, RefusalStatus):
            return self._refused(call, path)
        respond = (
            method.respond_each if isinstance(method, _Responses) else method.respond
        )
        return _Request(handler, respond, call, sizes)

    def _refuses(self, metadata: Iterable[Any]) -> RefusalStatus | None:
        gate = self._gate
        if self._monitor.active >= gate.most:
            gate.look_closely()  # else a customer would be charged before it is refused
        if gate.charging.costs is None:
            with self._counting:
                return gate.refuses(metadata)
        # Accounts of customers belong to the loop, which may be sharing them out.
        context = copy_context()
        run: Callable[..., RefusalStatus | None] = context.run
        answer = self._loop.call(run, gate.refuses, metadata)
        for variable, value in context.items():
            variable.set(value)
        return answer

    def _begin(self, method: "_Response | _Responses") -> "SyncContext | RefusalStatus":
        gate = self._gate
        with self._counting:
            gate.make_way()
            # Others may have begun since `refuses` decided.
            if self._monitor.active >= gate.most:
                gate.count(NO_PLACE)
                return gate.full()
            return SyncContext(method.served, self._counting)

    def _method(self, path: str, handler: Handler) -> "_Response | _Responses":
        kept = self._methods.get(path)
        if kept is not None and kept[0] is handler:
            return kept[1]
        if len(self._methods) >= MOST_METHODS:
            self._methods.clear()
        kind = _Responses if handler.response_streaming else _Response
        method = kind(self._serving, self._counts(path, handler), handler)
        self._methods[path] = handler, method
        return method

    def _counts(self, path: str, handler: Handler | None) -> Counts:
        counts = self._serving.tally.call_counts
        if handler is None:
            return counts.of(*OTHERS)
        return counts.of(arity_of(handler), path)

    def _refused(self, answer: RefusalStatus, path: str) -> Any:
        known = self._methods.get(path)
        counts = self._counts(path, None if known is None else known[0])
        if answer.is_counted:
            with self._counting:
                self._serving.tally.refuse(answer.code, counts, answer.is_error)
        refuse = partial(_refuse, answer, self._serving.reporter.trailers)
        setattr(refuse, THREADS[0], self._refusing)
        # Of whatever arity: it reads no request.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def stop(self) -> None:
        self._refusing.shutdown(wait=False)


def _unknown_method(_requests: Any, context: grpc.ServicerContext) -> Never:
    context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")  # as grpcio says it
    raise AssertionError  # `abort` raises


def _refuse(
    answer: RefusalStatus,
    report: Callable[[], Trailers],
    _requests: Any,
    context: grpc.ServicerContext,
) -> Iterator[Any]:
    context.set_code(answer.code)
    context.set_details(answer.details)
    context.set_trailing_metadata(answer.trailers + report())
    return iter(())


class _Request:
    """Stands for one request's handler, as far as grpcio reads it."""

    def __init__(
        self,
        handler: Handler,
        respond: Callable[..., Any],
        call: "SyncContext",
        sizes: messages.MessageSizes | None,
    ) -> None:
        self.request_streaming = handler.request_streaming
        self.response_streaming = handler.response_streaming
        self.request_deserializer = handler.request_deserializer
        encode: Callable[[Any], bytes] = partial(
            _serialize, handler.response_serializer
        )
        if sizes is not None:
            decode = self.request_deserializer
            self.request_deserializer = messages.receiving(decode, sizes)
            encode = messages.sending(encode, sizes)
        self.response_serializer = encode
        waiting = _Waiting(call)

        # A function of its own, which grpcio drops when the request is over. By its
        # name New Relic tells methods apart.
        def behavior(request: Any, inner: Any) -> Any:
            return respond(waiting, request, inner)

        update_wrapper(behavior, _named(behavior_of(handler)), updated=())
        pool = getattr(behavior_of(handler), THREADS[0], None)
        if pool is not None:
            setattr(behavior, THREADS[0], pool)
        setattr(self, arity_of(handler), behavior)


def _serialize(serializer: Callable[[Any], bytes] | None, message: Any) -> bytes:
    """A response; raises where grpcio would take what it cannot send, and send nothing.

    It ends the request with INTERNAL for what a serializer raises.
    """
    data = message if serializer is None else serializer(message)
    if data is None or isinstance(data, bytes):
        return data  # type: ignore[return-value]  # None says that it has failed
    raise TypeError(f"a response is sent as bytes, not {type(data).__name__}")


def _named(behavior: Any) -> Any:
    return behavior.func if isinstance(behavior, partial) else behavior


class _Waiting:
    """A request until it has a thread, which it may never get."""

    def __init__(self, call: "SyncContext") -> None:
        self._call = call

    def enter(self, inner: Any) -> "SyncContext":
        self._call.enter(inner)
        return self._call

    def __del__(self) -> None:
        if not self._call.has_thread:
            self._call.counting.drop(self._call)


class _Response(SyncResponse):
    def __init__(self, serving: Serving, counts: Counts, handler: Handler) -> None:
        super().__init__(serving, counts, handler)
        self._received = self._sent = same  # grpcio codes messages itself

    @property
    def served(self) -> ServedMethod:
        return self._method

    def respond(self, waiting: _Waiting, request: Any, inner: Any) -> Any:
        return self._respond(waiting.enter(inner), request)


class _Responses(SyncResponses):
    def __init__(self, serving: Serving, counts: Counts, handler: Handler) -> None:
        super().__init__(serving, counts, handler)
        self._received = self._sent = same

    @property
    def served(self) -> ServedMethod:
        return self._method

    def respond_each(
        self, waiting: _Waiting, request: Any, inner: Any
    ) -> Iterator[Any]:
        return self._responses(waiting.enter(inner), request)


class _Inner:
    """grpcio's context, with a deadline as grpc.aio tells it: None if there is none."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    def time_remaining(self) -> float | None:
        left = self._context.time_remaining()
        return None if left is None or left > NO_DEADLINE else left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class SyncContext(ThreadContext):
    """The `ServicerContext` that handlers of a synchronous server get.

    Attributes that it lacks are grpcio's, for interceptors that reach into it.
    """

    __slots__ = ("counting", "has_thread")
    ending_process = ()  # a pool's threads keep what is raised there

    def __init__(self, method: ServedMethod, counting: Counting) -> None:
        super().__init__(method, None)
        self.counting = counting
        self.has_thread = False

    def enter(self, inner: Any) -> None:
        self.has_thread = True
        super().enter(_Inner(inner))
        if not inner.add_callback(self.ended):
            self.ended()  # its client has left

    def time_remaining(self) -> float | None:
        left: float | None = self.inner._context.time_remaining()
        return left

    def _abort(self, code: StatusCode, details: str, trailers: Trailers) -> Never:
        self.inner.set_trailing_metadata(trailers)
        self.inner.abort(code, details)
        raise AssertionError  # `abort` raises

    def ended(self, _task: object = None) -> None:
        with self.counting:
            self.end()

    def end(self) -> None:
        """`ended`, within the lock."""
        super().ended()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
