"""The record of one attempt, attached to its call object.

An attempt begins in `methods`, if its call is direct, or in `calls.sending`, and is
settled in `balancer`; `attempts` decides what follows if it fails.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import Criticality

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend
    from lbclient.client.observers import ObservedAttempt


class Attempt(NamedTuple):
    """What a call is marked with: where it went, after how many seconds of waiting.

    `number` is 1 for the first time that it was sent; `sent_at` is the clock then.
    `counts` are those of its method, by the number of the status; `metadata` is that
    of the request, which says who pays; `observed` is what observers keep of the call.
    `is_hedge`: it began while the call's first attempt was in flight. `hints` are what
    a picker may know of the call; None: it does not want to.
    """

    backend: "Backend"
    waited: float
    number: int
    sent_at: float
    criticality: Criticality
    counts: dict[int, int]
    metadata: Any = None
    observed: "ObservedAttempt | None" = None
    is_hedge: bool = False
    hints: CallHints | None = None


new_attempt: Callable[[tuple[object, ...]], Attempt]
# What a named tuple's own constructor does after a call in Python.
new_attempt = partial(tuple.__new__, Attempt)
