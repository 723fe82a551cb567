"""Resolves the SRV records of a name, which have hosts and ports.

Hosts stay names. grpcio resolves a host when it connects, so a pod that comes back with
another address is the same backend, and subsets can use the number in its name. Hosts
keep the final dot, which excludes search lists; localhost loses it, because grpcio
1.85.1 does not resolve "localhost.".

RFC 2782. Its priorities become 0, 1 and so on. The client itself sees which backends
answer and which are full.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from random import Random

from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.resolvers.listing import Listing, in_pieces, join_host
from lbclient.resolvers.lookups import Service, ServiceLookup
from lbclient.resolvers.polling import Polling, Resolution

# What a record may name; a name server can put any bytes there.
HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

LEAST_WEIGHT = 0.01  # RFC 2782: weight 0 has "a very small chance of being selected"


class Srv:
    """Watches the SRV records of one name. `interval` is explained at `Polling`."""

    def __init__(
        self,
        name: str,
        interval: float,
        rng: Random,
        lookup: ServiceLookup | None = None,
    ) -> None:
        self.name = name
        self.interval = interval
        self._lookup = name_servers() if lookup is None else lookup
        self._polling = Polling(self._resolve, interval, rng)
        self._listing = Listing()

    def __repr__(self) -> str:
        return f"<SRV of {self.name} looked up every {self.interval:g} s>"

    def refresh(self) -> None:
        """Hints that the answer may have changed: look the name up soon."""
        self._polling.refresh()

    def watch(self) -> AsyncGenerator[Endpoints, None]:
        """Yields the first answer and every different one; see `Polling.watch`."""
        return self._polling.watch()

    async def _resolve(self) -> Resolution:
        try:
            services, ttl = await self._lookup(self.name)
        except OSError as error:
            raise ResolveError(
                f"DNS lookup of {self.name!r} failed: {error}"
            ) from error
        found = await in_pieces(endpoints_of(services, self._listing.endpoint))
        return Resolution(self._listing.take(found), ttl)


def name_servers() -> ServiceLookup:
    from lbclient.resolvers.name_servers import NameServers  # needs an extra

    return NameServers().services


def endpoints_of(
    services: Sequence[Service], make: Callable[..., Endpoint] = Endpoint
) -> Iterator[Endpoint]:
    """With priorities from 0; in each the mean of the weights is 1.

    A host and port of several priorities is of the first.

    >>> far = Service(20, 0, 50051, "b-0.search.")
    >>> near = [Service(10, w, 50051, f"a-{w}.search.") for w in (1, 3)]
    >>> [(e.address[:3], e.weight, e.priority) for e in endpoints_of([far, *near])]
    [('a-1', 0.5, 0), ('a-3', 1.5, 0), ('b-0', 1.0, 1)]
    """
    # A single "." is a host that says that there is no such service.
    sound = [each for each in services if each.port and HOST.fullmatch(each.host)]
    for priority, number in enumerate(sorted({each.priority for each in sound})):
        chosen = [each for each in sound if each.priority == number]
        total = sum(each.weight for each in chosen)
        for each in chosen:
            weight = each.weight * len(chosen) / total if total else 1.0
            host = re.sub(r"(?<=localhost)\.$", "", each.host)
            address = join_host(host, each.port)
            yield make(address, max(LEAST_WEIGHT, weight), priority=priority)
