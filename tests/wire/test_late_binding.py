"""Late binding over loopback: who declines what, and how often a call is served."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import ATTEMPTS
from lbclient.server.meters.cpu import available_cpus
from tests.hosts import PATH, Hosted, Passing, hosting, unary_stream, unary_unary
from tests.interceptors import PASSING
from tests.waiting import eventually
from tests.wire.test_sync_server import sync_hosting

PAGES = "/test.Service/Pages"
CALLS = 12
PACE = 0.01  # seconds between two calls: a fleet of so few a second has dear requests


class Fleet:
    """Servers of which one is busier than usual, and a channel to them."""

    def __init__(self) -> None:
        self.busy = 0  # requests that the first server says want a processor
        self.served = Counter[bytes]()
        self.metadata: list[dict[str, Any]] = []
        self.hosts: list[Hosted] = []
        self.channel: lbclient.Channel
        self.held = asyncio.Event()  # until it is set no request is answered
        self.held.set()

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.served[request] += 1
        self.metadata.append(dict(context.invocation_metadata()))
        await self.held.wait()
        return request

    def served_of(self, name: bytes) -> list[int]:
        """How often each request of that name was."""
        return [many for one, many in self.served.items() if one.startswith(name)]

    async def pages(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await self.echo(request, context)

    def declined(self) -> int:
        return sum(host.server.statistics().declined for host in self.hosts)

    def marked(self) -> list[str]:
        return [each[wire.DECLINE_KEY] for each in self.metadata if is_marked(each)]

    async def get_busy(self) -> None:
        """Until the first server, which knows by then what requests cost, declines."""
        method: Any = self.channel.unary_unary(PATH)
        self.busy = 3 * max(1, round(available_cpus()))

        async def call() -> None:
            await method(b"warm up")
            await asyncio.sleep(PACE)

        await eventually(self.declined, meanwhile=call)

    async def call(self, **options: Any) -> list[Any]:
        method: Any = self.channel.unary_unary(PATH)
        calls = []
        for number in range(CALLS):
            calls.append(method(b"%d" % number, timeout=30, **options))
            assert await calls[-1] == b"%d" % number
            await asyncio.sleep(PACE)
        return calls


def is_marked(metadata: dict[str, Any]) -> bool:
    return wire.DECLINE_KEY in metadata


@asynccontextmanager
async def fleet(
    servers: int = 3, interceptors: Any = (), of_server: Any = (), **config: Any
) -> AsyncIterator[Fleet]:
    made = Fleet()
    methods = {PATH: unary_unary(made.echo), PAGES: unary_stream(made.pages)}
    settings: dict[str, Any] = {"picker": "round_robin", "late_binding": True}
    async with AsyncExitStack() as stack:
        for number in range(servers):
            host = hosting(
                methods,
                interceptors=of_server,
                max_load=1000.0,
                runnable=(lambda: made.busy) if number == 0 else (lambda: 0),
                utilization=lambda: 0.8,
            )
            made.hosts.append(await stack.enter_async_context(host))
        target = "ipv4:" + ",".join(host.address for host in made.hosts)
        made.channel = lbclient.insecure_channel(
            target,
            config=ChannelConfig(**(settings | config)),
            interceptors=list(interceptors),
        )
        async with made.channel as channel:
            await channel.channel_ready()
            await eventually(
                lambda: all(
                    one.state == "ready" for one in channel.statistics().backends
                )
            )
            yield made


@asynccontextmanager
async def stock_servers(handler: Any, **config: Any) -> AsyncIterator[lbclient.Channel]:
    """A channel with late binding to two servers of grpc.aio's own."""
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(
                hosting(unary_unary(handler), grpc.aio.server())
            )
            for _ in range(2)
        ]
        target = "ipv4:" + ",".join(host.address for host in hosts)
        settings = ChannelConfig(late_binding=True, **config)
        async with lbclient.insecure_channel(target, config=settings) as channel:
            yield channel


