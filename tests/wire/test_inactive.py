"""Connections that nobody uses: closed, watched from afar, and back for a call."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.client.backends import idleness
from lbclient.client.health import udp, unconnected
from lbclient.client.health.udp import Prober
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.backends import looks
from lbclient.core.backends.demand import SEVERAL
from lbclient.core.model import Endpoint
from tests import needs
from tests.waiting import let_pass

IDLE_AFTER = 0.4
CONFIG = ChannelConfig(idle_after=IDLE_AFTER, health_interval=0.2)
IDLE = grpc.ChannelConnectivity.IDLE


def server(**fields: Any) -> Callable[[], Any]:
    config = ServerConfig(lame_duck_quiet=0.05, **fields)
    return lambda: lbclient.server(config=config)


def target(*tasks: Any) -> str:
    return "ipv4:" + ",".join(task.address for task in tasks)


def port_of(task: Any) -> int:
    return int(task.address.rpartition(":")[2])


def states(channel: lbclient.Channel) -> dict[str, str]:
    return {b.address: b.state for b in channel.statistics().backends}


def reasons(channel: lbclient.Channel) -> list[str]:
    return [b.reason for b in channel.statistics().backends]


def all_are(channel: lbclient.Channel, state: str) -> Callable[[], bool]:
    return lambda: set(states(channel).values()) == {state}


async def fall_asleep(channel: lbclient.Channel, eventually: Any) -> None:
    await channel.channel_ready()
    await eventually(all_are(channel, "inactive"))


async def test_a_connection_without_calls_is_closed_and_one_call_wakes_one(
    start: Any, search: Any, eventually: Any, connections: Any
) -> None:
    tasks = [await start(server()) for _ in range(3)]
    ports = [port_of(task) for task in tasks]
    async with lbclient.insecure_channel(target(*tasks), config=CONFIG) as channel:
        stub = search.SearchStub(channel)
        assert (await stub.Search(search.Query())).text
        await eventually(lambda: len(connections(*ports)) == 3)
        await fall_asleep(channel, eventually)
        assert channel.get_state() is IDLE
        assert all(reason.startswith(("no calls for", "it says serving by UDP"))
                   for reason in reasons(channel))  # fmt: skip
        needs.grpcio("1.84", "a connection ends when its last call object is freed")
        await eventually(lambda: not connections(*ports))
        assert (await stub.Search(search.Query(), timeout=5)).text
        assert sorted(states(channel).values()) == ["inactive", "inactive", "ready"]
        assert len(connections(*ports)) == 1
    assert channel.statistics().calls == {"OK": 2}


async def test_a_call_in_flight_keeps_its_connection(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(server()) for _ in range(2)]
    async with lbclient.insecure_channel(target(*tasks), config=CONFIG) as channel:
        await channel.channel_ready()
        await eventually(all_are(channel, "ready"))
        text = f"sleep {3 * IDLE_AFTER}"
        call = search.SearchStub(channel).Search(search.Query(text=text))
        await eventually(lambda: "inactive" in states(channel).values())
        answer = await call
        assert states(channel)[f"127.0.0.1:{answer.text}"] == "ready"


async def test_idle_after_0_keeps_connections(start: Any, eventually: Any) -> None:
    task = await start(server())
    config = ChannelConfig(idle_after=0, health_interval=0.2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        await let_pass(2 * IDLE_AFTER)
        assert all_are(channel, "ready")()


@pytest.mark.parametrize("secret", ["", "a secret that both sides know"])
async def test_news_of_a_lame_duck_reach_it_by_udp(
    start: Any, search: Any, eventually: Any, secret: str
) -> None:
    """And calls go elsewhere, with nobody having tried it."""
    tasks = [await start(server(udp_secret=secret)) for _ in range(2)]
    config = ChannelConfig(
        idle_after=IDLE_AFTER, health_interval=0.2, udp_secret=secret
    )
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await fall_asleep(channel, eventually)
        leaving, other = tasks
        await eventually(lambda: leaving.server.statistics().udp.answered)
        leaving.server.lame_duck()
        await eventually(lambda: states(channel)[leaving.address] == "lame duck")
        assert "it says lame duck by UDP" in reasons(channel)
        answer = await search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert answer.text == other.servicer.name
        assert leaving.servicer.served == 0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes takes moments."""
    prober = partial(Prober, period=0.1, longest_period=0.1, timeout=0.05)
    monkeypatch.setattr(idleness, "Prober", prober)
    monkeypatch.setattr(udp, "TUNING", replace(udp.TUNING, rarest_period=0.1))
    monkeypatch.setattr(looks, "LOOK_PERIOD", 0.3)
    monkeypatch.setattr(looks, "FIRST_LOOK", 0.1)


