"""The one door to grpcio's oddities, each with the fact that makes it necessary."""

import json
import re
from asyncio import current_task
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate, signature
from ipaddress import ip_address
from typing import Any, Never, Self, TypeVar, cast
from weakref import WeakSet

import grpc
from grpc._compression import augment_metadata
from grpc._cython import cygrpc
from grpc.aio import _call as call_objects
from grpc.aio import _channel as channel_objects
from grpc.aio import _interceptor as interceptor  # for `Intercepted` alone
from grpc.aio._utils import _timeout_to_deadline

from lbclient.core.errors import ConfigError, LbError

T = TypeVar("T")
READY: int = grpc.ChannelConnectivity.READY.value[0]
Options = Sequence[tuple[str, Any]]
Trailers = Sequence[tuple[str, str | bytes]]


class LocalRpcError(LbError, grpc.aio.AioRpcError):
    """A call that failed on this side. `except grpc.aio.AioRpcError` catches it."""

    CODE = grpc.StatusCode.UNAVAILABLE
    REASON = "unavailable"  # in metrics

    @classmethod
    def because(cls, details: str) -> Self:
        return cls(cls.CODE, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


class NoBackend(LocalRpcError):
    """No backend could take the call: the fleet's or the network's fault.

    The call was not sent, or nobody took it. The details say how many backends are in
    which state.
    """

    REASON = "no-backend"


class BackendsFull(LocalRpcError):
    """Every backend is at `active_limit`, or too many calls wait already.

    The call was not sent; where that happens to a retry, the call ends with the error
    of its last attempt instead. More backends, or fewer calls at once, are the cure.
    """

    CODE = grpc.StatusCode.RESOURCE_EXHAUSTED
    REASON = "full"


class Throttled(LocalRpcError):
    """The backends refuse so much that this call would most likely be refused, too.

    The call was not sent. The details have the counts of the last two minutes.
    """

    REASON = "throttled"


class OutOfQuota(Throttled):
    """This customer's requests are refused for a quota so often that this one would be.

    The call was not sent. Other customers' calls on this channel are.
    """

    CODE = grpc.StatusCode.RESOURCE_EXHAUSTED
    REASON = "quota"


class DeadlineWhileWaiting(LocalRpcError):
    """The deadline passed before any backend could take the call, or take it again.

    If it has notes (`__notes__`) it was sent before: they tell how its attempts failed.
    """

    CODE = grpc.StatusCode.DEADLINE_EXCEEDED
    REASON = "deadline"


REASONS = tuple(
    kind.REASON
    for kind in (NoBackend, BackendsFull, Throttled, OutOfQuota, DeadlineWhileWaiting)
)


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend.

    In a done callback `code()` and `trailing_metadata()` of a grpc.aio call are
    such coroutines: the only public way to the status without a task.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("the call is not done")


def final_status(call: Any) -> tuple[int, Trailers]:
    """Number of the status, and trailing metadata, of a call that is done.

    The public way costs 4 us more a call, in objects that nobody wants; it serves
    call objects that are not grpc.aio's own (instrumentation wraps them).
    """
    if cause_of(call):
        return UNAVAILABLE, ()
    try:
        status = call._cython_call._status
        return status.code(), status.trailing_metadata() or ()
    except AttributeError:
        code: grpc.StatusCode = step(call.code())
        return code.value[0], tuple(step(call.trailing_metadata()))


# The core's words for a stream that no handler has seen: above the last one of a
# GOAWAY, or refused (REFUSED_STREAM is 7; RFC 9113, section 8.7).
_REFUSED = re.compile(
    r"(Stream removed \()?(RST_STREAM \()?Received RST_STREAM with error code 7\b"
)
_LEFT_OUT = re.compile(r"(Stream removed \()?GOAWAY received;")
_NOT_CONNECTED = re.compile("failed to connect to all addresses")
_PROVISIONAL = "Internal error from Core"
INTERNAL: int = grpc.StatusCode.INTERNAL.value[0]
UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]
CANCELLED: int = grpc.StatusCode.CANCELLED.value[0]
DEADLINE_EXCEEDED: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


def was_not_sent(call: Any, channel: Any, is_believed: bool) -> bool:
    """Whether no server has taken a call that is over, so that it may be sent again.

    The core knows, but tells it in words only, and a handler can say the same words, of
    a call that it made itself. So they are believed where that cannot be: with trailers
    a handler spoke, and one of ours always has some; where a connection was lost or
    called off it is not ready.
    """
    code, trailers = final_status(call)
    if code != UNAVAILABLE or trailers:
        return False
    try:
        details = call._cython_call._status.details()
    except AttributeError:
        details = step(call.details())
    if is_believed and (_REFUSED.match(details) or _LEFT_OUT.match(details)):
        return True
    is_lost = _NOT_CONNECTED.match(details) or _LEFT_OUT.match(details)
    return bool(is_lost) and not is_ready(channel)


