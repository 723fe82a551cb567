"""Filters handlers' metadata: keys that crash gRPC's core, other servers' reports.

Refuses what gRPC could not send.
"""

from collections.abc import Iterable
from typing import Any

from lbclient import wire
from lbclient.grpc_seam import check_pair
from lbclient.log import Log
from lbclient.server.report.reporter import Trailers

# In a server's metadata each of these ends the process: a failed check in C-core.
LETHAL = frozenset({"grpc-timeout", "grpclb_client_stats"})

logger = Log(__name__)


def harmless(metadata: Iterable[Any]) -> Trailers:
    """A copy of a user's metadata without what would kill the process."""
    items = tuple(metadata or ())
    if not LETHAL.isdisjoint(map(key_of, items)):
        logger.warning("invalid metadata dropped: %s", ", ".join(sorted(LETHAL)))
        items = tuple(item for item in items if key_of(item) not in LETHAL)
    return items


def sendable(metadata: Trailers) -> Trailers:
    """Metadata of a handler with its keys as text. Raises for what gRPC cannot send.

    grpcio 1.80 would send no status either: the client would wait for its deadline, and
    a synchronous server never stop. 1.85 still does so for some of it.

    >>> sendable((("a-bin", "b"),))
    Traceback (most recent call last):
    TypeError: metadata of 'a-bin' is bytes, not str
    """
    pairs = []
    for item in metadata:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"metadata is pairs, not {type(item).__name__}")
        key, value = item
        key = key.decode("latin-1") if isinstance(key, bytes) else key
        check_pair(key, value)
        pairs.append((key, value))
    return tuple(pairs)


def without_report(own: Trailers) -> Trailers:
    """What is ours to say, and the same bytes by ORCA's name."""
    reports = [item[1] for item in own if key_of(item) == wire.LOAD_KEY]
    return tuple(
        item
        for item in own
        if key_of(item) != wire.LOAD_KEY
        and not (key_of(item) == wire.ORCA_KEY and item[1] in reports)
    )


def key_of(item: Any) -> Any:
    """As text. None for what is no metadata at all, which `sendable` says."""
    key = item[0] if isinstance(item, tuple | list) and item else None
    return key.decode("latin-1") if isinstance(key, bytes) else key
