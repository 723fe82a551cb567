"""Maps an attempt's status and trailers to its outcome, and says what may be retried.

An `Ending` has all that was received: the status, and what the server's trailers say.
It gives the `Outcome`, which the balancer and its throttle learn from, and tells
whether the call may be sent again. When and how often is decided in `retry`.
"""

from typing import NamedTuple

from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.refusal import Refusal

SERVED, ABANDONED = Verdict.SERVED, Verdict.ABANDONED
REJECTED, FAILED = Verdict.REJECTED, Verdict.FAILED
DECLINED = Verdict.DECLINED

UNAVAILABLE = 14  # the number of gRPC's status
# The statuses that say more of the backend than that it served, by gRPC's numbers.
_NOT_SERVED = {
    1: ABANDONED,  # CANCELLED
    2: FAILED,  # UNKNOWN: what an unhandled exception becomes
    4: FAILED,  # DEADLINE_EXCEEDED
    8: REJECTED,  # RESOURCE_EXHAUSTED
    13: FAILED,  # INTERNAL
    UNAVAILABLE: FAILED,
    15: FAILED,  # DATA_LOSS
}
STATUSES = range(17)  # from OK to UNAUTHENTICATED
VERDICTS = {number: _NOT_SERVED.get(number, SERVED) for number in STATUSES}
"""What a status alone says of the backend that sent it."""


class Ending(NamedTuple):
    """How an attempt ended: the number of its status, and what the server said.

    `pushback` is as in `retry.Failure`. `is_cut_off`: an overloaded server ended the
    attempt without an answer; it may have been executed.
    """

    code: int
    report: LoadReport | None = None
    refusal: Refusal | None = None
    pushback: float | None = None
    is_cut_off: bool = False

    def may_be_retried(self) -> bool:
        """Whether the status allows a retry: UNAVAILABLE, overload, or cut off.

        grpcio refuses with RESOURCE_EXHAUSTED where too many requests are in progress.
        """
        if not self.code:
            return False
        overloaded = self.refusal is Refusal.OVERLOADED
        return self.code == UNAVAILABLE or overloaded or self.is_cut_off

    def is_declined(self) -> bool:
        """Whether the backend wants another pick first: nothing went wrong."""
        return self.refusal is Refusal.DECLINED and self.code == UNAVAILABLE

    def outcome(self, latency: float) -> Outcome:
        """What is learned from the attempt; its caller corrects `is_answer`."""
        code, report, refusal, _, is_cut_off = self
        if self.is_declined():
            return Outcome(DECLINED, latency, report, None, False)
        verdict = VERDICTS[code]
        if is_cut_off:
            # What the server would have said if it had answered.
            return Outcome(REJECTED, latency, report, Refusal.OVERLOADED, False)
        if refusal is None or not (code == UNAVAILABLE or verdict is REJECTED):
            return Outcome(verdict, latency, report)
        # A refusal for load, or for a quota, is no failure of the backend.
        return Outcome(REJECTED, latency, report, refusal, False)