def was_not_begun(call: Any) -> bool:
    """Whether a call was cancelled before grpc.aio began it, which it leaves to a task.

    For certain only while its done callbacks run.
    """
    task = getattr(call, "_call_response", None) or getattr(call, "_preparation", None)
    work = None if task is None else task.get_coro()  # None: an eager task that ended
    return work is not None and getcoroutinestate(work) == CORO_CREATED


def was_ended_there(call: Any) -> bool:
    """Whether a call that is CANCELLED was ended by its server, not on this side.

    So the core of a server ends what it has no room for before any Python sees it, and
    so ends what runs in a server that goes without `stop`: one cannot be told from the
    other. Who gives a call up, or closes its channel, cancels the call object. (What
    `stop` ends, and a connection that is lost, is UNAVAILABLE; a handler that raises
    CancelledError leaves its call open.)
    """
    try:
        is_local = call._cython_call.is_locally_cancelled()
    except AttributeError:  # instrumentation wraps it
        return False
    return not is_local and call.time_remaining() != 0.0


def error_of(call: Any) -> grpc.aio.AioRpcError | None:
    """What awaiting a call that failed raises; None where only the call can tell."""
    if cause := cause_of(call):
        return _given_up(call, cause)
    try:
        inner = call._cython_call
        error: Any = call_objects._create_rpc_error(
            inner._initial_metadata, inner._status
        )
    except AttributeError:
        return None
    return cast(grpc.aio.AioRpcError, error)


def give_up(channel: grpc.aio.Channel, cause: str) -> None:
    """Closes an inner channel, and ends the calls that are still on it as UNAVAILABLE.

    `grpc.aio.Channel.close` cancels them, and whoever waits for one of them gets a
    CancelledError, as if it had been cancelled itself. So each call is marked first:
    `final_status` and `error_of` then say UNAVAILABLE, for this cause. Each call is
    marked by itself, because a done callback may cancel others, as a caller does.

    Not in the turn of the loop in which a call was begun on the channel: `cancel` ends
    a call that grpc.aio has not begun in another way.
    """
    for call in list(active_calls(channel)):
        if not call.done():
            call._lbclient_cause = cause
            _end(call, cause)
    step(channel.close())  # without grace it does not wait


def _end(call: Any, cause: str) -> None:
    """Ends a call as a lost connection does: with no CancelledError in its requests.

    `cancel` raises that in the iterator that they are taken from, which is over then:
    a later attempt would take the part that was sent for the whole.
    """
    sent = beneath(call)
    if getattr(sent, "_async_request_poller", None) is None:
        call._lbclient_is_interrupted = True  # first: done callbacks ask
        call.cancel()
    else:
        sent._cython_call.cancel(cause)


def is_interrupted(call: Any) -> bool:
    """Whether a call was given up in a way that may have ended its iterator."""
    return bool(getattr(call, "_lbclient_is_interrupted", False))


def cause_of(call: Any) -> str:
    """Why we ended a call that its caller did not cancel; "" if we did not."""
    cause: str = getattr(call, "_lbclient_cause", "")
    return cause


def _given_up(call: Any, cause: str) -> grpc.aio.AioRpcError:
    received = getattr(getattr(call, "_cython_call", None), "_initial_metadata", None)
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata.from_tuple(received or ()),
        grpc.aio.Metadata(),
        cause,
        "",
    )


def cancellations() -> int:
    """How often the running task was told to end: more than before an await, and the
    CancelledError that it raised is for this task."""
    task = current_task()
    return 0 if task is None else task.cancelling()


def asks_itself(call: Any) -> bool:
    """Whether it is grpc.aio's own task of a call that asks whether it is cancelled."""
    return current_task() is getattr(call, "_call_response", None)


def tell(error: BaseException, history: tuple[str, ...]) -> None:
    """Adds to an error, as notes below its traceback, what became of the attempts.

    The same error may be raised again, for who awaits the call again.
    """
    if history and not hasattr(error, "__notes__"):
        for number, line in enumerate(history, 1):
            error.add_note(f"attempt {number} on {line}")


