"""Backends that start, leave, die, freeze and come back, as the channel sees them."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.faults.link import links
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoint, Endpoints, TaskState
from tests import needs
from tests.ports import free_port
from tests.waiting import let_pass

QUICK = ServerConfig(lame_duck_quiet=0.2)
EXAMPLES = Path(__file__).parents[2] / "examples"
SERVER = EXAMPLES / "hello_server.py"


def quick_server() -> Any:
    return lbclient.server(config=QUICK)


def target(*tasks: Any) -> str:
    return "ipv4:" + ",".join(task.address for task in tasks)


def states(channel: lbclient.Channel) -> dict[str, str]:
    return {b.address: b.state for b in channel.statistics().backends}


def all_ready(channel: lbclient.Channel) -> Callable[[], bool]:
    return lambda: set(states(channel).values()) == {"ready"}


@asynccontextmanager
async def process(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server as a real process; killed at the end if it is still there."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVER),
        str(port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGCONT)
            child.kill()
        await child.wait()


async def test_a_lame_duck_gets_no_new_calls_and_finishes_the_old(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(quick_server) for _ in range(2)]
    async with lbclient.insecure_channel(target(*tasks)) as channel:
        stub = search.SearchStub(channel)
        await channel.channel_ready()
        await eventually(all_ready(channel))
        running = [stub.Search(search.Query(text="sleep 0.3")) for _ in range(4)]
        leaving = tasks[0]
        await eventually(lambda: leaving.servicer.served == 2)
        leaving.server.lame_duck()
        await eventually(lambda: states(channel)[leaving.address] == "lame duck")
        for _ in range(10):
            await stub.Search(search.Query(text="x"))
        assert leaving.servicer.served == 2
        await asyncio.gather(*running)


async def test_a_response_alone_tells_of_a_lame_duck(
    start: Any, search: Any, eventually: Any
) -> None:
    """Health reports may be lost or late; the trailers of a response are enough."""
    task = await start(quick_server)
    async with lbclient.insecure_channel(task.address) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query())
        # As if the health report were still on its way.
        task.server._reporter.state = TaskState.LAME_DUCK
        task.server._parts.sampler.sample()
        await stub.Search(search.Query())
        assert states(channel) == {task.address: "lame duck"}
        assert "lame duck" in channel.statistics().backends[0].reason


async def test_the_last_lame_duck_is_better_than_an_error(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start(quick_server)
    async with lbclient.insecure_channel(task.address) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query())
        task.server.lame_duck()
        await eventually(lambda: states(channel)[task.address] == "lame duck")
        assert (await stub.Search(search.Query())).text


async def test_no_call_is_lost_when_every_backend_restarts_in_turn(
    search: Any, eventually: Any
) -> None:
    """Real processes, real SIGTERM; calls all the while."""
    ports = [free_port() for _ in range(3)]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    answered, stop = 0, False
    async with AsyncExitStack() as stack:
        children = [await stack.enter_async_context(process(p)) for p in ports]
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(f"ipv4:{addresses}")
        )
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), wait_for_ready=True, timeout=20)
        await eventually(all_ready(channel))

        async def calls() -> None:
            nonlocal answered
            while not stop:
                await stub.Search(search.Query(text="x"), timeout=20)
                answered += 1
                await asyncio.sleep(0.002)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(calls())
            for child, port in zip(children, ports, strict=True):
                child.terminate()
                assert await child.wait() == 0
                await stack.enter_async_context(process(port))
                await eventually(all_ready(channel))
            stop = True
        assert channel.statistics().calls == {"OK": answered + 1}
        assert answered > 100


async def test_a_killed_backend_costs_at_most_what_was_in_flight_on_it(
    search: Any, eventually: Any
) -> None:
    ports = [free_port(), free_port()]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    async with (
        process(ports[0]) as victim,
        process(ports[1]),
        lbclient.insecure_channel(f"ipv4:{addresses}") as channel,
    ):
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), wait_for_ready=True, timeout=20)
        await eventually(all_ready(channel))
        for _ in range(20):
            await stub.Search(search.Query())
        victim.kill()
        await victim.wait()
        failed = 0
        for _ in range(50):
            try:
                await stub.Search(search.Query(), timeout=5)
            except lbclient.LbError:
                raise
            except Exception:
                failed += 1
        assert failed <= 1, "one call at a time: one in flight at most"
        await eventually(lambda: states(channel)[f"127.0.0.1:{ports[0]}"] == "refusing")
        async with process(ports[0]):
            await eventually(all_ready(channel))


async def test_a_frozen_backend_gets_no_calls_after_the_health_interval(
    search: Any, eventually: Any
) -> None:
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    config = ChannelConfig(health_interval=0.4, picker="round_robin")
    async with (
        process(ports[0]) as frozen,
        process(ports[1]),
        lbclient.insecure_channel(f"ipv4:{','.join(addresses)}", config=config) as ch,
    ):
        stub = search.SearchStub(ch)
        await stub.Search(search.Query(), wait_for_ready=True, timeout=20)
        await eventually(all_ready(ch))
        assert frozen.pid
        os.kill(frozen.pid, signal.SIGSTOP)
        await eventually(lambda: states(ch)[addresses[0]] == "connecting")
        silent = ch.statistics().backends
        assert any(backend.reason.startswith("silent for") for backend in silent)
        started = {b.address: b.started for b in silent}
        for _ in range(10):
            await stub.Search(search.Query(), timeout=5)
        after = {b.address: b.started for b in ch.statistics().backends}
        assert after[addresses[0]] == started[addresses[0]]
        os.kill(frozen.pid, signal.SIGCONT)
        await eventually(all_ready(ch))


async def test_calls_wait_for_a_lone_backend_that_is_silent(
    search: Any, eventually: Any
) -> None:
    """It may only have paused; an error would be no better than a late answer."""
    port = free_port()
    config = ChannelConfig(health_interval=0.3)
    async with (
        process(port) as frozen,
        lbclient.insecure_channel(f"127.0.0.1:{port}", config=config) as channel,
    ):
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), wait_for_ready=True, timeout=20)
        assert frozen.pid
        os.kill(frozen.pid, signal.SIGSTOP)
        await eventually(lambda: set(states(channel).values()) == {"connecting"})
        call = stub.Search(search.Query(), timeout=20)
        await let_pass(0.1)
        assert not call.done()
        os.kill(frozen.pid, signal.SIGCONT)
        assert (await call).text


class Told:
    """A resolver that says what it is told to say."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.refreshed = 0

    async def watch(self) -> AsyncIterator[Endpoints]:
        while True:
            answer = await self.answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def tell(self, *tasks: Any) -> None:
        self.answers.put_nowait(tuple(Endpoint(task.address) for task in tasks))

    def refresh(self) -> None:
        self.refreshed += 1


