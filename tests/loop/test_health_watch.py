"""Health over a connection, on virtual time: strangers, few streams, shared addresses.

Each test is one sentence on what a caller sees; nothing here waits for a clock.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from lbclient import wire
from lbclient.client.backends.backend import Backend
from lbclient.client.health.connection_health import NO_SERVICE
from lbclient.client.health.repeated_checks import ASKED
from lbclient.client.health.stream_checks import NO_ROOM
from lbclient.client.health.streams import BURST, FLOOD_PAUSE, LONGEST_PAUSE, RATE
from lbclient.core.backends.checks import RAREST_CHECK
from lbclient.core.backends.shared_address import MEMORY, MOST_TASKS, RECENT
from lbclient.core.backends.stream_permit import (
    LEAST_PATIENCE,
    LONGEST_ANSWER,
    SUSPENSIONS,
)
from lbclient.core.model import State
from lbclient.core.statistics.records import BackendStatistics
from lbclient.metrics import samples
from lbclient.v1 import load_pb2
from tests.loop.fleet import INTERVAL, FakeCall, Fleet, Front, Server

Code = grpc.StatusCode

MOMENT = 0.001
CHECK = wire.SERVING_CHECK_METHOD
NOT_OFFERED = [Code.UNIMPLEMENTED, Code.NOT_FOUND]
# Every other status that a server can answer a health check with.
FAILURES = [
    code
    for code in Code
    if code
    not in (
        *NOT_OFFERED,
        Code.OK,
        Code.CANCELLED,
        Code.UNAVAILABLE,
        Code.DEADLINE_EXCEEDED,
    )
]


def now() -> float:
    return asyncio.get_running_loop().time()


def hold(call: FakeCall) -> None:
    """The call is left in flight."""


def backend_of(fleet: Fleet) -> Backend:
    (backend,) = fleet.balancer.pool.nodes.values()
    return backend


def told(fleet: Fleet) -> BackendStatistics:
    (backend,) = fleet.channel.statistics().backends
    return backend


def may_stream(fleet: Fleet) -> bool:
    return backend_of(fleet).permit.may_stream(now())


def be_a_stranger(server: Server, *, orca: bool = False) -> None:
    server.be_a_stranger()
    if orca:
        del server.refuses[wire.ORCA_METHOD]


async def until(is_true: Callable[[], bool], within: float) -> None:
    """Fails if it does not come true in that many virtual seconds."""
    end = now() + within
    while not is_true():
        assert now() < end, "it did not come true"
        await asyncio.sleep(max(0.01, within / 1000))


async def states_for(fleet: Fleet, seconds: float) -> set[str]:
    """All states of the first backend meanwhile, however short."""
    backend = next(iter(fleet.balancer.pool.nodes.values()))
    seen, observe = {fleet.states()[0]}, backend._observe

    def note(backend: Backend, state: State, reason: str) -> None:
        seen.add(state.value)
        observe(backend, state, reason)

    backend._observe = note
    await asyncio.sleep(seconds)
    backend._observe = observe
    return seen


async def call_often(fleet: Fleet, seconds: float) -> None:
    """So that it is asked at the fastest pace."""
    end = now() + seconds
    while now() < end:
        await fleet.call()
        await asyncio.sleep(0.2)


# --- strangers that fail health checks ------------------------------------------


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
async def test_a_lame_duck_that_fails_a_check_stays_one_and_is_asked_again(
    code: Code,
) -> None:
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        await asyncio.sleep(1.0)
        server.state = load_pb2.LAME_DUCK
        await until(lambda: fleet.states() == ["lame duck"], 60.0)
        server.refuses[CHECK] = code
        assert await states_for(fleet, 10.0) == {"lame duck"}
        del server.refuses[CHECK]
        server.state = load_pb2.SERVING
        await until(lambda: fleet.states() == ["ready"], 20.0)


@pytest.mark.parametrize("code", NOT_OFFERED, ids=lambda code: code.name)
async def test_a_stranger_without_a_health_service_is_asked_once(code: Code) -> None:
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        server.refuses[CHECK] = code
        await asyncio.sleep(1.0)
        said = "" if code is Code.UNIMPLEMENTED else f": {code.name}: no"
        assert fleet.reasons() == [f"{NO_SERVICE}{said}"]
        await asyncio.sleep(600.0)
        assert server.asked.count(CHECK) == 1


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
async def test_one_whose_first_check_fails_gets_calls_and_is_asked_ever_more_seldom(
    code: Code,
) -> None:
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        server.refuses[CHECK] = code
        await asyncio.sleep(1.0)
        (reason,) = fleet.reasons()
        refused = f"refused: {code.name}: no (grpc.health.v1.Health)"
        assert reason == f"it is connected, and its health checks are {refused}"
        assert told(fleet).health_refused == refused
        await fleet.call()
        await asyncio.sleep(600.0)
        assert 10 < server.asked.count(CHECK) < 25
        del server.refuses[CHECK]
        server.state = load_pb2.LAME_DUCK
        await until(lambda: fleet.states() != ["ready"], LONGEST_PAUSE + 1)
        assert told(fleet).health_refused == ""


@pytest.mark.parametrize("code", [*FAILURES, *NOT_OFFERED], ids=lambda code: code.name)
async def test_a_watch_that_ends_with_any_status_is_no_word_of_the_server(
    code: Code,
) -> None:
    async with Fleet(1, health="watch") as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        await asyncio.sleep(1.0)
        server.enter(load_pb2.LAME_DUCK)
        await asyncio.sleep(MOMENT)
        for stream in list(server.streams):
            stream.end(code)
        assert await states_for(fleet, 10.0) == {"lame duck"}
        server.enter(load_pb2.SERVING)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["ready"]


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
async def test_one_polled_without_streams_stays_a_lame_duck_as_well(code: Code) -> None:
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server, orca=True)
        server.slots = 1
        await until(lambda: not may_stream(fleet), 60.0)
        server.state = load_pb2.LAME_DUCK
        await until(lambda: fleet.states() == ["lame duck"], 60.0)
        server.refuses[CHECK] = code
        assert await states_for(fleet, 10.0) == {"lame duck"}
        del server.refuses[CHECK]
        server.state = load_pb2.SERVING
        await until(lambda: fleet.reasons() == [ASKED], 20.0)


ALL = (wire.WATCH_METHOD, wire.CHECK_METHOD, wire.ORCA_METHOD, CHECK)


@pytest.mark.parametrize(
    "code",
    [one for one in Code if one not in (*NOT_OFFERED, Code.OK)],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("health", ["auto", "watch"])
async def test_who_refuses_all_health_services_is_said_to_with_its_status(
    code: Code, health: str
) -> None:
    """Of some statuses it was said that checks time out, of some that there is no
    health service, and of some that there is no room for a stream."""
    async with Fleet(1, health=health) as fleet:
        (server,) = fleet.servers
        server.refuses = dict.fromkeys([*ALL, wire.SERVING_WATCH_METHOD], code)
        server.lose_all()
        await until(lambda: f"refused: {code.name}: no" in fleet.reasons()[0], 30.0)
        assert fleet.states() == ["ready"]
        said = f"refused: {code.name}: no (lbclient.v1.BackendHealth"
        assert told(fleet).health_refused.startswith(said)


async def test_a_refusal_of_one_service_is_told_beside_a_state_by_another() -> None:
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        for method in (wire.WATCH_METHOD, wire.CHECK_METHOD, wire.ORCA_METHOD):
            server.refuses[method] = Code.PERMISSION_DENIED
        server.lose_all()
        await asyncio.sleep(1.0)
        assert fleet.reasons() == ["it says serving"]
        services = "lbclient.v1.BackendHealth, xds.service.orca.v3.OpenRcaService"
        refused = f"refused: PERMISSION_DENIED: no ({services})"
        assert told(fleet).health_refused == refused
        server.refuses.clear()
        server.lose_all()
        await asyncio.sleep(1.0)
        assert told(fleet).health_refused == ""


async def test_a_service_of_ours_that_is_refused_is_not_called_missing() -> None:
    """Where there is no other, as of a server of ours with `standard_health` off."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        server.refuses[CHECK] = Code.UNIMPLEMENTED
        for method in (wire.WATCH_METHOD, wire.CHECK_METHOD):
            server.refuses[method] = Code.UNAUTHENTICATED
        server.lose_all()
        await asyncio.sleep(1.0)
        refused = "refused: UNAUTHENTICATED: no (lbclient.v1.BackendHealth)"
        assert fleet.reasons()[0].endswith(refused)
        assert told(fleet).health_refused == refused