def is_provisional(call: Any) -> bool:
    """Whether a call that is done will yet be told how it really ended.

    A write that fails makes grpc.aio say INTERNAL, and run the done callbacks; the
    status, of why it failed, comes a little later.
    """
    try:
        status = call._cython_call._status
        code, details = status.code(), status.details()
    except AttributeError:
        return False
    return bool(code == INTERNAL and details == _PROVISIONAL)


def has_begun(call: Any) -> bool:
    """Whether a call that failed had an answer that its caller may have seen."""
    return bool(getattr(getattr(call, "_cython_call", None), "_initial_metadata", None))


def is_ready(channel: Any) -> bool:
    """Whether a channel is connected, as the core knows it, asked at every pick."""
    try:
        ready: bool = channel._channel.check_connectivity_state(False) == READY
    except AttributeError:  # instrumentation wraps it
        return channel.get_state() is grpc.ChannelConnectivity.READY
    return ready


def lighten(channel: grpc.aio.Channel) -> grpc.aio.Channel:
    """Lets an inner channel keep its calls in a set that is written in C.

    grpc.aio keeps the calls that `close` is to end in a WeakSet, 0.5 us a call. Nothing
    needs it to be weak: we cancel every call that is dropped unfinished.
    """
    calls = getattr(channel, "_active_calls", None)
    if isinstance(calls, WeakSet) and not calls:
        channel._active_calls = set()  # type: ignore[attr-defined]
    return channel


UnaryUnaryCall = call_objects.UnaryUnaryCall
UnaryUnaryMethod = channel_objects.UnaryUnaryMultiCallable
deadline_after = _timeout_to_deadline  # by the clock that the core goes by

_CALL_PARAMETERS = [
    *("self", "request", "deadline", "metadata", "credentials", "wait_for_ready"),
    *("channel", "method", "request_serializer", "response_deserializer", "loop"),
    "registered_call_handle",
]


def call_arguments(method: Any) -> tuple[Any, ...] | None:
    """What grpc.aio's `UnaryUnaryCall` wants of its method, after `wait_for_ready`.

    None where the method must make its calls itself: interceptors that
    instrumentation has put into the channel, or a grpcio that we do not know.
    """
    if type(method) is not UnaryUnaryMethod or method._interceptors:
        return None
    if list(signature(UnaryUnaryCall.__init__).parameters) != _CALL_PARAMETERS:
        return None
    return (
        method._channel,
        method._method,
        method._request_serializer,
        method._response_deserializer,
        method._loop,
        method._registered_call_handle,
    )


def active_calls(channel: Any) -> Any:
    """Where an inner channel finds the calls that its `close` is to end."""
    calls = getattr(channel, "_active_calls", None)
    if calls is None:  # a channel of somebody else's dial; `give_up` looks here
        calls = getattr(channel, "_lbclient_calls", None)
        if calls is None:
            calls = channel._lbclient_calls = set()
    return calls


def has_calls(channel: Any, default: bool) -> bool:
    """Whether an inner channel has calls; `default` where grpcio does not tell."""
    calls = getattr(channel, "_active_calls", None)
    return default if calls is None else any(not call.done() for call in calls)


def mark(call: Any, value: object) -> None:
    """Remembers `value` with a call: grpc.aio's call objects take attributes."""
    call._lbclient = value


def marked(call: Any) -> Any:
    """What `mark` left; None for a call that is not marked."""
    return getattr(call, "_lbclient", None)


def beneath(call: Any) -> Any:
    """The call that was sent beneath interceptors; None while they are at it."""
    task = getattr(call, "_interceptors_task", None)
    if task is None:
        return call
    if not task.done() or task.cancelled() or task.exception():
        return None
    return task.result()


# What an inner channel needs and nobody would want otherwise: a connection of its
# own (equal channels share one), no proxy from the environment (it hijacks even
# literal addresses), no service config from DNS under ours.
OURS: dict[str, int] = {
    "grpc.use_local_subchannel_pool": 1,
    "grpc.service_config_disable_resolution": 1,
}
DEFAULTS: dict[str, int] = {
    "grpc.enable_http_proxy": 0,
    # We send again what was not sent, to another backend; the core knows just this one
    # and takes 5 % more CPU a call to be ready for it.
    "grpc.enable_retries": 0,
    # An endpoint may be a name, of a pod that is back with another address: the core
    # would not look it up again for 30 s.
    "grpc.dns_min_time_between_resolutions_ms": 1000,
}

_KEEPALIVE = "grpc.keepalive_time_ms"

