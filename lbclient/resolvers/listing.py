"""Sorts and limits the endpoints of every resolver.

A list that is too long is truncated, not rejected, so that the client has some
backends.
"""

import asyncio
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice

from lbclient.config.identity import ORDINAL
from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint, Endpoints, snapshot

# Past any answer that DNS can carry (64 kB hold 4,000 records), and a bound for a
# source that is not DNS.
MAX_ENDPOINTS = 100_000
WANTED = "a tuple of Endpoints, such as (lbclient.Endpoint('10.0.0.3:50051'),)"
MOST_SHOWN = 60  # characters of a value in an error
MAX_BYTES = 64 << 20  # of a source: 100,000 endpoints at 600 bytes each

PIECE = 1_000  # endpoints that the loop makes without a pause: 1 to 3 ms


class Listing:
    """The last endpoints of one source. An unchanged endpoint stays the same object.

    10,000 new objects take 10 ms, and bring on full garbage collections, which examine
    the whole program.
    """

    def __init__(self) -> None:
        self._last: dict[str, Endpoint] = {}

    def endpoint(
        self,
        address: str,
        weight: float = 1.0,
        zone: str = "",
        task: int | None = None,
        lame_duck: bool = False,
        priority: int = 0,
    ) -> Endpoint:
        last = self._last.get(address)
        if (
            last is not None
            and last.weight == weight
            and last.zone == zone
            and last.task == task
            and last.lame_duck == lame_duck
            and last.priority == priority
        ):
            return last
        return Endpoint(address, weight, zone, task, lame_duck, priority)

    def take(self, endpoints: Iterable[Endpoint]) -> Endpoints:
        """The list of them, which is the last one from now on."""
        found = listing(endpoints)
        self._last = {endpoint.address: endpoint for endpoint in found}
        return found


async def in_pieces(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Makes them with pauses in which calls go on, where the loop itself makes them."""
    left, made = iter(endpoints), list[Endpoint]()
    while piece := list(islice(left, PIECE)):
        made += piece
        if len(piece) == PIECE:
            await asyncio.sleep(0)
    return made


def listing(endpoints: Iterable[Endpoint]) -> Endpoints:
    """A snapshot of at most MAX_ENDPOINTS, the same ones in any order of arrival.

    Reads twice as many, as some may be doubles, and no more: a resolver of a user's own
    may give an iterable without end.
    """
    found: list[Endpoint] = []
    try:
        found = list(islice(endpoints, 2 * MAX_ENDPOINTS))
        return snapshot(found)[:MAX_ENDPOINTS]
    except (AttributeError, TypeError):
        if isinstance(endpoints, Iterable) and not isinstance(endpoints, str):
            wrong = [one for one in found if not isinstance(one, Endpoint)]
        else:
            wrong = [endpoints]
        if not wrong:
            raise
        raise ConfigError("endpoints", wrong[0], WANTED) from None


def ordinal(host: str) -> int | None:
    """The task number in a host name that a scheduler gave; None if there is none.

    >>> ordinal("search-7.search.prod.svc"), ordinal("ip-10-0-0-3.lan"), ordinal("a")
    (7, None, None)
    """
    found = ORDINAL.fullmatch(host.partition(".")[0])
    return int(found[1]) if found else None


def join_host(host: str, port: int) -> str:
    """An address as gRPC dials it; the `%` of an IPv6 scope is escaped for it.

    >>> join_host("1.2.3.4", 50051), join_host("fe80::1%eth0", 50051)
    ('1.2.3.4:50051', '[fe80::1%25eth0]:50051')
    """
    if ":" in host:
        return f"[{host.replace('%', '%25')}]:{port}"
    return f"{host}:{port}"


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def require(target: str, module: str, package: str, extra: str) -> None:
    """Raises ConfigError, which says how to install it, if an extra is missing."""
    if not is_installed(module):
        want = f"{package} to be installed: pip install 'lbclient[{extra}]'"
        raise ConfigError("target", target, want)
