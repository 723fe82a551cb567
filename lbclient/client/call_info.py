"""Tells of a call which backend it went to, in how many attempts, after what wait."""

import sys

from lbclient import client
from lbclient.client.kinds import MODULE
from lbclient.core.text import brief


def info(call: object) -> "client.records.CallInfo":
    """Tells which backend a call went to, in how many attempts, after what wait.

    For calls made on a channel of ours; of any other it knows nothing. Where client
    interceptors answer with a response or a generator of their own, or raise, it tells
    of the call that they sent last. Raises TypeError for what is no call.
    """
    if not callable(getattr(call, "done", None)):
        raise TypeError(f"want what a stub's method returns, not {brief(call)}")
    from lbclient.core.statistics.records import CallInfo

    if MODULE not in sys.modules:  # so there is no call of ours
        return CallInfo(None, 0, 0.0)
    from lbclient.client.calls import wrapped
    from lbclient.client.calls.attempts import Attempts
    from lbclient.grpc_seam import beneath, final_status, last_beneath, marked
    from lbclient.wire import find_cost

    first = beneath(call)
    if marked(first) is None and not isinstance(first, wrapped.Call):
        first = last_beneath(call) or first  # interceptors answer, or are at it
    sent = getattr(first, "later", None) or first
    attempt = marked(sent) or marked(first)
    attempts: Attempts | None = getattr(sent, "attempts", None)
    last = getattr(sent, "_inner", sent)
    history: tuple[str, ...] = ()
    if attempts is not None:
        history = attempts.history(attempt if sent.done() else None, last)
    if attempt is not None:
        backend = attempt.backend
        is_over = last is not None and sent.done() and last.done()
        cost = find_cost(final_status(last)[1]) if is_over else None
        return CallInfo(
            backend.endpoint.address,
            attempt.number,
            attempt.waited,
            history,
            cost,
            backend.endpoint.zone,
            backend.endpoint.priority,
            backend.has_left_zone(),
            getattr(sent, "hedge", ""),
        )
    waited = sent.waited() if isinstance(sent, wrapped.Call) else 0.0
    return CallInfo(None, 0, waited, history)
