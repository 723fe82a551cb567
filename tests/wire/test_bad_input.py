"""Nonsense from users, resolvers and backends: a clear error or a sound fallback.

Nothing is lost: what was counted as begun is counted as over, and after close no
task is left (a fixture of all tests looks) and no connection.
"""

import asyncio
import gc
import logging
import math
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig
from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint
from lbclient.core.protocols import PickerFactory
from lbclient.pickers import PICKERS, WeightedLeastLoaded, WeightedRoundRobin
from lbclient.subsets.rendezvous import Rendezvous
from lbclient.v1 import health_pb2, load_pb2
from tests.hosts import add_methods, unary_stream, unary_unary
from tests.waiting import let_pass


def target(*tasks: Any) -> str:
    return "ipv4:" + ",".join(task.address for task in tasks)


def is_ready(channel: lbclient.Channel) -> bool:
    backends = channel.statistics().backends
    return bool(backends) and {b.state for b in backends} == {"ready"}


def released(channel: lbclient.Channel) -> bool:
    """Whether no call holds a place; an error's traceback may keep one till here."""
    gc.collect()
    return channel.statistics().in_flight == 0


# --- what a user writes ----------------------------------------------------------

WRONG_TARGETS: list[Any] = [
    "consul:///search",
    "xds:///search",
    "http://search:80",
    "ipv4:1.2.3.4",
    "ipv4:1.2.3.400:1",
    "ipv4:1.2.3.4:1,",
    "ipv6:[::g]:1",
    "search:70000",
    "search:port",
    "dns://8.8.8.8/search:1",
    "unix:",
    "a name:1",
    "",
    None,
    5,
    b"search:1",
    ["1.2.3.4:1"],
]


@pytest.mark.parametrize("wrong", WRONG_TARGETS)
def test_a_wrong_target_is_refused_when_the_channel_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        lbclient.insecure_channel(wrong)
    assert caught.value.field == "target"
    assert repr(wrong) in str(caught.value)


WRONG_SETTINGS: list[dict[str, Any]] = [
    {"subset_size": 0},
    {"subset_size": 1.5},
    {"subset_size": True},
    {"active_limit": -1},
    {"max_waiting": -1},
    {"when_full": "drop"},
    {"health_interval": math.nan},
    {"resolve_interval": math.inf},
    {"empty_after": -1.0},
    {"connect_backoff": "1"},
    {"max_connect_backoff": 0.01},
    {"client_id": 7},
    {"picker": None},
    {"seed": "x"},
]


@pytest.mark.parametrize("setting", WRONG_SETTINGS, ids=repr)
def test_a_wrong_setting_is_named_with_its_value(setting: dict[str, Any]) -> None:
    ((field, value),) = setting.items()
    with pytest.raises(ConfigError) as caught:
        ChannelConfig(**setting)
    assert caught.value.field == field
    assert repr(value) in str(caught.value)


def test_an_unknown_picker_is_refused_with_the_names_of_the_known() -> None:
    names = ", ".join(PICKERS)
    with pytest.raises(ConfigError, match=f"'fastest': want one of {names}"):
        ChannelConfig(picker="fastest")


@pytest.mark.parametrize(
    "option",
    [
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
        ("grpc.use_local_subchannel_pool", 0),
    ],
    ids=lambda option: option[0],
)
def test_an_option_that_contradicts_the_channel_is_refused(option: Any) -> None:
    with pytest.raises(ConfigError, match=option[0]):
        lbclient.insecure_channel("search:1", options=[option])


MOST = "grpc.max_send_message_length"
CONFIG = "grpc.service_config"
WRONG_OPTIONS: list[tuple[Any, str]] = [
    ({MOST: 1}, f"options = {{'{MOST}': 1}}: want a list of pairs of name and value"),
    (5, "options = 5: want a list of pairs of name and value"),
    ([MOST], f"options[0] = '{MOST}': want a pair of name and value"),
    ([(5, 1)], "options[0] = (5, 1): want a name that is text"),
    ([(MOST, None)], f"options['{MOST}'] = None: want an int, text or bytes"),
    ([(MOST, 1e6)], f"options['{MOST}'] = 1000000.0: want an int, text or bytes"),
    ([(MOST, 2**31)], f"options['{MOST}'] = 2147483648: want an int of 32 bits"),
    ([(CONFIG, {})], f"options['{CONFIG}'] = {{}}: want an int, text or bytes"),
]
TAKE_OPTIONS: dict[str, Callable[[Any], object]] = {
    "channel": lambda options: lbclient.insecure_channel("search:1", options=options),
    "server": lambda options: lbclient.server(options=options),
    "synchronous server": lambda options: lbclient.sync_server(
        ThreadPoolExecutor(1), options=options
    ),
}


