"""grpc.aio's own call class and its parts, for calls made without its method object.

Imported only where `direct.call_arguments` has found that all of it is there.
"""

from operator import attrgetter

from grpc.aio._call import UnaryUnaryCall
from grpc.aio._utils import _timeout_to_deadline

__all__ = [
    "UnaryUnaryCall",
    "deadline_after",
    "inner_of",
    "metadata_of",
    "request_of",
    "status_of",
]

deadline_after = _timeout_to_deadline  # by the clock that the core goes by
inner_of = attrgetter("_cython_call")
status_of = attrgetter("_cython_call._status")
request_of = attrgetter("_request")
metadata_of = attrgetter("_metadata")
