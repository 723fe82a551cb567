"""Ports on loopback for servers yet to start, or where nobody is to be."""

import socket
from contextlib import suppress
from random import Random

HOST = "127.0.0.1"
# Below those that Linux hands out by itself: a connection of anybody's must not get the
# number of a server that is away for a moment.
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Of TCP and of UDP, so that a task has the same number for both."""
    found: list[int] = []
    for port in Random().sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with (
            socket.socket() as tcp,
            socket.socket(type=socket.SOCK_DGRAM) as udp,
            suppress(OSError),
        ):
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((HOST, port))
            udp.bind((HOST, port))
            found.append(port)
    return found


def free_port() -> int:
    (port,) = free_ports(1)
    return port
