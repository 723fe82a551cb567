"""Where handlers are wrapped: in an interceptor outside of the user's, or without one.

Only from outside of the user's interceptors are their refusals seen. But any
interceptor costs 5 % of a small call, so where the user has none there is none:
handlers are then wrapped where grpcio looks them up.
"""

from asyncio import current_task
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient import grpc_seam
from lbclient.core.model import Verdict
from lbclient.core.report.load_monitor import LoadMonitor
from lbclient.server.requests.handler import Handler
from lbclient.server.requests.uncounted import UNCOUNTED, Uncounted
from lbclient.server.requests.wrapping import Wrapper
from lbclient.wire import propagation

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]]
Lookup = Callable[[grpc.HandlerCallDetails], "Handler | None"]


class WrappedLookup(grpc.GenericRpcHandler):
    """Finds what the user's generic handler finds, wrapped."""

    def __init__(
        self,
        wrapper: Wrapper,
        uncounted: Uncounted,
        generic: grpc.GenericRpcHandler,
    ) -> None:
        self._wrapper = wrapper
        self._uncounted = uncounted
        self._service = generic.service
        self._refuses = wrapper.refuses
        self._request_name = wrapper.request_name
        self._is_dictionary = grpc_seam.is_dictionary(generic)
        # Wrapped, by method; only of a dictionary.
        self._found: dict[str, Any] = wrapper.tally.kept_handlers()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method, service = handler_call_details.method, self._service
        found = self._found.get(method)
        if found is not None:
            refuses = self._refuses
            answer = refuses(handler_call_details.invocation_metadata or ())
            if answer is None:
                # `_name_task`, without its frame: this is the hot path.
                current_task().set_name(self._request_name)  # type: ignore[union-attr]
                return found
            return self._wrapper.refused(answer, method, service(handler_call_details))
        try:
            handler = service(handler_call_details)
        except BaseException as error:
            self._wrapper.let_by()
            return self._wrapper.wrap(_raising(error))
        if handler is None:
            return None
        return self._wrapped(handler, handler_call_details)

    def _wrapped(
        self, handler: Handler, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        wrapper, method = self._wrapper, handler_call_details.method
        if method in UNCOUNTED:
            wrapper.let_by()
            return self._uncounted.wrap(handler)
        limited = wrapper.limited(method, handler)
        metadata = handler_call_details.invocation_metadata or ()
        answer = wrapper.refuses(metadata, limited)
        if answer is not None:
            return wrapper.refused(answer, method, handler)
        _name_task(wrapper.request_name)
        wrapped = wrapper.wrap_found(method, handler)
        is_asked = wrapped.begins_elsewhere or wrapped.is_measured_apart
        if self._is_dictionary and not is_asked and limited is None:
            self._found[method] = wrapped
        return wrapped


class UnknownMethods(grpc.GenericRpcHandler):
    """Refuses requests for unknown methods, as grpcio does, with a load report. Asked
    after all other handlers; `later` are those that came once the server had started.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self._let_by = wrapper.let_by
        self._unknown_method = wrapper.wrap(UNKNOWN_METHOD)
        self.later: list[grpc.GenericRpcHandler] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        for handler in self.later:
            if (found := handler.service(handler_call_details)) is not None:
                return found
        self._let_by()
        return self._unknown_method


class Interceptor(grpc.aio.ServerInterceptor):
    def __init__(
        self,
        wrapper: Wrapper,
        uncounted: Uncounted,
        monitor: LoadMonitor,
        find_passing: Lookup,
    ) -> None:
        """`find_passing` finds what the user's interceptors are not asked about."""
        self._wrapper = wrapper
        self._uncounted = uncounted
        self._monitor = monitor
        self._find_passing = find_passing
        self._unknown_method = wrapper.wrap(UNKNOWN_METHOD)

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        wrapper, method = self._wrapper, handler_call_details.method
        if method in UNCOUNTED:
            wrapper.let_by()
            try:
                handler = self._find_passing(handler_call_details)
                if handler is None:
                    handler = await continuation(handler_call_details)
            except BaseException as error:
                handler = _raising(error)
            return handler and self._uncounted.wrap(handler)
        metadata = handler_call_details.invocation_metadata or ()
        answer = wrapper.refuses(metadata, wrapper.limited(method))
        if answer is not None:
            return wrapper.refused(answer, method)
        _name_task(wrapper.request_name)
        # Among the active while the user's interceptors have it; then it begins.
        self._monitor.active += 1
        propagation.enter(wrapper.contextless())
        try:
            handler = await continuation(handler_call_details)
        except BaseException as error:
            # Also a CancelledError: an attempt to answer finds out whether the client
            # has gone, or the interceptor had cancelled its own task.
            return wrapper.wrap(_raising(error))
        finally:
            self._monitor.finish(Verdict.ABANDONED)
        if handler is None:
            return self._unknown_method
        return wrapper.wrap_found(method, handler)


def _name_task(name: str) -> None:
    """By this name a drain finds the requests that are not over.

    grpcio looks for the handler in the task in which it then receives the request, runs
    the handler, and sends the response.
    """
    task = current_task()
    assert task is not None
    task.set_name(name)


async def _unknown_method(_requests: Any, context: Any) -> None:
    await context.abort(StatusCode.UNIMPLEMENTED, "Method not found!")


# It need not know the method's arity: the end of a call looks the same for all four,
# and with a stream of requests it comes without waiting for any.
UNKNOWN_METHOD: Handler = grpc.stream_stream_rpc_method_handler(_unknown_method)


def _raising(error: BaseException) -> Handler:
    async def respond(_requests: Any, _context: Any) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(respond)