@pytest.mark.parametrize(("options", "said"), WRONG_OPTIONS, ids=repr)
@pytest.mark.parametrize("kind", TAKE_OPTIONS)
async def test_options_that_grpcio_cannot_take_are_named(
    options: Any, said: str, kind: str
) -> None:
    """A channel's are given to grpcio only as it connects."""
    with pytest.raises(ConfigError) as caught:
        TAKE_OPTIONS[kind](options)
    assert str(caught.value) == said


@pytest.mark.parametrize("text", ["{bad", "[]", ""])
def test_a_service_config_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="want a JSON object as text"):
        lbclient.insecure_channel("search:1", options=[(CONFIG, text)])


def test_a_compression_that_is_none_of_grpcs_is_refused() -> None:
    gzip: Any = "gzip"
    with pytest.raises(ConfigError, match=r"compression = 'gzip': want a grpc\.Comp"):
        lbclient.insecure_channel("search:1", compression=gzip)


async def test_options_are_passed_on_as_grpcio_takes_them(
    start: Any, search: Any
) -> None:
    """Names may be bytes, and values numbers, text, bytes, and truth values."""
    options: Any = [
        (b"grpc.primary_user_agent", b"shop/1"),
        ("grpc.secondary_user_agent", "shop/2"),
        ("grpc.max_send_message_length", 4096),
        ("grpc.enable_http_proxy", False),
    ]
    task = await start()
    async with lbclient.insecure_channel(target(task), options=options) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(text="x"), timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Search(search.Query(text="x" * 5000), timeout=5)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_outside_of_a_loop_a_channel_can_be_made_but_not_used() -> None:
    channel = lbclient.insecure_channel("ipv4:127.0.0.1:1")
    with pytest.raises(RuntimeError, match="event loop"):
        channel.unary_unary("/a.A/A")(b"x")


async def test_a_second_loop_is_refused_and_the_first_goes_on(
    start: Any, search: Any
) -> None:
    task = await start()
    caught: list[BaseException] = []
    async with lbclient.insecure_channel(target(task)) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(text="x"), timeout=5)

        async def elsewhere() -> None:
            for kind in (stub.Search, stub.Pages):
                with pytest.raises(RuntimeError) as error:
                    kind(search.Query(text="x"))
                caught.append(error.value)

        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert ["another event loop" in str(error) for error in caught] == [True] * 2
        await stub.Search(search.Query(text="x"), timeout=5)


async def test_every_kind_of_call_after_close_is_an_error_at_once(start: Any) -> None:
    task = await start()
    channel = lbclient.insecure_channel(target(task))
    await channel.channel_ready()
    methods = [
        getattr(channel, kind)("/search.Search/Search")
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    ]
    await channel.close()
    await channel.close()
    for method in methods:
        with pytest.raises(grpc.aio.UsageError, match="closed"):
            method(b"x")
    unused = lbclient.insecure_channel(target(task))
    await unused.close()
    with pytest.raises(grpc.aio.UsageError, match="closed"):
        unused.unary_unary("/search.Search/Search")(b"x")


@pytest.fixture(params=["waiting", "ready"])
async def channel(
    request: pytest.FixtureRequest, start: Any, eventually: Any
) -> AsyncIterator[lbclient.Channel]:
    """Once with a first call that waits for its backend, once with a ready one."""
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(target(task)) as channel:
        if request.param == "ready":
            await channel.channel_ready()
        yield channel
    await eventually(lambda: task.server.statistics().watchers == 0)


