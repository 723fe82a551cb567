"""What Linux says of processes and connections, in /proc."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ESTABLISHED = "01"  # include/net/tcp_states.h
TABLES = Path("/proc/net/tcp"), Path("/proc/net/tcp6")


def processor() -> str:
    """Its name, as far as the kernel tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(names, platform.machine())


def memory() -> int:
    """Bytes of RAM of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def schedstat(pid: int) -> dict[int, tuple[float, float]]:
    """Seconds that each thread ran, and waited for a processor."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            ran, waited, _ = (task / "schedstat").read_text().split()
            times[int(task.name)] = int(ran) * 1e-9, int(waited) * 1e-9
    return times


def resident(pid: int) -> int:
    """Bytes of a process that are in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Socket(NamedTuple):
    local: int  # its port
    remote: int  # that of the other end
    is_established: bool
    inode: str


def tcp_sockets() -> list[Socket]:
    """All of this machine: a connection on loopback has two of them."""
    found = []
    # gRPC's sockets are IPv6 ones where there is IPv6, also those of 127.0.0.1.
    for table in filter(Path.exists, TABLES):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            local, remote = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
            found.append(Socket(local, remote, fields[3] == ESTABLISHED, fields[9]))
    return found