# What finds a dead connection that nothing else watches, such as one that said GOAWAY
# and still has calls. The last bound, not the first: health checks act in seconds.
KEPT_ALIVE: dict[str, int] = {
    # gRFC A8: a server allows a ping every 5 min and ends a connection that has more,
    # with all its calls. So a tenth above that, and only while there are calls.
    _KEEPALIVE: 330_000,
    # gRFC A18: with keepalive on, TCP_USER_TIMEOUT is set to this (on Linux). What was
    # sent and is not acknowledged by the other side's kernel for so long, by a busy or
    # a stopped process too, ends the connection. gRPC's own is 20 s, Linux's some 15
    # min; a minute survives most partitions.
    "grpc.keepalive_timeout_ms": 60_000,
    # For a ping's acknowledgement; grpcio 1.85 goes by this, not by the one above.
    "grpc.http2.ping_timeout_ms": 60_000,
}

# A connection for one question. The core of a server acknowledges pings though all of
# its threads are busy, so that a question without an answer but with pings is told from
# a connection on which nothing arrives. Two pings fit into the question's 5 s; servers
# allow three in a row.
PINGED: Options = (
    (_KEEPALIVE, 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),
)


def check_options(options: Options) -> None:
    """Refuses channel options that contradict what the channel is for."""
    for key, value in options:
        if key in OURS and value != OURS[key]:
            raise ConfigError(f"options[{key!r}]", value, f"{OURS[key]}, or no option")
        if key == "grpc.lb_policy_name" or (
            key == "grpc.service_config" and _has_policy(value)
        ):
            raise ConfigError(
                f"options[{key!r}]",
                value,
                "no load balancing policy here: use ChannelConfig(picker=...)",
            )


def _has_policy(service_config: object) -> bool:
    try:
        parsed = json.loads(str(service_config))
    except ValueError:
        return False  # grpcio itself says what is wrong with it
    return isinstance(parsed, dict) and bool(
        {"loadBalancingConfig", "loadBalancingPolicy"} & parsed.keys()
    )


def inner_options(
    options: Options, authority: str, backoff: float, max_backoff: float
) -> Options:
    """The options of a backend's own channel: ours, with the user's on top."""
    merged: dict[str, Any] = {
        **DEFAULTS,
        "grpc.initial_reconnect_backoff_ms": round(backoff * 1000),
        # Despite its name: how long one attempt to connect may take.
        "grpc.min_reconnect_backoff_ms": round(max_backoff * 1000),
        "grpc.max_reconnect_backoff_ms": round(max_backoff * 1000),
    }
    if authority:
        merged["grpc.default_authority"] = authority
    if _KEEPALIVE not in dict(options):
        merged |= KEPT_ALIVE
    if "grpc.service_config" in dict(options):
        del merged["grpc.enable_retries"]  # the user may want them: it has a policy
    return tuple((merged | dict(options) | OURS).items())


def dial_target(address: str) -> str:
    """The gRPC target that dials exactly `address`: `10.0.0.3:50051` is `ipv4:...`."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        version = ip_address(host.partition("%")[0]).version
    except ValueError:
        return address
    return f"ipv{version}:{address}"


def read_once(metadata: Any) -> Any:
    """Metadata that can be read again, for a caller may give an iterator.

    Raises at once for what grpc.aio refuses at once.
    """
    if not metadata:
        return None
    if isinstance(metadata, grpc.aio.Metadata):
        return metadata
    pairs = tuple(metadata)
    is_list = isinstance(metadata, Sequence)
    return grpc.aio.Metadata.from_tuple(pairs) if is_list else pairs


def flaw_of(metadata: Any) -> Exception | None:
    """Why metadata cannot be sent.

    Found later it would be found by a task of grpc.aio's, which then leaves the call
    half begun, in flight for ever.
    """
    try:
        for key, value in metadata or ():
            if not isinstance(key, str) or not isinstance(value, str | bytes):
                said = f"metadata is of text and bytes, not {key!r}: {value!r}"
                return TypeError(said)
    except (TypeError, ValueError) as error:
        return error
    return None


def with_compression(
    metadata: Any, compression: grpc.Compression | None
) -> grpc.aio.Metadata:
    """Metadata as interceptors see it: grpc.aio tells of a call's compression there."""
    return grpc.aio.Metadata(*(augment_metadata(metadata, compression) or ()))


def intercepted(
    kind: str,
    interceptors: Sequence[Any],
    request: Any,
    details: tuple[Any, ...],
    path: str,
    send: Callable[[Any, Any], Any],
    loop: Any,
) -> Any:
    """A call through the user's interceptors, as grpc.aio makes it.

    The last continuation calls `send(request, client_call_details)`, so that
    interceptors run once for a call, however many attempts it takes.
    """
    return _INTERCEPTED[kind](
        [*interceptors, _Last(send)],
        request,
        *details,
        None,  # the channel: only what comes after the last interceptor wants it
        path.encode(),
        None,
        None,
        loop,
    )


