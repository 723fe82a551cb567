"""What an attempt that failed says of its backend, and whether the backend had it."""

from typing import Any

from lbclient import wire
from lbclient.client.calls.attempt import Attempt
from lbclient.core.model import Outcome
from lbclient.core.retries.ending import Ending
from lbclient.grpc_seam import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    Trailers,
    cause_of,
    is_ready,
    time_left,
    was_ended_there,
    was_not_sent,
)


def outcome_of_failed(
    attempt: Attempt, call: Any, code: int, trailers: Trailers, now: float
) -> tuple[Ending, Outcome]:
    """How an attempt failed and what that teaches: its trailers are read here, once."""
    ending = wire.read_trailers(code, trailers)
    if code == CANCELLED and _was_cut_off(attempt, call, trailers):
        ending = ending._replace(is_cut_off=True)
    outcome = ending.outcome(now - attempt.sent_at)
    if outcome.is_answer and not _was_answered(attempt, call, code, trailers):
        outcome = outcome._replace(is_answer=False)
    return ending, outcome


def _was_cut_off(attempt: Attempt, call: Any, trailers: Trailers) -> bool:
    """Whether a call that is CANCELLED was ended by a task that has too much.

    It may have been executed, as far as anybody can tell. What a handler of ours says
    comes with trailers; of other servers nothing is known.
    """
    return attempt.backend.reported.is_ours and not trailers and was_ended_there(call)


def was_sent(attempt: Attempt, call: Any) -> bool:
    """Whether a backend may have taken a call of which none has spoken."""
    backend = attempt.backend
    return not was_not_sent(call, backend.channel, backend.tells_refusals())


def _was_answered(attempt: Attempt, call: Any, code: int, trailers: Trailers) -> bool:
    """Whether a call that failed has its status from the backend, not from this side.

    What a caller gives up, or its deadline ends, or ends with its connection, was not
    answered.
    """
    if cause_of(call):
        return False
    if code == CANCELLED:
        return was_ended_there(call)
    if code == DEADLINE_EXCEEDED:
        left = time_left(call)
        return left is None or left > 0.0
    if code == UNAVAILABLE:
        if not is_ready(attempt.backend.channel):
            return False
        return bool(trailers) or was_sent(attempt, call)
    return True