async def test_a_refusal_is_logged_once_for_each_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if its words differ each time, or the connection is another one."""
    name = "lbclient.client.health.refused_services"
    with caplog.at_level(logging.INFO, name):
        async with Fleet(1) as fleet:
            (server,) = fleet.servers
            for code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
                server.refuses = dict.fromkeys(ALL, code)
                for _ in range(3):
                    server.lose_all()
                    await call_often(fleet, 60.0)
            server.refuses = {wire.ORCA_METHOD: Code.UNAVAILABLE}
            server.refuses |= dict.fromkeys(ALL[:2], Code.INTERNAL)
            server.lose_all()
            await call_often(fleet, 10.0)
    said = [one for one in caplog.records if one.name == name]
    warning, info = logging.WARNING, logging.INFO
    assert [one.levelno for one in said] == [warning, warning, info]
    assert "b0:1: its health checks are refused: UNAUTHENTICATED" in said[0].message
    assert "PERMISSION_DENIED" in said[1].message
    assert said[2].message.startswith("b0:1: refused: INTERNAL: no (lbclient.v1.B")


async def test_a_server_of_ours_without_room_for_streams_refuses_nothing() -> None:
    """It says how it is with the refusal."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        server.refuses = {wire.WATCH_METHOD: Code.RESOURCE_EXHAUSTED}
        server.lose_all()
        await asyncio.sleep(1.0)
        assert fleet.reasons() == [NO_ROOM]


