"""Servers of a test's own on loopback: their methods, and a fixture that hosts them.

`server, address, channel = await host(unary_unary(echo), max_streams=1)`, or `hosting`
where the server must stop before the test's end.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from itertools import groupby
from typing import Any, NamedTuple

import grpc
import grpc.aio

import lbclient
from lbclient.config import ServerConfig
from lbclient.core.model import State
from lbclient.server import Server
from tests.waiting import eventually

PATH = "/test.Service/Method"

# Typed as Any: grpc's stubs do not know which bytes come without a deserializer.
unary_unary: Any = grpc.unary_unary_rpc_method_handler
unary_stream: Any = grpc.unary_stream_rpc_method_handler
stream_unary: Any = grpc.stream_unary_rpc_method_handler
stream_stream: Any = grpc.stream_stream_rpc_method_handler


def method_handler(arity: str, behavior: Any, **options: Any) -> Any:
    return getattr(grpc, f"{arity}_rpc_method_handler")(behavior, **options)


Methods = Mapping[str, Any]  # handlers by path, "/test.Service/Method"


def add_methods(server: Any, methods: Methods) -> Any:
    """Registers them with a server, and returns it: `{PATH: unary_unary(echo)}`."""
    for service, paths in groupby(sorted(methods), lambda path: path.split("/")[1]):
        handlers = {path.split("/")[2]: methods[path] for path in paths}
        generic = grpc.method_handlers_generic_handler(service, handlers)
        server.add_generic_rpc_handlers((generic,))
    return server


class Passing(grpc.aio.ServerInterceptor):
    """A server with it goes another way to its handlers, which changes nothing."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        return await continuation(details)


class Hosted(NamedTuple):
    """A server, where it listens, and a plain channel to it."""

    server: Any
    address: str
    channel: grpc.aio.Channel

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


Host = Callable[..., Awaitable[Hosted]]
SETTINGS = {field.name for field in fields(ServerConfig)}


@asynccontextmanager
async def hosting(
    methods: Any = None,
    server: Any = None,
    at: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
    starts: bool = True,
    **options: Any,
) -> AsyncIterator[Hosted]:
    """Starts a server, and stops it. `methods` are handlers by path, or that of PATH.

    The server is one of ours, with these options of `Server` and settings of
    `ServerConfig`, or `server`, such as `grpc.aio.server()`. It reports a given
    `utilization` as it is, however busy the process of the tests is.
    """
    if server is None:
        settings = {name: options.pop(name) for name in SETTINGS & set(options)}
        if "utilization" in settings:
            settings.setdefault("utilization_replaces", True)
        if settings:
            options["config"] = ServerConfig(**settings)
        server = Server(**options)
    if methods is not None:
        methods = methods if isinstance(methods, Mapping) else {PATH: methods}
        add_methods(server, methods)
    if credentials is None:
        port = server.add_insecure_port(at)
    else:
        port = server.add_secure_port(at, credentials)
    is_socket = at.startswith(("unix:", "unix-abstract:"))
    address = at if is_socket else f"{at.rpartition(':')[0]}:{port}"
    try:
        if starts:
            await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Hosted(server, address, channel)
    finally:
        await server.stop(None)


async def see_drain(server: Any, address: str) -> None:
    """Has a server of ours leave, and a channel see it by a health stream that was
    never refused."""
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        [backend] = channel.balancer().pool.ready
        await eventually(lambda: backend.reported.is_ours)
        assert not backend.reported.refusals
        server.lame_duck()
        await eventually(lambda: backend.state is State.LAME_DUCK)
