"""One call on one backend, and what it taught us, told exactly once."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lbclient import wire
from lbclient.grpc_codes import VERDICT_OF_NUMBER
from lbclient.grpc_seam import final_status, mark
from lbclient.model import Outcome

if TYPE_CHECKING:
    from lbclient.backend import Backend
    from lbclient.balancer import Balancer


class Attempt(NamedTuple):
    """What a call is marked with: where it went, after how many seconds of waiting."""

    backend: "Backend"
    waited: float


def watch(
    call: Any, balancer: "Balancer", backend: "Backend", now: float, waited: float
) -> None:
    """Settles when `call`, a grpc.aio call on `backend`, is done.

    The backend has one more call in flight. grpc.aio runs a call's done callbacks
    once, however it ends: by response, error, deadline or cancellation. A streaming
    call must not be dropped half-read for that to hold; `calls` sees to it.
    """
    mark(call, _attempt((backend, waited)))
    call.add_done_callback(partial(settle, balancer, backend, now))


def settle(balancer: "Balancer", backend: "Backend", sent_at: float, call: Any) -> None:
    """Tells the balancer what a call that is done has taught us."""
    code, trailers = final_status(call)
    now = balancer.clock()
    verdict, report = VERDICT_OF_NUMBER[code], wire.find_report(trailers)
    balancer.settle(backend, _outcome((verdict, now - sent_at, report)), code, now)


# What a named tuple's own constructor does after a call in Python.
_outcome: Callable[[tuple[object, ...]], Outcome] = partial(tuple.__new__, Outcome)
_attempt: Callable[[tuple[object, ...]], Attempt] = partial(tuple.__new__, Attempt)
