"""What clients are told without sending requests: ours, gRPC's and ORCA's way."""

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf, nan
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc import StatusCode

from lbclient import wire
from lbclient.core.model import TaskState
from lbclient.server import Server
from lbclient.server.report.streams import TICK
from lbclient.v1 import compat_pb2, health_pb2, load_pb2
from tests.hosts import PATH, Host, unary_unary
from tests.waiting import eventually

SERVING = compat_pb2.ServingReply.SERVING
NOT_SERVING = compat_pb2.ServingReply.NOT_SERVING
SERVICE_UNKNOWN = compat_pb2.ServingReply.SERVICE_UNKNOWN


def mine(path: str = PATH) -> dict[str, Any]:
    async def respond(request: bytes, context: Any) -> bytes:
        return b"mine"

    return {path: unary_unary(respond)}


def watch(channel: Any, interval: float = 0.0) -> Any:
    request = health_pb2.HealthRequest(report_interval=interval)
    return channel.unary_stream(
        wire.WATCH_METHOD,
        health_pb2.HealthRequest.SerializeToString,
        health_pb2.HealthReport.FromString,
    )(request)


def check_serving(channel: Any, name: str) -> Any:
    return channel.unary_unary(
        wire.SERVING_CHECK_METHOD,
        compat_pb2.ServingRequest.SerializeToString,
        compat_pb2.ServingReply.FromString,
    )(compat_pb2.ServingRequest(service=name))


def watch_serving(channel: Any, name: str) -> Any:
    return channel.unary_stream(
        wire.SERVING_WATCH_METHOD,
        compat_pb2.ServingRequest.SerializeToString,
        compat_pb2.ServingReply.FromString,
    )(compat_pb2.ServingRequest(service=name))


def stream_load(channel: Any, **interval: int) -> Any:
    request = compat_pb2.LoadReportRequest(report_interval=Duration(**interval))
    return channel.unary_stream(
        wire.ORCA_METHOD,
        compat_pb2.LoadReportRequest.SerializeToString,
        load_pb2.LoadReport.FromString,
    )(request)


async def test_check_tells_state_and_load(host: Host) -> None:
    server, _, channel = await host(utilization=lambda: 0.5)
    check: Any = channel.unary_unary(wire.CHECK_METHOD)
    await eventually(lambda: server.statistics().utilization)
    parsed = wire.parse_health(await check(b""))
    assert parsed is not None
    state, report, *_ = parsed
    assert state is TaskState.SERVING
    assert report is not None
    assert report.utilization == pytest.approx(0.5)
    assert report.active == 0
    assert report.state is TaskState.SERVING


async def test_watch_sends_at_once_and_at_every_change(host: Host) -> None:
    """No interval passes here: it is an hour."""
    server, _, channel = await host(report_interval=3600)
    call = watch(channel)
    report = await asyncio.wait_for(call.read(), 20)
    assert report.state == load_pb2.SERVING
    server.lame_duck()
    report = await asyncio.wait_for(call.read(), 20)
    assert report.state == report.load.state == load_pb2.LAME_DUCK


async def test_a_change_is_told_within_a_round_trip(host: Host) -> None:
    """Before the answer to a request that is sent right after the change."""
    server, _, channel = await host(mine(), report_interval=3600)
    method: Any = channel.unary_unary("/test.Service/Method")
    call = watch(channel)
    await call.read()
    await method(b"")
    told: list[Any] = []

    async def listen() -> None:
        told.append(await call.read())

    listener = asyncio.create_task(listen())
    server.lame_duck()
    for _ in range(3):  # three round trips: the loop is shared by both sides
        await method(b"")
    assert [report.state for report in told] == [load_pb2.LAME_DUCK]
    await listener


# Timers may fire a little early; without a floor it is a hundredth.
LATE = 0.5


async def _seconds_of(start: Callable[[], Any], count: int) -> float:
    """From before the stream began, as the first report may be read late."""
    began = monotonic()
    call = start()
    for _ in range(count):
        assert await call.read() is not grpc.aio.EOF
    call.cancel()
    return monotonic() - began


@pytest.mark.parametrize("interval", [0.001, TICK])
async def test_watch_never_sends_more_often_than_the_floor(
    host: Host, interval: float
) -> None:
    _, _, channel = await host(report_interval=3600)
    took = await _seconds_of(lambda: watch(channel, interval), 4)
    assert took >= 3 * TICK * LATE


@pytest.mark.parametrize("interval", [0.0, -1.0, nan, inf])
async def test_an_interval_that_is_none_is_the_servers_own(
    host: Host, interval: float
) -> None:
    _, _, channel = await host(report_interval=0.15)
    took = await _seconds_of(lambda: watch(channel, interval), 3)
    assert took >= 2 * 0.15 * LATE


async def test_an_endless_interval_does_no_harm(host: Host) -> None:
    server, _, channel = await host()
    call = watch(channel, 1e300)
    await call.read()
    server.lame_duck()
    assert (await call.read()).state == load_pb2.LAME_DUCK