async def test_a_look_that_is_refused_leaves_a_lame_duck_one() -> None:
    async with Fleet(2, idle_after=10.0) as fleet:
        server = fleet.servers[0]
        be_a_stranger(server)
        await asyncio.sleep(60.0)
        server.state = load_pb2.LAME_DUCK
        await until(lambda: fleet.states()[0] == "lame duck", 600.0)
        server.refuses[CHECK] = Code.RESOURCE_EXHAUSTED
        assert await states_for(fleet, 600.0) == {"lame duck"}


async def test_a_long_subscription_does_not_hide_that_a_stranger_does_not_serve() -> (
    None
):
    """It is in flight all the while, and nothing else is."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        await asyncio.sleep(1.0)
        server.serve = hold
        fleet.call()
        await asyncio.sleep(1.0)
        server.state = load_pb2.LAME_DUCK
        await until(lambda: fleet.states() == ["lame duck"], INTERVAL)
        server.calls[-1].serve()


async def test_nor_do_calls_that_pile_up_for_long() -> None:
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        await asyncio.sleep(1.0)
        server.serve = hold
        server.state = load_pb2.LAME_DUCK
        for _ in range(100):
            fleet.call()
            await asyncio.sleep(0.1)
        assert fleet.states() == ["lame duck"]
        for call in server.calls:
            call.serve()


# --- streams that are in the way, or are not --------------------------------------


async def test_a_slow_server_keeps_its_load_stream() -> None:
    """At overload it answers no check in time, with the stream or without."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server, orca=True)
        await call_often(fleet, 5.0)
        server.check_takes = 4 * LEAST_PATIENCE
        for _ in range(300):
            late = fleet.call(timeout=0.1)
            server.serve = hold
            await asyncio.sleep(0.2)
            assert late.done()
            assert may_stream(fleet)
            server.serve = FakeCall.serve
            await call_often(fleet, 0.8)
        assert server.asked.count(wire.ORCA_METHOD) < 10
        assert wire.ORCA_METHOD in {stream._path for stream in server.streams}


