"""Asking the name servers of /etc/resolv.conf directly, by dnspython (an extra).

A system's resolver knows more than DNS. What /etc/hosts has goes first, as it does
there, and what DNS does not know at all is left to the system. In threads, as
dnspython takes 0.1 ms for a record, and an answer may have 4,000; what it makes of
them ends there, too: nobody else has to look through it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from lbclient.background.threads import in_daemon_thread
from lbclient.core.text import printable
from lbclient.resolvers.lookups import (
    THREAD,
    Addresses,
    Service,
    Services,
    system_lookup,
)

if TYPE_CHECKING:
    import dns.resolver

HOSTS = Path("/etc/hosts")

FAMILIES = ("A", "AAAA")


T = TypeVar("T")


class Records(NamedTuple, Generic[T]):
    """What a name has of one type; `ttl` in seconds, 0.0 if it has nothing."""

    found: tuple[T, ...] = ()
    ttl: float = 0.0


class UnknownName(OSError):
    """No name server knows it, or there is none: the system may."""


class NameServers:
    """One resolver's view of them. `make` gives dnspython's, read from resolv.conf."""

    def __init__(
        self,
        make: "Callable[[], dns.resolver.Resolver] | None" = None,
        hosts: Path = HOSTS,
    ) -> None:
        self._make = make
        self._hosts = hosts
        self._last: list[Records[str]] = [Records() for _ in FAMILIES]

    def __repr__(self) -> str:
        counts = (
            f"{len(last.found)} {kind}"
            for kind, last in zip(FAMILIES, self._last, strict=True)
        )
        return f"<name servers, which told {' and '.join(counts)}>"

    async def addresses(self, host: str, port: int) -> Addresses:
        """A and AAAA together. Raises OSError when nobody can tell.

        While one of them fails and the other does not, its last answer holds: half
        of a fleet must not vanish with a lost packet. That is a trouble, above all
        where there is none: then half of a fleet may be all that is known.
        """
        if await in_daemon_thread(THREAD, is_local, host, self._hosts):
            return await system_lookup(host, port)
        told = await asyncio.gather(
            *(
                in_daemon_thread(THREAD, self._ask, host, kind, address_of)
                for kind in FAMILIES
            ),
            return_exceptions=True,
        )
        errors = [answer for answer in told if isinstance(answer, BaseException)]
        if errors and not any(isinstance(a, Records) and a.found for a in told):
            if any(isinstance(error, UnknownName) for error in errors):
                return await system_lookup(host, port)
            raise errors[0]
        troubles = []
        for place, answer in enumerate(told):
            if isinstance(answer, Records):
                self._last[place] = answer
            else:
                troubles.append(missing(FAMILIES[place], self._last[place], answer))
        ttls = [answer.ttl for answer in self._last if answer.found]
        hosts = [host for answer in self._last for host in answer.found]
        return Addresses(hosts, min(ttls, default=0.0), "; ".join(troubles))

    async def services(self, name: str) -> Services:
        """The SRV records. Raises OSError when nobody can tell."""
        found, ttl = await in_daemon_thread(THREAD, self._ask, name, "SRV", service_of)
        return Services(found, ttl)

    def _ask(self, name: str, kind: str, read: Callable[[Any], T]) -> Records[T]:
        import dns.exception
        import dns.resolver

        make = dns.resolver.Resolver if self._make is None else self._make
        try:
            answer = make().resolve(name, kind, search=True, raise_on_no_answer=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoResolverConfiguration) as error:
            raise UnknownName(printable(str(error))) from error
        except dns.exception.DNSException as error:
            raise OSError(printable(str(error))) from error
        if answer.rrset is None:
            return Records()
        found = tuple(read(record) for record in answer.rrset)
        return Records(found, float(answer.chaining_result.minimum_ttl))


def address_of(record: Any) -> str:
    return str(record.address)


def service_of(record: Any) -> Service:
    return Service(record.priority, record.weight, record.port, str(record.target))


def missing(kind: str, last: Records[str], error: BaseException) -> str:
    """
    >>> missing("AAAA", Records(), OSError("SERVFAIL"))
    'addresses may be missing, no answer of AAAA: SERVFAIL'
    """
    words = "the last ones hold" if last.found else "addresses may be missing"
    return f"{words}, no answer of {kind}: {error}"


def is_local(host: str, hosts: Path = HOSTS) -> bool:
    """Whether a name is this machine's own affair (RFC 6761, 6.3, and hosts(5))."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        lines = hosts.read_text(errors="replace").lower().splitlines()
    except OSError:
        return False
    return any(name in line.partition("#")[0].split()[1:] for line in lines)
