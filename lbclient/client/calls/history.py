"""Describes failed attempts, for the notes of errors and for `lbclient.info`."""

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from lbclient.client.calls.attempt import Attempt
from lbclient.core.retries.retry import FINAL_REFUSALS
from lbclient.core.text import printable
from lbclient.grpc_seam import UNAVAILABLE, error_of, final_status
from lbclient.wire import find_refusal

if TYPE_CHECKING:
    from lbclient.client.balancer import Balancer


class Failed(NamedTuple):
    """An attempt that failed, and why another one followed, or none."""

    address: str
    error: grpc.aio.AioRpcError | None  # None where only the call can tell
    reason: str

    def __str__(self) -> str:
        said, error = "failed", self.error
        if error is not None:
            said = f"{error.code().name}, {printable(error.details() or '')!r}"
        return f"{self.address}: {said}: {self.reason}"


def described(
    attempt: Attempt, call: Any, balancer: "Balancer", was_closed: bool
) -> Failed:
    """Describes a failed attempt for which no next one was decided on. `was_closed`:
    the channel was closed when it ended."""
    code, trailers = final_status(call)
    why = "the channel was closed" if was_closed else "it had begun"
    refusal = find_refusal(trailers)
    if refusal in FINAL_REFUSALS:
        why = FINAL_REFUSALS[refusal]
    elif code != UNAVAILABLE:
        why = "only what is UNAVAILABLE or refused is tried again"
    if balancer.outliers.was_trial(
        id(attempt.counts), attempt.backend, attempt.sent_at
    ):
        why = f"it was a trial call, to an ejected backend; {why}"
    return Failed(attempt.backend.endpoint.address, error_of(call), why)


def has_failed(call: Any) -> bool:
    """Whether a call was sent, and is over otherwise than by OK."""
    return call is not None and call.done() and bool(final_status(call)[0])


def ended_streams(attempt: Attempt, error: BaseException) -> tuple[str, ...]:
    """A line on health streams that this client ended, if the call may have waited for
    them."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return ()
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return ()
    said = attempt.backend.permit.error_note(get_running_loop().time())
    return (f"{attempt.backend.endpoint.address}: {said}",) if said else ()
