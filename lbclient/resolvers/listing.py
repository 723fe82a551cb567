"""What is done with what any resolver found: put it in order, and bound it.

A list that is too long is cut, never refused: some backends are better than none.
"""

from collections.abc import Iterable
from importlib.util import find_spec

from lbclient.errors import ConfigError
from lbclient.identity import ORDINAL
from lbclient.model import Endpoint, Endpoints, snapshot

# Past any answer that DNS can carry (64 kB hold 4,000 records), and a bound for a
# source that is not DNS.
MAX_ENDPOINTS = 100_000


def listing(endpoints: Iterable[Endpoint]) -> Endpoints:
    """A snapshot of at most MAX_ENDPOINTS, the same ones in any order of arrival."""
    return snapshot(list(endpoints))[:MAX_ENDPOINTS]


def ordinal(host: str) -> int | None:
    """The task number in a host name that a scheduler gave; None if there is none.

    >>> ordinal("search-7.search.prod.svc"), ordinal("ip-10-0-0-3.lan"), ordinal("a")
    (7, None, None)
    """
    found = ORDINAL.fullmatch(host.partition(".")[0])
    return int(found[1]) if found else None


def join_host(host: str, port: int) -> str:
    """An address as gRPC dials it; the `%` of an IPv6 scope is escaped for it.

    >>> join_host("1.2.3.4", 50051), join_host("fe80::1%eth0", 50051)
    ('1.2.3.4:50051', '[fe80::1%25eth0]:50051')
    """
    if ":" in host:
        return f"[{host.replace('%', '%25')}]:{port}"
    return f"{host}:{port}"


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def require(target: str, module: str, package: str, extra: str) -> None:
    """Raises ConfigError, which says how to install it, if an extra is missing."""
    if not is_installed(module):
        want = f"{package} to be installed: pip install 'lbclient[{extra}]'"
        raise ConfigError("target", target, want)