async def test_an_answer_that_came_long_after_streams_were_ended_proves_nothing() -> (
    None
):
    """As of a server that stands still for longer than a check may take."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server, orca=True)
        await call_often(fleet, 5.0)
        server.is_frozen = True
        await asyncio.sleep(1.5 * LONGEST_ANSWER)
        server.is_frozen = False
        await call_often(fleet, 20.0)
        assert may_stream(fleet)
        assert len(server.streams) == 1


async def test_a_stream_that_takes_the_only_one_is_tried_again_later() -> None:
    """On the same connection."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server, orca=True)
        server.slots = 1
        await until(lambda: not may_stream(fleet), 60.0)
        before = server.asked.count(wire.ORCA_METHOD)
        suspended_at = now()
        while may_stream(fleet) is False:
            await fleet.call(timeout=1.0)
            await asyncio.sleep(1.0)
        assert now() == pytest.approx(suspended_at + SUSPENSIONS.first, abs=5.0)
        server.slots = None
        await call_often(fleet, 10.0)
        assert server.asked.count(wire.ORCA_METHOD) == before + 1
        assert len(server.streams) == 1
        assert may_stream(fleet)


async def test_an_orca_service_that_refuses_its_stream_is_not_ended_for_it() -> None:
    """Nothing is open that could be in the way."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server)
        server.refuses[wire.ORCA_METHOD] = Code.RESOURCE_EXHAUSTED
        await call_often(fleet, 5.0)
        server.check_takes = 4 * LEAST_PATIENCE
        await call_often(fleet, 60.0)
        assert may_stream(fleet)
        assert backend_of(fleet).permit.error_note(now()) == ""


@pytest.mark.parametrize("code", [Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE])
async def test_a_check_that_ends_at_once_as_if_it_were_late_is_not_late(
    code: Code,
) -> None:
    """The server says so, or a proxy in front of it."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        be_a_stranger(server, orca=True)
        await call_often(fleet, 5.0)
        server.refuses[CHECK] = code
        before = server.asked.count(CHECK)
        await call_often(fleet, 60.0)
        assert 10 < server.asked.count(CHECK) - before < 100
        assert fleet.states() == ["ready"]
        assert may_stream(fleet)
        assert len(server.streams) == 1
        assert backend_of(fleet).permit.error_note(now()) == ""


async def fill(fleet: Fleet, server: Server, count: int) -> None:
    """So many long calls, which are answered when a test says so."""
    await asyncio.sleep(1.0)
    server.serve = hold
    for _ in range(count):
        fleet.call()
    await asyncio.sleep(MOMENT)
    assert len(server.calls) == count
    server.serve = FakeCall.serve


def answer_all(server: Server) -> None:
    for call in server.calls:
        call.serve()


@pytest.mark.parametrize("slots", [10, 100])
@pytest.mark.parametrize("after", [0.0, SUSPENSIONS.first / 2, SUSPENSIONS.first + 1.0])
async def test_our_stream_gives_way_to_the_call_that_needs_the_last_one(
    slots: int, after: float
) -> None:
    """Of a server of ours with so many, or behind a proxy that allows so many."""
    async with Fleet(1, active_limit=200) as fleet:
        (server,) = fleet.servers
        server.slots = slots
        await fill(fleet, server, slots - 1)
        await asyncio.sleep(after)
        began_at = now()
        await fleet.call()
        assert now() - began_at < 2 * INTERVAL
        await until(lambda: not may_stream(fleet), INTERVAL)
        server.state = load_pb2.LAME_DUCK
        await until(lambda: fleet.states() == ["lame duck"], INTERVAL)
        answer_all(server)


