"""What a request cost: told to its client, and summed up by method and customer."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import wire
from lbclient.core.quotas.costs import MOST
from lbclient.server.meters.machine_speed import MachineSpeed
from lbclient.server.overload import charging
from lbclient.v1 import load_pb2
from tests.hosts import PATH, Host, Passing, add_methods, method_handler, unary_unary
from tests.wire.test_accounting import HANDLERS, PART, burn, respond

FACTOR = 2.0
TOLD = {"request_cost": True, "cpu_factor": FACTOR}
# Each of the handlers burns so much at least.
LEAST = 6 * PART


async def call_once(channel: Any, arity: str, **options: Any) -> Any:
    """A call that is over, whatever became of it."""
    request = b"a" if arity.startswith("unary") else iter([b"a"])
    call = getattr(channel, arity)(PATH)(request, timeout=20, **options)
    try:
        if arity.endswith("stream"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError:
        pass
    return call


@pytest.mark.parametrize(("arity", "handler"), HANDLERS)
async def test_a_client_is_told_the_normalized_cost_of_its_request(
    host: Host, arity: str, handler: Any
) -> None:
    server, address, _ = await host(method_handler(arity, handler), **TOLD)
    async with lbclient.insecure_channel(address) as channel:
        call = await call_once(channel, arity)
        cost = lbclient.info(call).cost
    assert cost is not None
    assert cost >= LEAST * FACTOR
    await asyncio.sleep(0)  # what threads tell the loop
    seen = server.statistics()
    assert seen.method_costs[arity, PATH] == pytest.approx(cost, abs=0.01 * FACTOR)
    assert seen.customer_costs[""] == seen.method_costs[arity, PATH]


async def aborts(request: bytes, context: Any) -> bytes:
    burn(PART)
    await context.abort(grpc.StatusCode.NOT_FOUND, "none", (("own", "x"),))
    return b""


async def raises(request: bytes, context: Any) -> bytes:
    burn(PART)
    raise ValueError


def aborts_in_thread(request: bytes, context: Any) -> bytes:
    burn(PART)
    context.abort(grpc.StatusCode.NOT_FOUND, "none")
    return b""


@pytest.mark.parametrize("handler", [aborts, raises, aborts_in_thread])
async def test_a_request_that_fails_has_a_cost_too(
    host: Host, handler: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    _, address, _ = await host(method_handler("unary_unary", handler), **TOLD)
    async with lbclient.insecure_channel(address) as channel:
        call = await call_once(channel, "unary_unary")
        cost = lbclient.info(call).cost
        assert await call.code() is not grpc.StatusCode.OK
    assert cost is not None
    assert cost >= PART * FACTOR
    caplog.clear()


async def test_a_server_with_interceptors_tells_it_too(host: Host) -> None:
    handler = method_handler("unary_unary", respond)
    _, address, _ = await host(handler, interceptors=[Passing()], **TOLD)
    async with lbclient.insecure_channel(address) as channel:
        cost = lbclient.info(await call_once(channel, "unary_unary")).cost
    assert cost is not None
    assert cost >= LEAST * FACTOR


async def test_after_a_retry_the_last_attempt_counts(host: Host) -> None:
    """A backend that refuses has no cost to tell: what is told is the other one's."""
    work = {"/test.Service/Method": method_handler("unary_unary", respond)}
    _, refusing, _ = await host(work, signals={"test": lambda: 1000.0}, **TOLD)
    _, serving, _ = await host(work, **TOLD)
    config = lbclient.ChannelConfig(picker="round_robin")
    target = f"ipv4:{refusing},{serving}"
    async with lbclient.insecure_channel(target, config=config) as channel:
        for _ in range(20):
            call = await call_once(channel, "unary_unary")
            seen = lbclient.info(call)
            if seen.attempts > 1:
                break
    assert seen.attempts > 1
    assert seen.backend == serving
    assert seen.cost is not None
    assert seen.cost >= LEAST * FACTOR


async def test_other_clients_are_told_by_orcas_request_cost(host: Host) -> None:
    """Seen on the server: grpcio hides this trailer from clients in Python."""
    sent: list[Any] = []

    async def work(request: bytes, context: Any) -> bytes:
        inner = context.inner
        set_on_wire = inner.set_trailing_metadata

        class Recording:
            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

            def set_trailing_metadata(self, trailers: Any) -> None:
                sent.append(dict(trailers))
                set_on_wire(trailers)

        context.inner = Recording()
        burn(PART)
        return b""

    _, _, channel = await host(method_handler("unary_unary", work), **TOLD)
    call = await call_once(channel, "unary_unary")
    [trailers] = sent
    report = load_pb2.LoadReport.FromString(trailers[wire.ORCA_KEY])
    told = dict(tuple(await call.trailing_metadata()))[wire.COST_KEY]
    assert report.request_cost["cpu_seconds"] == pytest.approx(float(told), abs=1e-6)
    assert float(told) >= PART * FACTOR
    # The same in both: nothing is lost to readers of the one or the other.
    own = load_pb2.LoadReport.FromString(trailers[wire.LOAD_KEY])
    report.ClearField("request_cost")
    assert report == own


