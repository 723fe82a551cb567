"""A stream that its server ends while it is written to is told why.

grpc.aio puts its own INTERNAL in the place of the status when a write fails, also if
the status had come before. Half of such calls said so.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import lbclient
from tests.hosts import PATH, Host, stream_stream

CALLS = 20
PART = b"x" * 30_000  # several fill the window of a stream


async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request
        await context.abort(StatusCode.FAILED_PRECONDITION, "enough", (("why", "x"),))


async def read_all(call: Any, iterates: bool) -> None:
    if iterates:
        async for _ in call:
            pass
    else:
        while await call.read() is not grpc.aio.EOF:
            pass


async def test_who_reads_hears_the_servers_status(host: Host) -> None:
    _, address, _ = await host(stream_stream(refuse), server=grpc.aio.server())
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        for number in range(CALLS):
            call = channel.stream_stream(PATH)([PART] * 20)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await read_all(call, iterates=number % 2 == 0)
            assert caught.value.code() is StatusCode.FAILED_PRECONDITION
            assert caught.value.details() == "enough"
            assert await call.code() is StatusCode.FAILED_PRECONDITION
            assert await call.details() == "enough"
            assert dict(tuple(await call.trailing_metadata()))["why"] == "x"


async def write_all(call: Any) -> None:
    for _part in range(200):
        await call.write(b"x" * 1000)


async def end(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request
        context.set_trailing_metadata((("why", "x"),))
        return


async def test_a_stream_that_ends_with_ok_while_it_is_written_to_says_ok(
    host: Host,
) -> None:
    _, address, _ = await host(stream_stream(end), server=grpc.aio.server())
    async with lbclient.insecure_channel(f"ipv4:{address}") as channel:
        await channel.channel_ready()
        failed = 0
        for _ in range(5 * CALLS):
            call = channel.stream_stream(PATH)(timeout=10)
            reading = read_all(call, iterates=True)
            results = await asyncio.gather(
                write_all(call), reading, return_exceptions=True
            )
            failed += isinstance(results[0], grpc.aio.AioRpcError)
            assert await call.code() is StatusCode.OK
            assert await call.details() == ""
            assert dict(tuple(await call.trailing_metadata()))["why"] == "x"
        assert failed
        statistics = channel.statistics()
        assert statistics.calls["OK"] == 5 * CALLS
