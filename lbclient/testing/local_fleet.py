"""A fleet in the test's process: real lbclient servers, each behind a relay.

What a test does to a backend is seen by a client as of a backend in production: load
reports, health checks, refusals and lame ducks are those of `lbclient.server`.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import grpc
import grpc.aio

from lbclient.config import ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.server import Server
from lbclient.testing.relay import HOST, Relay

Register = Callable[[Server], object]

MOST_BACKENDS = 100  # of one fleet: they share the test's event loop
QUIET = 0.1  # seconds without a request after which a lame duck leaves; fast for tests
NO_LIMIT = 1_000_000  # requests at a time


class LocalBackend:
    """One server of a fleet. A test sets what is not a method, at any time.

    `latency` is in seconds, before each request is handled; `failure` ends each request
    (see `failure`); `is_overloaded` refuses each, as a server does that has no room.
    `requests` is how many it let in, of the service alone.
    """

    def __init__(self, register: Register, config: ServerConfig) -> None:
        self.latency = 0.0
        self.failure: grpc.aio.AioRpcError | None = None
        self._is_overloaded = False
        self.requests = 0
        self._is_frozen = self._is_leaving = False
        self._register = register
        self._config = config
        self._relay = Relay()
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self._relay.port}"

    @property
    def _has_started(self) -> bool:
        """Whether it ever has: it then keeps its port."""
        return self._relay.port > 0

    @property
    def state(self) -> str:
        """One of "stopped", "frozen", "lame duck" and "serving"."""
        if self._server is None:
            return "stopped"
        if self._is_frozen:
            return "frozen"
        return "lame duck" if self._is_leaving else "serving"

    @property
    def is_overloaded(self) -> bool:
        return self._is_overloaded

    @is_overloaded.setter
    def is_overloaded(self, value: bool) -> None:
        self._is_overloaded = value
        self._limit()

    def _limit(self) -> None:
        """The server's own admission refuses: a handler's refusal would be another."""
        if self._server is not None:
            limit = 0 if self._is_overloaded else NO_LIMIT
            self._server._gate.limit(limit)

    @property
    def server(self) -> Server:
        """The server itself; a restarted backend has a new one."""
        if self._server is None:
            raise RuntimeError(f"the backend on {self.address} is stopped")
        return self._server

    async def start(self) -> None:
        """Starts it on its own port, again after `kill` or `drain`."""
        if self._server is not None:
            return
        server = Server(interceptors=(_Faults(self),), config=self._config)
        self._register(server)
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        self._server, self._is_frozen, self._is_leaving = server, False, False
        if self._is_overloaded:
            self._limit()
        await self._relay.open(port)

    async def kill(self) -> None:
        """Resets its connections and ends, as by SIGKILL; tells its clients nothing."""
        await self._relay.cut()
        await self._stop()

    def freeze(self) -> None:
        """Answers nothing until `thaw`, as by SIGSTOP; its connections stay.

        Raises RuntimeError if it is stopped. A frozen backend can be killed.
        """
        self._check_runs("frozen", may_be_frozen=True)
        self._is_frozen = True
        self._relay.freeze()

    def thaw(self) -> None:
        """Answers again, as by SIGCONT. Does nothing if it is not frozen."""
        if self._is_frozen:
            self._is_frozen = False
            self._relay.thaw()

    def _check_runs(self, what: str, *, may_be_frozen: bool = False) -> None:
        state = self.state
        if state == "stopped" or (state == "frozen" and not may_be_frozen):
            raise RuntimeError(f"a {state} backend cannot be {what}: {self!r}")

    def lame_duck(self) -> None:
        """Asks its clients to send requests elsewhere, and serves what arrives.

        Raises RuntimeError if it is stopped or frozen, as `drain` does.
        """
        self._check_runs("a lame duck")
        self._is_leaving = True
        self.server.lame_duck()

    async def drain(self) -> None:
        """Leaves in order: a lame duck, then stopped when its clients have left."""
        self._check_runs("drained")
        self._is_leaving = True
        await self.server.drain()
        await self.kill()

    async def _stop(self) -> None:
        server, self._server, self._is_frozen = self._server, None, False
        if server is not None:
            await server.stop(None)

    def __repr__(self) -> str:
        return f"<{self.address} {self.state}, {self.requests} requests>"


class _Faults(grpc.aio.ServerInterceptor):
    """Does to each request what the test says. lbclient's health passes by."""

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend

    async def intercept_service(
        self, continuation: Callable[..., Any], handler_call_details: Any
    ) -> Any:
        backend = self._backend
        backend.requests += 1
        if backend.latency:
            await asyncio.sleep(backend.latency)
        if backend.failure is not None:
            return _failing(backend.failure)
        return await continuation(handler_call_details)


def _failing(error: grpc.aio.AioRpcError) -> Any:
    """Handles any method, whatever its arity: an error looks the same in all four."""

    async def fail(_requests: Any, context: Any) -> None:
        trailers = tuple(error.trailing_metadata() or ())
        await context.abort(error.code(), error.details() or "", trailers)

    return grpc.stream_stream_rpc_method_handler(fail)


class LocalFleet:
    """Backends of one service: `async with LocalFleet(register, 3) as fleet`.

    `register` adds the service to a server, such as
    `lambda server: add_SearchServicer_to_server(Search(), server)`; it is called for
    each backend, and again when one restarts. `target` is what a channel is made of.
    The environment has no say: `config` is the servers', or their defaults with a lame
    duck that leaves soon. UDP health checks are off, as they would pass by a relay.
    """

    def __init__(
        self, register: Register, count: int = 3, *, config: ServerConfig | None = None
    ) -> None:
        if not callable(register):
            want = "a function that adds the service to a server, called for each one"
            raise ConfigError("register", register, want)
        if type(count) is not int or not 1 <= count <= MOST_BACKENDS:
            raise ConfigError(
                "count", count, f"a whole number from 1 to {MOST_BACKENDS}"
            )
        config = config or ServerConfig(lame_duck_quiet=QUIET)
        config = replace(config, udp_health=False)
        self._backends = [LocalBackend(register, config) for _ in range(count)]

    @property
    def target(self) -> str:
        if not all(backend._has_started for backend in self._backends):
            words = "the fleet has not started: `async with LocalFleet(...) as fleet:`"
            raise RuntimeError(words)
        return "ipv4:" + ",".join(backend.address for backend in self._backends)

    def __len__(self) -> int:
        return len(self._backends)

    def __getitem__(self, number: int) -> LocalBackend:
        return self._backends[number]

    def __iter__(self) -> Iterator[LocalBackend]:
        return iter(self._backends)

    async def __aenter__(self) -> Self:
        try:
            for backend in self._backends:
                await backend.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(backend.kill() for backend in self._backends))

    def __repr__(self) -> str:
        return "\n".join([f"<fleet of {len(self)}>", *map(repr, self._backends)])
