"""Resolves the addresses of a name, again and again.

With dnspython installed it asks the name servers, whose answers have a time to live;
otherwise it asks the system's resolver, whose answers have none.
"""

import asyncio
from collections.abc import AsyncGenerator
from random import Random

from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoints
from lbclient.core.text import printable
from lbclient.log import Log
from lbclient.resolvers.listing import Listing, in_pieces, is_installed, join_host
from lbclient.resolvers.lookups import AddressLookup, system_lookup
from lbclient.resolvers.polling import Polling, Resolution

logger = Log(__name__)


# Seconds. dnspython gives up after 5; the system may take as long as it likes, and a
# thread that asks it cannot be stopped: what takes longer is told, and goes on.
PATIENCE = 10.0


class Dns:
    """Watches the addresses of one name. `interval` is explained at `Polling`."""

    def __init__(
        self,
        host: str,
        port: int,
        interval: float,
        rng: Random,
        lookup: AddressLookup | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.interval = interval
        self._lookup = best_lookup() if lookup is None else lookup
        self._polling = Polling(self._resolve, interval, rng)
        self._listing = Listing()
        self._is_first = True
        self.trouble = ""  # of the last answer, or of a lookup that takes too long

    def __repr__(self) -> str:
        return f"<{self.host}:{self.port} looked up every {self.interval:g} s>"

    def refresh(self) -> None:
        """Hints that the answer may have changed: look the name up soon."""
        self._polling.refresh()

    def watch(self) -> AsyncGenerator[Endpoints, None]:
        """Yields the first answer and every different one; see `Polling.watch`."""
        return self._polling.watch()

    async def _resolve(self) -> Resolution:
        words = f"no answer after {PATIENCE:g} s, and none since"
        loop = asyncio.get_running_loop()
        late = loop.call_later(PATIENCE, self._notice, words)
        try:
            hosts, ttl, trouble = await self._lookup(self.host, self.port)
        except (OSError, UnicodeError) as error:
            self.trouble = ""  # it is worse
            raise ResolveError(
                f"DNS lookup of {self.host!r} failed: {error}"
            ) from error
        finally:
            late.cancel()
        found = (self._listing.endpoint(join_host(host, self.port)) for host in hosts)
        endpoints = self._listing.take(await in_pieces(found))
        if self._is_first and endpoints:
            self._is_first = False
            self._doubt(endpoints)
        self._notice(trouble)
        return Resolution(endpoints, ttl)

    def _notice(self, trouble: str) -> None:
        trouble = printable(trouble)
        if trouble and not self.trouble:
            logger.warning("%s: %s", self.host, trouble, reason=trouble)
        self.trouble = trouble

    def _doubt(self, endpoints: Endpoints) -> None:
        """Warns of a single address: it may be one backend, or hide all of them."""
        if len(endpoints) != 1 or endpoints[0].address.startswith(("127.", "[::1]")):
            return
        logger.warning(
            "%s has one address only, %s: is the Service headless?",
            self.host,
            endpoints[0].address,
            reason="one address only",
        )


def best_lookup() -> AddressLookup:
    if not is_installed("dns.resolver"):
        return system_lookup
    from lbclient.resolvers.name_servers import NameServers

    return NameServers().addresses
