"""A real Redis on loopback that can be killed, hung and started again."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests import needs

WAIT = 10.0  # seconds for it to answer


class RedisServer:
    def __init__(self, port: int, *options: str) -> None:
        self.port = port
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it answers; it keeps nothing on disk."""
        where = ("--port", str(self.port), "--bind", "127.0.0.1")
        forgetful = ("--save", "", "--appendonly", "no", "--dir", "/tmp")
        self._process = subprocess.Popen(
            ["redis-server", *where, *forgetful, *self._options],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + WAIT
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert time.monotonic() < until, "redis-server does not start"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)


@contextmanager
def redis_server(port: int, *options: str) -> Iterator[RedisServer]:
    needs.program("redis-server")
    server = RedisServer(port, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