@pytest.mark.parametrize(
    "metadata", [{"a": "b"}, (("a", 5),), 5], ids=["dict", "number", "no sequence"]
)
@pytest.mark.parametrize("kind", ["Search", "Pages"])
async def test_wrong_metadata_is_the_callers_error_and_holds_no_place(
    channel: lbclient.Channel, search: Any, metadata: Any, kind: str, eventually: Any
) -> None:
    method = getattr(search.SearchStub(channel), kind)

    async def ask() -> None:
        call = method(search.Query(text="x"), metadata=metadata)
        await (call if kind == "Search" else call.read())

    with pytest.raises((ValueError, TypeError)):
        await ask()
    await eventually(lambda: released(channel), turns=300)
    stub = search.SearchStub(channel)
    assert (await stub.Search(search.Query(text="x"), timeout=5)).text


@pytest.mark.parametrize(
    ("pair", "error"),
    [
        (("key-bin", "text"), TypeError),
        (("key", "no \udcff"), UnicodeEncodeError),
        (("Key", "text"), grpc.aio.AioRpcError),
        (("key", "token\n"), grpc.aio.AioRpcError),
        (("key", b"\xff"), grpc.aio.AioRpcError),
    ],
    ids=["text as bytes", "surrogate", "capital", "line's end", "bytes as text"],
)
@pytest.mark.parametrize("kind", ["Search", "Pages", "Index", "Chat"])
async def test_metadata_that_cannot_be_sent_holds_no_place(
    channel: lbclient.Channel,
    search: Any,
    pair: Any,
    error: type[Exception],
    kind: str,
    eventually: Any,
) -> None:
    """grpc.aio's own unary calls raise, but are never over: `code()` waits for ever."""
    query = search.Query(text="x")
    request = query if kind in ("Search", "Pages") else [query]
    call = getattr(search.SearchStub(channel), kind)(request, metadata=[pair])
    with pytest.raises(error) as caught:
        await (call if kind in ("Search", "Index") else call.read())
    assert "token" not in str(caught.value)
    assert await call.code() is grpc.StatusCode.INTERNAL
    await eventually(lambda: released(channel), turns=300)


async def test_a_request_of_the_wrong_type_is_the_callers_error(
    channel: lbclient.Channel, eventually: Any
) -> None:
    with pytest.raises(TypeError):
        await channel.unary_unary("/search.Search/Search")("text", timeout=5)
    await eventually(lambda: released(channel), turns=300)


@pytest.mark.parametrize("timeout", [math.nan, -1.0])
async def test_a_timeout_that_is_no_time_is_a_deadline_exceeded(
    channel: lbclient.Channel, timeout: float
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/search.Search/Search")(b"", timeout=timeout)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("kind", ["Search", "Pages"])
async def test_a_done_callback_that_raises_does_not_poison_the_channel(
    channel: lbclient.Channel, search: Any, kind: str
) -> None:
    """Nor the call, unless that is grpc.aio's own: a unary one on a ready backend."""
    told: list[Any] = []

    def broken(_: Any) -> None:
        raise RuntimeError("a callback's own mistake")

    call = getattr(search.SearchStub(channel), kind)(search.Query(text="1"), timeout=5)
    call.add_done_callback(broken)
    call.add_done_callback(told.append)
    if type(call).__module__.startswith("grpc.aio"):
        with pytest.raises(RuntimeError, match="own mistake"):
            await call
    elif kind == "Search":
        assert (await call).text
        assert told == [call]
    else:
        assert len([page async for page in call]) == 1
        assert told == [call]
    assert await call.code() is grpc.StatusCode.OK
    assert channel.statistics().attempts["served"] == 1
    assert channel.statistics().in_flight == 0


class Broken(grpc.aio.UnaryUnaryClientInterceptor):
    """Raises before the call is sent, or when it is answered."""

    def __init__(self, when: str) -> None:
        self.when = when

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        if self.when == "after":
            await (await continuation(client_call_details, request))
        raise RuntimeError("an interceptor's own mistake")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_interceptor_that_raises_fails_its_call_alone(
    start: Any, search: Any, when: str
) -> None:
    task = await start()
    async with lbclient.insecure_channel(
        target(task), interceptors=[Broken(when)]
    ) as channel:
        stub = search.SearchStub(channel)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="own mistake"):
                await stub.Search(search.Query(text="x"), timeout=5)
        assert channel.statistics().in_flight == 0
        assert len([page async for page in stub.Pages(search.Query(text="2"))]) == 2


# --- what a resolver says --------------------------------------------------------


