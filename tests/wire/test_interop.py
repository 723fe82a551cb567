"""With those who know nothing of lbclient: stock clients, stock servers, TLS."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.grpc_interop import CASES, CHANNELS, SERVERS, pair
from lbclient import wire
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.pickers import WeightedRoundRobin
from lbclient.v1 import compat_pb2, load_pb2
from tests import needs
from tests.certificates import certify
from tests.hosts import PATH, add_methods, hosting, unary_stream, unary_unary
from tests.wire.conftest import ECHO

UTILIZATIONS = (0.2, 0.4, 0.8)
SHARES = (4 / 7, 2 / 7, 1 / 7)  # in proportion to 1 / utilization


def target(*tasks: Any) -> str:
    return "ipv4:" + ",".join(task.address for task in tasks)


def states(channel: lbclient.Channel) -> list[str]:
    return [backend.state for backend in channel.statistics().backends]


async def all_ready(channel: lbclient.Channel, eventually: Any) -> None:
    await channel.channel_ready()
    await eventually(lambda: set(states(channel)) == {"ready"})


# --- stock clients of our servers ------------------------------------------------


async def ask(stub: Any, search: Any, calls: int) -> Counter[str]:
    """Who answered how many calls, one after the other."""
    answers = [
        await stub.Search(search.Query(text="x"), timeout=5) for _ in range(calls)
    ]
    return Counter(answer.text for answer in answers)


@pytest.mark.parametrize("source", ["per call", "out of band", "named metrics"])
async def test_grpcios_own_weighted_round_robin_follows_our_reports(
    start: Any, search: Any, source: str
) -> None:
    """4:2:1 at equal rates, but a server reports the rate that it measures, and the
    more a client prefers it the higher that is. So after every 21 calls of the
    channel under test a plain one sends each server what it got less than the
    others: all serve the same number in any time longer than that.
    """
    tasks = [
        await start(
            lambda utilization=utilization: lbclient.server(
                config=ServerConfig(
                    **(
                        {"signals": {"pool": lambda: utilization}}
                        if source == "named metrics"
                        else {
                            "utilization": lambda: utilization,
                            "utilization_replaces": True,
                        }
                    ),
                    smoothing=60,  # over many batches, not within one
                    orca_min_interval=0.1,
                )
            )
        )
        for utilization in UTILIZATIONS
    ]
    policy = {"blackoutPeriod": "0.1s", "weightUpdatePeriod": "0.1s"}
    if source == "out of band":
        policy |= {"enableOobLoadReport": True, "oobReportingPeriod": "0.1s"}  # type: ignore[dict-item]
    if source == "named metrics":  # gRFC A114
        needs.grpcio("1.84", "its policy takes no named metrics")
        policy |= {"metricNamesForComputingUtilization": ["named_metrics.pool"]}  # type: ignore[dict-item]
    config = json.dumps({"loadBalancingConfig": [{"weighted_round_robin": policy}]})
    names = [task.servicer.name for task in tasks]
    plain = [grpc.aio.insecure_channel(task.address) for task in tasks]
    async with grpc.aio.insecure_channel(
        target(*tasks), [("grpc.service_config", config)]
    ) as channel:

        async def batch() -> Counter[str]:
            seen = await ask(search.SearchStub(channel), search, 21)
            most = max(seen.values())
            for name, other in zip(names, plain, strict=True):
                await ask(search.SearchStub(other), search, most - seen[name])
            return seen

        for _ in range(100):  # until the weights are in
            seen = await batch()
            if seen[names[0]] >= 11 and seen[names[2]] <= 4:
                break
        seen = sum([await batch() for _ in range(30)], Counter())
    for other in plain:
        await other.close()
    shares = [seen[name] / seen.total() for name in names]
    assert shares == pytest.approx(SHARES, abs=0.05)


# --- our client on stock servers -------------------------------------------------


def orca_server(used: float | None, **metrics: Any) -> Callable[[], Any]:
    """A server that reports its load out of band and offers nothing else of ours."""

    async def stream(request: bytes, context: Any) -> AsyncIterator[Any]:
        interval = compat_pb2.LoadReportRequest.FromString(request).report_interval
        while True:
            yield load_pb2.LoadReport(
                application_utilization=used, rps_fractional=100.0, **metrics
            )
            await asyncio.sleep(interval.seconds + interval.nanos / 1e9)

    methods = {wire.ORCA_METHOD: unary_stream(stream, None, encoded)}
    return lambda: add_methods(grpc.aio.server(), methods)


def weighted_round_robin(rng: Random) -> WeightedRoundRobin:
    return WeightedRoundRobin(rng, blackout=0.0, update_period=0.1)


async def test_our_weighted_round_robin_follows_orca_out_of_band(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(orca_server(utilization)) for utilization in UTILIZATIONS]
    config = ChannelConfig(picker=weighted_round_robin)
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await all_ready(channel, eventually)
        await eventually(
            lambda: all(b.utilization for b in channel.statistics().backends)
        )
        seen = await ask(search.SearchStub(channel), search, 350)
    counts = [seen[task.servicer.name] for task in tasks]
    assert counts == pytest.approx([200, 100, 50], abs=2)


def utilizations(channel: lbclient.Channel, tasks: list[Any]) -> list[float | None]:
    """As the channel knows them, in the order of the tasks."""
    seen = {one.address: one.utilization for one in channel.statistics().backends}
    return [seen[task.address] for task in tasks]


DISK, POOL = "utilization.disk", "named_metrics.pool"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((POOL,), [{"named_metrics": {"pool": used}} for used in UTILIZATIONS]),
        ((DISK,), [{"utilization": {"disk": used}} for used in UTILIZATIONS]),
        (("mem_utilization",), [{"mem_utilization": used} for used in UTILIZATIONS]),
        # The largest of several, in whichever field it is.
        (
            ("mem_utilization", POOL, DISK),
            [
                {"mem_utilization": 0.1, "named_metrics": {"pool": 0.2}},
                {"utilization": {"disk": 0.4}, "named_metrics": {"other": 3.0}},
                {"mem_utilization": 0.8, "utilization": {"disk": 0.7}},
            ],
        ),
    ],
)
async def test_our_weighted_round_robin_goes_by_named_metrics(
    start: Any, search: Any, eventually: Any, names: tuple[str, ...], told: list[Any]
) -> None:
    """And not by the applications' utilization, which is the same of all."""
    tasks = [await start(orca_server(0.5, **metrics)) for metrics in told]
    config = ChannelConfig(
        picker=weighted_round_robin, metric_names_for_computing_utilization=names
    )
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await all_ready(channel, eventually)
        stub = search.SearchStub(channel)
        seen = await ask(stub, search, 350)
        while [seen[task.servicer.name] for task in tasks] != pytest.approx(
            [200, 100, 50], abs=2
        ):
            seen = await ask(stub, search, 350)
        used = utilizations(channel, tasks)
    assert used == pytest.approx(UTILIZATIONS)