@pytest.mark.parametrize("slots", [4, 10])
async def test_long_calls_that_fill_a_connection_are_left_on_it(slots: int) -> None:
    """One more call has a second connection made, which is answered."""
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        server.slots = slots
        if slots == 4:  # with so few a server of ours has no health streams
            server.refuses = {wire.WATCH_METHOD: Code.RESOURCE_EXHAUSTED}
            server.lose_all()
        await asyncio.sleep(1.0)
        server.serve = hold
        long = [fleet.call() for _ in range(slots + 1)]
        await until(lambda: len(server.channels) == 2, 120.0)
        await asyncio.sleep(600.0)
        assert not any(call.done() for call in long)
        server.serve = FakeCall.serve
        await fleet.call()
        answer_all(server)
        await asyncio.sleep(1.0)
        answer_all(server)
        assert await asyncio.gather(*long) == [b""] * len(long)
        await until(lambda: len(server.channels) == 1, 120.0)


async def test_a_call_that_ran_into_its_deadline_says_what_filled_the_connection() -> (
    None
):
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        server.slots = 10
        await fill(fleet, server, 10 - 1)
        call = fleet.call(timeout=0.5)  # none is free before a check was not answered
        await asyncio.sleep(INTERVAL)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        await until(lambda: not may_stream(fleet), 2 * INTERVAL)
        server.serve = hold
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fleet.call(timeout=0.5)
        (note,) = caught.value.__notes__
        assert "1 health or load stream of this channel" in note
        answer_all(server)


async def test_long_calls_beside_which_there_is_room_cost_a_check_now_and_then() -> (
    None
):
    async with Fleet(1) as fleet:
        (server,) = fleet.servers
        await fill(fleet, server, 20)
        server.asked.clear()
        await asyncio.sleep(600.0)
        assert set(server.asked) <= {wire.CHECK_METHOD, wire.WATCH_METHOD}
        assert server.asked.count(wire.CHECK_METHOD) < 2 * 600.0 / RAREST_CHECK + 10
        assert server.asked.count(wire.WATCH_METHOD) < 5, "the pace changes"
        assert may_stream(fleet)
        assert fleet.states() == ["ready"]
        answer_all(server)


async def test_a_frozen_server_of_ours_is_silent_and_not_short_of_streams() -> None:
    async with Fleet(2) as fleet:
        server = fleet.servers[0]
        for one in fleet.servers:
            one.serve = hold
        for _ in range(10):
            fleet.call()
        await asyncio.sleep(1.0)
        server.is_frozen = True
        await until(lambda: fleet.states()[0] == "connecting", 2 * INTERVAL)
        assert "silent" in fleet.reasons()[0]
        for node in fleet.balancer.pool.nodes.values():
            assert node.permit.may_stream(now())
            assert node.permit.error_note(now()) == ""
        for one in fleet.servers:
            answer_all(one)


# --- several tasks behind one address ---------------------------------------------

NOT_SERVING = {"lame duck": load_pb2.LAME_DUCK, "starting": load_pb2.STARTING}


async def shared(fleet: Fleet) -> Front:
    """Once it is known to be."""
    (front,) = fleet.servers
    assert isinstance(front, Front)
    await call_often(fleet, 3.0)
    assert fleet.channel.statistics().backends[0].fronts == 2
    return front


async def test_an_address_that_answers_with_several_ids_by_turns_is_shared() -> None:
    async with Fleet(1, make=Front) as fleet:
        await shared(fleet)
        (told,) = fleet.channel.statistics().backends
        assert told.is_shared
        assert "fronts several tasks, 2 heard lately" in told.why
        assert told.utilization == pytest.approx(0.5)
        seen = fleet.channel.statistics()
        gauges = dict(samples.channel_gauges(seen, "t"))
        assert gauges["lbclient_shared_backends", "t"] == 1
        gauges = dict(samples.backend_gauges(seen, "t", most=1))
        assert gauges["lbclient_backend_fronts", "t", told.address] == 2
        await asyncio.sleep(2 * RECENT + 60.0)  # it reports once a minute
        (told,) = fleet.channel.statistics().backends
        assert told.is_shared
        assert told.fronts < 2


