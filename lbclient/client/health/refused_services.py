"""Which health and load services of a backend are refused, and with which status.

An interceptor or a proxy that asks for credentials refuses health checks, too. Calls go
on, but a drain, or a server that froze, is not seen then.
"""

from collections.abc import Mapping

from lbclient import wire
from lbclient.log import Log

logger = Log(__name__)

CHECKS = (wire.CHECK_METHOD, wire.SERVING_CHECK_METHOD)
LOAD = (wire.ORCA_METHOD,)


class Refusals:
    """Records which health services a backend refuses, and with which status. Owned by
    a backend, for all its connections; its health watch writes it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._status: dict[str, str] = {}  # by method
        # Names of statuses in the log, and whether another service told the state.
        self._told: set[tuple[str, bool]] = set()

    def clear(self) -> None:
        """There is a new connection, perhaps to another server."""
        self._status.clear()

    def refused(self, method: str, status: str) -> None:
        """`status` is its name and the server's words: "UNAUTHENTICATED: no token"."""
        self._status[method] = status

    def answered(self, *methods: str) -> None:
        for method in methods:
            self._status.pop(method, None)

    def of_health(self) -> str:
        """What a reason says of the services that tell a state; "": none is refused."""
        return in_words({m: s for m, s in self._status.items() if m not in LOAD})

    def log(self, is_known: bool) -> None:
        """Logs each status once. `is_known`: another service told the state."""
        statuses = self._status.values()
        lines = {(status.partition(":")[0], is_known) for status in statuses}
        if lines <= self._told:
            return
        self._told |= lines
        if is_known:
            logger.info("%s: %s", self._address, self, reason=self)
        else:
            logger.warning(
                "%s: its health checks are %s; calls go there, but the client does not"
                " see when it drains or freezes",
                self._address,
                self,
                reason=self,
            )

    def __str__(self) -> str:
        return in_words(self._status)

    def __repr__(self) -> str:
        return f"<{self._address}: {self or 'nothing is refused'}>"

    def __bool__(self) -> bool:
        return bool(self._status)


def in_words(status: Mapping[str, str]) -> str:
    """
    >>> in_words({"/a.B/Watch": "INTERNAL: oh", "/c.D/Check": "INTERNAL: oh"})
    'refused: INTERNAL: oh (a.B, c.D)'
    """
    services: dict[str, dict[str, None]] = {}
    for method, words in status.items():
        services.setdefault(words, {})[method.split("/")[1]] = None
    said = [f"{words} ({', '.join(names)})" for words, names in services.items()]
    return f"refused: {'; '.join(said)}" if said else ""
