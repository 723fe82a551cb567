"""Tells which counts of requests are old, as a proxy or a cache may deliver them.

All clients send to a backend that was idle long ago: with counts that were 1 s old 15 %
of the requests failed in simulation. A count must be old if it is smaller than this
client's own requests there. It is not believed for a minute, and none of any backend
if two have old ones; then own requests decide.
"""

from dataclasses import dataclass
from math import inf

from lbclient.pickers.candidate import Candidate


@dataclass(frozen=True, slots=True)
class OldCountsTuning:
    """When a count is taken to be old. Ours, found by simulation: `lbclient sim`."""

    margin: int = 3  # of our requests on their way, which no count can have
    suspicion_after: float = 0.1  # seconds from a count that is too low until the next
    suspicion_until: float = 1.0  # seconds, likewise
    doubt: float = 60.0  # seconds; while nobody believes them old counts do not show


TUNING = OldCountsTuning()


class OldCounts:
    """Whose counts are old. Owned by a picker, which reports each that is too low.

    No count of before `deaf_until` is believed, nor one of a candidate of before its
    own `doubted_until`.
    """

    __slots__ = ("_last", "deaf_until")

    def __init__(self) -> None:
        self.deaf_until = -inf
        self._last: Candidate | None = None  # that was doubted

    def doubt(self, candidate: Candidate) -> None:
        """Its count is lower than our own requests there.

        Not believed from the second on: of many requests some meet by chance on their
        way.
        """
        now = candidate.reported_at
        passed = now - candidate.suspected_at
        if passed > TUNING.suspicion_until:
            candidate.suspected_at = now
        if not TUNING.suspicion_after <= passed <= TUNING.suspicion_until:
            return
        last, self._last = self._last, candidate
        if last is not None and last is not candidate and last.doubted_until > now:
            self.deaf_until = now + TUNING.doubt
        candidate.doubted_until = now + TUNING.doubt

    def __repr__(self) -> str:
        return f"<no counts believed before {self.deaf_until:.1f}>"