@pytest.mark.parametrize("interceptors", [(), PASSING])
@pytest.mark.parametrize("of_server", [(), (Passing(),)])
async def test_what_is_declined_is_served_once_elsewhere(
    interceptors: Any, of_server: Any
) -> None:
    async with fleet(interceptors=interceptors, of_server=of_server) as made:
        await made.get_busy()
        declined, before = made.declined(), made.served.copy()
        calls = await made.call()
        new = made.declined() - declined
        assert 0 < new <= CALLS
        assert made.served - before == {b"%d" % number: 1 for number in range(CALLS)}
        infos = [info for call in calls if (info := lbclient.info(call)) is not None]
        again = [info for info in infos if info.attempts == 2]
        if not interceptors:  # else the caller holds the interceptor's own call
            assert len(again) == new
            first = made.hosts[0].address
            assert {info.backend for info in again} <= {h.address for h in made.hosts}
            assert all(first in "".join(info.history) for info in again)
            assert all("declined" in "".join(info.history) for info in again)

        # Nothing has gone wrong, for nobody.
        said = made.channel.statistics()
        total = made.served.total()
        assert said.calls == {"OK": total}
        assert said.attempts == {
            "served": total, "rejected": 0, "failed": 0, "abandoned": 0,
            "declined": made.declined(),
        }  # fmt: skip
        assert (said.retries, said.resends, said.throttled) == (0, 0, 0)
        assert (said.throttle, said.ejections) == ((), 0)
        assert not any(said.refused_attempts.values())
        assert [one.recent_errors for one in said.backends] == [0.0] * 3
        assert made.channel.balancer().throttling.is_active is False
        arrived = Counter[str]()
        for host in made.hosts:
            server = host.server.statistics()
            assert not any(sum(each.values()) for each in server.refused.values())
            assert (set(server.requests), server.eps) == ({"OK"}, 0.0)
            arrived.update(server.attempts.requests)
        assert said.sent_attempts == arrived


async def test_the_news_that_comes_with_it_is_used() -> None:
    async with fleet(picker="weighted_least_loaded") as made:
        first = made.hosts[0].address
        await made.get_busy()
        [load] = [
            one.load
            for one in made.channel.balancer().pool.ready
            if one.endpoint.address == first
        ]
        assert load.report is not None
        assert load.report.runnable == made.busy


async def test_a_declined_call_does_not_lose_its_place() -> None:
    """While the first one is declined another one gets the last place."""
    async with fleet(servers=2, picker="least_loaded", active_limit=1) as made:
        await made.get_busy()
        method: Any = made.channel.unary_unary(PATH)
        made.held = asyncio.Event()
        declined = made.declined()
        calls = [method(b"held %d" % number, timeout=30) for number in range(3)]
        await eventually(lambda: len(made.served_of(b"held")) == 3)
        assert made.declined() == declined + 1
        made.held.set()
        for number, call in enumerate(calls):
            assert await call == b"held %d" % number
        assert made.served_of(b"held") == [1, 1, 1]


async def test_by_default_nothing_is_marked() -> None:
    async with fleet(late_binding=False) as made:
        made.busy = 100
        await made.call()
        assert not made.marked()
        assert not made.declined()


async def test_only_a_first_unary_attempt_that_may_go_elsewhere_is_marked() -> None:
    async with fleet() as made:
        await made.call()
        ids = {str(h.server._parts.reporter.task_id) for h in made.hosts}
        assert set(made.marked()) == ids  # each names the server that got it
        made.metadata.clear()
        pages: Any = made.channel.unary_stream(PAGES)
        assert [message async for message in pages(b"")] == [b""]
        assert made.metadata
        assert not made.marked()
    async with fleet(servers=1) as made:
        await made.call()
        assert made.metadata
        assert not made.marked()
    async with fleet(hedging=True, idempotent=(PATH,)) as made:
        await made.call()
        assert made.metadata
        assert not made.marked()
    async with fleet(picker="consistent_hashing", key_metadata=("k",)) as made:
        await made.call(metadata=(("k", "v"),))
        assert made.metadata
        assert not made.marked()


