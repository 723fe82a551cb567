"""What a lookup of a name answers: addresses, or services, and how long they hold.

And the one lookup that needs nothing installed, by the system's resolver. `dns` and
`srv` watch a name by such lookups; `name_servers` makes them by dnspython.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from lbclient.background.threads import in_daemon_thread

THREAD = "lbclient lookup"  # the name of one that asks


class Addresses(NamedTuple):
    """The IP addresses of a name, and for how many seconds they hold; 0.0: unknown.

    `trouble` says why there may be more of them.
    """

    hosts: Iterable[str]
    ttl: float = 0.0
    trouble: str = ""


class Service(NamedTuple):
    """One SRV record, as RFC 2782 has it."""

    priority: int
    weight: int
    port: int
    host: str


class Services(NamedTuple):
    """The SRV records of a name, and for how many seconds they hold; 0.0: unknown."""

    services: Sequence[Service]
    ttl: float = 0.0


AddressLookup = Callable[[str, int], Awaitable[Addresses]]
"""From host and port to addresses; raises OSError when it cannot tell."""

ServiceLookup = Callable[[str], Awaitable[Services]]
"""From a name to its services; raises OSError when it cannot tell."""


async def system_lookup(host: str, port: int) -> Addresses:
    """Asks getaddrinfo, in a thread: a lookup that hangs holds up nobody."""
    answers = await in_daemon_thread(
        THREAD, socket.getaddrinfo, host, port, type=socket.SOCK_STREAM
    )
    return Addresses([str(answer[4][0]) for answer in answers])
