"""What a server of grpcio is given, and what it tells about itself."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Never, TypeVar

import grpc

from lbclient.grpc_seam.options import Options
from lbclient.grpc_seam.private import find, is_news, version

T = TypeVar("T")


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
        raise TypeError("a handler is called with a request, then awaited")


def put_first(server: Any, ours: grpc.ServerInterceptor) -> None:
    """Makes an interceptor of a synchronous server its outermost one.

    What instruments `grpc.server` replaces it, and puts interceptors before those that
    a program gives. Where this fails ours stays behind them.
    """
    try:
        found = server._state.interceptor_pipeline.interceptors
        others = [one for one in found if one is not ours]
        server._state.interceptor_pipeline.interceptors = (ours, *others)
    except AttributeError as error:
        is_news(error)


# Calls that no code in Python has seen yet: from the first number on the core ends some
# by chance, as CANCELLED, and at the second one all.
_PENDING = "grpc.server.max_pending_requests"
_MOST_PENDING = "grpc.server.max_pending_requests_hard_limit"
CORE_PENDING = ((_PENDING, 1000), (_MOST_PENDING, 3000))
# Few: to refuse these takes a fifth of a second where that is as dear as serving. And
# close together: so it is known how many wait although some were ended.
OUR_PENDING = ((_PENDING, 600), (_MOST_PENDING, 640))


ENDS_SINCE = 1, 84  # grpcio; an older one's core keeps all calls, whatever is set


def with_pending_limit(options: Options) -> tuple[Options, float]:
    """A server's options, and how many calls may wait in its core."""
    given = dict(options)
    if not (_PENDING in given or _MOST_PENDING in given):
        options = (*options, *OUR_PENDING)
    if version() < ENDS_SINCE:
        return options, inf
    return options, int((dict(CORE_PENDING) | dict(options))[_MOST_PENDING])


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
    import json  # clients need none

    ask = find("grpc._cython.cygrpc:channelz_get_server")
    before = _servers()
    made = make()
    new = _servers() - before
    if len(new) != 1 or ask is None:
        return made, lambda: None
    [server] = new

    def read() -> int | None:
        try:
            found = json.loads(ask(server))
            return int(found["server"]["data"]["callsStarted"])
        except (KeyError, ValueError):
            return None  # it is over

    return made, read


def _servers() -> set[int]:
    import json

    found: set[int] = set()
    ask = find("grpc._cython.cygrpc:channelz_get_servers")
    if ask is None:
        return found
    try:
        while True:
            page = json.loads(ask(max(found, default=-1) + 1))
            new = {int(one["ref"]["serverId"]) for one in page.get("server", ())}
            found |= new
            if page.get("end") or not new:
                return found
    except (KeyError, ValueError):
        return set()
