"""grpc.aio's multicallables of one method, one a backend, made when first called."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import grpc

from lbclient.client.observers import ObservedCall, expecting, measuring
from lbclient.grpc_seam import active_calls, call_arguments, with_codecs

CLOSED = grpc.ChannelConnectivity.SHUTDOWN


class InnerMethod(NamedTuple):
    """Makes the calls of one method on one inner channel.

    `begin` takes a message, or an iterator, and a call's options by name.
    `siblings` are the calls that the channel ends when it closes. `direct` makes a
    direct call: the class, its arguments of the method, and the same for a call whose
    messages are measured. None: the call is made by `begin`, and wrapped. `arguments`
    are those of a streaming method whose calls are made by `own_streams`.
    """

    begin: Any
    siblings: Any
    direct: tuple[Any, tuple[Any, ...], tuple[Any, ...]] | None
    arguments: tuple[Any, ...] | None


class InnerMethods(dict[grpc.aio.Channel, InnerMethod]):
    """The `InnerMethod` of one method for each inner channel, made when it is first
    looked up.

    It is a dict because every call looks it up, and a dict's own lookup takes no frame.
    Owned by a stub's method, to which it has no reference: a cycle of the two would
    keep the channel until a garbage collection. `is_wrapped`: all its calls use the
    wrapper. `awaited` are direct calls that are over and measure their response.
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
        self._codecs = request_serializer, response_deserializer
        self._registered = registered
        self._decode, self.awaited = expecting(response_deserializer)

    def __missing__(self, channel: grpc.aio.Channel) -> InnerMethod:
        for known in [one for one in self if one.get_state() is CLOSED]:
            del self[known]
        method = self._method(channel, self._codecs)
        arguments = call_arguments(self._kind, method, channel)
        begin, direct = method, None
        if arguments is not None and self._kind == "unary_unary":
            direct = None if self.is_wrapped else self._direct(arguments)
            arguments = None
        elif arguments is not None:
            begin = self._own(arguments)
        siblings = active_calls(channel)
        made = self[channel] = InnerMethod(begin, siblings, direct, arguments)
        return made

    def measured(self, channel: grpc.aio.Channel, call: ObservedCall) -> Any:
        """What begins one attempt, which tells `call` its messages."""
        codecs = measuring(call, *self._codecs)
        arguments = self[channel].arguments
        if arguments is not None:
            return self._own(with_codecs(arguments, codecs))
        return self._method(channel, codecs)

    def _method(self, channel: grpc.aio.Channel, codecs: tuple[Any, Any]) -> Any:
        return getattr(channel, self._kind)(
            self._path,
            request_serializer=codecs[0],
            response_deserializer=codecs[1],
            _registered_method=self._registered,
        )

    # The next two import late: these modules need private names of grpcio, which were
    # checked by then.

    def _direct(
        self, arguments: tuple[Any, ...]
    ) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
        from lbclient.client.calls.direct import DirectCall

        return DirectCall, arguments, with_codecs(arguments, (None, self._decode))

    def _own(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        from lbclient.grpc_seam.own_streams import CLASSES, begin

        return partial(begin, CLASSES[self._kind], arguments)