class Says:
    """A resolver that says these things, one after the other, then nothing more."""

    def __init__(self, *things: Any, ends: bool = False) -> None:
        self.things = list(things)
        self.ends = ends
        self.more = asyncio.Event()

    async def watch(self) -> AsyncIterator[Any]:
        while self.things:
            thing = self.things.pop(0)
            if isinstance(thing, Exception):
                raise thing
            yield thing
        if not self.ends:
            await self.more.wait()

    def __repr__(self) -> str:
        return "a resolver"


class NoWatch:
    """A resolver whose `watch` is no asynchronous iterator."""

    def __init__(self, watch: Callable[[], Any]) -> None:
        self.watch = watch


async def forgot_to_yield() -> tuple[Endpoint, ...]:
    return ()


class Unfinished:
    """An endpoint's look-alike without an address."""


USELESS: dict[str, Any] = {
    "raises its error": lambda: Says(lbclient.ResolveError("no such name: search")),
    "raises another": lambda: Says(RuntimeError("a bug of its own")),
    "says nothing useful": lambda: Says(5),
    "says None": lambda: Says(None),
    "says text": lambda: Says("127.0.0.1:1"),
    "says a list of text": lambda: Says(["127.0.0.1:1"]),
    "has no addresses": lambda: Says([Unfinished()]),
    "has a name for an address": lambda: Says([Endpoint("no such:1")]),
    "has nobody": lambda: Says(()),
    "ends at once": lambda: Says(ends=True),
    "is no iterator": lambda: NoWatch(lambda: 5),
    "is a coroutine": lambda: NoWatch(forgot_to_yield),
}


@pytest.mark.filterwarnings("ignore:coroutine 'forgot_to_yield':RuntimeWarning")
@pytest.mark.parametrize("how", USELESS)
async def test_a_useless_resolver_is_an_error_of_the_call(
    search: Any, how: str
) -> None:
    async with lbclient.insecure_channel(USELESS[how]()) as channel:
        with pytest.raises(lbclient.NoBackend) as caught:
            await search.SearchStub(channel).Search(search.Query(text="x"), timeout=1)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details()


@pytest.mark.parametrize(
    "mistake",
    [
        lbclient.ResolveError("try again"),
        RuntimeError("a bug of its own"),
        5,
        ["127.0.0.1:1"],
        [Unfinished()],
        (),
    ],
    ids=["its error", "another error", "no list", "text", "no address", "nobody"],
)
async def test_a_resolvers_mistake_costs_no_endpoint(
    start: Any, search: Any, mistake: Any, eventually: Any
) -> None:
    task = await start()
    resolver = Says([Endpoint(task.address)], mistake)
    async with lbclient.insecure_channel(resolver) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(text="x"), timeout=5)
        await eventually(lambda: not resolver.things)
        await let_pass(0.02)
        for _ in range(5):
            await stub.Search(search.Query(text="x"), timeout=5)
        (backend,) = channel.statistics().backends
        assert backend.address == task.address
        assert backend.started == 6