class _Last:
    """Ends a chain of interceptors with a function of ours, instead of a call.

    As an interceptor, for the chain's own end is another thing in each grpcio.
    """

    def __init__(self, send: Callable[[Any, Any], Any]) -> None:
        self._send = send

    async def intercept(self, _: Any, client_call_details: Any, request: Any) -> Any:
        return self._send(request, client_call_details)

    intercept_unary_unary = intercept_unary_stream = intercept
    intercept_stream_unary = intercept_stream_stream = intercept


_INTERCEPTED: dict[str, Any] = {
    "unary_unary": interceptor.InterceptedUnaryUnaryCall,
    "unary_stream": interceptor.InterceptedUnaryStreamCall,
    "stream_unary": interceptor.InterceptedStreamUnaryCall,
    "stream_stream": interceptor.InterceptedStreamStreamCall,
}


def is_half_closed(call: Any) -> bool:
    """Whether a call wants no more requests; its interceptors ask for that."""
    return bool(getattr(call, "_done_writing_flag", False))


def awaits_writes(call: Any) -> bool:
    """Whether a call ends only if somebody goes on writing to it."""
    reads = getattr(call, "_async_request_poller", None) is not None
    return not reads and not is_half_closed(call)


def is_dictionary(generic: grpc.GenericRpcHandler) -> bool:
    """Whether it has the same handlers always, and looks at a request's path alone.

    Not if somebody has given it a lookup of their own.
    """
    return type(generic) is _DICTIONARY and "service" not in vars(generic)


_DICTIONARY = type(grpc.method_handlers_generic_handler("", {}))


class KnownCoroutine(partial):  # type: ignore[type-arg]
    """A handler's coroutine function, which grpcio does not ask `inspect` about.

    For each request it looks whether the handler is awaitable, and only then, which
    takes six frames in Python, whether it is a coroutine function. This is both.
    """

    __slots__ = ()

    def __await__(self) -> Never:
        raise TypeError("call it first")


# Calls that no code in Python has seen yet: from the first number on the core ends some
# by chance, as CANCELLED, and at the second one all.
_PENDING = "grpc.server.max_pending_requests"
_MOST_PENDING = "grpc.server.max_pending_requests_hard_limit"
CORE_PENDING = ((_PENDING, 1000), (_MOST_PENDING, 3000))
# Close together: what waits behind 3,000 has no time left; and so it is known how many
# wait although some were ended.
OUR_PENDING = ((_PENDING, 1000), (_MOST_PENDING, 1050))


def with_pending_limit(options: Options) -> tuple[Options, int]:
    """A server's options, and how many calls may wait in its core."""
    given = dict(options)
    if _PENDING in given or _MOST_PENDING in given:
        return options, int((dict(CORE_PENDING) | given)[_MOST_PENDING])
    return (*options, *OUR_PENDING), dict(OUR_PENDING)[_MOST_PENDING]


# Of the streams that a connection may have at a time; below that a stream of health or
# load, which stays open, takes too large a share of what calls can use.
FEW_SLOTS = 10


def has_slots(options: Options) -> bool:
    """Whether a connection to a server has streams to spare, by its options."""
    given = dict(options).get("grpc.max_concurrent_streams")
    return not isinstance(given, int) or given >= FEW_SLOTS


def counted(make: Callable[[], T]) -> tuple[T, Callable[[], int | None]]:
    """A server, and what says how many calls it has begun: in the core, for channelz.

    None where that cannot be told: a grpcio without it, an option that turns it off,
    or another thread that makes a server at the same time.
    """
    before = _servers()
    made = make()
    new = _servers() - before
    if len(new) != 1:
        return made, lambda: None
    [server] = new

    def read() -> int | None:
        try:
            found = json.loads(cygrpc.channelz_get_server(server))
            return int(found["server"]["data"]["callsStarted"])
        except (AttributeError, KeyError, ValueError):
            return None  # it is over

    return made, read


def _servers() -> set[int]:
    found: set[int] = set()
    try:
        while True:
            page = json.loads(cygrpc.channelz_get_servers(max(found, default=-1) + 1))
            new = {int(one["ref"]["serverId"]) for one in page.get("server", ())}
            found |= new
            if page.get("end") or not new:
                return found
    except (AttributeError, KeyError, ValueError):
        return set()
