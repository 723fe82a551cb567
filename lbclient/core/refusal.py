"""Why a backend did not execute a request: the words that clients are told.

Reasons that are only counted are in `server.overload.refusal_status`; why a client
itself refuses, in `wire.local_errors`.
"""

from enum import Enum


class Refusal(Enum):
    """Why a backend did not execute a request; the value goes on the wire."""

    OVERLOADED = "overloaded"  # this task is: another may not be
    DONT_RETRY = "overloaded-dont-retry"  # the others are too, or it was tried enough
    QUOTA = "quota"  # the customer's, which is the same everywhere
    DECLINED = "declined"  # as it may be: pick again, see `core.overload.late_binding`
