"""Machines, links and connections of a world, below gRPC: what arrives, and when.

Each direction of a connection keeps its order. While a link is cut, a machine is away
or a process is stopped, what is sent is held, as TCP does, and comes later; or one side
gives the connection up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.worlds.clock import Clock

if TYPE_CHECKING:
    from tests.worlds.server_core import ServerCore

Do = Callable[[], None]

LOST = "recvmsg:Connection reset by peer"
SILENT = "ping timeout"


class Link:
    """The way between all clients and one machine."""

    def __init__(self, rng: Random, delay: float) -> None:
        self.delay = delay  # seconds, one way
        self.extra = 0.0  # for now
        self.is_cut = False
        self.lost = 0.0  # the share of datagrams, for now
        self._rng = rng

    def loses(self) -> bool:
        """Whether a datagram is lost."""
        return self.lost > 0.0 and self._rng.random() < self.lost

    def choose(self, some: list[Any]) -> Any:
        return self._rng.choice(some)

    def takes(self) -> float:
        return (self.delay + self.extra) * (0.5 + self._rng.random())


class Host:
    """A machine at one of its ports, and the processes that listen there: workers share
    one. `shut`: what a firewall does with who connects, "refused" or "silent"."""

    def __init__(self, address: str, link: Link) -> None:
        self.address = address
        self.link = link
        self.garbles: Callable[[bytes, Any], bytes] | None = None  # reports, for now
        self.is_gone = False  # switched off: nothing answers, not even its kernel
        self.shut = ""
        self.listeners: dict[ServerCore, None] = {}
        self.cores: list[ServerCore] = []  # of all processes, ever
        self.connections: list[Connection] = []

    def is_reachable(self) -> bool:
        return not (self.link.is_cut or self.is_gone or self.shut == "silent")

    def accepting(self) -> ServerCore | None:
        """Who has the next connection: of several the kernel takes any, a frozen one,
        too."""
        if self.shut == "refused":
            return None
        if len(self.listeners) > 1:
            one: ServerCore = self.link.choose(list(self.listeners))
            return one
        return next(iter(self.listeners), None)

    def changed(self) -> None:
        """The link, the machine or its process is another one than before."""
        for connection in list(self.connections):
            connection.changed()


class Network:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hosts: dict[str, Host] = {}
        self.opened = 0  # connections, ever
        self.connections: dict[Connection, None] = {}  # that clients have
        # To be set by who wants to know.
        self.begins: Callable[[str, str], None] = lambda address, method: None
        self.dials: Callable[[str], None] = lambda address: None


class Pipe:
    """One direction of a connection."""

    def __init__(self, connection: Connection, is_stopped: Callable[[], bool]) -> None:
        self._connection = connection
        self._is_stopped = is_stopped  # the receiver
        self._last = 0.0
        self.held: deque[Do] = deque()
        self.on_the_way = 0

    def send(self, do: Do) -> None:
        connection = self._connection
        clock = connection.network.clock
        self._last = max(self._last, clock.now + connection.host.link.takes())
        self.on_the_way += 1
        clock.at(self._last, lambda: self._arrive(do))

    def _arrive(self, do: Do) -> None:
        self.on_the_way -= 1
        if self.held or self._is_blocked():
            self.held.append(do)
            self._connection.held_back()
        else:
            do()

    def _is_blocked(self) -> bool:
        return self._is_stopped() or not self._connection.host.is_reachable()

    def release(self) -> None:
        while self.held and not self._is_blocked():
            self.held.popleft()()


class Connection:
    """One TCP connection. `client` and `server` are told what becomes of it."""

    def __init__(self, network: Network, host: Host, client: Any, server: Any) -> None:
        self.network = network
        self.host = host
        self.client = client  # None: it has given the connection up
        self.server = server  # the same; a dead process has no more to say
        self.streams: dict[int, Any] = {}  # of the client, by number
        self.number = network.opened
        self.refuses = False
        self.last_number = 0  # of a stream that the server has seen
        self.is_leaving = False  # GOAWAY has come
        network.opened += 1
        network.connections[self] = None
        host.connections.append(self)
        self.to_server = Pipe(self, lambda: server.is_stopped())
        self.to_client = Pipe(self, lambda: client.is_stopped())
        self._is_watching = False
        server.accept(self)

    # --- both ways ------------------------------------------------------------

    def send_to_server(self, do: Do) -> None:
        self.to_server.send(lambda: self._at_server(do))

    def send_to_client(self, do: Do) -> None:
        self.to_client.send(lambda: self._at_client(do))

    def _at_server(self, do: Do) -> None:
        if self.server is not None:
            do()
        else:  # nobody is there any more: its kernel says so
            self.to_client.send(self._reset_at_client)

    def _at_client(self, do: Do) -> None:
        if self.client is not None:
            do()

    # --- the ends -------------------------------------------------------------

    def close_at_client(self, why: str = "") -> None:
        """The client gives it up, or its machine does."""
        client, self.client = self.client, None
        if client is None:
            return
        self.network.connections.pop(self, None)
        client.connection_over(self, why)
        self.to_server.send(self._reset_at_server)

    def _reset_at_client(self) -> None:
        self.close_at_client(LOST)

    def close_at_server(self) -> None:
        """The server closes it, or its process is gone and the kernel does."""
        server, self.server = self.server, None
        if server is None:
            return
        server.connection_over(self)
        self.to_client.send(self._reset_at_client)

    def vanish_at_server(self) -> None:
        """With its machine: nobody says anything."""
        server, self.server = self.server, None
        if server is not None:
            server.connection_over(self)

    def _reset_at_server(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.connection_over(self)
        if self in self.host.connections:
            self.host.connections.remove(self)

    def changed(self) -> None:
        self.to_server.release()
        self.to_client.release()

    # --- what finds out that nothing arrives -----------------------------------

    def held_back(self) -> None:
        """TCP_USER_TIMEOUT, which goes by what the other kernel acknowledges."""
        seconds = None if self.client is None else self.client.user_timeout
        if self._is_watching or seconds is None or self.host.is_reachable():
            return
        self._is_watching = True

        def look() -> None:
            self._is_watching = False
            if self.to_server.held and not self.host.is_reachable():
                self.close_at_client("Connection timed out")

        self.network.clock.after(seconds, look)

    def keep_alive(self, every: float, patience: float) -> None:
        """Pings while there are streams; the core of the other side answers."""
        clock = self.network.clock

        def ping() -> None:
            if self.client is None:
                return
            if not self.streams:
                clock.after(every, ping)
                return
            lost = clock.after(patience, lambda: self.close_at_client(SILENT))

            def answered() -> None:
                lost.cancel()
                clock.after(every, ping)

            self.send_to_server(lambda: self.send_to_client(answered))

        clock.after(every, ping)
