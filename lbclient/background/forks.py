"""Has channels and servers that have ended let go of gRPC before a fork.

They are circles of objects, which keep grpcio's thread until a garbage collection. In
the child of a fork gRPC works only if no such thread ran at the fork; grpc.aio's own
channels and servers are no circles, so programs that fork afterwards rely on it.
"""

import gc
import os
from functools import cache
from weakref import WeakSet

_ENDED: WeakSet[object] = WeakSet()


def has_ended(owner: object) -> None:
    """`owner`, of objects of grpcio's, is not used any more."""
    _ENDED.add(owner)
    _watch_forks()


@cache
def _watch_forks() -> None:
    os.register_at_fork(before=_collect)


def _collect() -> None:
    if _ENDED:
        gc.collect()