def is_bound(sock: socket.socket, port: int) -> bool:
    with suppress(OSError):  # who had the port closes it a turn of the loop later
        sock.bind(("127.0.0.1", port))
        return True
    return False


@pytest.mark.usefixtures("soon")
async def test_one_that_came_back_with_another_udp_port_is_asked_there(
    start: Any, eventually: Any
) -> None:
    task = await start(server())
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        await eventually(lambda: task.server.statistics().udp.answered)
        await task.server.stop(None)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            await eventually(lambda: is_bound(taken, port_of(task)))
            back = await start(server(), port=port_of(task))
            assert back.server.statistics().udp.port != port_of(task)
            await eventually(lambda: back.server.statistics().udp.answered)
            back.server.lame_duck()
            await eventually(lambda: reasons(channel) == ["it says lame duck by UDP"])


@pytest.mark.usefixtures("soon")
async def test_one_that_came_back_at_another_address_is_asked_there(
    start: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its name leads elsewhere than it did; nobody is at 127.0.0.2."""
    hosts = ["127.0.0.2"]

    async def locate(endpoint: Endpoint) -> str | None:
        return hosts[0]

    monkeypatch.setattr(unconnected, "locate", locate)
    task = await start(server())
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        assert not task.server.statistics().udp.answered
        hosts[0] = "127.0.0.1"
        await eventually(lambda: task.server.statistics().udp.answered)


async def test_an_inactive_lame_duck_is_replaced(start: Any, eventually: Any) -> None:
    tasks = [await start(server()) for _ in range(3)]
    config = ChannelConfig(
        idle_after=IDLE_AFTER, health_interval=0.2, subset_size=2, client_id="one"
    )
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await fall_asleep(channel, eventually)
        first = next(task for task in tasks if task.address in states(channel))
        await eventually(lambda: first.server.statistics().udp.answered)
        first.server.lame_duck()
        await eventually(lambda: len(states(channel)) == 3)
        assert channel.statistics().replacements == 1


async def test_lame_ducks_without_a_connection_are_used_if_there_is_nobody_else(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start(server())
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        await eventually(lambda: task.server.statistics().udp.answered)
        task.server.lame_duck()
        await eventually(all_are(channel, "lame duck"))
        assert channel.get_state() is IDLE
        assert (await search.SearchStub(channel).Search(search.Query(), timeout=5)).text


async def test_where_udp_is_blocked_a_look_over_tcp_finds_a_dead_server(
    start: Any,
    search: Any,
    eventually: Any,
    connections: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And finds it again when it is back."""
    monkeypatch.setattr(looks, "LOOK_PERIOD", 0.3)
    monkeypatch.setattr(looks, "FIRST_LOOK", 0.1)
    task = await start(server(udp_health=False))
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        await eventually(lambda: not connections(port_of(task)))
        watched = task.server.statistics().requests.copy()
        await let_pass(3 * looks.LOOK_PERIOD)
        assert all_are(channel, "inactive")()
        assert task.server.statistics().requests == watched, "looks are no requests"
        await task.server.stop(None)
        await eventually(all_are(channel, "refusing"))
        assert reasons(channel)[0].startswith("cannot connect: ")
        back = await start(server(udp_health=False), port=port_of(task))
        await eventually(all_are(channel, "inactive"))
        assert reasons(channel) == ["it says serving"]
        assert (await search.SearchStub(channel).Search(search.Query(), timeout=5)).text
        assert back.servicer.served == 1


async def test_one_that_is_not_ours_falls_asleep_too(
    start: Any, search: Any, eventually: Any, connections: Any
) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        await eventually(lambda: not connections(port_of(task)))
        assert (await search.SearchStub(channel).Search(search.Query(), timeout=5)).text


async def test_a_call_tries_the_next_if_the_first_that_it_wakes_is_gone(
    start: Any, search: Any, eventually: Any
) -> None:
    """All died unseen; the call finds the one that is back."""
    tasks = [await start(server(udp_health=False)) for _ in range(4)]
    async with lbclient.insecure_channel(target(*tasks), config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        for task in tasks:
            await task.server.stop(None)
        back = await start(server(), port=port_of(tasks[2]))
        assert all_are(channel, "inactive")()
        answer = await search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert answer.text == back.servicer.name


async def test_if_nobody_is_left_a_call_fails_fast_nevertheless(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(server(udp_health=False)) for _ in range(2)]
    async with lbclient.insecure_channel(target(*tasks), config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        for task in tasks:
            await task.server.stop(None)
        with pytest.raises(lbclient.NoBackend, match="2 refusing"):
            await search.SearchStub(channel).Search(search.Query(), timeout=5)


async def test_many_calls_wake_all(start: Any, search: Any, eventually: Any) -> None:
    tasks = [await start(server()) for _ in range(3)]
    async with lbclient.insecure_channel(target(*tasks), config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        stub = search.SearchStub(channel)
        await eventually(
            all_are(channel, "ready"),
            channel.statistics,
            meanwhile=lambda: stub.Search(search.Query(), timeout=5),
        )


async def test_calls_that_take_long_wake_others_before_they_end(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(server()) for _ in range(2)]
    async with lbclient.insecure_channel(target(*tasks), config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), timeout=5)
        assert not all_are(channel, "ready")()
        text = search.Query(text="sleep 60")
        calls = [stub.Search(text) for _ in range(2 * SEVERAL)]
        await eventually(all_are(channel, "ready"))
        for call in calls:
            call.cancel()


async def test_a_full_backend_wakes_another(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(server()) for _ in range(2)]
    config = ChannelConfig(
        idle_after=IDLE_AFTER, health_interval=0.2, active_limit=1, when_full="fail"
    )
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await fall_asleep(channel, eventually)
        stub = search.SearchStub(channel)
        calls = [stub.Search(search.Query(text="sleep 0.2"), timeout=5)]
        await eventually(lambda: channel.statistics().in_flight == 1)
        calls.append(stub.Search(search.Query(), timeout=5))
        answers = await asyncio.gather(*calls)
        assert len({answer.text for answer in answers}) == 2


async def test_channel_ready_wakes_as_on_an_idle_channel(
    start: Any, eventually: Any
) -> None:
    task = await start(server())
    async with lbclient.insecure_channel(task.address, config=CONFIG) as channel:
        await fall_asleep(channel, eventually)
        waiting = asyncio.create_task(channel.wait_for_state_change(IDLE))
        await let_pass(0.05)
        assert not waiting.done(), "to wait does not connect"
        assert channel.get_state(try_to_connect=True) is IDLE
        await waiting
        await channel.channel_ready()
        assert channel.get_state() is grpc.ChannelConnectivity.READY


async def test_nothing_is_left_of_a_closed_channel_whose_backends_were_inactive(
    start: Any, eventually: Any
) -> None:
    task = await start(server())
    sockets = len(os.listdir("/proc/self/fd"))
    channel = lbclient.insecure_channel(task.address, config=CONFIG)
    await fall_asleep(channel, eventually)
    await eventually(lambda: task.server.statistics().udp.answered)
    await channel.close()
    assert not channel._balancer.backends.idleness._prober._sockets  # type: ignore[union-attr]
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= sockets)
