"""Calls with keys over loopback: what a picker sees of them, and where they go."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.harness.processes import running
from benchmarks.harness.servers import serve, target_of
from lbclient import CallHints, ChannelConfig, ConfigError, Criticality, ServerConfig
from lbclient.core.call_hints import LONGEST_KEY, current
from lbclient.core.model import Endpoint
from lbclient.core.protocols import N
from lbclient.core.routing.key_hash import backend_hash, hash64, order
from lbclient.core.routing.spillover import Spillover
from lbclient.metrics.samples import channel_counts
from lbclient.pickers import CacheAware, RoundRobin
from lbclient.wire import REFUSAL_KEY
from tests.hosts import Host, hosting, stream_stream, unary_stream, unary_unary
from tests.waiting import eventually

ECHO, PAGES, CHAT = "/test.Keys/Echo", "/test.Keys/Pages", "/test.Keys/Chat"


class Seeing:
    """Round robin that tells which calls it has seen."""

    def __init__(self, rng: Random) -> None:
        self._inner = RoundRobin(rng)
        self.seen: list[CallHints] = []

    def pick(self, ready: Sequence[N], now: float) -> N:
        raise AssertionError("a picker that sees calls is asked by pick_for")

    def pick_for(self, call: CallHints, ready: Sequence[N], now: float) -> N:
        self.seen.append(call)
        return self._inner.pick(ready, now)

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        return self._inner.weights(ready, now)


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def pages(request: bytes, _: Any) -> AsyncIterator[bytes]:
    yield request


async def chat(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def refuse(_: bytes, context: Any) -> bytes:
    trailers = ((REFUSAL_KEY, "overloaded"),)
    await context.abort(grpc.StatusCode.UNAVAILABLE, "too much", trailers)
    return b""


METHODS = {
    ECHO: unary_unary(echo),
    PAGES: unary_stream(pages),
    CHAT: stream_stream(chat),
}
REFUSING = {**METHODS, ECHO: unary_unary(refuse)}

Seen = Callable[..., tuple[lbclient.Channel, list[CallHints]]]


@pytest.fixture
async def seeing() -> AsyncIterator[Seen]:
    channels = []

    def make(
        *addresses: str, **settings: Any
    ) -> tuple[lbclient.Channel, list[CallHints]]:
        picker = Seeing(Random(7))
        config = ChannelConfig(picker=lambda _: picker, **settings)
        target = f"ipv4:{','.join(addresses)}"
        channel = lbclient.insecure_channel(target, config=config)
        channels.append(channel)
        return channel, picker.seen

    yield make
    for channel in channels:
        await channel.close()


async def test_a_picker_sees_method_keys_criticality_and_cost(
    host: Host, seeing: Seen
) -> None:
    channel, seen = seeing((await host(METHODS)).address)
    await channel.channel_ready()
    with (
        lbclient.key("session-42", "tenant-7", cost=2.5),
        lbclient.criticality("SHEDDABLE"),
    ):
        await channel.unary_unary(ECHO)(b"", timeout=5)
        async for _ in channel.unary_stream(PAGES)(b"", timeout=5):
            pass
        async for _ in channel.stream_stream(CHAT)(iter([b"a", b"b"]), timeout=5):
            pass
    await channel.unary_unary(ECHO)(b"", timeout=5)
    keys, level = ("session-42", "tenant-7"), Criticality.SHEDDABLE
    assert seen == [
        CallHints(ECHO, keys, level, 2.5),
        CallHints(PAGES, keys, level, 2.5),
        CallHints(CHAT, keys, level, 2.5),
        CallHints(ECHO),
    ]


async def test_a_call_that_waits_keeps_its_keys(host: Host, seeing: Seen) -> None:
    channel, seen = seeing((await host(METHODS)).address)
    with lbclient.key("session-42"):
        call = channel.unary_unary(ECHO)(b"", timeout=5)  # nobody is connected yet
    await call
    assert seen == [CallHints(ECHO, ("session-42",))]


async def test_probes_for_a_call_do_not_have_its_keys(host: Host) -> None:
    seen: list[object] = []

    class Asking(RoundRobin):
        def __init__(self, rng: Random) -> None:
            super().__init__(rng)
            self.probes: list[object] = []

        def pick(self, ready: Sequence[N], now: float) -> N:
            self.probes.append(ready[0])
            return super().pick(ready, now)

        def probed(self, node: object, report: object, now: float) -> None:
            seen.append(current())

    target = f"ipv4:{(await host(METHODS)).address}"
    config = ChannelConfig(picker=Asking)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        with lbclient.key("session-42"):
            await channel.unary_unary(ECHO)(b"", timeout=5)
        await eventually(lambda: bool(seen))
    assert set(seen) == {None}


async def test_a_later_attempt_says_where_the_call_was_before(
    host: Host, seeing: Seen
) -> None:
    refusing = await host(REFUSING, server=grpc.aio.server())
    hosts = [refusing, await host(METHODS)]
    channel, seen = seeing(*(one.address for one in hosts))
    await eventually(lambda: len(channel.balancer().pool.ready) == 2)
    for _ in range(30):  # which bring retries
        async for _ in channel.unary_stream(PAGES)(b"", timeout=5):
            pass
    for _ in range(2):  # at least one of them goes to the one that refuses
        with lbclient.key("session-42"):
            await channel.unary_unary(ECHO)(b"", timeout=5)
    later = [call for call in seen if call.tried]
    assert {call.keys for call in later} == {("session-42",)}
    tried = {one.endpoint.address for call in later for one in call.tried}
    assert tried == {hosts[0].address}


async def test_a_call_beneath_an_interceptor_keeps_its_keys(host: Host) -> None:
    class Passing(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(
            self, go_on: Any, details: Any, request: Any
        ) -> Any:
            await asyncio.sleep(0)
            return await go_on(details, request)

    picker = Seeing(Random(7))
    config = ChannelConfig(picker=lambda _: picker)
    target = f"ipv4:{(await host(METHODS)).address}"
    async with lbclient.insecure_channel(
        target, config=config, interceptors=[Passing()]
    ) as channel:
        with lbclient.key("session-42"):
            await channel.unary_unary(ECHO)(b"", timeout=5)
    assert [call.keys for call in picker.seen] == [("session-42",)]


async def test_zones_and_ejections_hide_no_call_from_a_picker(
    host: Host, seeing: Seen
) -> None:
    """Both stand between a channel and its picker."""
    channel, seen = seeing((await host(METHODS)).address, zone="b", locality=True)
    await channel.channel_ready()
    balancer = channel.balancer()
    balancer.outliers.count = 1  # as if one were ejected, for another method
    with lbclient.key("session-42"):
        await channel.unary_unary(ECHO)(b"", timeout=5)
    balancer.outliers.count = 0
    assert isinstance(balancer.pickers.current, Spillover)
    assert {call.keys for call in seen} == {("session-42",)}


# --- keys ------------------------------------------------------------------------


def keyed(target: str, **settings: Any) -> lbclient.Channel:
    config = ChannelConfig(picker="consistent_hashing", **settings)
    return lbclient.insecure_channel(target, config=config)


async def fleet(host: Host, count: int) -> str:
    """Servers that report a third of their capacity in use; returns their target."""
    hosts = [await host(METHODS, utilization=lambda: 0.3) for _ in range(count)]
    return f"ipv4:{','.join(one.address for one in hosts)}"


async def are_ready(channel: lbclient.Channel, count: int) -> None:
    await channel.channel_ready()
    await eventually(lambda: len(channel.balancer().pool.ready) == count)


async def backend_of(channel: lbclient.Channel, **options: Any) -> str | None:
    call = channel.unary_unary(ECHO)(b"", timeout=20, **options)
    await call
    return lbclient.info(call).backend


async def test_calls_of_one_key_go_to_one_backend_from_all_clients(host: Host) -> None:
    target = await fleet(host, 5)
    async with keyed(target, seed=1) as one, keyed(target, seed=2) as other:
        for channel in (one, other):
            await are_ready(channel, 5)
        homes = set()
        for number in range(30):
            with lbclient.key(f"session-{number}"):
                found = {await backend_of(channel) for channel in (one, other, one)}
            assert len(found) == 1
            homes |= found
        said = one.statistics()
        assert said.keyed_picks == said.first_choices == 60
        samples = dict(channel_counts(said, ""))
        assert samples["lbclient_first_choices_total", ""] == 60
    assert len(homes) >= 4  # of 5: fewer have a chance of 5 * 10 * (3/5)^30 < 1e-4


async def test_a_key_returns_with_its_backend(host: Host, free_port: Any) -> None:
    async with AsyncExitStack() as stack:
        port = free_port()
        first = AsyncExitStack()
        hosted = await first.enter_async_context(
            hosting(METHODS, at=f"127.0.0.1:{port}", utilization=lambda: 0.3)
        )
        stack.push_async_callback(first.aclose)
        target = f"{await fleet(host, 2)},{hosted.address}"
        channel = await stack.enter_async_context(keyed(target, slow_start=0.0))
        await are_ready(channel, 3)
        number = 0
        while True:
            with lbclient.key(f"session-{number}"):
                if await backend_of(channel) == hosted.address:
                    break
            number += 1
        await first.aclose()
        with lbclient.key(f"session-{number}"):
            assert await backend_of(channel) != hosted.address
            await stack.enter_async_context(
                hosting(METHODS, at=hosted.address, utilization=lambda: 0.3)
            )
            await are_ready(channel, 3)
            assert await backend_of(channel) == hosted.address


async def test_keys_come_from_metadata_blocks_and_requests(
    host: Host, seeing: Seen
) -> None:
    channel, seen = seeing(
        (await host(METHODS)).address,
        key_metadata={"/test.Keys/Echo": ("session-id", "user-id")},
        key_of=lambda method, request: request and [method, request.decode()],
    )
    await channel.channel_ready()
    echo = channel.unary_unary(ECHO)
    with lbclient.key("block", cost=2.0):
        await echo(b"made", timeout=5, metadata=(("user-id", "u"), ("session-id", "s")))
        await echo(b"made", timeout=5, metadata=(("user-id", "u"), ("other", "o")))
        await echo(b"made", timeout=5, metadata=(("other", "o"),))
    await echo(b"made", timeout=5)
    await echo(b"", timeout=5)
    await echo(b"", timeout=5, metadata=(("session-id", b"a" * 2000),))
    async for _ in channel.unary_stream(PAGES)(
        b"made", timeout=5, metadata=(("session-id", "s"),)
    ):
        pass
    async for _ in channel.stream_stream(CHAT)(iter([b"made"]), timeout=5):
        pass
    assert [(call.keys, call.cost) for call in seen] == [
        (("s", "u"), 2.0),
        (("u",), 2.0),
        (("block",), 2.0),
        ((ECHO, "made"), 1.0),
        ((), 1.0),
        (("a" * LONGEST_KEY,), 1.0),
        ((PAGES, "made"), 1.0),
        ((), 1.0),
    ]


async def test_a_function_for_keys_that_fails_is_logged_once(
    host: Host, seeing: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    def key_of(method: str, request: Any) -> Any:
        if request == b"raise":
            raise ValueError("no key in this request")
        return ""

    channel, seen = seeing((await host(METHODS)).address, key_of=key_of)
    for request in (b"raise", b"raise", b"empty"):
        await channel.unary_unary(ECHO)(request, timeout=5)
    assert [call.keys for call in seen] == [(), (), ()]
    said = [record.getMessage() for record in caplog.records if record.exc_info]
    assert len(said) == 1
    assert f"key_of failed for '{ECHO}'; such calls have no key" in said[0]


@pytest.mark.parametrize(
    "settings", [{"key_metadata": ("session-id",)}, {"key_of": lambda *_: None}]
)
@pytest.mark.parametrize(
    ("picker", "warnings"), [("round_robin", 1), ("consistent_hashing", 0)]
)
async def test_keys_for_a_picker_that_knows_none_are_told_once(
    host: Host,
    settings: dict[str, Any],
    picker: str,
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = f"ipv4:{(await host(METHODS)).address}"
    config = ChannelConfig(picker=picker, **settings)
    async with lbclient.insecure_channel(target, config=config) as channel:
        for _ in range(3):
            await channel.unary_unary(ECHO)(b"", timeout=5)
    said = [r for r in caplog.records if "knows no keys" in r.getMessage()]
    assert len(said) == warnings


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("key_metadata", "Session-Id", "key_metadata = 'Session-Id': want names of"),
        ("key_metadata", ("a", "b-bin"), "key_metadata = 'b-bin': want names of"),
        ("key_metadata", {"Echo": "a"}, "key_metadata = 'Echo': want paths"),
        ("key_metadata", {"/a.A/*": ""}, "key_metadata['/a.A/*'] = '': want names"),
        ("key_of", "user", "key_of = 'user': want a callable"),
        ("key_of", echo, "want a callable"),
        ("hash_balance_factor", 1.0, "= 1.0: want a number, 1.05 to 10"),
    ],
)
def test_settings_of_keys_say_what_would_be_right(
    field: str, value: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ChannelConfig(**{field: value})
    assert words in str(caught.value)


def test_settings_of_keys_have_texts() -> None:
    said = {
        "LBCLIENT_KEY_METADATA": "session-id, user-id",
        "LBCLIENT_HASH_BALANCE_FACTOR": "1.5",
        "LBCLIENT_PICKER": "consistent_hashing",
    }
    config = ChannelConfig.from_environment(said)
    assert config.key_metadata == ("session-id", "user-id")
    assert config.hash_balance_factor == 1.5
    assert config.picker == "consistent_hashing"


# --- a hot key, and processes ------------------------------------------------------

BACKENDS, WORKERS, SECONDS = 6, 2, 0.05  # of a backend: 40 requests a second
HOT_RATE, OTHER_RATE, CALLS = 120.0, 60.0, 1800  # 75 % of what all of them can do


async def serve_slots() -> None:
    """A backend that works on so many requests at a time, and reports how busy it is:
    no processor is needed, so a busy machine changes little."""
    slots, busy = asyncio.Semaphore(WORKERS), [0]

    async def work(request: bytes, _: Any) -> bytes:
        async with slots:
            busy[0] += 1
            await asyncio.sleep(SECONDS)
            busy[0] -= 1
        return request

    config = ServerConfig(
        utilization=lambda: busy[0] / WORKERS,
        utilization_replaces=True,
    )
    await serve(lbclient.server(config=config), {ECHO: work})


@pytest.mark.slow
async def test_a_hot_key_at_three_times_the_capacity_of_its_backend() -> None:
    """The others take the rest, and calls of other keys are served: goodput 0.98."""
    rng, went, lost = Random(7), Counter[str](), Counter[str]()
    async with AsyncExitStack() as stack:
        tasks = [
            await stack.enter_async_context(running(serve_slots))
            for _ in range(BACKENDS)
        ]
        target = target_of([await task.hear() for task in tasks])
        channel = await stack.enter_async_context(keyed(target, throttle=0.0))
        await are_ready(channel, BACKENDS)
        echo = channel.unary_unary(ECHO)

        async def send(key: str, kind: str) -> None:
            with lbclient.key(key):
                call = echo(b"", timeout=5)
            try:
                await call
            except grpc.aio.AioRpcError:
                lost[kind] += 1
            else:
                went[kind] += 1
                if kind == "hot":
                    hot[lbclient.info(call).backend or ""] += 1

        hot = Counter[str]()
        sent = []
        for _ in range(CALLS):
            is_hot = rng.random() < HOT_RATE / (HOT_RATE + OTHER_RATE)
            key = "hot" if is_hot else f"k{rng.randrange(200)}"
            sent.append(asyncio.create_task(send(key, "hot" if is_hot else "other")))
            await asyncio.sleep(rng.expovariate(HOT_RATE + OTHER_RATE))
        await asyncio.gather(*sent)
    assert went["other"] >= 0.98 * (went["other"] + lost["other"])
    assert went["hot"] >= 0.98 * (went["hot"] + lost["hot"])
    assert len(hot) >= 3  # one of them has room for a third of it
    assert max(hot.values()) < 0.6 * hot.total()


async def test_cache_aware_hears_of_first_messages_and_ends(host: Host) -> None:
    """A stream is answered by its first message, whatever it does then."""
    released = asyncio.Event()

    async def held(request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield request
        await released.wait()

    methods = {ECHO: unary_unary(echo), PAGES: unary_stream(held)}
    address = (await host(methods)).address
    config = ChannelConfig(picker="cache_aware")
    async with lbclient.insecure_channel(f"ipv4:{address}", config=config) as channel:
        await channel.channel_ready()
        picker = channel.balancer().pickers.current
        assert isinstance(picker, CacheAware)

        def unanswered() -> int:
            return sum(len(home.pending) for home in picker._homes.values())

        with lbclient.key("session-42", "tenant-7"):
            await channel.unary_unary(ECHO)(b"", timeout=5)
            assert (unanswered(), picker.cost.seen) == (0, 1)
            for is_read in (True, False):
                call = channel.unary_stream(PAGES)(b"x", timeout=30)
                assert unanswered() == 1
                assert await (call.read() if is_read else anext(aiter(call))) == b"x"
                assert unanswered() == 0
                released.set()
                assert await call.code() is grpc.StatusCode.OK
                released.clear()
            assert picker.cost.seen == 3
            given_up = channel.unary_stream(PAGES)(b"x", timeout=30)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up.read()
        assert (unanswered(), picker.cost.seen) == (0, 3)
        statistics = channel.statistics()
        assert (statistics.keyed_picks, statistics.asked_keys) == (4, 8)
        assert 0 < statistics.expected_hits <= 6
        counts = dict(channel_counts(statistics, ""))
        assert counts["lbclient_asked_keys_total", ""] == 8
        assert counts["lbclient_expected_key_hits_total", ""] > 0


async def test_cache_aware_in_zones_hears_of_answers(host: Host) -> None:
    address = (await host(METHODS)).address
    config = ChannelConfig(picker="cache_aware", zone="a", locality=True)
    async with lbclient.insecure_channel(f"ipv4:{address}", config=config) as channel:
        await channel.channel_ready()
        with lbclient.key("session-42"):
            for _ in range(3):
                await channel.unary_unary(ECHO)(b"", timeout=5)
        picker = channel.balancer().pickers.current
        assert isinstance(picker, Spillover)
        seen = [one.cost.seen for one in picker.pickers if isinstance(one, CacheAware)]
        assert sum(seen) == 3


async def test_cache_aware_retries_elsewhere_and_then_waits_for_nobody(
    host: Host,
) -> None:
    refusing = await host(REFUSING, server=grpc.aio.server())
    hosts = [refusing, await host(METHODS)]
    target = "ipv4:" + ",".join(one.address for one in hosts)
    config = ChannelConfig(picker="cache_aware")
    async with lbclient.insecure_channel(target, config=config) as channel:
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        for _ in range(30):  # which bring retries
            async for _ in channel.unary_stream(PAGES)(b"", timeout=5):
                pass
        attempts = []
        for number in range(12):
            with lbclient.key(f"session-{number}"):
                call = channel.unary_unary(ECHO)(b"", timeout=5)
                await call
            info = lbclient.info(call)
            assert info is not None
            assert info.backend == hosts[1].address
            attempts.append(info.attempts)
            if sum(attempts) > len(attempts):
                break
        assert max(attempts) == 2
        picker = channel.balancer().pickers.current
        assert isinstance(picker, CacheAware)
        assert not any(home.pending for home in picker._homes.values())


async def homes_of(channel: lbclient.Channel, keys: Sequence[str]) -> dict[str, str]:
    """Where a call of each key goes."""
    homes = {}
    for key in keys:
        with lbclient.key(key):
            call = channel.unary_unary(ECHO)(b"", timeout=5)
            await call
        info = lbclient.info(call)
        assert info is not None
        homes[key] = str(info.backend)
    return homes


async def test_clients_with_different_subsets_send_a_key_to_one_backend(
    host: Host,
) -> None:
    hosts = [await host(METHODS) for _ in range(5)]
    target = "ipv4:" + ",".join(one.address for one in hosts)
    keys = [f"session-{number}" for number in range(20)]
    hashes = [backend_hash(Endpoint(one.address)) for one in hosts]
    wanted = {
        key: hosts[order(hash64(key), hashes, [1.0] * 5)[0]].address for key in keys
    }
    async with AsyncExitStack() as stack:
        for client in ("one", "other"):
            config = ChannelConfig(
                picker="consistent_hashing", subset_size=1, client_id=client
            )
            channel = lbclient.insecure_channel(target, config=config)
            await stack.enter_async_context(channel)
            await channel.channel_ready()
            assert len(channel.balancer().pool.nodes) == 1
            before = channel.statistics().first_choices
            deadline = 200
            while await homes_of(channel, keys) != wanted:
                deadline -= 1
                assert deadline
                await asyncio.sleep(0.05)
            assert channel.statistics().first_choices > before
            statistics = channel.statistics()
            assert statistics.replacements == 0
            why = {backend.why for backend in statistics.backends}
            assert "outside of the subset, for its keys" in why
        assert len(set(wanted.values())) > 2


async def test_backends_of_keys_are_bounded_and_closed_when_idle(host: Host) -> None:
    hosts = [await host(METHODS) for _ in range(5)]
    target = "ipv4:" + ",".join(one.address for one in hosts)
    keys = [f"session-{number}" for number in range(40)]
    config = ChannelConfig(
        picker="consistent_hashing", subset_size=1, max_connections=3, idle_after=1.0
    )
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        balancer = channel.balancer()
        await homes_of(channel, keys)
        await eventually(lambda: len(balancer.pool.nodes) == 3)
        for _ in range(3):
            await homes_of(channel, keys)
        assert len(balancer.pool.guests) == len(balancer.pickers.guests.guests) == 2
        assert repr(balancer.pickers.guests).startswith("<2 guests")
        await eventually(lambda: len(balancer.pool.nodes) == 1)
        assert not balancer.pickers.guests.guests
        await homes_of(channel, keys)
        await eventually(lambda: len(balancer.pool.nodes) == 3)


async def test_a_channel_without_room_or_keys_knows_no_other_members(
    host: Host,
) -> None:
    hosts = [await host(METHODS) for _ in range(3)]
    target = "ipv4:" + ",".join(one.address for one in hosts)
    keys = [f"session-{number}" for number in range(10)]
    for config in (
        ChannelConfig(picker="consistent_hashing", subset_size=1, max_connections=1),
        ChannelConfig(subset_size=1),
    ):
        async with lbclient.insecure_channel(target, config=config) as channel:
            await channel.channel_ready()
            assert len(set((await homes_of(channel, keys)).values())) == 1
            assert not channel.balancer().pickers.guests.guests
            assert len(channel.balancer().pool.nodes) == 1


class Hearing(Seeing):
    """Notes what it is told of answers, and then fails if it is to."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.heard: list[float | None] = []
        self.fails = False

    def answered(
        self, call: CallHints, node: object, seconds: float | None, now: float
    ) -> None:
        self.heard.append(seconds)
        if self.fails:
            raise RuntimeError("no picker is perfect")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_picker_is_told_once_of_each_attempt_and_fails_no_call(
    host: Host, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow(request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield request
        await asyncio.sleep(0.2)

    refusing = await host(REFUSING, server=grpc.aio.server())
    serving = await host({**METHODS, PAGES: unary_stream(slow)})
    picker = Hearing(Random(7))
    picker.fails = fails
    config = ChannelConfig(picker=lambda _: picker)
    address = serving.address
    async with lbclient.insecure_channel(f"ipv4:{address}", config=config) as channel:
        await channel.channel_ready()
        for number in range(30):
            await channel.unary_unary(ECHO)(b"", timeout=5)
            assert len(picker.heard) == number + 1
        picker.heard.clear()
        stream = channel.unary_stream(PAGES)(b"x", timeout=5)
        assert [message async for message in stream] == [b"x"]
        (first,) = picker.heard
        assert first is not None
        assert first < (channel.statistics().latency.total)
        assert not channel.balancer().pickers.answers._told
    assert caplog.text.count("`answered` raised") == fails
    other = Hearing(Random(7))
    other.fails = fails
    config = ChannelConfig(picker=lambda _: other)
    target = f"ipv4:{refusing.address},{serving.address}"
    async with lbclient.insecure_channel(target, config=config) as channel:
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        for _ in range(30):  # which bring retries
            async for _ in channel.unary_stream(PAGES)(b"", timeout=5):
                break
        other.heard.clear()
        for _ in range(2):  # at least one of them goes to the one that refuses
            await channel.unary_unary(ECHO)(b"", timeout=5)
        assert other.heard.count(None) >= 1
        assert len(other.heard) - other.heard.count(None) == 2


async def test_a_fleet_with_workers_or_of_many_has_no_guests(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [await host(METHODS) for _ in range(4)]
    target = "ipv4:" + ",".join(one.address for one in hosts)
    keys = [f"session-{number}" for number in range(10)]
    config = ChannelConfig(picker="consistent_hashing", subset_size=1)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        balancer = channel.balancer()
        await homes_of(channel, keys)
        await eventually(lambda: len(balancer.pool.nodes) > 1)
        workers = balancer.connections.workers
        monkeypatch.setattr(workers, "counts", lambda: (1, 0, 0))
        balancer.pickers.guests.follow()
        assert len(balancer.pool.nodes) == 1
        assert not balancer.pickers.guests.guests
        await homes_of(channel, keys)
        assert not balancer.pickers.guests._wanted
    monkeypatch.setattr("lbclient.client.backends.key_guests.MOST_MEMBERS", 3)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        assert len(set((await homes_of(channel, keys)).values())) == 1
        assert not channel.balancer().pickers.guests._wanted
