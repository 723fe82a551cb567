"""grpcio's functions as they were before a program put lbclient's in their place.

`grpc.aio.insecure_channel = lbclient.insecure_channel` has libraries use lbclient that
know of grpcio alone. What lbclient makes of grpcio's it makes by the same names, as
instrumentation replaces these too. Inside of `making` ours return grpcio's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import grpc
import grpc.aio

# Before anybody can have ours: the modules that have them import this one.
insecure_channel = grpc.aio.insecure_channel
secure_channel = grpc.aio.secure_channel
aio_server = grpc.aio.server
server = grpc.server


class _Making(local):
    """Of a thread: tasks that begin meanwhile would inherit a context variable."""

    depth = 0


_making = _Making()


def are_wanted() -> bool:
    return _making.depth > 0


@contextmanager
def making() -> Iterator[None]:
    _making.depth += 1
    try:
        yield
    finally:
        _making.depth -= 1
