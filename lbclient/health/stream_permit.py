"""Whether our own streams may take slots of one endpoint's connections.

A stream counts towards the peer's MAX_CONCURRENT_STREAMS, and in a server of threads it
may hold a thread. gRPC does not tell a client the peer's limit: calls beyond it wait in
the core until their deadline. So the evidence is a health check that is not answered
while a stream is open, and is answered once the stream was ended.
"""

from math import inf

LEAST_PATIENCE = 0.25  # seconds; for a health check beside a stream
PER_ROUND_TRIP = 8  # the same, in times that an answer took without a stream
FIRST_PAUSE = 600.0  # seconds without streams; doubles each time they cost too much
LONGEST_PAUSE = 86400.0
# Seconds. A stream that a client ends is counted by its server a little longer than by
# the client, and a call that takes its place is refused (REFUSED_STREAM).
REFUSED_FOR = 1.0
TOLD_FOR = 60.0  # seconds in which errors of calls tell of it


class StreamPermit:
    """Owned by a backend, and kept from one connection to the next."""

    def __init__(self) -> None:
        self._none_until = -inf
        self._pause = FIRST_PAUSE
        self._ended_at = -inf
        self._said = ""

    def may_stream(self, now: float) -> bool:
        return now >= self._none_until

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
        """The health check was answered once they were ended."""
        self._none_until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def has_just_ended(self, now: float) -> bool:
        """Whether calls may be refused as streams that were ended still count."""
        return now < self._ended_at + REFUSED_FOR

    def error_note(self, now: float) -> str:
        """For errors of calls that waited; '' if no stream was ended of late."""
        ago = now - self._ended_at
        if ago > TOLD_FOR:
            return ""
        return f"{self._said}; the streams were ended {ago:.1f} s ago"


def patience(round_trip: float, longest: float) -> float:
    """How long a health check beside a stream may take.

    >>> patience(0.001, 2.0), patience(0.1, 2.0), patience(1.0, 2.0)
    (0.25, 0.8, 2.0)
    """
    return min(max(LEAST_PATIENCE, PER_ROUND_TRIP * round_trip), longest)
