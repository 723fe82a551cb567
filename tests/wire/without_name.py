"""A program that calls and serves where grpcio lacks one of its private names.

    python tests/wire/without_name.py _cython_call

Prints what was logged. See `tests.without_name`, which runs tests so.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import grpc

from tests.without_name import take_away

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
MOST = 4  # requests at a time


async def unary(request: bytes, _context: Any) -> bytes:
    return request


async def unary_stream(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield request


async def stream_unary(requests: AsyncIterator[bytes], _context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def echo(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def fail(_request: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")


class Service(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.asked, self.going = asyncio.Event(), asyncio.Event()
        make: Any = grpc
        self.handlers = {
            "unary_unary": make.unary_unary_rpc_method_handler(unary),
            "unary_stream": make.unary_stream_rpc_method_handler(unary_stream),
            "stream_unary": make.stream_unary_rpc_method_handler(stream_unary),
            "stream_stream": make.stream_stream_rpc_method_handler(echo),
            "fail": make.unary_unary_rpc_method_handler(fail),
            "wait": make.unary_unary_rpc_method_handler(self.wait),
        }

    async def wait(self, request: bytes, _context: Any) -> bytes:
        self.asked.set()
        await self.going.wait()
        return request

    def service(self, details: Any) -> Any:
        return self.handlers.get(details.method.rpartition("/")[2])


async def calls(channel: Any, info: Callable[[Any], Any]) -> None:
    """One of each arity, twice: the first may have waited for its backend."""
    for kind in (*KINDS, *KINDS):
        request: Any = iter([b"a"]) if kind.startswith("stream") else b"a"
        method = getattr(channel, kind)(f"/a.B/{kind}")
        call = method(request, timeout=20, compression=grpc.Compression.Gzip)
        if kind.endswith("unary"):
            answer = [await call]
        else:
            answer = [message async for message in call]
        assert answer == [b"a"], (kind, answer)
        assert await call.code() is grpc.StatusCode.OK
        assert info(call).backend, kind
    call = channel.stream_stream("/a.B/stream_stream")(timeout=20)
    await call.write(b"b")
    assert await call.read() == b"b"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def ends(channel: Any) -> None:
    """Calls that fail, that are cancelled before they begin, and that are dropped."""
    error: Any
    call = channel.unary_unary("/a.B/fail")(b"", timeout=20)
    (error,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "no such thing"
    for kind in ("unary_unary", "unary_stream"):
        call = getattr(channel, kind)(f"/a.B/{kind}")(b"", timeout=20)
        assert call.cancel()
        assert await call.code() is grpc.StatusCode.CANCELLED
    call = channel.stream_unary("/a.B/stream_unary")(timeout=20)
    await call.write(b"")
    del call


async def inner_calls(address: str) -> None:
    """What is asked of a backend's own calls, where a test can end them so."""
    from lbclient import grpc_seam as seam

    refused: Any = grpc.aio.insecure_channel("unix:/nobody/listens/here")
    call = refused.unary_unary("/a.B/C")(b"")
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert seam.was_not_sent(call, refused, True)
    assert not seam.has_begun(call)
    assert not seam.is_provisional(call)
    error = seam.error_of(call)
    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.debug_error_string() == await call.debug_error_string()
    await refused.close()
    channel: Any = seam.lighten(grpc.aio.insecure_channel(address))
    call = channel.unary_unary("/a.B/wait")(b"")
    await channel.channel_ready()
    assert seam.is_ready(channel)
    call.cancel()
    assert not seam.was_ended_there(call)

    over, read = asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            await over.wait()
        finally:
            read.set()

    call = channel.stream_stream("/a.B/stream_stream")(requests())
    seam.active_calls(channel).add(call)
    await call.read()
    seam.give_up(channel, "as a test wanted")
    error = seam.error_of(call)
    assert error is not None
    assert error.details() == "as a test wanted"
    assert len(error.initial_metadata()) == len(await call.initial_metadata())
    over.set()
    await asyncio.wait_for(read.wait(), 20)  # by grpc.aio's own task, which ends then


