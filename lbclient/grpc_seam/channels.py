"""A backend's own grpc.aio channel: its options, its target, its state, its calls."""

import asyncio
from typing import Any
from weakref import WeakSet

import grpc

from lbclient.core.coroutines import step
from lbclient.core.errors import ConfigError
from lbclient.grpc_seam.options import Options
from lbclient.grpc_seam.private import is_news

READY: int = grpc.ChannelConnectivity.READY.value[0]


def is_ready(channel: Any) -> bool:
    """Whether a channel is connected, as the core knows it, asked at every pick."""
    try:
        ready: bool = channel._channel.check_connectivity_state(False) == READY
    except AttributeError as error:  # instrumentation wraps it
        is_news(error)
        return channel.get_state() is grpc.ChannelConnectivity.READY
    return ready


def without_interceptors(method: Any) -> Any:
    """Takes from a method of an inner channel what instrumentation has put there: what
    a client asks of a server's health is no call of the application's."""
    try:
        if method._interceptors:
            method._interceptors = None
    except AttributeError as error:
        is_news(error)
    return method


def lighten(channel: grpc.aio.Channel) -> grpc.aio.Channel:
    """Lets an inner channel keep its calls in a set that is written in C.

    grpc.aio keeps the calls that `close` is to end in a WeakSet, 0.5 us a call. Nothing
    needs it to be weak: we cancel every call that is dropped unfinished.
    """
    try:
        calls = channel._active_calls  # type: ignore[attr-defined]
    except AttributeError as error:
        is_news(error)
        return channel
    if isinstance(calls, WeakSet) and not calls:
        channel._active_calls = set()  # type: ignore[attr-defined]
    return channel


def active_calls(channel: Any) -> Any:
    """Where an inner channel finds the calls that its `close` is to end."""
    calls = getattr(channel, "_active_calls", None)
    if calls is None:  # a channel of somebody else's dial; `give_up` looks here
        calls = getattr(channel, "_lbclient_calls", None)
        if calls is None:
            calls = channel._lbclient_calls = set()
    return calls


async def close(channel: Any, grace: float | None) -> None:
    """Closes an inner channel; calls that are not over when the grace is are cancelled.

    Not by a grace of grpc.aio's: cut short, it leaves a channel that cannot be closed
    any more, and up to 1.82 it finds only calls that a task of grpc.aio's works for.
    """
    calls = [call for call in active_calls(channel) if not call.done()]
    if calls and grace:
        over = asyncio.get_running_loop().create_future()
        left = set(calls)

        def ended(call: Any) -> None:
            left.discard(call)
            if not left and not over.done():
                over.set_result(None)

        for call in calls:
            call.add_done_callback(ended)
        await asyncio.wait((over,), timeout=grace)
    close_at_once(channel)


def close_at_once(channel: Any) -> None:
    """Closes an inner channel, and cancels its calls."""
    for call in list(active_calls(channel)):
        call.cancel()
    step(channel.close())  # without grace it does not wait


def has_calls(channel: Any, default: bool) -> bool:
    """Whether an inner channel has calls; `default` where grpcio does not tell."""
    calls = getattr(channel, "_active_calls", None)
    return default if calls is None else any(not call.done() for call in calls)


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
    # Nobody sees the channel of one backend in channelz, which keeps 4 KB of it.
    "grpc.enable_channelz": 0,
    # An endpoint may be a name, of a pod that is back with another address: the core
    # would not look it up again for 30 s.
    "grpc.dns_min_time_between_resolutions_ms": 1000,
}
_SERVICE_CONFIG = "grpc.service_config"
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
            key == _SERVICE_CONFIG and _has_policy(value)
        ):
            raise ConfigError(
                f"options[{key!r}]",
                value,
                "no load balancing policy: delete it, or set ChannelConfig(picker=...)",
            )


def _has_policy(service_config: Any) -> bool:
    import json  # few channels are given a service config

    try:
        parsed = json.loads(service_config)
    except (TypeError, ValueError):
        parsed = None
    if not isinstance(parsed, dict):
        field = f"options[{_SERVICE_CONFIG!r}]"
        raise ConfigError(field, service_config, "a JSON object as text")
    return bool({"loadBalancingConfig", "loadBalancingPolicy"} & parsed.keys())


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
    if _SERVICE_CONFIG in dict(options):
        del merged["grpc.enable_retries"]  # the user may want them: it has a policy
    return tuple((merged | dict(options) | OURS).items())
