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
from lbclient.core.retry import Decision, Failure, Refusal, Retry, parse_pushback
from lbclient.core.text import printable
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
from lbclient.wire.codes import VERDICT_OF_NUMBER

if TYPE_CHECKING:
    from lbclient.client.backend import Backend
    from lbclient.client.balancer import Balancer

REJECTED, ABANDONED = Verdict.REJECTED, Verdict.ABANDONED
# What the throttle counts as refused: a task has too much, whoever asks. One customer's
# quota is nobody else's; and of RESOURCE_EXHAUSTED without a word nobody can tell.
OVERLOAD = frozenset({Refusal.OVERLOADED, Refusal.DONT_RETRY})

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


def may_go_on(code: int, trailers: Trailers) -> bool:
    """Whether a call that ended so may be sent again: UNAVAILABLE, or not executed.

    grpcio's word for too many requests at a time is RESOURCE_EXHAUSTED.
    """
    if not code:
        return False
    return code == UNAVAILABLE or wire.find_refusal(trailers) is Refusal.OVERLOADED


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
    trailers: Trailers,
    left: float | None,
) -> Decision:
    """When a call that `may_go_on`, or was cut off, is sent again, and why or not."""
    backend = attempt.backend
    told = [str(value) for key, value in trailers if key == wire.PUSHBACK_KEY]
    failure = Failure(
        refusal=wire.find_refusal(trailers),
        is_sent=not was_not_sent(call, backend.channel, backend.tells_refusals()),
        is_answered=has_begun(call),
        pushback=parse_pushback(told),
    )
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


def settle(
    balancer: "Balancer",
    attempt: Attempt,
    call: Any,
    code: int,
    trailers: Trailers,
    is_last: bool,
    is_cut_off: bool = False,
) -> None:
    """Tells the balancer what an attempt that is done has taught us.

    Once for each: grpc.aio runs a call's done callbacks once, however it ends, by
    response, error, deadline or cancellation. A streaming call must not be dropped
    half-read for that to hold; `calls` sees to it.
    """
    now = balancer.clock()
    verdict, report = VERDICT_OF_NUMBER[code], wire.find_report(trailers)
    weighed, is_quota, is_answer = verdict, False, True
    if code:  # not OK
        refusal: Refusal | None = None
        if is_cut_off:
            verdict = weighed = REJECTED
        elif code == UNAVAILABLE or verdict is REJECTED:
            refusal = wire.find_refusal(trailers)
            is_quota = refusal is Refusal.QUOTA
            if refusal is not None:
                verdict = REJECTED
            if verdict is REJECTED:
                weighed = REJECTED if refusal in OVERLOAD else ABANDONED
        # To be refused for too much, or for a quota, says nothing against a backend.
        is_refused = is_cut_off or refusal is not None
        is_answer = not is_refused and was_answered(attempt, call, code)
    outcome = _outcome((verdict, now - attempt.sent_at, report))
    balancer.settle(attempt, outcome, code, is_last, now, weighed, is_quota, is_answer)
