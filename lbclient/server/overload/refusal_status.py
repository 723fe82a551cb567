"""Answers sent to refused requests, and reasons that only we count.

The reasons that clients are told are `core.refusal.Refusal`.
"""

from typing import NamedTuple

from grpc import StatusCode

from lbclient import wire
from lbclient.core.refusal import Refusal

Trailers = tuple[tuple[str, str], ...]


class RefusalStatus(NamedTuple):
    """The status, details and trailers with which a request is refused."""

    code: StatusCode
    details: str
    trailers: Trailers
    # In what the task reports to all clients: an error, and refused for its load.
    is_error: bool = True
    is_for_load: bool = True
    is_counted: bool = True  # among finished requests


# Tells stock clients not to retry; our channels go by the word beside it.
PUSHBACK = (wire.PUSHBACK_KEY, "-1")


def trailers_of(refusal: Refusal) -> Trailers:
    named = (wire.REFUSAL_KEY, refusal.value)
    return (named,) if refusal is Refusal.OVERLOADED else (named, PUSHBACK)


TRAILERS = {refusal: trailers_of(refusal) for refusal in Refusal}
# Our channels may try elsewhere, on their own budget: see `core.retries.stock_budget`.
OURS_MAY_RETRY = (*TRAILERS[Refusal.OVERLOADED], PUSHBACK)
_FOR_LOAD = (
    TRAILERS[Refusal.OVERLOADED],
    OURS_MAY_RETRY,
    TRAILERS[Refusal.DONT_RETRY],
)

# As grpcio says it, so that whoever looks for that finds it.
FULL = {
    trailers: RefusalStatus(
        StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", trailers
    )
    for trailers in _FOR_LOAD
}
OVERTAKEN = "overloaded: a more critical request has taken its turn"
# Where nobody has asked the stock clients' budget yet.
OVERTAKEN_STATUS = RefusalStatus(StatusCode.UNAVAILABLE, OVERTAKEN, OURS_MAY_RETRY)
EXPIRED = RefusalStatus(
    StatusCode.DEADLINE_EXCEEDED,
    "refused: its deadline has passed",
    TRAILERS[Refusal.DONT_RETRY],
    is_for_load=False,
)
# An estimate: its deadline is still to come, and another task may be quicker.
TOO_LATE = {
    trailers: RefusalStatus(
        StatusCode.UNAVAILABLE,
        "overloaded: too late to be served before its deadline",
        trailers,
    )
    for trailers in _FOR_LOAD
}
# It did not wait here: its deadline is too short for the method, on an idle task, too.
TOO_SHORT = {
    trailers: status._replace(is_for_load=False)
    for trailers, status in TOO_LATE.items()
}
# It says nothing of the task: the clients of all others would shun who serves little
# beside one customer's flood, for its errors, and crowd on who serves much.
OUT_OF_QUOTA = RefusalStatus(
    StatusCode.RESOURCE_EXHAUSTED,
    "refused: the customer has used what it may",
    TRAILERS[Refusal.QUOTA],
    is_error=False,
    is_for_load=False,
)
# Its client picks once more, with the report: nothing has gone wrong.
DECLINED = RefusalStatus(
    StatusCode.UNAVAILABLE,
    "declined: busier than usual",
    TRAILERS[Refusal.DECLINED],
    is_error=False,
    is_for_load=False,
    is_counted=False,
)
# Reasons that are counted, beside the refusals that are told: labels of metrics.
NO_PLACE, LATE, UNANSWERED = "concurrency", "too-late", "unanswered"
TOLD = (refusal.value for refusal in Refusal if refusal is not Refusal.DECLINED)
REASONS = (*TOLD, NO_PLACE, LATE, UNANSWERED)
# What gRPC's core has ended before anybody saw it, so of whatever criticality.
UNSEEN, UNKNOWN = "unseen", "UNKNOWN"
