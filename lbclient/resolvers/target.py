"""Reads a target string: which scheme means which resolver, by gRPC's rules.

The rules are github.com/grpc/grpc, doc/naming.md, and otherwise the behaviour of grpcio
1.85.1. Two rules are stricter. Targets that grpcio accepts and then cannot use, with
port 0, port 70000 or an empty element, are rejected here. So is an IPv6 address without
brackets that ends like a port, as `::1:6101`: mostly it is meant for one.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from random import Random
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import NamedTuple
from urllib.parse import unquote

from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint
from lbclient.core.protocols import Resolver
from lbclient.core.text import brief, harmless
from lbclient.resolvers.dns import Dns
from lbclient.resolvers.file import SUFFIXES, YAML, File
from lbclient.resolvers.listing import join_host, require
from lbclient.resolvers.srv import Srv
from lbclient.resolvers.static import Static

# doc/naming.md: "If a port is not specified, 443 is used."
DEFAULT_PORT = 443

# Of a number behind an IPv6 address without brackets that is taken for a port. Ours:
# fewer are seldom one of gRPC's, and often the end of an address.
PORT_DIGITS = 4

# The kernel's sun_path has 108 bytes, the last of them NUL.
MAX_SOCKET_PATH = 107

# RFC 1123 labels, as Kubernetes names Services and namespaces, and its names of ports.
LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
SERVICE = re.compile(
    rf"(?P<name>(?P<service>{LABEL})(?:\.(?P<namespace>{LABEL})(?:\.svc(?:\.[\w.-]+)?)?)?)"
    r":(?P<port>.*)"
)
PORT = re.compile("[0-9]{1,5}")
PORT_NAME = re.compile("[0-9]+|[a-z0-9](?:[-a-z0-9]{0,13}[a-z0-9])?")

FORM = "host:port, or a path where the scheme is file or unix"
LIST = "ipv4:10.0.0.1:50051,10.0.0.2:50051"
OWN_SCHEMES = ("file", "k8s", "srv")  # which gRPC does not know
# Also in _TARGET of core/text.py, which hides passwords and may not import this.
SOCKETS = ("unix", "unix-abstract")
SCHEMES = tuple(sorted(("dns", "ipv4", "ipv6", *SOCKETS, *OWN_SCHEMES)))


class Target(NamedTuple):
    """The meaning of a target: its resolver, and the authority of its calls.

    `authority` is the name as it was written, with its port. It is empty for lists of
    addresses and for sockets, where the authority is each backend's own address, as in
    gRPC for a single address. (For several addresses grpcio sends the whole list with
    its commas, which no certificate can match.)
    """

    resolver: Resolver
    authority: str


def parse_target(target: str, *, resolve_interval: float, rng: Random) -> Target:
    """Reads a target. Raises ConfigError that names what is wrong in it.

    Unless that may be a secret: no target has one, but a URL of something else may.
    """
    if not isinstance(target, str) or not target:
        raise ConfigError("target", target, "text such as 'dns:///name:50051'")
    try:
        return _parse(target, resolve_interval=resolve_interval, rng=rng)
    except ConfigError:
        if (shown := harmless(target)) != unquote(target):
            want = f"{FORM}, without user, password or options"
            if re.search(r"[;|\s]", target):
                want = f"{want}; commas separate the addresses of a list, as in {LIST}"
            raise ConfigError("target", shown, want) from None
        raise


def _parse(target: str, *, resolve_interval: float, rng: Random) -> Target:
    scheme, path = _split_scheme(target)
    if scheme in SOCKETS:
        return Target(Static([Endpoint(f"{scheme}:{_socket_path(target, path)}")]), "")
    if scheme == "file":
        return Target(File(_file_path(target, unquote(path))), "")
    if scheme == "k8s":
        return _kubernetes(target, unquote(path), rng)
    if scheme in ("ipv4", "ipv6"):
        elements = unquote(path).split(",")
        addresses = [_address(target, scheme, element) for element in elements]
        return Target(Static(map(Endpoint, addresses)), "")
    if scheme == "srv":
        name = unquote(path)
        _check_name(target, name)
        require(target, "dns.resolver", "dnspython", "dns")
        return Target(Srv(name, resolve_interval, rng), service_host(name))
    host, port = _split_port(target, unquote(path))
    if is_ip(host):
        return Target(Static([Endpoint(_canonical(host, port))]), path)
    _check_name(target, host)
    return Target(Dns(host, port, resolve_interval, rng), path)


def _split_scheme(target: str) -> tuple[str, str]:
    """A known scheme and its path; anything else is a name to look up.

    So `localhost:50051` is no scheme `localhost`: gRPC, too, puts `dns:///` before
    a target whose scheme nobody registered.
    """
    scheme, colon, rest = target.partition(":")
    if not colon or scheme.lower() not in SCHEMES:
        if rest.startswith("/"):
            schemes = ", ".join(SCHEMES)
            raise ConfigError("target", target, f"a scheme of {schemes}, not {scheme}")
        return "dns", target
    authority = ""
    if rest.startswith("//"):
        authority, _, rest = rest[2:].partition("/")
        rest = f"/{rest}"
    if authority:
        want = f"{scheme}:///..., as an authority ({authority}) is not supported"
        raise ConfigError("target", target, want)
    if scheme.lower() in ("file", *SOCKETS):
        return scheme.lower(), rest
    return scheme.lower(), rest.removeprefix("/")


def _socket_path(target: str, path: str) -> str:
    if not path.strip("/") or len(unquote(path).encode()) > MAX_SOCKET_PATH:
        want = f"the path of a socket, 1 to {MAX_SOCKET_PATH} bytes"
        raise ConfigError("target", target, want)
    return path


def _file_path(target: str, path: str) -> str:
    if not path.endswith(SUFFIXES) or "\0" in path:
        want = f"the path of a file that ends in {', '.join(SUFFIXES)}"
        raise ConfigError("target", target, want)
    if path.endswith(YAML):
        require(target, "yaml", "PyYAML", "yaml")
    return path


def _address(target: str, scheme: str, element: str) -> str:
    """An element of a list of addresses, in the one way to write it."""
    host, _, port = element.rpartition(":")
    form = "1.2.3.4:50051"
    if scheme == "ipv6":
        form = "[::1]:50051"
        host = host[1:-1] if host[:1] + host[-1:] == "[]" else ""
    try:
        if scheme == "ipv4":
            inet_pton(AF_INET, host)  # a list may have thousands: IPv4Address is slow
        else:
            host = _plain(host)
    except (OSError, ValueError):  # AddressValueError is one
        want = f"addresses like {form}, not {brief(element)}"
        raise ConfigError("target", target, want) from None
    return join_host(host, _port(target, port))


def _split_port(target: str, text: str) -> tuple[str, int]:
    """Host and port of `name`, `name:1`, `1.2.3.4:1`, `::1` and `[::1]:1`."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":") or not is_ip(host):
            raise ConfigError("target", target, f"[::1]:50051, not {brief(text)}")
        return host, _port(target, rest[1:]) if rest else DEFAULT_PORT
    host, colon, port = text.rpartition(":")
    if colon and ":" not in host:
        return host, _port(target, port)
    if is_ip(host) and PORT.fullmatch(port) and len(port) >= PORT_DIGITS:
        want = f"[{host}]:{port}, with brackets around the address"
        if is_ip(text):
            want = f"{want}, or [{text}]:{DEFAULT_PORT}"
        raise ConfigError("target", target, want)
    return text, DEFAULT_PORT


