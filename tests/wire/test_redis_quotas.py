"""A fleet that tells each other by way of a real Redis who has used how much."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

import lbclient
from lbclient import ConfigError, ServerConfig, wire
from lbclient.metrics import export
from lbclient.server import Server, ServerStatistics
from lbclient.server.quotas.redis_store import SCRIPT, TOLD, RedisStore
from tests import needs
from tests.hosts import PATH, Host, unary_unary
from tests.redis_server import RedisServer, redis_server

redis_asyncio = needs.module("redis.asyncio")

LIMIT = 1.0
FACTOR = 1000.0  # so that little work is more than a customer may use

Customers = Callable[..., Awaitable[tuple[Server, Any]]]
Eventually = Callable[..., Awaitable[None]]


def seen(server: Server) -> ServerStatistics:
    return server.statistics()


@pytest.fixture
def redis(free_port: Callable[[], int]) -> Iterator[RedisServer]:
    with redis_server(free_port()) as server:
        yield server


@pytest.fixture
async def client(redis: RedisServer) -> AsyncIterator[Any]:
    client = redis_asyncio.Redis.from_url(redis.url)
    yield client
    await client.aclose()


@pytest.fixture
def customers(host: Host) -> Customers:
    """Hosts a server whose requests cost a customer dear."""

    async def work(request: bytes, context: Any) -> bytes:
        return b"%d" % sum(range(2000))

    async def start(store: str, **options: Any) -> tuple[Server, Any]:
        server, _, channel = await host(
            unary_unary(work),
            quotas={"a": LIMIT, "b": LIMIT},
            quota_store=store,
            cpu_factor=FACTOR,
            **options,
        )
        method: Any = channel.unary_unary(PATH)

        async def ask(customer: str, times: int = 50) -> int:
            """How many of so many requests were served."""
            served = 0
            for _ in range(times):
                try:
                    await method(b"", metadata=((wire.CUSTOMER_KEY, customer),))
                    served += 1
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
            return served

        return server, ask

    return start


async def until_shared(servers: list[Any], eventually: Eventually) -> None:
    await eventually(lambda: all(s.statistics().quotas.shares for s in servers))


async def test_the_tasks_of_a_fleet_share_a_limit(
    redis: RedisServer, customers: Customers, eventually: Eventually
) -> None:
    """One asks nine times as much as the other: the shares follow."""
    one, ask_one = await customers(redis.url)
    other, ask_other = await customers(redis.url)

    async def load() -> None:
        while True:
            await ask_one("a", 9)
            await ask_other("a", 1)

    loading = asyncio.create_task(load())
    await eventually(
        lambda: (
            seen(one).quotas.tasks == seen(other).quotas.tasks == 2
            and seen(one).quotas.shares.get("a", 1.0) < 0.95
            and 0.0 < seen(other).quotas.shares.get("a", 1.0) < 0.5
        ),
    )
    loading.cancel()
    shares = [seen(server).quotas.shares["a"] for server in (one, other)]
    assert 0.7 < sum(shares) < 1.3, shares
    assert shares[0] > shares[1]
    assert seen(one).refused["quota"]["CRITICAL"] > 0
    assert seen(one).usage["a"] > seen(one).usage["b"] == 0.0
    await ask_one("nobody's", 1)
    registry = CollectorRegistry()
    export(one, registry)
    for name, customer in (("usage", "a"), ("usage", "other"), ("share", "a")):
        metric = f"lbclient_server_quota_{name}"
        value = registry.get_sample_value(metric, {"customer": customer})
        assert value is not None
        assert value > 0.0
    assert not registry.get_sample_value(metric, {"customer": "nobody's"})
    assert await ask_other("b", 5) == 5, "who has used nothing is let in"


async def test_while_redis_is_gone_or_hangs_the_last_word_holds_and_requests_go_on(
    redis: RedisServer,
    customers: Customers,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, ask = await customers(redis.url)
    other, _ = await customers(redis.url)
    await ask("a", 20)
    await until_shared([one], eventually)

    async def outage(begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        failures = seen(one).quotas.failures
        shares = seen(one).quotas.shares
        await eventually(lambda: seen(one).quotas.failures > failures)
        assert await ask("b", 5) == 5
        assert seen(one).quotas.shares is shares
        end()
        exchanges = seen(one).quotas.exchanges
        await eventually(lambda: seen(one).quotas.exchanges > exchanges)

    with caplog.at_level(logging.WARNING, "lbclient"):
        await outage(redis.kill, redis.start)
        await outage(redis.hang, redis.go_on)
    assert {record.message[:18] for record in caplog.records} == {"quota store failed"}
    assert len(caplog.records) <= 4, "each task says it once for each outage"
    await eventually(lambda: seen(other).quotas.tasks == 2)


async def test_what_others_put_there_is_not_trusted(
    redis: RedisServer, client: Any, customers: Customers, eventually: Eventually
) -> None:
    server, ask = await customers(redis.url)
    await ask("a", 20)

    async def spoil() -> None:
        while True:
            seconds, _ = await client.time()
            usage = f"{{lbclient}}:quota:{seconds}:usage"
            await client.zadd(usage, {b"\xff\xfe": 1.0, "x" * 5000: 2.0})
            await client.zadd(usage, {"negative": -1.0, "endless": float("inf")})
            await asyncio.sleep(0.1)

    spoiling = asyncio.create_task(spoil())
    await eventually(
        lambda: seen(server).quotas.malformed >= 3 and seen(server).quotas.shares
    )
    spoiling.cancel()
    known = seen(server)
    assert known.quotas.shares.keys() <= {"a", "b"}
    assert known.quotas.failures == 0
    seconds, _ = await client.time()
    for later in (1, 2):
        await client.set(f"{{lbclient}}:quota:{seconds + later}:tasks", "a text")
    await eventually(lambda: seen(server).quotas.failures)
    exchanges = seen(server).quotas.exchanges
    await eventually(lambda: seen(server).quotas.exchanges > exchanges)


async def test_no_key_stays_for_ever_and_a_stopped_server_leaves_no_connection(
    redis: RedisServer, client: Any, customers: Customers, eventually: Eventually
) -> None:
    server, ask = await customers(redis.url)
    await ask("a", 5)
    await eventually(lambda: seen(server).quotas.exchanges >= 2)
    keys = [key async for key in client.scan_iter()]
    assert keys
    assert all(key.startswith(b"{lbclient}:quota:") for key in keys)
    assert all([0 < await client.pttl(key) <= 5000 for key in keys])
    await server.stop(None)
    connected: list[Any] = []

    async def look() -> None:
        connected[:] = await client.client_list()

    await eventually(lambda: len(connected) == 1, lambda: connected, meanwhile=look)


async def complete(*stores: tuple[RedisStore, str, dict[str, float]]) -> list[Any]:
    """As soon as it is known: in the third period, or later on a busy machine."""
    for _ in range(20):
        said = [await store.exchange(task, usage) for store, task, usage in stores]
        if [one.tasks for one in said] == [2, 2, 1]:
            break
        await asyncio.sleep(max(one.again for one in said))
    return said


async def test_the_sums_are_those_of_one_fleet_and_of_what_is_told(
    redis: RedisServer,
) -> None:
    many = {f"customer {i}": 1.0 + i for i in range(2 * TOLD)}
    stores = [RedisStore(f"{redis.url}?fleet={name}") for name in "xxy"]
    usages = [{"a": 1.0, "b": 0.5, "": 0.0}, {"a": 2.0}, many]
    told = zip(stores, ("1", "2", "3"), usages, strict=True)
    one, other, alone = await complete(*told)
    for store in stores:
        await store.close()
    assert one.tasks == other.tasks == 2
    assert one.total == {"a": 3.0, "b": 0.5}
    assert other.total == {"a": 3.0, "b": 0.5}, "also of whom it has not served"
    assert one.own == {"a": 1.0, "b": 0.5}
    assert other.own == {"a": 2.0}
    assert alone.tasks == 1
    assert len(alone.total) == TOLD
    assert min(alone.total.values()) == 1.0 + TOLD, "the largest are told"


async def test_invented_names_leave_those_that_are_listed_their_place(
    redis: RedisServer,
) -> None:
    """A task tells of so many only, and each invented one has used more."""
    many = {f"invented {i}": 1.0 + i for i in range(TOLD)}
    usage = {**many, "mail": 0.1, "": 0.2}
    store = RedisStore(redis.url, first=["mail", "calendar", ""])
    for _ in range(20):
        fleet = await store.exchange("task", usage)
        if fleet.tasks:
            break
        await asyncio.sleep(fleet.again)
    await store.close()
    assert fleet.own["mail"] == fleet.total["mail"] == 0.1
    assert fleet.total[""] == 0.2
    assert len(fleet.own) == TOLD


async def test_one_exchange_is_one_command(redis: RedisServer, client: Any) -> None:
    store = RedisStore(redis.url)
    await store.exchange("task", {"a": 1.0})

    async def commands() -> int:
        stats = await client.info("commandstats")
        count: int = stats["cmdstat_eval"]["calls"]
        return count

    before = await commands()
    total = (await client.info("stats"))["total_commands_processed"]
    for _ in range(10):
        await store.exchange("task", {"a": 1.0})
    after = (await client.info("stats"))["total_commands_processed"]
    assert await commands() == before + 10
    assert after - total <= 10 * (1 + SCRIPT.count("redis.call")) + 5
    await store.close()


async def test_a_store_without_its_extra_is_named_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)  # as if not installed
    said = "redis://:secret@cache/0"
    environ = {"LBCLIENT_QUOTA_STORE": said, "LBCLIENT_DEFAULT_QUOTA": "1"}
    config = ServerConfig.from_environment(environ)
    want = "want redis to be installed: pip install 'lbclient[redis]'"
    with pytest.raises(ConfigError) as caught:
        lbclient.server(config=config)
    shown = "redis://...@cache/0"
    assert str(caught.value) == f"LBCLIENT_QUOTA_STORE = '{shown}': {want}"
    with pytest.raises(ConfigError) as caught:
        lbclient.server(config=ServerConfig(quota_store=said, default_quota=1))
    assert str(caught.value) == f"quota_store = '{shown}': {want}"


async def test_a_password_is_used_and_never_shown(
    free_port: Callable[[], int],
    customers: Customers,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with redis_server(free_port(), "--requirepass", "opensesame") as redis:
        place = redis.url.removeprefix("redis://")
        right, _ = await customers(f"redis://:opensesame@{place}")
        wrong, _ = await customers(f"redis://:closesesame@{place}")
        await eventually(lambda: seen(right).quotas.exchanges >= 1)
        await eventually(lambda: seen(wrong).quotas.failures >= 1)
        assert "sesame" not in caplog.text
        assert "sesame" not in repr(right._config)
        await wrong.stop(None)
        await right.stop(None)
