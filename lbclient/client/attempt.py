"""One call on one backend, and what it taught us, told exactly once."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lbclient import wire
from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome, Verdict
from lbclient.core.verdict import Ending
from lbclient.grpc_seam import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    Trailers,
    cause_of,
    is_ready,
    was_ended_there,
    was_not_sent,
)

if TYPE_CHECKING:
    from lbclient.client.backend import Backend
    from lbclient.client.balancer import Balancer

SERVED = Verdict.SERVED


class Attempt(NamedTuple):
    """What a call is marked with: where it went, after how many seconds of waiting.

    `number` is 1 for the first time that it was sent; `sent_at` is the clock then.
    `counts` are those of its method, by the number of the status; `metadata` is that
    of the request, which says who pays.
    """

    backend: "Backend"
    waited: float
    number: int
    sent_at: float
    criticality: Criticality
    counts: dict[int, int]
    metadata: Any = None


new_attempt: Callable[[tuple[object, ...]], Attempt]
_outcome: Callable[[tuple[object, ...]], Outcome]
# What a named tuple's own constructor does after a call in Python.
new_attempt = partial(tuple.__new__, Attempt)
_outcome = partial(tuple.__new__, Outcome)


def ending_of(attempt: Attempt, call: Any, code: int, trailers: Trailers) -> Ending:
    """How an attempt failed: its trailers are read here, once."""
    ending = wire.read_trailers(code, trailers)
    if code == CANCELLED and was_cut_off(attempt, call, trailers):
        return ending._replace(is_cut_off=True)
    return ending


def was_cut_off(attempt: Attempt, call: Any, trailers: Trailers) -> bool:
    """Whether a call that is CANCELLED was ended by a task that has too much.

    It may have been executed, as far as anybody can tell. What a handler of ours says
    comes with trailers; of other servers nothing is known.
    """
    return attempt.backend.is_ours and not trailers and was_ended_there(call)


def was_sent(attempt: Attempt, call: Any, code: int, trailers: Trailers) -> bool:
    """Whether a backend may have taken a call that failed."""
    if code != UNAVAILABLE or trailers:  # a handler spoke
        return True
    backend = attempt.backend
    return not was_not_sent(call, backend.channel, backend.tells_refusals())


def was_answered(attempt: Attempt, call: Any, code: int, trailers: Trailers) -> bool:
    """Whether a call that failed has its status from the backend, not from this side.

    What a caller gives up, or its deadline ends, or ends with its connection, was not
    answered.
    """
    if cause_of(call):
        return False
    if code == CANCELLED:
        return was_ended_there(call)
    if code == DEADLINE_EXCEEDED:
        left = call.time_remaining()
        return left is None or left > 0.0
    if code == UNAVAILABLE:
        if not is_ready(attempt.backend.channel):
            return False
        return was_sent(attempt, call, code, trailers)
    return True


def settle_served(balancer: "Balancer", attempt: Attempt, trailers: Trailers) -> None:
    """Tells the balancer of an attempt that ended with OK; once for each.

    grpc.aio runs a call's done callbacks once, however it ends, by response, error,
    deadline or cancellation. A streaming call must not be dropped half-read for that
    to hold; `calls` sees to it.
    """
    now, report = balancer.clock(), wire.find_report(trailers)
    outcome = _outcome((SERVED, now - attempt.sent_at, report, None, True))
    balancer.settle(attempt, outcome, 0, True, now)


def settle_failed(
    balancer: "Balancer",
    attempt: Attempt,
    call: Any,
    ending: Ending,
    trailers: Trailers,
    is_last: bool,
) -> None:
    """The same of an attempt that failed."""
    now, code = balancer.clock(), ending.code
    outcome = ending.outcome(now - attempt.sent_at)
    if outcome.is_answer and not was_answered(attempt, call, code, trailers):
        outcome = outcome._replace(is_answer=False)
    balancer.settle(attempt, outcome, code, is_last, now)
