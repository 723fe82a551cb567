"""Channels, servers and calls are not copied; what they make is refused, and they work.

A copy of a channel closed the original when it was dropped, and a copy of a call that
waited for a backend held the event loop when it was awaited.
"""

import copy
import pickle
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lbclient
from tests.hosts import PATH, Host, unary_stream, unary_unary

COPIES = [copy.copy, copy.deepcopy, pickle.dumps]


async def echo(request: bytes, _context: Any) -> bytes:
    return request


async def twice(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield request
    yield request


def refuses(make: Callable[[Any], Any], what: Any) -> None:
    with pytest.raises(TypeError, match=r"^lbclient\..* cannot be copied or pickled$"):
        make(what)


@pytest.mark.parametrize("make", COPIES)
async def test_a_channel_is_not_copied(host: Host, make: Callable[[Any], Any]) -> None:
    server, address, _ = await host(unary_unary(echo))
    refuses(make, server)
    async with lbclient.insecure_channel(address) as channel:
        refuses(make, channel)
        method: Any = channel.unary_unary(PATH)
        assert await method(b"x", timeout=20) == b"x"
        refuses(make, channel)
        assert await method(b"x", timeout=20) == b"x"


@pytest.mark.parametrize("make", COPIES)
async def test_a_call_is_not_copied(host: Host, make: Callable[[Any], Any]) -> None:
    methods = {"/a.B/Echo": unary_unary(echo), "/a.B/Twice": unary_stream(twice)}
    _, address, _ = await host(methods)
    async with lbclient.insecure_channel(address) as channel:
        waiting = channel.unary_unary("/a.B/Echo")(b"x", timeout=20)
        refuses(make, waiting)
        assert await waiting == b"x"
        stream: Any = channel.unary_stream("/a.B/Twice")(b"x", timeout=20)
        refuses(make, stream)
        assert [answer async for answer in stream] == [b"x", b"x"]


@pytest.mark.parametrize("make", COPIES)
def test_a_synchronous_server_is_not_copied(make: Callable[[Any], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        server = lbclient.sync_server(pool)
        refuses(make, server)
        server.stop(None).wait()
