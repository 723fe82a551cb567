"""Counts the calls that end without an attempt.

They were refused here, found no backend in time, or were cancelled while they waited.
Calls that end with an attempt are counted in `balancer`, where attempts are settled.
"""

from typing import TYPE_CHECKING

import grpc

from lbclient.client.observers import ObservedCall
from lbclient.core.model import Verdict
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Clock
from lbclient.core.statistics.counters import Counters
from lbclient.grpc_seam import CANCELLED
from lbclient.wire.local_errors import LocalRpcError

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend
    from lbclient.client.calls.attempt import Attempt


class CallEnds:
    """Counts calls that end without an attempt, and tells their observers. Owned by a
    balancer."""

    def __init__(
        self, counters: Counters, clock: Clock, outliers: Outliers["Backend"]
    ) -> None:
        self._counters = counters
        self._clock = clock
        self._outliers = outliers

    def count(
        self,
        code: grpc.StatusCode,
        counts: dict[int, int],
        was_sent: bool = False,
        observed: ObservedCall | None = None,
    ) -> None:
        """A call is over; `counts` are its method's. `was_sent`: attempts failed."""
        number = code.value[0]
        self._counters.call_over(counts, number, was_sent)
        if observed is not None:
            observed.over(number, self._clock())

    def refuse(
        self,
        error: grpc.aio.AioRpcError,
        counts: dict[int, int],
        was_sent: bool,
        observed: ObservedCall | None = None,
    ) -> None:
        """A call ends with an error of our own, or with that of its last attempt."""
        if isinstance(error, LocalRpcError):
            self._counters.refuse(error.REASON)
        self.count(error.code(), counts, was_sent, observed)

    def not_sent(self, attempt: "Attempt", was_sent: bool) -> None:
        """An attempt was cancelled before it was sent, and its call with it.

        It does not count for or against its backend. `was_sent`: as in `count`.
        """
        attempt.backend.load.forget()
        if self._outliers.count:
            key, now = id(attempt.counts), self._clock()
            self._outliers.given_up(key, attempt.backend, attempt.sent_at, now)
        if (observed := attempt.observed) is not None:
            now = self._clock()
            took = now - attempt.sent_at + attempt.waited
            observed.attempt_over(CANCELLED, took, Verdict.ABANDONED, None, now)
        self.count(grpc.StatusCode.CANCELLED, attempt.counts, was_sent)

    def __repr__(self) -> str:
        return repr(self._counters)
