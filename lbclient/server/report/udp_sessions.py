"""Secrets for UDP health checks, one for each health stream that is encrypted.

None of them is kept: a secret is derived from its session's number and a key that this
process alone has. So there may be any number of them, and they end with the process.
"""

from hmac import digest
from secrets import randbits, token_bytes

from lbclient.core.protocols import Clock
from lbclient.v1 import health_pb2

# Seconds. Who may not connect any more learns nothing by UDP after that. An inactive
# client then looks over TCP, which brings a new session.
SESSION_LIFE = 24 * 3600.0

KEY_SIZE = 32  # bytes, as SHA-256 has (RFC 2104, section 3)
_RANDOM_BITS = 32  # of a session's number; above them is when it began


class UdpSessions:
    """Issues secrets for UDP health checks over encrypted health streams. Owned by a
    server. `port` is where probes of sessions are answered; 0: nowhere."""

    def __init__(self, clock: Clock) -> None:
        self.port = 0
        self._clock = clock
        self._began_at = clock()
        self._key = token_bytes(KEY_SIZE)

    def issue(self) -> health_pb2.UdpSession:
        """A new one. Its number says when it began, and is never 0."""
        began = int(self._clock() - self._began_at) + 1
        session = began << _RANDOM_BITS | randbits(_RANDOM_BITS)
        secret = self._derive(session)
        return health_pb2.UdpSession(port=self.port, id=session, secret=secret)

    def secret_of(self, session: int) -> bytes | None:
        """None for a session that is over, or cannot have begun."""
        age = self._clock() - self._began_at + 1 - (session >> _RANDOM_BITS)
        return self._derive(session) if 0 <= age < SESSION_LIFE else None

    def _derive(self, session: int) -> bytes:
        return digest(self._key, session.to_bytes(8), "sha256")

    def __repr__(self) -> str:
        return f"<sessions on UDP port {self.port}>"