async def test_a_backend_without_the_named_metric_is_not_taken_for_idle(
    start: Any, search: Any, eventually: Any
) -> None:
    """It counts with the utilization that it tells, as in gRFC A114; the one that tells
    neither gets the mean share."""
    told = [{"named_metrics": {"pool": 0.4}}, {"named_metrics": {"other": 0.01}}, {}]
    tasks = [
        await start(orca_server(used, **metrics))
        for used, metrics in zip((0.1, 0.4, None), told, strict=True)
    ]
    config = ChannelConfig(
        picker=weighted_round_robin, metric_names_for_computing_utilization=(POOL,)
    )
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await all_ready(channel, eventually)
        known = [pytest.approx(0.4), pytest.approx(0.4), None]
        await eventually(lambda: utilizations(channel, tasks) == known)
        seen = await ask(search.SearchStub(channel), search, 300)
    counts = [seen[task.servicer.name] for task in tasks]
    assert counts == pytest.approx([100, 100, 100], abs=2)


async def test_a_channel_goes_by_a_signal_of_our_servers(
    start: Any, search: Any, eventually: Any
) -> None:
    """With the default picker; every answer and health report tells the signal."""
    tasks = [
        await start(
            lambda used=used: lbclient.server(
                config=ServerConfig(
                    signals={"pool": lambda: used},
                    utilization=lambda: 0.9,
                    utilization_replaces=True,
                )
            )
        )
        for used in UTILIZATIONS
    ]
    config = ChannelConfig(metric_names_for_computing_utilization=(POOL,))
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await all_ready(channel, eventually)
        stub = search.SearchStub(channel)
        while utilizations(channel, tasks) != pytest.approx(UTILIZATIONS):
            await ask(stub, search, 10)
        seen = await ask(stub, search, 100)
        while not (
            seen[tasks[0].servicer.name]
            > seen[tasks[1].servicer.name]
            > seen[tasks[2].servicer.name]
        ):
            seen = await ask(stub, search, 100)
        # An answer that does not tell it would show.
        assert utilizations(channel, tasks) == pytest.approx(UTILIZATIONS)


