"""A busy server and a dead connection look alike; only the second one is replaced.

Servers here are not ours: nobody owes a report.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.faults.link import Link
from lbclient import wire
from lbclient.client.backends import connection, former_connections
from lbclient.client.health import ordered_checks
from lbclient.config import ChannelConfig
from lbclient.core.model import Endpoint, Endpoints
from lbclient.grpc_seam import KEPT_ALIVE, inner_options
from tests import needs
from tests.hosts import add_methods, hosting, unary_unary
from tests.waiting import eventually
from tests.wire.delay import Delay

CONFIG = ChannelConfig(health_interval=0.2)
BUSY = 3.0  # seconds, with several questions and a LOOK in them
ECHO = "/test.Echo/Echo"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection, ordered_checks):
        monkeypatch.setattr(module, "LOOK_TIMEOUT", 0.5)


@pytest.fixture
def redials(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    caplog.set_level(logging.INFO, "lbclient")
    return lambda: caplog.text.count("dialling again")


def states(channel: lbclient.Channel) -> list[str]:
    return [b.state for b in channel.statistics().backends]


@contextmanager
def one_thread(served: threading.Event) -> Iterator[str]:
    """A sync server whose only thread also answers health checks."""

    def echo(request: bytes, _: Any) -> bytes:
        if request:
            served.set()
            time.sleep(float(request))
        return request

    def check(request: bytes, _: Any) -> bytes:
        return b"\x08\x01"  # SERVING

    server = grpc.server(ThreadPoolExecutor(1))
    methods = {
        ECHO: unary_unary(echo),
        wire.SERVING_CHECK_METHOD: unary_unary(check),
        # One answer, as a sync stream whose client leaves can keep its thread.
        wire.SERVING_WATCH_METHOD: unary_unary(check),
    }
    add_methods(server, methods)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[Link]:
    class Task:
        pass

    task: Any = Task()
    task.address = address
    link = Link(task)
    await link.start()
    try:
        yield link
    finally:
        await link.close()


async def test_a_long_call_on_a_busy_server_keeps_its_connection(
    redials: Callable[[], int], eventually: Any
) -> None:
    """Its one thread answers neither a question on it nor one beside it."""
    served = threading.Event()
    with one_thread(served) as address:
        async with (
            linked(address) as link,
            lbclient.insecure_channel(link.address, config=CONFIG) as channel,
        ):
            echo = channel.unary_unary(ECHO)
            await echo(b"", timeout=10)
            call = echo(str(BUSY).encode())
            await eventually(lambda: served.is_set() and link.dials > 1)  # for a look
            assert not call.done()
            assert states(channel) == ["ready"]
            assert await call == str(BUSY).encode()
            assert redials() == 0


async def test_a_server_busy_at_its_first_connection_is_ready_when_it_has_time(
    redials: Callable[[], int], eventually: Any
) -> None:
    served = threading.Event()
    with one_thread(served) as address:
        async with grpc.aio.insecure_channel(address) as other:
            method: Any = other.unary_unary(ECHO)
            busy = method(str(BUSY).encode())
            await asyncio.to_thread(served.wait)
            async with lbclient.insecure_channel(address, config=CONFIG) as channel:
                assert await channel.unary_unary(ECHO)(b"", timeout=20) == b""
                assert redials() == 0
                await busy
                await eventually(lambda: states(channel) == ["ready"])


@asynccontextmanager
async def hanging_health_checks() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers calls, and nothing else; and the calls that it got."""
    calls = list[bytes]()

    async def hang(request: bytes, _: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def echo(request: bytes, _: Any) -> bytes:
        calls.append(request)
        return request

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            handle = echo if details.method == ECHO else hang
            return unary_unary(handle)

    server = grpc.aio.server(handlers=[Handlers()])
    async with hosting(server=server) as (_, address, _):
        yield address, calls


async def test_a_lone_server_that_answers_calls_and_no_health_check_gets_calls() -> (
    None
):
    async with (
        hanging_health_checks() as (address, _),
        lbclient.insecure_channel(address, config=CONFIG) as channel,
    ):
        assert await channel.unary_unary(ECHO)(b"x", timeout=20) == b"x"
        assert "health checks time out" in channel.statistics().backends[0].reason


async def share_of_each(echo: Any, got: list[list[bytes]]) -> list[int]:
    """Of 20 calls for each server, once all of them get calls."""
    for calls in got:
        calls.clear()
    await eventually(lambda: all(got), meanwhile=lambda: echo(b"", timeout=20))
    for calls in got:
        calls.clear()
    for _ in range(20 * len(got)):
        await echo(b"", timeout=20)
    return [len(calls) for calls in got]


@pytest.mark.parametrize("count", [2, 5])
async def test_of_servers_that_hang_health_checks_all_get_calls_as_with_grpc_aio(
    count: int,
) -> None:
    """The first to be ready got all of them, for ever."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(hanging_health_checks())
            for _ in range(count)
        ]
        target = "ipv4:" + ",".join(address for address, _ in servers)
        config = replace(CONFIG, picker="round_robin", slow_start=0.0)
        ours = lbclient.insecure_channel(target, config=config)
        turns = '{"loadBalancingConfig": [{"round_robin": {}}]}'
        options = [("grpc.service_config", turns)]
        plain = grpc.aio.insecure_channel(target, options=options)
        shares = {}
        for name, channel in (("ours", ours), ("grpc.aio", plain)):
            await stack.enter_async_context(channel)
            echo: Any = channel.unary_unary(ECHO)
            shares[name] = await share_of_each(echo, [calls for _, calls in servers])
        assert shares["ours"] == shares["grpc.aio"] == [20] * count


async def test_a_slow_network_is_no_dead_one(
    start: Any, search: Any, redials: Callable[[], int]
) -> None:
    """A round trip takes longer than the health interval."""
    task = await start()
    async with (
        Delay(int(task.address.rpartition(":")[2]), 0.25) as between,
        lbclient.insecure_channel(between.address, config=CONFIG) as channel,
    ):
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), timeout=20)
        await stub.Search(search.Query(text="sleep 2"))
        assert states(channel) == ["ready"]
        assert redials() == 0


async def turning(condition: Callable[[], bool]) -> None:
    """Returns in the turn of the loop in which it comes true."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came true")