async def test_a_task_that_restarts_behind_its_proxy_is_not_shared() -> None:
    class Single(Front):
        def __init__(self, address: str) -> None:
            super().__init__(address)
            self.tasks = {11: load_pb2.SERVING}

    async with Fleet(1, make=Single) as fleet:
        (front,) = fleet.servers
        assert isinstance(front, Front)
        number = 11
        for _ in range(20):
            await call_often(fleet, 30.0)
            front.restart(number, number + 1)
            number += 1
        assert not backend_of(fleet).reported.is_shared()


@pytest.mark.slow
@pytest.mark.parametrize("state", NOT_SERVING)
@pytest.mark.parametrize("path", ["stream", "refused", "suspended", "trailers"])
async def test_one_task_does_not_take_a_shared_address_out(
    state: str, path: str
) -> None:
    """By whatever way it says that it does not serve."""
    async with Fleet(1, make=Front) as fleet:
        front = await shared(fleet)
        if path == "refused":
            front.refuses = {wire.WATCH_METHOD: Code.RESOURCE_EXHAUSTED}
        elif path == "suspended":
            backend_of(fleet).permit.suspend(now())
        elif path == "trailers":
            ours = (wire.WATCH_METHOD, wire.CHECK_METHOD, wire.ORCA_METHOD, CHECK)
            front.refuses = dict.fromkeys(ours, Code.UNIMPLEMENTED)
        if path != "stream":
            front.lose_all()
            await call_often(fleet, 5.0)
            assert fleet.states() == ["ready"]
        front.enter_one(11, NOT_SERVING[state])
        calling = asyncio.create_task(call_often(fleet, 300.0))
        assert await states_for(fleet, 300.0) == {"ready"}
        await calling


@pytest.mark.parametrize("state", NOT_SERVING)
async def test_nor_by_its_answer_to_a_question_that_missed_deadlines_led_to(
    state: str,
) -> None:
    async with Fleet(2, make=Front, picker="round_robin") as fleet:
        await call_often(fleet, 10.0)
        front = fleet.servers[0]
        assert isinstance(front, Front)
        assert fleet.channel.statistics().backends[0].fronts == 2
        front.refuses = {wire.WATCH_METHOD: Code.RESOURCE_EXHAUSTED}
        front.tasks[11] = NOT_SERVING[state]
        front.serve = hold
        seen = set[str]()
        for _ in range(300):
            call = fleet.call(timeout=0.1)
            seen |= await states_for(fleet, 0.15)
            assert call.done()
        assert front.asked.count(wire.CHECK_METHOD) > 5
        assert seen <= {"ready", "connecting"}


@pytest.mark.parametrize("state", NOT_SERVING)
async def test_if_none_of_its_tasks_serves_it_is_out_until_one_does(state: str) -> None:
    """Also while the task that answers the stream goes on not serving."""
    async with Fleet(1, make=Front) as fleet:
        front = await shared(fleet)
        for task in (11, 22):
            front.enter_one(task, NOT_SERVING[state])
        await until(lambda: fleet.states() == [state], 10.0)
        assert front.asked.count(wire.WATCH_METHOD) > MOST_TASKS
        asked = {stream.task for stream in front.streams}
        front.tasks[11 if 22 in asked else 22] = load_pb2.SERVING
        await until(lambda: fleet.states() == ["ready"], 2 * INTERVAL)
        assert await states_for(fleet, 60.0) == {"ready"}


async def test_by_grpc_health_v1_one_task_does_not_take_it_out_either() -> None:
    """The path of our own service is not routed; trailers tell the tasks."""
    for health in ("auto", "watch"):
        async with Fleet(1, make=Front, health=health) as fleet:
            (front,) = fleet.servers
            assert isinstance(front, Front)
            front.be_a_stranger()
            await shared(fleet)
            front.enter_one(11, load_pb2.LAME_DUCK)
            calling = asyncio.create_task(call_often(fleet, 60.0))
            assert await states_for(fleet, 60.0) == {"ready"}
            await calling


