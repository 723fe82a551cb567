"""grpc.aio's multicallables of one method, one a backend, made when first called."""

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from lbclient.client.observers import ObservedCall, expecting, measuring
from lbclient.grpc_seam import active_calls, call_arguments, with_codecs

CLOSED = grpc.ChannelConnectivity.SHUTDOWN


class InnerMethod(NamedTuple):
    """What a call on one channel is made by.

    `siblings` are the calls that the channel ends when it closes. `direct` is for a
    direct call: its class, and what grpc.aio's call takes of `method`, also for a call
    that is measured. None: the call is made by `method`, and wrapped.
    """

    method: Any
    siblings: Any
    direct: tuple[Any, tuple[Any, ...], tuple[Any, ...]] | None


class InnerMethods(dict[grpc.aio.Channel, InnerMethod]):
    """Makes calls of one method, by the channel that they go over. An entry is made
    when it is first looked up.

    A dict, as the lookup is on the way of every call and then takes no frame. Owned by
    a stub's method, which it does not know: a circle of the two would keep the channel
    until a garbage collection. `is_wrapped`: its calls always use
    the wrapper. `awaited` are direct calls that are over and measure their response.
    """

    is_wrapped = False

    def __init__(
        self,
        kind: str,
        path: str,
        request_serializer: Callable[[Any], bytes] | None,
        response_deserializer: Callable[[bytes], Any] | None,
        registered: bool,
    ) -> None:
        super().__init__()
        self._kind = kind
        self._path = path
        self._request_serializer = request_serializer
        self._response_deserializer = response_deserializer
        self._registered = registered
        self._decode, self.awaited = expecting(response_deserializer)

    def __missing__(self, channel: grpc.aio.Channel) -> InnerMethod:
        method = self._made(
            channel, self._request_serializer, self._response_deserializer
        )
        for known in [one for one in self if one.get_state() is CLOSED]:
            del self[known]
        made = InnerMethod(method, active_calls(channel), self._direct(method, channel))
        self[channel] = made
        return made

    def measured(self, channel: grpc.aio.Channel, call: ObservedCall) -> Any:
        """grpc.aio's multicallable for one attempt, which tells `call` its messages."""
        codecs = self._request_serializer, self._response_deserializer
        return self._made(channel, *measuring(call, *codecs))

    def _made(
        self, channel: grpc.aio.Channel, serializer: Any, deserializer: Any
    ) -> Any:
        return getattr(channel, self._kind)(
            self._path,
            request_serializer=serializer,
            response_deserializer=deserializer,
            _registered_method=self._registered,
        )

    def _direct(
        self, method: Any, channel: grpc.aio.Channel
    ) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]] | None:
        if self._kind != "unary_unary" or self.is_wrapped:
            return None
        arguments = call_arguments(method, channel)
        if arguments is None:
            return None
        # Not at the top: it wants names of grpcio's that are known to be there now.
        from lbclient.client.calls.direct import DirectCall

        return DirectCall, arguments, with_codecs(arguments, (None, self._decode))