async def test_orca_reports_come_at_once_and_not_below_the_minimum(host: Host) -> None:
    _, _, channel = await host(orca_min_interval=0.2, utilization=lambda: 0.5)
    call = stream_load(channel, seconds=3600)
    assert await asyncio.wait_for(call.read(), 20)
    call.cancel()
    for interval in ({"nanos": 1}, {"seconds": -5}, {}):
        took = await _seconds_of(partial(stream_load, channel, **interval), 3)
        assert took >= 2 * 0.2 * LATE


async def test_an_orca_report_is_the_whole_load(host: Host) -> None:
    server, _, channel = await host(utilization=lambda: 0.5)
    await eventually(lambda: server.statistics().utilization)
    report = await stream_load(channel, seconds=1).read()
    assert report.application_utilization == pytest.approx(0.5)
    assert report.HasField("active_requests")
    assert report.state == load_pb2.SERVING


@pytest.mark.parametrize("name", ["", "test.Service", "no.such.Service"])
async def test_gRPCs_health_check_carries_the_load(host: Host, name: str) -> None:
    """Also where the service is not known: as every answer does."""
    server, _, channel = await host(mine(), utilization=lambda: 0.5)
    await eventually(lambda: server.statistics().utilization)
    server.lame_duck()
    call = check_serving(channel, name)
    code = await call.code()
    assert (code is StatusCode.NOT_FOUND) == (name == "no.such.Service")
    report = wire.find_report(await call.trailing_metadata())
    assert report is not None
    assert report.utilization == pytest.approx(0.5)
    assert report.state is TaskState.LAME_DUCK


@pytest.mark.parametrize("name", ["", "test.Service", "lbclient.v1.BackendHealth"])
async def test_gRPCs_health_tells_of_what_is_served(host: Host, name: str) -> None:
    server, _, channel = await host(mine())
    call = watch_serving(channel, name)
    assert (await call.read()).status == SERVING
    assert (await check_serving(channel, name)).status == SERVING
    server.lame_duck()
    assert (await call.read()).status == NOT_SERVING
    assert (await check_serving(channel, name)).status == NOT_SERVING


async def test_gRPCs_health_knows_services_of_generated_code(host: Host) -> None:
    """It registers methods too, which are not looked up by name."""
    server = Server()
    methods = {"Method": mine()[PATH]}
    server.add_registered_method_handlers("test.Registered", methods)
    _, _, channel = await host(server=server)
    assert (await check_serving(channel, "test.Registered")).status == SERVING
    method: Any = channel.unary_unary("/test.Registered/Method")
    call = method(b"")
    assert await call == b"mine"
    assert wire.find_report(await call.trailing_metadata()) is not None


async def test_gRPCs_health_does_not_know_other_services(host: Host) -> None:
    server, _, channel = await host(mine())
    check = check_serving(channel, "test.Other")
    assert await check.code() is StatusCode.NOT_FOUND
    assert await check.details() == "no service 'test.Other' here"
    call = watch_serving(channel, "test.Other")
    assert (await call.read()).status == SERVICE_UNKNOWN
    server.lame_duck()
    assert (await call.read()).status == SERVICE_UNKNOWN


async def test_a_task_starts_serves_and_leaves() -> None:
    server = Server()
    server.add_insecure_port("127.0.0.1:0")
    states = [server.state]
    await server.start()
    states.append(server.state)
    await server.stop(None)
    states.append(server.state)
    assert states == [TaskState.STARTING, TaskState.SERVING, TaskState.LAME_DUCK]


async def test_a_health_service_of_the_users_own_goes_first(host: Host) -> None:
    """It is his to report, and no request of ours to count."""
    server, _, channel = await host(mine(wire.SERVING_CHECK_METHOD))
    check: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
    assert await check(b"") == b"mine"
    assert (await watch_serving(channel, "").read()).status == SERVING
    assert server.statistics().requests == {"OK": 0}


@pytest.mark.parametrize("grace", [None, 30.0])
async def test_watchers_learn_of_the_end_and_do_not_delay_it(
    host: Host, grace: float | None
) -> None:
    server, _, channel = await host()
    calls = [watch(channel), watch_serving(channel, ""), stream_load(channel)]
    for call in calls:
        await call.read()
    await asyncio.wait_for(server.stop(grace), 10)
    if grace is not None:  # None cancels what is not yet sent
        assert (await calls[0].read()).state == load_pb2.LAME_DUCK
        assert (await calls[1].read()).status == NOT_SERVING
        await calls[2].read()
        for call in calls:
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is StatusCode.OK
    assert server.statistics().watchers == 0


async def test_gRPCs_own_client_side_health_checking_follows(
    host: Host, eventually: Any
) -> None:
    """The channel's state is that of the health stream beneath it."""
    server, address, _ = await host()
    follow = (
        '{"loadBalancingConfig": [{"round_robin": {}}],'
        ' "healthCheckConfig": {"serviceName": ""}}'
    )
    options = [("grpc.service_config", follow)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
        server.lame_duck()
        ready = grpc.ChannelConnectivity.READY
        await eventually(lambda: channel.get_state() is not ready)
