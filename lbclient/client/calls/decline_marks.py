"""Marks first attempts that their backend may decline, for another pick.

The server decides, by `core.overload.late_binding`. A mark names the task that the pick
was for, so where metadata are passed on, or several tasks answer, nobody else declines.
"""

from typing import TYPE_CHECKING, Any

import grpc

from lbclient.core.backends.pool import Pool
from lbclient.core.throttles.throttling import Throttling
from lbclient.wire import DECLINE_KEY

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend


class DeclineMarks:
    """Marks the first attempts of a channel's calls. Owned by a balancer."""

    __slots__ = ("_pool", "_throttling")

    def __init__(self, pool: "Pool[Backend]", throttling: Throttling) -> None:
        self._pool = pool
        self._throttling = throttling

    def marked(self, metadata: Any, backend: "Backend") -> Any:
        """The metadata of an attempt, which stay as they are if it is not declined:
        there is no other backend, the task is unknown, or backends refuse requests."""
        task = backend.reported.task_id
        if task <= 0 or self._throttling.is_active or len(self._pool.ready) < 2:
            return metadata
        return grpc.aio.Metadata(*metadata or (), (DECLINE_KEY, str(task)))

    def __repr__(self) -> str:
        return f"<marks, as {len(self._pool.ready)} backends are ready>"


def unmarked(metadata: Any) -> Any:
    """The same metadata without a mark, for the next attempt."""
    pairs = metadata or ()
    if all(pair[0] != DECLINE_KEY for pair in pairs):
        return metadata
    return grpc.aio.Metadata(*(pair for pair in pairs if pair[0] != DECLINE_KEY))
