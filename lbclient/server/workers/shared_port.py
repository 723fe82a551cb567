"""The port that all workers of a task share, kept from others while it has workers.

The kernel gives each new connection to one of the processes that listen there with
SO_REUSEPORT. A supervisor binds the port, too, and does not listen: so the port is its
own also while no worker listens, and another program that has it is found at once.
"""

import socket
from contextlib import ExitStack

from lbclient.core.errors import ConfigError


def check_port(port: object) -> None:
    if type(port) is not int or not 0 <= port < 65536:
        raise ConfigError("port", port, "a port, 0 to 65535; 0: any free one")


def has_ipv6() -> bool:
    """Whether this machine has IPv6; gRPC takes [::] for 0.0.0.0 where it does not."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


class SharedPort:
    """Keeps a port for workers, until it is closed. `port` is its number.

    Raises ConfigError for a host that has no address and for a port that is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        check_port(port)
        bare = host.strip("[]")
        self.host = f"[{bare}]" if ":" in bare else host
        self.port = port
        self._sockets = ExitStack()
        try:
            self._reserve("0.0.0.0" if bare == "::" and not has_ipv6() else bare)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def _reserve(self, host: str) -> None:
        try:
            found = socket.getaddrinfo(
                host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except (OSError, UnicodeError) as error:
            want = f"an address of this machine, such as [::] or 127.0.0.1 ({error})"
            raise ConfigError("host", self.host, want) from None
        for family, kind, protocol, _, address in found:
            self._bind_alone(family, kind, protocol, (address[0], self.port))
            bound = self._sockets.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._bind(bound, (address[0], self.port))
            self.port = bound.getsockname()[1]

    def _bind_alone(
        self, family: int, kind: int, protocol: int, address: tuple[object, int]
    ) -> None:
        """Finds another program that shares its port with whoever comes."""
        if not self.port:
            return
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bind(probe, address)

    def _bind(self, one: socket.socket, address: tuple[object, int]) -> None:
        if one.family == socket.AF_INET6:
            # As gRPC does: [::] is all of the machine's addresses.
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            one.bind(address)
        except OSError as error:
            want = f"a port that is free on {self.host} ({error.strerror})"
            raise ConfigError("port", self.port, want) from None

    def close(self) -> None:
        self._sockets.close()

    def __repr__(self) -> str:
        return f"<{self.address}, for workers>"
