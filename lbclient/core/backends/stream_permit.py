"""Whether health streams may stay open on the connections of one endpoint.

A stream counts towards the peer's MAX_CONCURRENT_STREAMS, and in a server of threads it
may hold a thread. gRPC does not tell a client the peer's limit: calls beyond it wait in
the core until their deadline. The evidence has two halves: a health check that is not
answered beside an open stream, and one that is answered quickly once the stream was
ended. A server that is merely slow answers the second one slowly, too.
"""

from math import inf

from lbclient.core.backoff import Backoff

LEAST_PATIENCE = 0.25  # seconds; for a health check beside a stream
PER_ROUND_TRIP = 8  # the same, in times that an answer took without a stream
LONGEST_ANSWER = 5.0  # seconds; for a health check with no stream open
# Without streams, up to a day. Longer each time that streams block calls again within
# as long after it.
SUSPENSIONS = Backoff(600.0, 86400.0)
# Seconds. A stream that a client ends is counted by its server a little longer than by
# the client, and a call that takes its place is refused (REFUSED_STREAM).
REFUSED_FOR = 1.0
TOLD_FOR = 60.0  # seconds in which errors of calls tell of it


class StreamPermit:
    """Decides whether health streams may be open on an endpoint's connections. Owned by
    a backend, and kept from one connection to the next."""

    def __init__(self) -> None:
        self.expires_at = -inf  # of the suspension
        self._pause = SUSPENSIONS.first
        self._ended_at = -inf
        self._said = ""

    def may_stream(self, now: float) -> bool:
        return now >= self.expires_at

    def record_ended(self, streams: int, in_flight: int, now: float) -> str:
        """Streams were ended for a health check that waited; returns the reason."""
        self._ended_at = now
        plural = "s" if streams > 1 else ""
        self._said = (
            f"{streams} health or load stream{plural} of this channel and {in_flight} "
            "calls were on the connection, and a health check beside them was not "
            "answered: the connection may have no free stream, or the server no free "
            "thread"
        )
        return self._said

    def suspend(self, now: float) -> None:
        """Streams blocked calls: no stream is opened for a while."""
        if not self.may_stream(now):
            return
        if now >= self.expires_at + SUSPENSIONS.first:
            self._pause = SUSPENSIONS.first  # they were in nobody's way meanwhile
        self.expires_at = now + self._pause
        self._pause = SUSPENSIONS.longer(self._pause)

    def has_just_ended(self, now: float) -> bool:
        """Whether calls may still be refused because streams that were ended count."""
        return now < self._ended_at + REFUSED_FOR

    def error_note(self, now: float) -> str:
        """A note for errors of calls that waited; '' if no stream was ended lately."""
        ago = now - self._ended_at
        if ago > TOLD_FOR:
            return ""
        return f"{self._said}; the streams were ended {ago:.1f} s ago"


class CheckPatience:
    """How long a health check beside a stream may take, in seconds.

    It grows with a server that is slow without streams as well, and shrinks again with
    each answer.
    """

    def __init__(self) -> None:
        self._usual = self.seconds = LEAST_PATIENCE

    def start(self, round_trip: float, longest: float) -> None:
        """`round_trip` is what an answer took without a stream."""
        self._usual = patience(round_trip, longest)
        self.seconds = max(self.seconds, self._usual)

    def answered(self, took: float) -> None:
        """A check was answered in time, beside the streams."""
        self.seconds = max(self._usual, self.seconds / 2, 2 * took)

    def answered_late(self, took: float) -> None:
        """A check took as long without the streams: the server is slow."""
        self.seconds = min(max(self.seconds, 2 * took), LONGEST_ANSWER)


def patience(round_trip: float, longest: float) -> float:
    """How long a health check beside a stream may take at first.

    >>> patience(0.001, 2.0), patience(0.1, 2.0), patience(1.0, 2.0)
    (0.25, 0.8, 2.0)
    """
    return min(max(LEAST_PATIENCE, PER_ROUND_TRIP * round_trip), longest)