async def test_the_cost_of_a_handlers_own_call_is_not_passed_on(host: Host) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(((wire.COST_KEY, "77"), ("own", "x")))
        return b""

    _, _, told = await host(method_handler("unary_unary", work), **TOLD)
    _, _, silent = await host(method_handler("unary_unary", work))
    costs = []
    for channel in (told, silent):
        call = await call_once(channel, "unary_unary")
        trailers = await call.trailing_metadata()
        assert trailers["own"] == "x"
        costs.append(trailers.get_all(wire.COST_KEY))
    assert len(costs[0]) == 1
    assert float(costs[0][0]) < 1.0
    assert costs[1] == []


async def test_a_server_that_does_not_count_tells_nothing(host: Host) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        return b""

    server, address, _ = await host(method_handler("unary_unary", work))
    async with lbclient.insecure_channel(address) as channel:
        call = await call_once(channel, "unary_unary")
        assert lbclient.info(call).cost is None
        assert wire.COST_KEY not in await call.trailing_metadata()
    assert server.statistics().method_costs == {}


async def test_whatever_a_server_says_is_a_cost_or_none() -> None:
    async def work(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(((wire.COST_KEY, request.decode()),))
        return b""

    server = add_methods(grpc.aio.server(), {PATH: unary_unary(work)})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found = []
    async with lbclient.insecure_channel(f"127.0.0.1:{port}") as channel:
        for said in (b"0.5", b"-1", b"nan", b"inf", b"", b"a lot"):
            call = channel.unary_unary(PATH)(said, timeout=20)
            assert lbclient.info(call).cost is None  # it is not over
            await call
            found.append(lbclient.info(call).cost)
    await server.stop(None)
    assert found == [0.5, None, None, None, None, None]


async def test_customers_have_sums_and_invented_ones_share_one(host: Host) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        return b""

    quotas = {"mail": 1000.0}
    server, _, channel = await host(
        method_handler("unary_unary", work), quotas=quotas, **TOLD
    )
    names = [f"invented {number}" for number in range(MOST + 50)]
    for name in (*names, "mail", "x" * 101):
        metadata = ((wire.CUSTOMER_KEY, name),)
        await call_once(channel, "unary_unary", metadata=metadata)
    costs = server.statistics().customer_costs
    assert set(costs) == {"", "mail", *names[:MOST]}
    assert min(costs.values()) > 0.0
    total = sum(server.statistics().method_costs.values())
    assert sum(costs.values()) == pytest.approx(total)


async def test_the_customer_of_a_request_may_be_named_without_quotas(
    host: Host,
) -> None:
    server, _, channel = await host(
        method_handler("unary_unary", aborts), customer=lambda _: "mail", **TOLD
    )
    await call_once(channel, "unary_unary")
    costs = server.statistics().customer_costs
    assert costs["mail"] >= PART * FACTOR
    assert costs[""] == 0.0


async def test_a_server_measures_its_machine_where_nobody_says_what_it_is_worth(
    host: Host,
) -> None:
    async def work(request: bytes, context: Any) -> bytes:
        burn(PART)
        return b""

    server, address, _ = await host(
        method_handler("unary_unary", work), request_cost=True
    )
    async with lbclient.insecure_channel(address) as channel:
        before = server.statistics().cpu_factor
        call = await call_once(channel, "unary_unary")
        after = server.statistics().cpu_factor
        cost = lbclient.info(call).cost
    assert before != 1.0  # to all its digits, by chance, it is not
    # It may be measured again at any time, and then can only grow.
    assert 0.0 < before <= after
    assert cost is not None
    assert cost >= PART * before


@pytest.mark.parametrize(
    "settings", [{}, {"request_cost": True, "cpu_factor": 1.0}, {"cpu_factor": 3.0}]
)
async def test_nothing_is_measured_where_nobody_needs_it(
    host: Host, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    speed = MachineSpeed(work=measured.append)
    monkeypatch.setattr(charging, "OF_PROCESS", speed)

    async def work(request: bytes, context: Any) -> bytes:
        return b""

    _, _, channel = await host(method_handler("unary_unary", work), **settings)
    await call_once(channel, "unary_unary")
    assert measured == []
