"""Filters handlers' metadata: keys that crash gRPC's core, other servers' reports."""

from collections.abc import Iterable
from typing import Any

from lbclient import wire
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
    """None for what is no metadata at all, which grpcio will say better than we."""
    return item[0] if isinstance(item, tuple) and item else None
