"""One call on one backend, and what it taught us, told exactly once."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lbclient import wire
from lbclient.criticality import Criticality
from lbclient.grpc_codes import VERDICT_OF_NUMBER
from lbclient.grpc_seam import UNAVAILABLE, Trailers, has_begun, was_not_sent
from lbclient.model import Outcome, Verdict
from lbclient.retry import Failure, Retry, parse_pushback

if TYPE_CHECKING:
    from lbclient.backend import Backend
    from lbclient.balancer import Balancer

REJECTED = Verdict.REJECTED

logger = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """What a call is marked with: where it went, after how many seconds of waiting.

    `number` is 1 for the first time that it was sent; `sent_at` is the clock then.
    """

    backend: "Backend"
    waited: float
    number: int
    sent_at: float
    criticality: Criticality


new_attempt: Callable[[tuple[object, ...]], Attempt]
_outcome: Callable[[tuple[object, ...]], Outcome]
# What a named tuple's own constructor does after a call in Python.
new_attempt = partial(tuple.__new__, Attempt)
_outcome = partial(tuple.__new__, Outcome)


def decide(
    balancer: "Balancer",
    retry: Retry,
    attempt: Attempt,
    call: Any,
    trailers: Trailers,
    left: float | None,
) -> float | None:
    """Seconds after which a call that ended UNAVAILABLE is sent again; None: never."""
    backend = attempt.backend
    told = [str(value) for key, value in trailers if key == wire.PUSHBACK_KEY]
    failure = Failure(
        refusal=wire.find_refusal(trailers),
        is_sent=not was_not_sent(call, backend.channel, backend.is_ours),
        is_answered=has_begun(call),
        pushback=parse_pushback(told),
    )
    is_other = any(other is not backend for other in balancer.pool.ready)
    if (
        failure.is_sent
        and not retry.why_not(failure)
        and balancer.refusal(attempt.criticality, balancer.clock()) is not None
    ):
        return None  # to the throttle it is a request like any other
    before = retry.attempt
    decision = retry.decide(failure, left, is_other)
    if decision.delay and not balancer.waiting.has_room_to_pause():
        return None
    logger.debug("%s: %s", backend.endpoint.address, decision.reason)
    if decision.delay is not None:
        balancer.retries += retry.attempt - before
        balancer.resends += not failure.is_sent
    return decision.delay


def settle(
    balancer: "Balancer",
    attempt: Attempt,
    code: int,
    trailers: Trailers,
    is_last: bool,
) -> None:
    """Tells the balancer what an attempt that is done has taught us.

    Once for each: grpc.aio runs a call's done callbacks once, however it ends, by
    response, error, deadline or cancellation. A streaming call must not be dropped
    half-read for that to hold; `calls` sees to it.
    """
    now = balancer.clock()
    verdict, report = VERDICT_OF_NUMBER[code], wire.find_report(trailers)
    if code == UNAVAILABLE and wire.find_refusal(trailers) is not None:
        verdict = REJECTED
    outcome = _outcome((verdict, now - attempt.sent_at, report))
    balancer.settle(attempt, outcome, code if is_last else None, now)