def stand_still() -> None:
    time.sleep(1.0)


async def test_a_client_that_stood_still_replaces_nothing(
    start: Any, search: Any, eventually: Any, redials: Callable[[], int]
) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        stub = search.SearchStub(channel)
        channel.get_state(try_to_connect=True)
        stand_still()  # while it connects
        await stub.Search(search.Query(), timeout=10)
        node = channel.balancer().pool.ready[0]
        call = stub.Search(search.Query(text="sleep 1.5"))
        await eventually(lambda: node.lifecycle.due_at() is None)
        is_asked = node._checks._is_asked
        await turning(is_asked.is_set)
        await turning(lambda: not is_asked.is_set())
        stand_still()  # when a question is begun, and not sent yet
        await call
        assert states(channel) == ["ready"]
        assert redials() == 0


async def test_calls_without_a_deadline_find_a_dead_connection(
    start: Any, search: Any, eventually: Any
) -> None:
    """And those on the old one end when the core finds that nothing acknowledges."""
    task = await start()
    options = [("grpc.keepalive_time_ms", 2000), ("grpc.http2.ping_timeout_ms", 1000)]
    async with (
        linked(task.address) as link,
        lbclient.insecure_channel(
            link.address, options=options, config=CONFIG
        ) as channel,
    ):
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), timeout=10)
        link.stall()
        lost = stub.Search(search.Query())
        await eventually(lambda: link.dials > 2)  # one was a LOOK
        assert (await stub.Search(search.Query(), timeout=10)).text
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await lost
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_left_on_a_connection_that_said_goaway_end_if_it_dies(
    start: Any, search: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody asks anything there; the core's bound is all that is left."""
    caplog.set_level(logging.INFO, "lbclient.balancer")
    ages = [("grpc.max_connection_age_ms", 500)]
    task = await start(lambda: lbclient.server(options=ages))
    options = [("grpc.keepalive_time_ms", 2000), ("grpc.http2.ping_timeout_ms", 1000)]
    async with (
        linked(task.address) as link,
        lbclient.insecure_channel(link.address, options=options) as channel,
    ):
        lost = search.SearchStub(channel).Search(search.Query(text="sleep 60"))
        await eventually(lambda: "it sent GOAWAY" in caplog.text)
        link.stall()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await lost
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


# --- draining ----------------------------------------------------------------


class Told:
    """A resolver that says what it is told to say."""

    def __init__(self, *addresses: str) -> None:
        self.answers: asyncio.Queue[Endpoints] = asyncio.Queue()
        self.tell(*addresses)

    def tell(self, *addresses: str) -> None:
        self.answers.put_nowait(tuple(Endpoint(each) for each in addresses))

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            yield await self.answers.get()


@pytest.mark.parametrize("make", [lbclient.server, grpc.aio.server])
async def test_calls_on_a_draining_backend_that_falls_silent_end(
    start: Any,
    search: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    connections: Any,
) -> None:
    """They were pending for ever, as nobody watched it any more."""
    monkeypatch.setattr(former_connections, "REPLACED_PERIOD", 0.5)
    gone, stays = await start(make), await start(make)
    options = [("grpc.keepalive_time_ms", 2000), ("grpc.http2.ping_timeout_ms", 1000)]
    if make is lbclient.server:
        options = []
    async with linked(gone.address) as link:
        told = Told(link.address)
        async with lbclient.insecure_channel(
            told, options=options, config=CONFIG
        ) as channel:
            stub = search.SearchStub(channel)
            call = stub.Search(search.Query(text="sleep 60"))
            await eventually(lambda: gone.servicer.served == 1)
            told.tell(stays.address)
            await eventually(lambda: channel.statistics().draining == 1)
            link.stall()
            for _ in range(10):
                answer = await stub.Search(search.Query(), timeout=10)
                assert answer.text == stays.servicer.name
            await eventually(call.done)
            await eventually(lambda: channel.statistics().draining == 0)
            del call
            assert link.dials == 1, "a draining backend needs no new connection"
            port = int(link.address.rpartition(":")[2])
            needs.grpcio("1.84", "a connection ends when its last call object is freed")
            await eventually(lambda: not connections(port))


@pytest.mark.parametrize("make", [lbclient.server, grpc.aio.server])
async def test_a_draining_backend_that_comes_back_goes_on_as_it_was(
    start: Any, search: Any, eventually: Any, make: Any
) -> None:
    task, other = await start(make), await start(make)
    async with linked(task.address) as link:
        told = Told(link.address, other.address)
        config = ChannelConfig(health_interval=0.2, picker="round_robin")
        async with lbclient.insecure_channel(told, config=config) as channel:
            stub = search.SearchStub(channel)
            await channel.channel_ready()
            await eventually(lambda: states(channel) == ["ready", "ready"])
            calls = [stub.Search(search.Query(text="sleep 1")) for _ in range(2)]
            await eventually(lambda: task.servicer.served == 1)
            told.tell(other.address)
            await eventually(lambda: channel.statistics().draining == 1)
            told.tell(link.address, other.address)
            await eventually(lambda: channel.statistics().draining == 0)
            assert states(channel) == ["ready", "ready"]
            await asyncio.gather(*calls)
            for _ in range(4):
                await stub.Search(search.Query(), timeout=10)
            assert task.servicer.served == 3
            assert link.dials == 1
            link.stall()
            calls = [stub.Search(search.Query()) for _ in range(2)]
            await eventually(lambda: link.dials > 1)  # it is watched as before
            for call in calls:
                call.cancel()


# --- the core's own bound ------------------------------------------------------


def test_connections_are_kept_alive_no_more_often_than_servers_allow() -> None:
    options = dict(inner_options((), "", 0.1, 5.0))
    assert options | KEPT_ALIVE == options
    assert options["grpc.keepalive_time_ms"] > 300_000


def test_who_sets_keepalive_has_it_as_set() -> None:
    options = dict(inner_options((("grpc.keepalive_time_ms", 10),), "", 0.1, 5.0))
    assert options["grpc.keepalive_time_ms"] == 10
    assert "grpc.keepalive_timeout_ms" not in options