@pytest.mark.parametrize("kind", ["auto", "watch"])
async def test_a_load_report_that_comes_before_the_health_status_counts(
    start: Any, kind: Any
) -> None:
    """ORCA's servers in other languages send the next one 30 s later at the soonest."""
    health, asked = Health(), list[str]()

    async def late_watch(request: bytes, context: Any) -> AsyncIterator[Any]:
        asked.append("Watch")
        await asyncio.sleep(0.1)
        async for reply in health.watch(request, context):
            yield reply

    async def late_check(request: bytes, context: Any) -> Any:
        asked.append("Check")
        await asyncio.sleep(0.1)
        return await health.check(request, context)

    async def once(request: bytes, context: Any) -> AsyncIterator[Any]:
        yield load_pb2.LoadReport(application_utilization=0.2, rps_fractional=100.0)
        await asyncio.sleep(60)

    methods = {
        wire.ORCA_METHOD: unary_stream(once, None, encoded),
        wire.SERVING_CHECK_METHOD: unary_unary(late_check, None, encoded),
        wire.SERVING_WATCH_METHOD: unary_stream(late_watch, None, encoded),
    }
    task = await start(lambda: add_methods(grpc.aio.server(), methods))
    config = ChannelConfig(health=kind)
    async with lbclient.insecure_channel(target(task), config=config) as channel:
        await channel.channel_ready()
        assert channel.statistics().backends[0].utilization == 0.2
    assert ("Watch" in asked) is (kind == "watch")
    assert "Check" in asked


async def test_without_any_report_weighted_round_robin_goes_round(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start() for _ in range(3)]
    config = ChannelConfig(picker=weighted_round_robin)
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await all_ready(channel, eventually)
        seen = await ask(search.SearchStub(channel), search, 150)
    assert [seen[task.servicer.name] for task in tasks] == [50, 50, 50]


async def test_without_any_report_the_default_spreads_evenly(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start() for _ in range(3)]
    async with lbclient.insecure_channel(target(*tasks)) as channel:
        await all_ready(channel, eventually)
        stub = search.SearchStub(channel)
        one_by_one = await ask(stub, search, 150)
        query = search.Query(text="sleep 0.01")
        calls = [stub.Search(query, timeout=5) for _ in range(150)]
        at_once = Counter([(await call).text for call in calls])
    for seen in (one_by_one, at_once):
        counts = [seen[task.servicer.name] for task in tasks]
        assert counts == pytest.approx([50, 50, 50], abs=3)


class Health:
    """grpc.health.v1 alone, told what to say."""

    def __init__(self) -> None:
        self.status = compat_pb2.ServingReply.SERVING
        self._changed = asyncio.Event()

    def become(self, status: compat_pb2.ServingReply.ServingStatus) -> None:
        self.status = status
        self._changed.set()

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        while True:
            yield compat_pb2.ServingReply(status=self.status)
            await self._changed.wait()
            self._changed.clear()

    async def check(self, request: bytes, context: Any) -> Any:
        return compat_pb2.ServingReply(status=self.status)

    def server(self) -> Any:
        methods = {
            wire.SERVING_CHECK_METHOD: unary_unary(self.check, None, encoded),
            wire.SERVING_WATCH_METHOD: unary_stream(self.watch, None, encoded),
        }
        return add_methods(grpc.aio.server(), methods)


