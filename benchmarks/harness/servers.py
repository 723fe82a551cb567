"""Servers on loopback, of lbclient and of grpc.aio alike."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from benchmarks.harness.processes import orders, say

Methods = Mapping[str, Any]
"""Handlers of grpcio by path, or functions, which are unary handlers of bytes."""


def handlers(methods: Methods) -> tuple[grpc.GenericRpcHandler, ...]:
    services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = defaultdict(dict)
    for path, method in methods.items():
        _, service, name = path.split("/")
        if callable(method):
            method = grpc.unary_unary_rpc_method_handler(method)
        services[service][name] = method
    return tuple(
        grpc.method_handlers_generic_handler(*service) for service in services.items()
    )


async def listen(server: Any, methods: Methods, port: int = 0) -> int:
    """Starts the server; returns its port: a free one, unless told which."""
    server.add_generic_rpc_handlers(handlers(methods))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return port


async def serve(server: Any, methods: Methods) -> None:
    """Serves until this process ends; says the port to its parent."""
    say(await listen(server, methods))
    async for _ in orders():
        pass


def target_of(ports: Iterable[int]) -> str:
    return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
