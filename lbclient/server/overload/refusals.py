"""Answers sent to refused requests, and the refusal reasons that are counted."""

from typing import NamedTuple

from grpc import StatusCode

from lbclient import wire
from lbclient.core.retry import Refusal


class RefusalStatus(NamedTuple):
    """The status, details and trailers with which a request is refused."""

    code: StatusCode
    details: str
    trailers: tuple[tuple[str, str], ...]
    is_error: bool = True  # of the task, in what it reports to all clients


def trailers_of(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    named = (wire.REFUSAL_KEY, refusal.value)
    if refusal is Refusal.DONT_RETRY:
        return (named, (wire.PUSHBACK_KEY, "-1"))
    return (named,)


TRAILERS = {refusal: trailers_of(refusal) for refusal in Refusal}

# As grpcio says it, so that whoever looks for that finds it.
FULL = RefusalStatus(
    StatusCode.RESOURCE_EXHAUSTED,
    "Concurrent RPC limit exceeded!",
    TRAILERS[Refusal.OVERLOADED],
)
EXPIRED = RefusalStatus(
    StatusCode.DEADLINE_EXCEEDED,
    "refused: its deadline has passed",
    TRAILERS[Refusal.DONT_RETRY],
)
# An estimate: its deadline is still to come, and another task may be quicker.
TOO_LATE = {
    refusal: RefusalStatus(
        StatusCode.UNAVAILABLE,
        "overloaded: too late to be served before its deadline",
        TRAILERS[refusal],
    )
    for refusal in (Refusal.OVERLOADED, Refusal.DONT_RETRY)
}
# It says nothing of the task: the clients of all others would shun who serves little
# beside one customer's flood, for its errors, and crowd on who serves much.
OUT_OF_QUOTA = RefusalStatus(
    StatusCode.RESOURCE_EXHAUSTED,
    "refused: the customer has used what it may",
    TRAILERS[Refusal.QUOTA],
    is_error=False,
)
# What gRPC's core has ended before anybody saw it, so of whatever criticality.
UNSEEN, UNKNOWN = "unseen", "UNKNOWN"
REASONS = (*(refusal.value for refusal in Refusal), "concurrency", "too-late")
