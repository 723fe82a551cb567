"""Whether a backend's load reports have ended while its answers still come.

A proxy that drops trailers, or a backend that was replaced by one without reports, goes
on answering. Its last report would then decide for ever. So the mean gap between its
reports is learned, and the next one is missed where answers came without it, or where
it is very long overdue. A picker then takes the backend for one that reports nothing.
"""

from math import inf

from lbclient.core.load import Load
from lbclient.core.model import Verdict

# A report is missed after so many mean gaps, and as many answers without one: where
# 10 % of the reports get lost, five in a row are one case in 100,000.
MISSED_GAPS, MISSED_ANSWERS = 3.0, 5
# Without answers, after so many mean gaps and so many seconds. Health streams bring a
# report a second, and unary checks one in half a health interval.
LONG_GAPS, LONG_SECONDS = 10.0, 15.0
GAP_GAIN = 0.2  # of a new gap, in their mean

SERVED = Verdict.SERVED  # a member is looked up in Python up to 3.11


class ReportGaps:
    """The gaps between one backend's reports. Owned by its candidate."""

    __slots__ = ("_last_at", "_mean")

    def __init__(self) -> None:
        self._last_at = -inf  # of the last report, when last looked at
        self._mean = 0.0  # seconds

    def look(self, load: Load, answers: int, now: float) -> bool:
        """Learns the gap before the last report. Returns whether the next is missed.

        To be called now and then. `answers` had come when the last report came: only
        those after it can be without one. The caller counts them, as a function for
        each report would be one for each call.
        """
        if load.report is None:
            self._last_at = -inf
        elif load.reported_at != self._last_at:
            if self._last_at > -inf:
                gap = load.reported_at - self._last_at
                mean = self._mean or gap
                self._mean = mean + GAP_GAIN * (gap - mean)
            self._last_at = load.reported_at
        else:
            return self._is_missed(load.counts[SERVED] - answers, now)
        return False

    def _is_missed(self, answers: int, now: float) -> bool:
        age = now - self._last_at
        # A call that was given up, or timed out, is no answer: it could not bring one.
        if answers >= MISSED_ANSWERS and age > MISSED_GAPS * self._mean:
            return True
        return age > max(LONG_SECONDS, LONG_GAPS * self._mean)

    def __repr__(self) -> str:
        return f"<a report every {self._mean:.3f} s>"
