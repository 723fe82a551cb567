"""UDP in memory: what is sent arrives once and late, or not at all."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.worlds.clock import Clock, ProcessLoop
from tests.worlds.network import Host

Address = tuple[str, int]
CLIENT = ("10.1.0.1", 40_000)  # the socket of the client's process


class Datagrams:
    """The sockets of a world. Of two ends one is a server, whose link decides."""

    def __init__(self, clock: Clock, find: Callable[[str], Host | None]) -> None:
        self._clock = clock
        self._find = find
        self._open: dict[Address, tuple[ProcessLoop, Callable[..., object]]] = {}

    def listen(
        self, address: Address, loop: ProcessLoop, hear: Callable[..., object]
    ) -> None:
        """`hear` is called on the loop with the data, and where they come from."""
        self._open[address] = loop, hear

    def close(self, address: Address) -> None:
        self._open.pop(address, None)

    def end(self, loop: ProcessLoop) -> None:
        """The process is gone, and its sockets with it."""
        for address in [one for one, seen in self._open.items() if seen[0] is loop]:
            self.close(address)

    def forget(self) -> None:
        self._open.clear()

    def is_open(self, address: Address) -> bool:
        return address in self._open

    def is_used_by(self, loop: ProcessLoop) -> bool:
        return any(one is loop for one, _ in self._open.values())

    def send(self, data: bytes, source: Address, to: Address) -> None:
        host = self._host_of(to) or self._host_of(source)
        if host is None:
            return
        link = host.link

        def arrive() -> None:
            loop, hear = self._open.get(to, (None, None))
            if loop is None or hear is None:
                return
            if host.is_reachable() and not link.loses():
                loop.call_soon(hear, data, source)

        self._clock.after(link.takes(), arrive)

    def _host_of(self, address: Address) -> Host | None:
        return self._find(address[0])


class MemorySocket:
    """What `udp._bind` returns, as far as `UdpHealth` looks."""

    def __init__(self, datagrams: Datagrams, address: Address) -> None:
        self.datagrams = datagrams
        self.address = address

    def listen(self, loop: ProcessLoop, hear: Callable[..., object]) -> Any:
        self.datagrams.listen(self.address, loop, hear)
        return MemoryTransport(self)

    def getsockname(self) -> Address:
        return self.address


class MemoryTransport(asyncio.DatagramTransport):
    def __init__(self, socket: MemorySocket) -> None:
        super().__init__()
        self._socket = socket

    def sendto(self, data: Any, address: Any = None) -> None:
        self._socket.datagrams.send(data, self._socket.address, address)

    def close(self) -> None:
        self._socket.datagrams.close(self._socket.address)


def binding(datagrams: Datagrams) -> Callable[..., list[MemorySocket]]:
    """In the place of `udp._bind`: the number of a gRPC port, or the next free one."""

    def bind(
        addresses: Sequence[tuple[int, Address]], ports: Sequence[int]
    ) -> list[MemorySocket]:
        sockets = []
        for _, (host, _) in addresses:
            port = ports[0]
            while datagrams.is_open((host, port)):
                port += 1
            sockets.append(MemorySocket(datagrams, (host, port)))
        return sockets

    return bind


def sending(datagrams: Datagrams) -> Callable[..., None]:
    """In the place of `Prober.send`: the client has one socket."""

    def send(prober: Any, data: bytes, watch: Any) -> None:
        datagrams.listen(CLIENT, prober._loop, prober.hear)
        datagrams.send(data, CLIENT, watch.address)

    return send
