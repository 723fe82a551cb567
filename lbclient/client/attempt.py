"""One call on one backend, and what it taught us, told exactly once."""

import logging
from asyncio import get_running_loop
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from lbclient import wire
from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome, Verdict
from lbclient.core.retry import Decision, Retry
from lbclient.core.text import printable
from lbclient.core.verdict import Ending
from lbclient.grpc_seam import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    Trailers,
    cause_of,
    error_of,
    final_status,
    has_begun,
    is_ready,
    was_ended_there,
    was_not_sent,
)

if TYPE_CHECKING:
    from lbclient.client.backend import Backend
    from lbclient.client.balancer import Balancer

SERVED = Verdict.SERVED

logger = logging.getLogger(__name__)


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


def was_answered(attempt: Attempt, call: Any, code: int) -> bool:
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
        backend = attempt.backend
        if not is_ready(backend.channel):
            return False
        return not was_not_sent(call, backend.channel, backend.tells_refusals())
    return True


def decide(
    balancer: "Balancer",
    retry: Retry,
    attempt: Attempt,
    call: Any,
    ending: Ending,
    left: float | None,
) -> Decision:
    """When a call whose ending `may_be_retried` is sent again, and why or not."""
    backend = attempt.backend
    not_sent = was_not_sent(call, backend.channel, backend.tells_refusals())
    failure = ending.failure(is_sent=not not_sent, is_answered=has_begun(call))
    allowed = balancer.allowed(attempt.counts)
    is_other = any(other is not backend for other in allowed)
    if (
        failure.is_sent
        and not retry.why_not(failure)
        and balancer.refusal(attempt.criticality, balancer.clock()) is not None
    ):
        # To the throttle it is a request like any other.
        return Decision(None, "throttled: the backends refuse too much")
    before = retry.attempt
    decision = retry.decide(failure, left, is_other)
    if decision.delay and not balancer.waiting.has_room_to_pause():
        decision = Decision(None, "too many calls wait already")
    logger.debug("%s: %s", backend.endpoint.address, decision.reason)
    if decision.delay is not None:
        balancer.retries += retry.attempt - before
        balancer.resends += not failure.is_sent
    return decision


def story(attempt: Attempt, call: Any, decision: Decision) -> str:
    """A line on an attempt that failed, for whoever reads of the call's end."""
    error = error_of(call)
    said = "failed"
    if error is not None:
        said = f"{error.code().name}, {printable(error.details() or '')!r}"
    return f"{attempt.backend.endpoint.address}: {said}: {decision.reason}"


def last_words(
    attempt: Attempt, call: Any, balancer: "Balancer | None", was_closed: bool
) -> str:
    """The same where nobody thought of another; '' if it went well. `was_closed`: the
    channel, when the attempt ended."""
    code, _ = final_status(call)
    if not code:
        return ""
    why = "the channel was closed" if was_closed else "it had begun"
    if code != UNAVAILABLE:
        why = "only what is UNAVAILABLE or refused is tried again"
    if balancer is not None and balancer.outliers.was_trial(
        id(attempt.counts), attempt.backend, attempt.sent_at
    ):
        why = f"it was a trial call, to an ejected backend; {why}"
    return story(attempt, call, Decision(None, why))


def in_the_way(attempt: Attempt, error: grpc.aio.AioRpcError) -> tuple[str, ...]:
    """A line on streams of ours that were ended, if the call may have waited for
    them."""
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return ()
    said = attempt.backend.permit.error_note(get_running_loop().time())
    return (f"{attempt.backend.endpoint.address}: {said}",) if said else ()


def explanation(
    history: tuple[str, ...],
    attempt: Attempt | None,
    call: Any,
    error: BaseException,
    balancer: "Balancer | None",
    was_closed: bool,
) -> tuple[str, ...]:
    """A line on each attempt, for the notes of the error that the caller gets.

    `history` has those after which it was thought of another attempt; `attempt` and
    `call` are the last one, which may be missing there.
    """
    if attempt is None or not isinstance(error, grpc.aio.AioRpcError):
        return history
    said = in_the_way(attempt, error)
    if said or len(history) >= attempt.number or call is None or not call.done():
        return (*history, *said)
    last = last_words(attempt, call, balancer, was_closed)
    return (*history, last) if last else history


def settle_served(balancer: "Balancer", attempt: Attempt, trailers: Trailers) -> None:
    """Tells the balancer of an attempt that ended with OK; once for each.

    grpc.aio runs a call's done callbacks once, however it ends, by response, error,
    deadline or cancellation. A streaming call must not be dropped half-read for that
    to hold; `calls` sees to it.
    """
    now, report = balancer.clock(), wire.find_report(trailers)
    outcome = _outcome((SERVED, now - attempt.sent_at, report, None, True))
    balancer.settle(attempt, outcome, 0, True, now)


def settle(
    balancer: "Balancer", attempt: Attempt, call: Any, ending: Ending, is_last: bool
) -> None:
    """The same of an attempt that failed."""
    now, code = balancer.clock(), ending.code
    outcome = ending.outcome(now - attempt.sent_at)
    if outcome.is_answer and not was_answered(attempt, call, code):
        outcome = outcome._replace(is_answer=False)
    balancer.settle(attempt, outcome, code, is_last, now)