async def test_a_server_declines_what_names_it_and_nothing_else() -> None:
    """Whoever passes on the metadata of a request that it got."""
    async with fleet() as made:
        await made.get_busy()
        busy, other, _ = (host.server._parts.reporter.task_id for host in made.hosts)
        stock: Any = made.hosts[0].channel.unary_unary(PATH)
        declined = made.declined()
        for mark in (None, "", "0", str(other), f"{busy} ", "yes"):
            marks = () if mark is None else ((wire.DECLINE_KEY, mark),)
            assert await stock(b"", metadata=marks) == b""
            retried = (*marks, (wire.ATTEMPT_KEY, "1"))
            assert await stock(b"", metadata=retried) == b""
        assert made.declined() == declined
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stock(b"", metadata=((wire.DECLINE_KEY, str(busy)),))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers = caught.value.trailing_metadata() or ()
        assert wire.find_refusal(trailers) is Refusal.DECLINED
        report = wire.find_report(trailers)
        assert report is not None
        assert report.runnable == made.busy


async def test_a_synchronous_server_declines_likewise() -> None:
    busy = 0

    def echo(request: bytes, _context: Any) -> bytes:
        return request

    settings: dict[str, Any] = {
        "max_load": 1000.0,
        "runnable": lambda: busy,
        "utilization": lambda: 0.8,
        "utilization_replaces": True,
    }
    with sync_hosting({PATH: unary_unary(echo)}, **settings) as (server, address):
        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.unary_unary(PATH)
            call = method(b"")
            assert await call == b""
            report = wire.find_report(await call.trailing_metadata())
            assert report is not None
            mark = ((wire.DECLINE_KEY, str(report.task_id)),)
            served = 1
            busy = 3 * max(1, round(available_cpus()))

            async def ask() -> None:
                nonlocal served
                with suppress(grpc.aio.AioRpcError):
                    served += await method(b"", metadata=mark) == b""
                await asyncio.sleep(PACE)

            await eventually(lambda: server.statistics().declined, meanwhile=ask)
            said = server.statistics()
            assert (said.requests, said.declined) == ({"OK": served}, 1)


async def test_stock_servers_get_no_mark() -> None:
    seen: list[dict[str, Any]] = []

    async def echo(request: bytes, context: Any) -> bytes:
        seen.append(dict(context.invocation_metadata()))
        return request

    async with stock_servers(echo) as channel:
        method: Any = channel.unary_unary(PATH)
        for _ in range(CALLS):
            await method(b"")
    assert len(seen) == CALLS
    assert not any(map(is_marked, seen))


async def test_who_declines_all_the_time_is_retried_within_the_budget() -> None:
    arrived = 0

    async def decline(request: bytes, context: Any) -> None:
        nonlocal arrived
        arrived += 1
        said = ((wire.REFUSAL_KEY, Refusal.DECLINED.value),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no", said)

    async with stock_servers(decline, throttle=0.0) as channel:
        method: Any = channel.unary_unary(PATH)
        for _ in range(CALLS):
            with pytest.raises(grpc.aio.AioRpcError):
                await method(b"", timeout=30)
        said = channel.statistics()
    assert said.attempts["declined"] == CALLS
    assert said.attempts["rejected"] == arrived - CALLS
    assert arrived <= 2 * CALLS + CALLS / 10 + ATTEMPTS
    assert said.calls == {"UNAVAILABLE": CALLS}


@pytest.mark.parametrize("turns", [0, 3, 6])
async def test_a_channel_that_closes_in_peace_lets_declined_calls_end(
    turns: int,
) -> None:
    async with fleet(servers=2) as made:
        await made.get_busy()
        method: Any = made.channel.unary_unary(PATH)
        calls = [method(b"%d" % number, timeout=30) for number in range(CALLS)]
        for _ in range(turns):
            await asyncio.sleep(0)
        declined = made.declined()
        await made.channel.close(30)
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(CALLS)]
        assert made.declined() > declined or turns