async def test_an_endpoint_that_cannot_be_dialled_costs_the_others_nothing(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start()
    resolver = Says([Endpoint("no such:1"), Endpoint(task.address)])
    async with lbclient.insecure_channel(resolver) as channel:
        stub = search.SearchStub(channel)
        for _ in range(6):
            await stub.Search(search.Query(text="x"), timeout=5)
    assert task.servicer.served == 6


async def test_a_resolver_that_ends_is_asked_again(start: Any, search: Any) -> None:
    task = await start()

    class Short:
        asked = 0

        async def watch(self) -> AsyncIterator[Any]:
            self.asked += 1
            if self.asked > 1:
                yield [Endpoint(task.address)]

    async with lbclient.insecure_channel(Short()) as channel:
        stub = search.SearchStub(channel)
        query = search.Query(text="x")
        assert (await stub.Search(query, timeout=5, wait_for_ready=True)).text


@pytest.mark.parametrize("source", ["target", "resolver"])
async def test_duplicate_endpoints_are_one_connection(
    start: Any, search: Any, source: str
) -> None:
    task = await start(lbclient.server)
    twice: Any = Says([Endpoint(task.address), Endpoint(task.address, zone="b")] * 2)
    if source == "target":
        twice = target(task, task, task)
    async with lbclient.insecure_channel(twice) as channel:
        stub = search.SearchStub(channel)
        for _ in range(6):
            await stub.Search(search.Query(text="x"), timeout=5)
        assert len(channel.statistics().backends) == 1
        assert task.server.statistics().watchers == 1


async def test_ten_thousand_endpoints_are_twenty_connections_and_no_lost_call(
    start: Any, search: Any, free_port: Callable[[], int], eventually: Any
) -> None:
    """All of 127.0.0.0/8 is this machine: a server on each address of the subset."""
    port = free_port()
    crowd = [Endpoint(f"127.1.{i >> 8}.{i & 255}:{port}") for i in range(10_000)]
    config = ChannelConfig(client_id="me", subset_size=20)
    subset = Rendezvous("me")(tuple(sorted(crowd)))[:20]
    first = await start(lbclient.server)
    resolver = Says([Endpoint(first.address)])

    def everywhere() -> Any:
        server = lbclient.server()
        for endpoint in subset:
            server.add_insecure_port(endpoint.address)
        return server

    second = await start(everywhere, port)
    calls = 0
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        stub = search.SearchStub(channel)
        await channel.channel_ready()

        async def keep_calling() -> None:
            nonlocal calls
            while not (len(channel.statistics().backends) == 20 and is_ready(channel)):
                await stub.Search(search.Query(text="x"), timeout=5)
                calls += 1

        busy = [asyncio.create_task(keep_calling()) for _ in range(3)]
        resolver.things.append(crowd)
        resolver.more.set()
        await asyncio.wait_for(asyncio.gather(*busy), 10)
        for _ in range(40):
            await stub.Search(search.Query(text="x"), timeout=5)
        statistics = channel.statistics()
        assert set(statistics.calls) == {"OK"}
        assert statistics.resolver.endpoints == 10_000
        assert {b.address for b in statistics.backends} == {e.address for e in subset}
        await eventually(lambda: first.server.statistics().watchers == 0)
        assert second.server.statistics().watchers == 20
    await eventually(lambda: second.server.statistics().watchers == 0)
    assert calls


# --- what a backend says ---------------------------------------------------------


def doubles(number: int, value: float) -> bytes:
    """A protobuf field of type double, whatever the value."""
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def report(value: float) -> bytes:
    """All numbers of a load report are `value`."""
    return b"".join(doubles(number, value) for number in (1, 2, 6, 7, 9))


def rates(utilization: float, qps: float, eps: float) -> bytes:
    return doubles(9, utilization) + doubles(6, qps) + doubles(7, eps)


def with_queue(value: float) -> bytes:
    queue = load_pb2.LoadReport(named_metrics={"queue_length": value})
    return report(value) + queue.SerializeToString()


STRANGE_REPORTS = {
    "empty": b"",
    "garbage": b"\xff\xff\xff\xff",
    "cut off": report(1.0)[:-3],
    "text": b"load is fine, thank you",
    "not a number": report(math.nan),
    "negative": report(-1.0),
    "infinite": report(math.inf),
    "minus infinite": report(-math.inf),
    "enormous": report(1e308),
    "enormous, and so is its queue": with_queue(1.7e308),
    "nearly as enormous": with_queue(1.6e308),  # no float can hold their sum
    "tiny": report(5e-324),
    "no rate that a float can hold": rates(5e-324, 1e308, 0.0),
    "nothing but errors": rates(0.5, 5e-324, 1e308),
    "unknown state": b"\xc0\x3e\x63" + report(0.5),
}


def strange_server(
    watched: Callable[[], AsyncIterator[bytes]] | None = None, trailer: bytes = b""
) -> Callable[[], Any]:
    """A server of raw bytes: what its Watch says, and what its responses carry."""

    async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        assert watched is not None
        async for message in watched():
            yield message

    async def ask(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(((wire.LOAD_KEY, trailer),))
        return b""

    def make() -> Any:
        methods = {"/strange.Strange/Ask": unary_unary(ask)}
        if watched is not None:
            methods[wire.WATCH_METHOD] = unary_stream(watch)
        return add_methods(grpc.aio.server(), methods)

    return make


def health(load: bytes) -> bytes:
    """A `HealthReport` that is serving, with these bytes for a load."""
    state = health_pb2.HealthReport(state=load_pb2.SERVING).SerializeToString()
    return state + bytes([2 << 3 | 2, len(load)]) + load


KEYS = count()  # each call has another, so that all backends get some


async def ask_around(channel: lbclient.Channel, calls: int) -> None:
    for _ in range(calls):
        with lbclient.key(str(next(KEYS))):
            await channel.unary_unary("/strange.Strange/Ask")(b"", timeout=5)


def weights(channel: lbclient.Channel) -> list[float]:
    return [backend.weight for backend in channel.statistics().backends]


# Those that heed reports do so at once.
EAGER: dict[str, PickerFactory] = PICKERS | {
    "weighted_round_robin": lambda rng: WeightedRoundRobin(
        rng, blackout=0.0, update_period=0.1
    ),
    "weighted_least_loaded": lambda rng: WeightedLeastLoaded(
        rng, blackout=0.0, update_period=0.1
    ),
}


@pytest.mark.parametrize("picker", EAGER)
async def test_a_strange_report_keeps_no_backend_from_its_calls(
    start: Any, picker: str, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In every response and in all health reports but the first."""

    said = Counter[bytes]()

    def always(load: bytes) -> Callable[[], AsyncIterator[bytes]]:
        async def say() -> AsyncIterator[bytes]:
            yield health(report(0.5))
            while True:
                yield health(load)
                said[load] += 1
                await asyncio.sleep(0.02)

        return say

    loads = report(0.5), *STRANGE_REPORTS.values()
    tasks = [await start(strange_server(always(load), load)) for load in loads]
    config = ChannelConfig(picker=EAGER[picker], seed=7)
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: is_ready(channel))
        for _ in range(6):
            await ask_around(channel, 5 * len(tasks))
            said.clear()
            await eventually(lambda: all(said[load] > 1 for load in loads))
        backends = channel.statistics().backends
        assert sum(b.served for b in backends) == 30 * len(tasks)
        assert all(b.started for b in backends)
        # One that a slow machine kept silent has no weight until it is heard again.
        await eventually(lambda: sum(weights(channel)) == pytest.approx(len(tasks)))
        for b in backends:
            for number in (b.weight, b.utilization or 0, b.qps or 0, b.eps or 0):
                assert 0.0 <= number < math.inf
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [r for r in errors if r.name.startswith("lbclient")] == []


STRANGE_WATCHES = {
    "garbage": [b"\xff\xff"],
    "text": [b"I am fine"],
    "nothing": [b""],
    "an unknown state": [b"\x08\x63"],
}


@pytest.mark.parametrize("name", STRANGE_WATCHES)
async def test_a_health_report_that_nobody_understands_is_no_health_report(
    start: Any, name: str
) -> None:
    """Such a server is none of ours: it serves as long as it is connected."""

    async def say() -> AsyncIterator[bytes]:
        for message in STRANGE_WATCHES[name]:
            yield message
        await asyncio.sleep(60)

    task = await start(strange_server(say))
    async with lbclient.insecure_channel(target(task)) as channel:
        await ask_around(channel, 3)


async def test_a_strange_word_between_sound_ones_changes_nothing(
    start: Any, eventually: Any
) -> None:
    told: list[bytes] = []

    async def say() -> AsyncIterator[bytes]:
        for message in (health(report(0.5)), b"\xff\xff", b"\x08\x63", b"I am fine"):
            told.append(message)
            yield message
        await asyncio.sleep(60)

    task = await start(strange_server(say))
    config = ChannelConfig(health_interval=60)
    async with lbclient.insecure_channel(target(task), config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: len(told) == 4)
        await ask_around(channel, 3)
        assert is_ready(channel)


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    ],
    ids=lambda code: code.name,
)
async def test_a_server_without_any_of_our_services_is_served_by(
    start: Any, search: Any, code: grpc.StatusCode
) -> None:
    class Doorkeeper(grpc.aio.ServerInterceptor):
        async def intercept_service(
            self, continuation: Any, handler_call_details: Any
        ) -> Any:
            if handler_call_details.method.startswith("/search."):
                return await continuation(handler_call_details)

            async def refuse(request: Any, context: Any) -> None:
                await context.abort(code, "not for you")

            return unary_stream(refuse)

    task = await start(lambda: grpc.aio.server(interceptors=[Doorkeeper()]))
    async with lbclient.insecure_channel(target(task)) as channel:
        stub = search.SearchStub(channel)
        for _ in range(3):
            assert (await stub.Search(search.Query(text="x"), timeout=5)).text
        assert is_ready(channel)
