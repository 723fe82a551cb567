"""One call on one backend, and what it taught us if it went well.

What an attempt that failed taught us, and what follows, is told in `attempts`.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lbclient import wire
from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome, Verdict
from lbclient.grpc_seam import Trailers

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


def settle_served(balancer: "Balancer", attempt: Attempt, trailers: Trailers) -> None:
    """Tells the balancer of an attempt that ended with OK; once for each.

    grpc.aio runs a call's done callbacks once, however it ends, by response, error,
    deadline or cancellation. A streaming call must not be dropped half-read for that
    to hold; `calls` sees to it.
    """
    now, report = balancer.clock(), wire.find_report(trailers)
    outcome = _outcome((SERVED, now - attempt.sent_at, report, None, True))
    balancer.settle(attempt, outcome, 0, True, now)
