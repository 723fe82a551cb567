"""Follows the health of a backend without a connection: by UDP or short connections.

How a LOOK goes is in `ordered_checks`, how UDP does in `udp`.
"""

from lbclient.client.backend_context import BackendContext
from lbclient.client.driver import Driver
from lbclient.client.health.ordered_checks import OrderedChecks
from lbclient.client.health.udp import Watch, locate
from lbclient.client.reported import Reported
from lbclient.core.model import Endpoint


class UnconnectedWatch:
    """Follows a backend that has no connection, by UDP health checks. Owned by the
    backend."""

    def __init__(
        self,
        endpoint: Endpoint,
        context: BackendContext,
        driver: Driver,
        reported: Reported,
        checks: OrderedChecks,
    ) -> None:
        self._endpoint = endpoint
        self._lifecycle, self._take = driver.lifecycle, driver.take
        self._reported = reported
        self._checks = checks
        self._prober, self._clock = context.prober, context.clock
        self._asking: Watch | None = None

    async def follow(self) -> None:
        """Asks by UDP where that is answered, and looks over TCP when told to."""
        try:
            if self._reported.udp_port:
                await self._ask_by_udp()
                if self._asking is None:
                    self._take(self._lifecycle.udp_unanswered(self._clock()))
            while True:
                await self._checks.wait_for_look()
                await self._checks.look()
                await self._ask_by_udp()
        finally:
            self._stop_asking()

    async def _ask_by_udp(self) -> None:
        """Probes by UDP where the backend is now: its name may lead elsewhere, or a new
        task listen on another port."""
        port, seal = self._reported.udp_port, self._reported.udp_seal
        host = await locate(self._endpoint) if port else None
        if self._asking is not None:
            is_lost = host is None and port > 0  # for now, perhaps
            if is_lost or self._asking.place == (host, port):
                self._prober().ask_again(self._asking, seal)
                return
            self._stop_asking()
        if host is not None:
            tell = self._reported.hear_by_udp
            self._asking = self._prober().watch(host, port, tell, seal)

    def _stop_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            self._prober().unwatch(asking)

    def __repr__(self) -> str:
        return f"<{self._endpoint.address} by {self._asking or 'looks alone'}>"
