"""The callables that stubs use, one for each method: they begin first attempts.

A unary-unary call on a ready backend costs no task and no wrapper; every other case
is `calls`' business.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc

from lbclient.client.balancer import Balancer
from lbclient.client.calls import call_throttling, streams, wrapped
from lbclient.client.calls.attempt import new_attempt
from lbclient.client.calls.attempts import Attempts, Next
from lbclient.client.calls.inner_methods import InnerMethods
from lbclient.client.calls.request_stream import Requests
from lbclient.client.observers import ObservedCall
from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import DEFAULT, Criticality, current, parse
from lbclient.core.quotas.customer import current as customer_served
from lbclient.core.quotas.customer import payer
from lbclient.core.resumable import OnMove
from lbclient.core.resumable import current as current_on_move
from lbclient.core.retries.hedging import Hedging
from lbclient.core.text import brief
from lbclient.grpc_seam import flaw_of, intercepted, read_once, with_compression
from lbclient.wire import CRITICALITY_KEY, CUSTOMER_KEY, propagation
from lbclient.wire.local_errors import Throttled


def _no_timeout(timeout: object) -> TypeError:
    """A TypeError as grpcio's, which names two types of its own reckoning."""
    return TypeError(f"timeout = {brief(timeout)}: want seconds, a number or None")


def _with_context(metadata: Any, balancer: Balancer) -> tuple[Any, Criticality]:
    """Metadata with a criticality and a customer, and the former.

    Of both what the call's own metadata say, else its context, else the channel. Of
    several in the metadata the last, which servers of ours go by, and whoever reads
    metadata into a dict. A criticality that somebody said is sent even if it is the
    default: a channel further down may have another one, as that of `lbclient proxy`
    has.
    """
    own = customer = None
    for key, value in metadata or ():
        if key == CRITICALITY_KEY:
            own = value
        elif key == CUSTOMER_KEY:
            customer = value
    if customer is None:
        customer, inherits = (
            balancer.config.customer,
            balancer.config.propagate_customer,
        )
        if customer_served() is not None:  # seldom, and asking this takes no frame
            customer = payer(customer, inherits)
        if customer is not None:
            metadata = grpc.aio.Metadata(*metadata or (), (CUSTOMER_KEY, customer))
    if own is not None:
        return metadata, parse(own)[0]
    level = current()
    if level is None:
        level = balancer.criticality
        if level is None:
            return metadata, DEFAULT
    pairs = metadata or ()
    return grpc.aio.Metadata(*pairs, (CRITICALITY_KEY, level.name)), level


def _kept(metadata: Any) -> Any:
    """Metadata for attempts to come: their caller may change its own meanwhile."""
    return None if metadata is None else tuple(metadata)