async def flood(address: str, server: Any) -> None:
    """Looks at a request as it is handed over, as a server does in a flood."""
    from lbclient.grpc_seam import intake

    def dropped_for(request: Any) -> Any:
        is_dropped = dict(intake.metadata_of(request)).get("drop") == "yes"
        return request if is_dropped else None

    queue = server._gate.core.intake
    async with grpc.aio.insecure_channel(address) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        for _ in range(10):
            queue.drops = dropped_for  # until the next sample
            assert await check(b"", timeout=20) == b"\x08\x01"  # SERVING


async def admission(address: str, service: Service) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=20) == b"\x08\x01"  # SERVING
        wait: Any = channel.unary_unary("/a.B/wait")
        asked = [wait(b"", timeout=20) for _ in range(MOST + 2)]
        codes = [asyncio.ensure_future(call.code()) for call in asked]
        while sum(code.done() for code in codes) < 2:
            await asyncio.wait(codes, timeout=0.01)
        service.going.set()
        told = [code.name for code in await asyncio.gather(*codes)]
        assert sorted(told) == ["OK"] * MOST + ["RESOURCE_EXHAUSTED"] * 2


BASES: dict[str, Any] = {
    "unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "stream_stream": grpc.aio.StreamStreamClientInterceptor,
}


def passing(kind: str) -> Any:
    async def intercept(_: Any, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(details, request)

    return type("Passing", (BASES[kind],), {f"intercept_{kind}": intercept})()


async def main() -> None:
    import lbclient

    service = Service()
    server = lbclient.server(handlers=[service], maximum_concurrent_rpcs=MOST)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with lbclient.insecure_channel(address) as channel:
        await calls(channel, lbclient.info)
        await ends(channel)
        assert channel.statistics().attempts["served"]
    own = [passing(kind) for kind in KINDS]
    async with lbclient.insecure_channel(address, interceptors=own) as channel:
        await calls(channel, lbclient.info)
    channel = lbclient.insecure_channel(address)
    await channel.channel_ready()
    call: Any = channel.unary_unary("/a.B/wait")(b"")
    await asyncio.wait_for(service.asked.wait(), 20)
    await channel.close()  # which ends its calls
    assert await asyncio.wait_for(call.code(), 20) is grpc.StatusCode.CANCELLED
    await inner_calls(address)
    with ThreadPoolExecutor(1) as pool:
        lbclient.sync_server(pool).stop(None)
    await flood(address, server)
    await admission(address, service)
    await server.stop(None)


class PassingServer(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        return await continuation(details)


def memory() -> Iterator[bytes]:
    """What takes the place of what was freed, whatever its size was, about 200."""
    return (b"\xaa" * size for size in range(112, 240, 16) for _ in range(1000))


async def allocate_at_end(found: list[bytes]) -> None:
    try:
        await asyncio.Future()
    finally:  # the loop ends, and with it all tasks
        found.extend(memory())
        await asyncio.sleep(0)
        found.extend(memory())


async def leave(found: list[bytes]) -> list[Any]:
    """Stops no server, neither one that grpcio asks for requests, nor one of ours."""
    import lbclient

    intercepted = lbclient.server(interceptors=[PassingServer()])
    intercepted.add_registered_method_handlers("a.B", Service().handlers)
    servers = [lbclient.server(), intercepted]
    for server in servers:
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.unary_unary("/a.B/unary_unary")
            await method(b"", timeout=20).code()  # so grpcio has asked for the next one
    tasks = [asyncio.create_task(allocate_at_end(found)) for _ in range(8)]
    return [*servers, *tasks]


def end_loop() -> None:
    """gRPC's core answers to tasks that are over, in memory that is of others now."""
    found: list[bytes] = []
    kept = asyncio.run(leave(found))
    assert found
    assert not any(one.strip(b"\xaa") for one in found), "the core wrote into them"
    del kept


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_away(sys.argv[1])
    logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stdout)
    asyncio.run(asyncio.wait_for(main(), 60))
    end_loop()