def encoded(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


BY_HEALTH = pytest.mark.parametrize(
    "config",
    [
        ChannelConfig(picker="round_robin", health_interval=0.4),
        ChannelConfig(picker="round_robin", health="watch", health_interval=60),
    ],
    ids=["asked", "watched"],
)


@BY_HEALTH
async def test_standard_health_checks_take_a_backend_out_and_bring_it_back(
    start: Any, search: Any, eventually: Any, config: ChannelConfig
) -> None:
    health = [Health(), Health()]
    tasks = [await start(one.server) for one in health]
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await all_ready(channel, eventually)
        stub = search.SearchStub(channel)
        health[0].become(compat_pb2.ServingReply.NOT_SERVING)
        await eventually(lambda: "lame duck" in states(channel))
        said = {backend.reason for backend in channel.statistics().backends}
        assert "it says NOT_SERVING (grpc.health.v1)" in said
        assert set(await ask(stub, search, 20)) == {tasks[1].servicer.name}
        health[0].become(compat_pb2.ServingReply.SERVING)
        await eventually(lambda: set(states(channel)) == {"ready"})
        assert set((await ask(stub, search, 20)).values()) == {10}


@BY_HEALTH
async def test_a_backend_that_never_served_by_standard_health_is_waited_for(
    start: Any, search: Any, eventually: Any, config: ChannelConfig
) -> None:
    health = Health()
    health.become(compat_pb2.ServingReply.NOT_SERVING)
    task = await start(health.server)
    async with lbclient.insecure_channel(target(task), config=config) as channel:
        call = search.SearchStub(channel).Search(search.Query(text="x"), timeout=5)
        await eventually(lambda: states(channel) == ["starting"])
        (backend,) = channel.statistics().backends
        assert backend.reason == "it says NOT_SERVING (grpc.health.v1)"
        assert not call.done()
        health.become(compat_pb2.ServingReply.SERVING)
        assert (await call).text == task.servicer.name


# --- gRPC's own cases ----------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CHANNELS)
async def test_grpcs_interoperability_cases_hold_with_ours_on_either_side(
    client: str, server: str
) -> None:
    found = await pair(client, server)
    assert found == dict.fromkeys(CASES, "holds")


# --- generated code, credentials -------------------------------------------------


async def test_stubs_of_modern_generators_register_their_methods(
    start: Any, search: Any
) -> None:
    task = await start()
    async with lbclient.insecure_channel(target(task)) as channel:
        for _ in ("waiting", "ready"):
            method = channel.unary_unary(
                "/search.Search/Search",
                request_serializer=search.Query.SerializeToString,
                response_deserializer=search.Answer.FromString,
                _registered_method=True,
            )
            answer = await method(search.Query(text="x"), timeout=5)
            assert answer.text == task.servicer.name
        pages = channel.unary_stream(
            "/search.Search/Pages",
            request_serializer=search.Query.SerializeToString,
            response_deserializer=search.Answer.FromString,
            _registered_method=True,
        )
        assert len([page async for page in pages(search.Query(text="2"))]) == 2


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and `server.pem` with `server.key`, which is for `localhost` alone."""
    return certify(tmp_path_factory.mktemp("certificates"), "DNS:localhost")


@pytest.fixture
async def secure_port(certificates: Path) -> AsyncIterator[int]:
    """Of a server of ours that speaks TLS."""

    key, chain = (
        (certificates / f"server.{end}").read_bytes() for end in ("key", "pem")
    )
    credentials = grpc.ssl_server_credentials([(key, chain)])
    async with hosting(ECHO, credentials=credentials) as hosted:
        yield hosted.port


async def test_certificates_are_checked_by_the_targets_name_not_by_address(
    secure_port: int, certificates: Path
) -> None:
    credentials = grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes())
    async with lbclient.secure_channel(
        f"dns:///localhost:{secure_port}", credentials
    ) as channel:
        call = channel.unary_unary(PATH)(b"x", timeout=5)
        assert await call == b"x"
        assert lbclient.info(call).backend == f"127.0.0.1:{secure_port}"
    async with lbclient.secure_channel(
        f"ipv4:127.0.0.1:{secure_port}", credentials
    ) as channel:
        call = channel.unary_unary(PATH)(b"x", timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