async def test_an_address_that_has_one_task_left_is_that_task_again() -> None:
    """For ever after `MEMORY`, the state that the task says holds."""
    async with Fleet(1, make=Front) as fleet:
        front = await shared(fleet)
        front.restart(11, 22)
        await call_often(fleet, MEMORY + 10.0)
        assert not backend_of(fleet).reported.is_shared()
        assert fleet.channel.statistics().backends[0].fronts == 0
        front.enter_one(22, load_pb2.LAME_DUCK)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["lame duck"]


async def test_its_load_is_the_mean_of_its_tasks() -> None:
    class Uneven(Front):
        def load(self, task: int) -> Any:
            report = super().load(task)
            report.application_utilization = {11: 0.2, 22: 0.6}[task]
            return report

    async with Fleet(1, make=Uneven) as fleet:
        await shared(fleet)
        (told,) = fleet.channel.statistics().backends
        assert told.utilization == pytest.approx(0.4)


async def test_stock_servers_behind_a_proxy_are_one_server_to_us() -> None:
    """They draw no number. What one says holds until the next one is asked."""

    class Stock(Front):
        def serve_by_any(self, call: FakeCall) -> None:
            call.serve()

    async with Fleet(1, make=Stock) as fleet:
        (front,) = fleet.servers
        assert isinstance(front, Stock)
        front.be_a_stranger()
        await call_often(fleet, 3.0)
        front.tasks[11] = load_pb2.LAME_DUCK
        for _ in range(10):
            # Asked once a minute, where calls are rare, it is any of the two.
            await until(lambda: fleet.states() == ["lame duck"], 600.0)
            await fleet.call(timeout=60.0)  # there is nobody else
            await until(lambda: fleet.states() == ["ready"], 600.0)
        assert not fleet.channel.statistics().backends[0].is_shared


# --- an overload by health requests ----------------------------------------------


async def test_a_server_that_ends_all_unseen_is_asked_ever_more_seldom() -> None:
    """Clients that asked it several times a second each kept it from serving anybody.
    The pauses last over connections, and end with the first answer."""
    async with Fleet(2) as fleet:
        await until(lambda: fleet.states() == ["ready", "ready"], 1.0)
        server = fleet.servers[0]
        server.refuses = dict.fromkeys(
            [*ALL, wire.SERVING_WATCH_METHOD], Code.CANCELLED
        )
        asked = []
        for _ in range(12):
            before, dialled = len(server.asked), len(server.dialled_at)
            server.lose_all()
            await asyncio.sleep(10.0)
            asked.append(len(server.asked) - before)
            assert len(server.dialled_at) == dialled, "looks, too, are requests"
        assert asked[0] >= 3  # it may have room for the next one
        assert sum(asked[3:]) <= 90 / 10
        assert fleet.states() == ["connecting", "ready"]
        server.refuses.clear()
        await until(lambda: fleet.states() == ["ready", "ready"], 45.0)


# --- streams that send too much -----------------------------------------------


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_flood_of_health_is_read_no_more_often_than_is_of_use(
    is_ours: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change was taken, 1,000 a second. The last one is not missed for that."""
    caplog.set_level(logging.DEBUG, "lbclient.balancer")
    fleet = Fleet(1, health="watch")
    if not is_ours:
        be_a_stranger(fleet.servers[0])
    async with fleet:
        await asyncio.sleep(3 * INTERVAL)
        caplog.clear()
        (server,), began_at = fleet.servers, now()
        for _ in range(5_000):
            for state in (load_pb2.LAME_DUCK, load_pb2.SERVING):
                server.enter(state)
                await asyncio.sleep(MOMENT)
        server.enter(load_pb2.LAME_DUCK)
        read = sum(" (was " in record.getMessage() for record in caplog.records)
        # Each new stream's first message is its state, even one that is too many.
        assert read <= BURST + (now() - began_at) * (RATE + 1 / FLOOD_PAUSE)
        await asyncio.sleep(FLOOD_PAUSE + MOMENT)
        assert fleet.states() == ["lame duck"]
        # It is a flood no more.
        await asyncio.sleep(BURST / RATE)
        server.enter(load_pb2.SERVING)
        await asyncio.sleep(MOMENT)
        assert fleet.states() == ["ready"]
