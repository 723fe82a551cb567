"""The pages of other workers, which took the next ports on the same host.

Found by asking these ports, while somebody looks at a page: a file in which workers
enter themselves would outlive those that are killed. Whatever else listens there gets a
GET and is left alone.
"""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TypedDict

from lbclient.core.text import printable

EVERY = 5.0  # seconds between two looks at the same ports
PATIENCE = 0.5  # seconds for one answer, from the same host
MOST_BYTES = 4096  # of one answer
LONGEST = 100  # characters of a program's name

PATH = "/lbz/process.json"


class Sibling(TypedDict):
    port: int
    program: str
    pid: int


class Siblings:
    """Finds the pages of other processes of the program. Owned by the page that is
    served. Has none until it is told of ports."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._ports: tuple[int, ...] = ()
        self._found: list[Sibling] = []
        self._looking: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def __repr__(self) -> str:
        return f"<{len(self._found)} other pages of {len(self._ports)} ports>"

    def watch(self, ports: Iterable[int]) -> None:
        self._ports = tuple(ports)

    def told(self) -> list[Sibling]:
        """As the last look found them, by port; begins another one if it is time."""
        loop = asyncio.get_running_loop()
        if self._ports and loop.time() >= self._look_at:
            self._look_at = loop.time() + EVERY
            self._looking = loop.create_task(self._look())
        return self._found

    async def _look(self) -> None:
        found = await asyncio.gather(*(ask(self._host, port) for port in self._ports))
        self._found = [sibling for sibling in found if sibling is not None]

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


async def ask(host: str, port: int) -> Sibling | None:
    """Asks a port for its page; None if there is none."""
    with suppress(OSError, TimeoutError, ValueError, RecursionError):
        async with asyncio.timeout(PATIENCE):
            return _parse(port, await _get(host, port))
    return None


async def _get(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = f"[{host}]" if ":" in host else host
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
        answer = b""
        while len(answer) < MOST_BYTES and (more := await reader.read(MOST_BYTES)):
            answer += more
        return answer
    finally:
        writer.transport.abort()


def _parse(port: int, answer: bytes) -> Sibling | None:
    """Raises ValueError for what is no JSON. It may be anybody's.

    >>> _parse(9466, b'HTTP/1.1 200 OK\\r\\n\\r\\n{"program": "shop", "pid": 7}')
    {'port': 9466, 'program': 'shop', 'pid': 7}
    """
    said = json.loads(answer.partition(b"\r\n\r\n")[2])
    if not isinstance(said, dict):
        return None
    program, pid = said.get("program"), said.get("pid")
    if not isinstance(program, str) or type(pid) is not int:
        return None
    return Sibling(port=port, program=printable(program, LONGEST), pid=pid)