async def test_new_endpoints_are_opened_and_gone_ones_drained(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start(quick_server) for _ in range(3)]
    resolver = Told()
    resolver.tell(*tasks[:2])
    async with lbclient.insecure_channel(resolver) as channel:
        stub = search.SearchStub(channel)
        await channel.channel_ready()
        await eventually(lambda: states(channel).keys() and all_ready(channel)())
        running = [stub.Search(search.Query(text="sleep 0.3")) for _ in range(4)]
        await eventually(lambda: tasks[0].servicer.served == 2)
        resolver.tell(*tasks[1:])
        await eventually(lambda: tasks[0].address not in states(channel))
        assert tasks[2].address in states(channel)
        assert channel.statistics().draining == 1
        await asyncio.gather(*running)
        await eventually(lambda: channel.statistics().draining == 0)
        await eventually(lambda: tasks[0].server.statistics().watchers == 0)


@pytest.mark.parametrize("make", [quick_server, grpc.aio.server])
async def test_who_is_left_sees_the_connection_closed(
    start: Any, make: Any, eventually: Any, connections: Any
) -> None:
    """At once, not at the next collection: a cancelled task's frames held a call."""
    tasks = [await start(make) for _ in range(2)]
    ports = [int(task.address.rpartition(":")[2]) for task in tasks]
    resolver = Told()
    resolver.tell(*tasks)
    gc.collect()
    gc.disable()
    try:
        async with lbclient.insecure_channel(resolver) as channel:
            await channel.channel_ready()
            await eventually(all_ready(channel))
            assert len(connections(*ports)) == 2
            resolver.tell(tasks[1])
            await eventually(lambda: not connections(ports[0]))
            assert len(connections(*ports)) == 1
        await eventually(lambda: not connections(*ports))
    finally:
        gc.enable()


