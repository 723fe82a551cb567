"""One call on one backend, and what it taught us, told exactly once."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lbclient import wire
from lbclient.backend import Backend
from lbclient.grpc_codes import VERDICT_OF_NUMBER
from lbclient.grpc_seam import final_status, mark
from lbclient.model import Outcome
from lbclient.protocols import Clock

Settle = Callable[[Backend, Outcome, int, float], None]
"""Takes the backend, what it taught us, the number of the status, and now."""

# What a named tuple's own constructor does after a call in Python.
new_outcome: Callable[[tuple[object, ...]], Outcome]
new_outcome = partial(tuple.__new__, Outcome)


class Attempt:
    """Made when a backend has been picked and has one more call in flight.

    grpc.aio runs a call's done callbacks once, however it ends: by response, error,
    deadline or cancellation. A streaming call must not be dropped half-read for
    that to hold; `calls` sees to it.
    """

    __slots__ = ("_clock", "_settle", "backend", "started_at", "waited")

    def __init__(
        self, backend: Backend, settle: Settle, clock: Clock, now: float, waited: float
    ) -> None:
        self.backend = backend
        self.started_at = now
        self.waited = waited
        self._settle = settle
        self._clock = clock

    def watch(self, call: Any) -> None:
        """Settles when `call`, a grpc.aio call on the backend, is done."""
        mark(call, self)
        call.add_done_callback(self._done)

    def _done(self, call: Any) -> None:
        code, trailers = final_status(call)
        now = self._clock()
        verdict, report = VERDICT_OF_NUMBER[code], wire.find_report(trailers)
        outcome = new_outcome((verdict, now - self.started_at, report))
        self._settle(self.backend, outcome, code, now)