class StubMethod:
    """One method of one stub, on whichever backend.

    `get_balancer` is bound to the channel, which thereby lives as long as the stub.
    `serializes_itself`: requests reach grpc.aio as bytes. `is_hedgeable`: a hedge can
    send its request, as it is one message.
    """

    kind: str
    wrapper: Callable[..., wrapped.Call]
    serializes_itself = True
    is_hedgeable = True
    is_stream = True  # of requests or responses
    may_be_declined = False  # by the backend of a first attempt, if the channel lets it

    def __init__(
        self,
        get_balancer: Callable[[], Balancer],
        path: str,
        request_serializer: Callable[[Any], bytes] | None,
        response_deserializer: Callable[[bytes], Any] | None,
        registered: bool,
        interceptors: Sequence[Any],
    ) -> None:
        self._get_balancer = get_balancer
        self.path = path
        self.key = self.kind, path
        self._request_serializer = request_serializer
        self._response_deserializer = response_deserializer
        self._registered = registered
        self._interceptors = interceptors
        self._counts: dict[int, int] | None = None
        inner_serializer = None if self.serializes_itself else request_serializer
        self.inner_methods = InnerMethods(
            self.kind, path, inner_serializer, response_deserializer, registered
        )

    def counts(self, balancer: Balancer) -> dict[int, int]:
        """Counts of the method's ended calls, those of other stubs of the channel
        included."""
        if self._counts is None:
            self._counts = balancer.counters.by_method.of(self.kind, self.path)
            if balancer.hedging is not None and self.is_hedgeable:
                self._hedge(balancer.hedging)
        return self._counts

    def _hedge(self, hedging: Hedging) -> None:
        """Has its calls hedged from now on, if they may be."""
        method = hedging.find(self.path)
        if method is None:
            return
        from lbclient.client.calls.hedged import HedgedCall, HedgedStreamCall

        is_unary = self.kind == "unary_unary"
        self.wrapper = partial(HedgedCall if is_unary else HedgedStreamCall, method)
        self.may_be_declined = False
        self.inner_methods.is_wrapped = True

    def measured_on(self, channel: grpc.aio.Channel, call: ObservedCall) -> Any:
        return self.inner_methods.measured(channel, call)

    def prepared(self, request: Any) -> Any:
        """What of `request` an attempt begins with; raises for what cannot be sent."""
        raise NotImplementedError

    def _call(
        self,
        balancer: Balancer,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        try:
            if balancer.config.propagate_deadline:
                timeout = propagation.limited(timeout)
            is_over = timeout is not None and timeout <= 0.0
        except TypeError:
            raise _no_timeout(timeout) from None
        message = error = None
        if metadata is not None:
            metadata = read_once(metadata)
            error = flaw_of(metadata)
        try:
            message = self.prepared(request)
        except Exception as reason:
            error = reason
        if error is not None:
            return self._failed(balancer, error)
        metadata, level = _with_context(metadata, balancer)
        if balancer.throttling.is_active and not is_over:
            now = balancer.clock()
            refusal = call_throttling.refusal(balancer.throttling, level, now, metadata)
            if refusal is not None:
                return self._throttled(balancer, refusal)
        hints = None
        if balancer.call_keys is not None:
            one = request if self.is_hedgeable else None  # else it is an iterator
            hints = balancer.call_keys.hints(self.path, one, metadata, level)
        on_move = current_on_move() if self.is_stream else None
        if on_move is not None:
            hints = hints or CallHints(self.path, criticality=level)
            hints = hints._replace(is_resumable=True)
        options = {
            "metadata": _kept(metadata),
            "credentials": credentials,
            "compression": compression,
        }
        return self._wrapped(
            balancer, message, level, timeout, hints, options, wait_for_ready, on_move
        )

    def _failed(self, balancer: Balancer, error: Exception) -> Any:
        """A call that is over from the start."""
        return self.wrapper(
            Attempts(balancer, self, None, DEFAULT, {}), None, None, error
        )

    def _throttled(self, balancer: Balancer, refusal: Throttled) -> Any:
        observed = self._observed(balancer, balancer.clock())
        balancer.call_ends.refuse(refusal, self.counts(balancer), False, observed)
        return self._failed(balancer, refusal)

    def _observed(self, balancer: Balancer, now: float) -> ObservedCall | None:
        observer = balancer.observers.current
        return None if observer is None else observer.begin(self.key, now)

    def _wrapped(
        self,
        balancer: Balancer,
        message: Any,
        criticality: Criticality,
        timeout: float | None,
        hints: CallHints | None,
        options: dict[str, Any],
        wait_for_ready: bool | None,
        on_move: OnMove | None = None,
        then: Next | None = None,
    ) -> Any:
        observed = None
        if balancer.observers.current is not None:
            now = balancer.clock() if then is None else then.at
            observed = self._observed(balancer, now)
        attempts = Attempts(
            balancer,
            self,
            message,
            criticality,
            options,
            None,
            observed,
            hints,
            on_move,
        )
        return self.wrapper(attempts, timeout, wait_for_ready, None, then)

    def _call_intercepted(
        self,
        balancer: Balancer,
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        metadata = with_compression(metadata, compression)
        details = (timeout, metadata, credentials, wait_for_ready)
        return intercepted(
            self.kind,
            self._interceptors,
            request,
            details,
            self.path,
            self._send,
            balancer.loop,
        )

    def _send(self, request: Any, details: Any) -> Any:
        """The end of the interceptors' chain; they may have changed everything."""
        path = details.method
        path = path.decode() if isinstance(path, bytes) else path
        method = self if path == self.path else self._renamed(path)
        return method._call(
            self._get_balancer(),  # the channel may be closed by now
            request,
            details.timeout,
            details.metadata,
            details.credentials,
            details.wait_for_ready,
            None,  # the compression is in the metadata by now
        )

    def _renamed(self, path: str) -> "StubMethod":
        return type(self)(
            self._get_balancer,
            path,
            self._request_serializer,
            self._response_deserializer,
            self._registered,
            (),
        )


class _UnaryRequest(StubMethod):
    def prepared(self, request: Any) -> bytes:
        serializer = self._request_serializer
        message = request if serializer is None else serializer(request)
        if not isinstance(message, bytes):
            raise TypeError(f"a request is sent as bytes, not {type(message).__name__}")
        return message

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        call = self._call_intercepted if self._interceptors else self._call
        return call(
            self._get_balancer(),
            request,
            timeout,
            metadata,
            credentials,
            wait_for_ready,
            compression,
        )


class _StreamRequest(StubMethod):
    serializes_itself = False
    is_hedgeable = False

    def prepared(self, request: Any) -> Requests | None:
        return None if request is None else Requests(request)

    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        call = self._call_intercepted if self._interceptors else self._call
        return call(
            self._get_balancer(),
            request_iterator,
            timeout,
            metadata,
            credentials,
            wait_for_ready,
            compression,
        )


class UnaryUnary(_UnaryRequest, grpc.aio.UnaryUnaryMultiCallable[Any, Any]):
    kind = "unary_unary"
    is_stream = False
    may_be_declined = True
    wrapper = wrapped.UnaryUnaryCall

    def __call__(  # noqa: C901  # the hot path, written out
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        if self._interceptors:
            return super().__call__(
                request,
                timeout=timeout,
                metadata=metadata,
                credentials=credentials,
                wait_for_ready=wait_for_ready,
                compression=compression,
            )
        # The hot path, written out: sent at once, on grpc.aio's own call object.
        balancer = self._get_balancer()
        try:
            if balancer.config.propagate_deadline:
                timeout = propagation.limited(timeout)
            is_over = timeout is not None and timeout <= 0.0
        except TypeError:
            raise _no_timeout(timeout) from None
        if metadata is not None:
            metadata = read_once(metadata)
            if (flaw := flaw_of(metadata)) is not None:
                return self._failed(balancer, flaw)
        try:
            message = self.prepared(request)
        except Exception as error:
            return self._failed(balancer, error)
        metadata, level = _with_context(metadata, balancer)
        now = balancer.clock()
        counts = self._counts or self.counts(balancer)
        if balancer.throttling.is_active and not is_over:
            refusal = call_throttling.refusal(balancer.throttling, level, now, metadata)
            if refusal is not None:
                return self._throttled(balancer, refusal)
        # With a deadline that has passed grpcio would send it now and then.
        hints = None
        if balancer.call_keys is not None:
            hints = balancer.call_keys.hints(self.path, request, metadata, level)
        backend = None if is_over else balancer.pick(now, counts, hints)
        inner = None if backend is None else self.inner_methods[backend.channel]
        if inner is None or inner.direct is None:
            return self._wrapped(
                balancer,
                message,
                level,
                timeout,
                hints,
                {
                    "metadata": _kept(metadata),
                    "credentials": credentials,
                    "compression": compression,
                },
                wait_for_ready,
                # Another pick would pass its turn, or its trial, on to nobody.
                then=None if backend is None else Next(0.0, backend, now),
            )
        if compression is not None:
            metadata = with_compression(metadata, compression)
        observed = None
        make, arguments, measured = inner.direct
        if (observer := balancer.observers.current) is not None and backend is not None:
            observed, metadata = observer.begin_sent(
                self.key,
                now,
                backend.endpoint.address,
                metadata,
                len(message),
                self.inner_methods.awaited,
            )
            if observed.measures:
                arguments = measured
        marks = balancer.decline_marks
        if marks is not None and hints is None and backend is not None:
            metadata = marks.marked(metadata, backend)
        return make(
            balancer,
            new_attempt(
                (backend, 0.0, 1, now, level, counts, metadata, observed, False, hints)
            ),
            self,
            message,
            timeout,
            metadata or (),
            credentials,
            wait_for_ready,
            inner.siblings,
            arguments,
        )


class UnaryStream(_UnaryRequest, grpc.aio.UnaryStreamMultiCallable[Any, Any]):
    kind = "unary_stream"
    wrapper = streams.UnaryStreamCall


class StreamUnary(_StreamRequest, grpc.aio.StreamUnaryMultiCallable):  # type: ignore[type-arg]
    kind = "stream_unary"
    wrapper = streams.StreamUnaryCall


class StreamStream(_StreamRequest, grpc.aio.StreamStreamMultiCallable):  # type: ignore[type-arg]
    kind = "stream_stream"
    wrapper = streams.StreamStreamCall
