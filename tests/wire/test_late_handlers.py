"""Handlers may be added to a server that has started, as to grpc.aio's."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import lbclient
from tests.hosts import Host, Passing, add_methods, unary_unary

EARLY, LATE, REGISTERED = "/test.Early/Do", "/test.Late/Do", "/test.Registered/Do"


async def echo(request: bytes, _context: Any) -> bytes:
    return request


@pytest.mark.parametrize("make", [lbclient.server, grpc.aio.server])
@pytest.mark.parametrize("interceptors", [(), (Passing(),)])
async def test_handlers_are_added_once_the_server_has_started(
    host: Host, make: Any, interceptors: Any
) -> None:
    server = make(interceptors=interceptors)
    _, _, channel = await host({EARLY: unary_unary(echo)}, server=server)

    async def end_of(path: str) -> Any:
        method: Any = channel.unary_unary(path)
        return await method(b"x", timeout=20).code()

    assert await end_of(LATE) is StatusCode.UNIMPLEMENTED
    add_methods(server, {LATE: unary_unary(echo)})
    if make is lbclient.server:  # grpc.aio asks for registered methods as it starts
        server.add_registered_method_handlers(
            "test.Registered", {"Do": unary_unary(echo)}
        )
        assert await end_of(REGISTERED) is StatusCode.OK
        assert server.statistics().requests["OK"] == 1
    for path in (EARLY, LATE):
        assert await end_of(path) is StatusCode.OK
    assert await end_of("/test.Late/Nothing") is StatusCode.UNIMPLEMENTED


async def test_so_they_are_on_a_synchronous_server() -> None:
    with ThreadPoolExecutor(2) as pool:
        server = lbclient.sync_server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            add_methods(server, {LATE: unary_unary(lambda request, _: request)})
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                method: Any = channel.unary_unary(LATE)
                assert await method(b"x", timeout=20) == b"x"
        finally:
            server.stop(None).wait()
