"""The UDP ports of a server: one for anybody or one secret, one for sessions.

Beside insecure ports everybody is answered who may connect there, which is everybody,
unless there is a secret. Beside secure ports only those are answered who were given a
session over one. So these are two UDP ports; with a secret the first is for both.
"""

from dataclasses import replace

from lbclient.core.protocols import Clock
from lbclient.server.report.udp import Read, UdpHealth
from lbclient.server.report.udp_sessions import UdpSessions
from lbclient.server.statistics import UdpStatistics


class UdpPorts:
    """Opens and closes the server's UDP ports for health checks. Owned by the server.
    `port` is the port that all clients are told; 0: none."""

    def __init__(self, read: Read, clock: Clock, secret: str = "") -> None:
        self.sessions = UdpSessions(clock)
        self.common = UdpHealth(read, clock, secret)
        self.private = UdpHealth(read, clock, sessions=self.sessions)
        self._has_secret = bool(secret)
        self._common_grpc: list[tuple[str, int]] = []
        self._private_grpc: list[tuple[str, int]] = []

    @property
    def port(self) -> int:
        return self.common.port

    def add(self, address: str, port: int, *, is_secure: bool) -> None:
        """There is such a gRPC port. UDP ports are opened beside it later."""
        is_private = is_secure and not self._has_secret
        ports = self._private_grpc if is_private else self._common_grpc
        ports.append((address, port))

    async def open(self) -> None:
        await self.common.open(self._common_grpc)
        await self.private.open(self._private_grpc)
        self.sessions.port = self.private.port

    def push(self) -> None:
        self.common.push()
        self.private.push()

    def close(self) -> None:
        """Closes both ports. Called on the loop's thread."""
        self.sessions.port = 0
        self.common.close()
        self.private.close()

    def drop(self) -> None:
        """`close` for a finalizer, which may run in any thread, and too late."""
        self.common.drop()
        self.private.drop()

    def statistics(self) -> UdpStatistics:
        """Statistics of both ports together, with the number of the first."""
        common, private = self.common.statistics(), self.private.statistics()
        return replace(
            common,
            port=common.port or private.port,
            answered=common.answered + private.answered,
            malformed=common.malformed + private.malformed,
            forged=common.forged + private.forged,
            limited=common.limited + private.limited,
            pushed=common.pushed + private.pushed,
        )

    def __repr__(self) -> str:
        return f"<{self.common!r}, for sessions {self.private!r}>"