def _port(target: str, text: str) -> int:
    if not PORT.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise ConfigError("target", target, f"a port of 1 to 65535, not {brief(text)}")
    return int(text)


def _check_name(target: str, host: str) -> None:
    """A name that some name service may know; the service has the last word.

    At most 253 bytes, by RFC 1035, 2.3.4, in its text form.
    """
    try:  # idna takes its time, and a character of any script has a byte or more
        sound = len(host) <= 253 and len(host.encode("idna")) <= 253
    except UnicodeError:
        sound = False
    almost_an_ip = "." in host and re.fullmatch(r"[\d.]+", host)
    if not sound or almost_an_ip or not re.fullmatch(r"[\w.-]+", host):
        want = "a name or an IP address"
        if "," in host:
            want = f"{want}, or a list such as {LIST}"
        raise ConfigError("target", target, f"{want}, not {brief(host)}")


def _kubernetes(target: str, path: str, rng: Random) -> Target:
    """`service.namespace:port`, also as DNS has it, with `.svc` and what follows."""
    found = SERVICE.fullmatch(path)
    if found is None or not PORT_NAME.fullmatch(found["port"]):
        want = f"k8s:///service.namespace:port, not {brief(path)}"
        raise ConfigError("target", target, want)
    port = found["port"]
    if port.isdecimal():
        port = str(_port(target, port))
    require(target, "aiohttp", "aiohttp", "k8s")
    from lbclient.resolvers.kubernetes import Kubernetes  # needs the extra

    resolver = Kubernetes(found["service"], found["namespace"] or "", port, rng)
    return Target(resolver, path if port.isdecimal() else found["name"])


def service_host(name: str) -> str:
    """The host in the name of a service (RFC 2782), which a certificate is for.

    >>> service_host("_grpc._tcp.search.prod"), service_host("search.service.consul")
    ('search.prod', 'search.service.consul')
    """
    return re.sub(r"^(_[^.]+\.)+", "", name)


def dial_target(address: str) -> str:
    """The gRPC target that dials exactly `address`.

    >>> dial_target("10.0.0.3:50051"), dial_target("search.prod:50051")
    ('ipv4:10.0.0.3:50051', 'search.prod:50051')
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        version = ip_address(host.partition("%")[0]).version
    except ValueError:
        return address
    return f"ipv{version}:{address}"


def is_ip(host: str) -> bool:
    family = IPv6Address if ":" in host else IPv4Address
    try:
        family(host)
    except AddressValueError:
        return False
    return True


def _canonical(host: str, port: int) -> str:
    return join_host(_plain(host) if ":" in host else host, port)


def _plain(host: str) -> str:
    """An IPv6 address in the one way to write it; IPv6Address takes 20 times as long.

    >>> _plain("2001:DB8:0::1"), _plain("fe80:0::1%eth0")
    ('2001:db8::1', 'fe80::1%eth0')
    """
    if "%" in host:
        return str(IPv6Address(host))
    return inet_ntop(AF_INET6, inet_pton(AF_INET6, host))