async def test_a_failed_resolver_keeps_the_last_endpoints(
    start: Any, search: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    task = await start(quick_server)
    resolver = Told()
    resolver.tell(task)
    async with lbclient.insecure_channel(resolver) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query())
        resolver.answers.put_nowait(lbclient.ResolveError("no such name"))
        await eventually(lambda: channel.statistics().resolver.error)
        assert channel.statistics().resolver.error == "no such name"
        assert (await stub.Search(search.Query())).text
        resolver.tell(task)
        await eventually(lambda: not channel.statistics().resolver.error)


async def test_an_empty_answer_must_last_before_it_is_believed(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start(quick_server)
    resolver = Told()
    resolver.tell(task)
    config = ChannelConfig(empty_after=0.3)
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query())
        resolver.tell()
        await eventually(lambda: channel.statistics().resolver.updates == 2)
        assert (await stub.Search(search.Query())).text
        await eventually(lambda: not states(channel))
        with pytest.raises(lbclient.NoBackend, match="no endpoints"):
            await stub.Search(search.Query())


async def test_a_lost_connection_asks_the_resolver_again(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start(quick_server)
    resolver = Told()
    resolver.tell(task)
    async with lbclient.insecure_channel(resolver) as channel:
        await search.SearchStub(channel).Search(search.Query())
        await task.server.stop(None)
        await eventually(lambda: resolver.refreshed)


async def test_only_the_subset_is_connected(start: Any, eventually: Any) -> None:
    tasks = [await start(quick_server) for _ in range(4)]
    config = ChannelConfig(subset_size=2, client_id="one")
    async with lbclient.insecure_channel(target(*tasks), config=config) as channel:
        await channel.channel_ready()
        await eventually(all_ready(channel))
        assert len(states(channel)) == 2
        watched = [task for task in tasks if task.server.statistics().watchers]
        assert {task.address for task in watched} == set(states(channel))


async def test_every_change_of_state_is_one_line_in_the_log(
    start: Any, search: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient.balancer")
    task = await start(quick_server)
    async with lbclient.insecure_channel(task.address) as channel:
        await search.SearchStub(channel).Search(search.Query())
        task.server.lame_duck()
        await eventually(lambda: set(states(channel).values()) == {"lame duck"})
    lines = [r.getMessage() for r in caplog.records if task.address in r.getMessage()]
    assert any("is ready (was connecting): it says serving" in line for line in lines)
    assert any("is lame duck (was ready)" in line for line in lines)


async def test_a_connection_that_fell_silent_is_given_up_for_a_new_one(
    start: Any, search: Any, eventually: Any, connections: Any
) -> None:
    """And whoever waits on the old one may still get an answer; both are closed."""
    task = await start(quick_server)
    config = ChannelConfig(health_interval=0.4)
    async with links([task]) as (link,):
        port = int(link.address.rpartition(":")[2])
        async with lbclient.insecure_channel(link.address, config=config) as channel:
            stub = search.SearchStub(channel)
            await stub.Search(search.Query())
            await eventually(all_ready(channel))
            early = stub.Search(search.Query(text="sleep 0.1"))
            await eventually(lambda: task.servicer.served == 2)
            link.stall()
            await eventually(lambda: link.dials == 2)
            await eventually(all_ready(channel))
            answer = await stub.Search(search.Query(), timeout=2)
            assert answer.text == task.servicer.name
            assert not early.done()
            link.resume()
            assert (await asyncio.wait_for(early, 2)).text == task.servicer.name
            assert len(connections(port)) == 2
            del early  # a call that is held keeps its connection
        needs.grpcio("1.84", "a connection ends when its last call object is freed")
        await eventually(lambda: not connections(port))


async def test_a_resolver_that_fails_after_an_empty_answer_empties_nothing(
    start: Any, eventually: Any
) -> None:
    """Only one that insists on having no endpoints is believed."""
    task = await start(quick_server)

    class Fails:
        asked = 0

        async def watch(self) -> AsyncIterator[Endpoints]:
            self.asked += 1
            if self.asked == 1:
                yield (Endpoint(task.address),)
                yield ()
            raise ResolveError("out of order")

    config = ChannelConfig(empty_after=0.2)
    async with lbclient.insecure_channel(Fails(), config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: channel.statistics().resolver.error)
        await let_pass(0.4)
        assert states(channel) == {task.address: "ready"}
