"""Backends that alone fail a method: real calls, servers and statuses."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.faults.link import Link
from lbclient.admin import shape
from lbclient.admin.snapshot import snapshot
from lbclient.cli.operate.inspect import channel as told
from lbclient.client.calls.attempts import Attempts
from lbclient.core.criticality import Criticality
from lbclient.core.model import State
from lbclient.metrics import samples
from tests.hosts import unary_stream, unary_unary
from tests.waiting import eventually

OLD, NEW, PAGES = "/test.Search/Old", "/test.Search/New", "/test.Search/Pages"

StatusCode = grpc.StatusCode


class Task:
    """Says which it is. `status` is what New ends with, None: it has no New."""

    def __init__(self, make: Callable[[], Any], port: int = 0) -> None:
        self.status: StatusCode | None = StatusCode.OK
        self.latency = 0.0
        self.begun = 0  # requests
        self.failing: Callable[[], None] = lambda: None  # called before each error
        self.server = make()
        self.server.add_generic_rpc_handlers((self.Handler(self),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"

    class Handler(grpc.GenericRpcHandler):
        def __init__(self, task: "Task") -> None:
            self.task = task

        def service(self, handler_call_details: Any) -> Any:
            method = handler_call_details.method
            task = self.task
            if method == OLD:
                return unary_unary(task.old)
            if task.status is None:
                return None
            if method == NEW:
                return unary_unary(task.new)
            if method == PAGES:
                return unary_stream(task.pages)
            return None

    async def old(self, _: bytes, __: Any) -> bytes:
        self.begun += 1
        await asyncio.sleep(self.latency)
        return str(self.port).encode()

    async def new(self, request: bytes, context: Any) -> bytes:
        if self.status not in (StatusCode.OK, None):
            self.failing()
            await context.abort(self.status, "as it was told")
        return await self.old(request, context)

    async def pages(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await self.new(request, context)


Start = Callable[..., Awaitable[list[Task]]]


@pytest.fixture(name="start_some")
async def _start_some() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(
            count: int, make: Callable[[], Any] = grpc.aio.server, port: int = 0
        ) -> list[Task]:
            tasks = [Task(make, port) for _ in range(count)]
            for task in tasks:
                await task.server.start()
                stack.push_async_callback(task.server.stop, None)
            return tasks

        yield start


async def ready_channel(
    tasks: list[Task], eventually: Any, **settings: Any
) -> lbclient.Channel:
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = lbclient.ChannelConfig(**{"picker": "round_robin", **settings})
    channel = lbclient.insecure_channel(target, config=config)
    await channel.channel_ready()
    await eventually(
        lambda: {b.state for b in channel.statistics().backends} == {"ready"}
    )
    return channel


async def call(channel: lbclient.Channel, method: str, times: int) -> Counter[str]:
    """How many calls each port answered, or ended with which status."""
    ask: Any = channel.unary_unary(method)
    ended: Counter[str] = Counter()
    for _ in range(times):
        try:
            ended[(await ask(b"", timeout=10)).decode()] += 1
        except grpc.aio.AioRpcError as error:
            ended[error.code().name] += 1
    return ended


def ejected(channel: lbclient.Channel) -> dict[str, list[str]]:
    """The methods, by the address of a backend that is ejected for them."""
    backends = channel.statistics().backends
    return {b.address: [e.method for e in b.ejected] for b in backends if b.ejected}


async def until_ejected(channel: lbclient.Channel, method: str = NEW) -> None:
    await eventually(
        lambda: ejected(channel),
        channel.statistics,
        meanwhile=lambda: call(channel, method, 5),
    )


@pytest.mark.parametrize("make", [grpc.aio.server, lbclient.server])
async def test_an_old_version_that_lacks_a_method_serves_all_others(
    start_some: Start, eventually: Any, make: Any
) -> None:
    tasks = await start_some(3, make)
    tasks[0].status = None
    async with await ready_channel(tasks, eventually) as channel:
        await until_ejected(channel)
        assert ejected(channel) == {tasks[0].address: [NEW]}
        of_new = await call(channel, NEW, 30)
        assert of_new[StatusCode.UNIMPLEMENTED.name] <= 1, "a trial at most"
        of_old = await call(channel, OLD, 30)
        assert set(of_old) == {str(task.port) for task in tasks}
        assert of_old[str(tasks[0].port)] >= 8


@pytest.mark.parametrize(
    "status",
    [
        StatusCode.UNAUTHENTICATED,
        StatusCode.CANCELLED,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.UNAVAILABLE,
        StatusCode.OUT_OF_RANGE,
    ],
)
async def test_whatever_it_answers_it_is_ejected(
    start_some: Start, eventually: Any, status: StatusCode
) -> None:
    tasks = await start_some(3)
    tasks[0].status = status
    async with await ready_channel(tasks, eventually) as channel:
        await until_ejected(channel)
        assert list(ejected(channel)) == [tasks[0].address]


async def test_what_the_caller_gives_up_is_no_evidence(
    start_some: Start, eventually: Any
) -> None:
    """Nor what its deadline ends."""
    tasks = await start_some(3)
    tasks[0].latency = 30.0
    async with await ready_channel(tasks, eventually) as channel:
        ask: Any = channel.unary_unary(NEW)
        loop = asyncio.get_running_loop()
        for number in range(60):
            rpc = ask(b"", timeout=20 if number % 2 else 0.05)
            if number % 2:
                loop.call_later(0.01, rpc.cancel)
            await asyncio.wait([asyncio.ensure_future(rpc.code())])
        seen = channel.statistics()
    assert seen.attempts["abandoned"] > 3
    assert seen.ejections == 0


async def test_calls_that_end_with_their_connection_are_no_evidence(
    start_some: Start, eventually: Any
) -> None:
    tasks = await start_some(3)
    for task in tasks:
        task.latency = 0.3
    config = {"max_attempts": 1}
    async with await ready_channel(tasks, eventually, **config) as channel:
        ask: Any = channel.unary_unary(NEW)
        calls = [asyncio.ensure_future(ask(b"", timeout=20).code()) for _ in range(60)]
        await eventually(lambda: sum(task.begun for task in tasks) == len(calls))
        await tasks[0].server.stop(None)
        await asyncio.wait(calls)
        assert channel.statistics().calls["UNAVAILABLE"] > 5
        assert channel.statistics().ejections == 0


class Cutting(Link):
    """Ends the connection after the next bytes from the server, once told to."""

    is_to_cut = False

    def cut(self) -> None:
        self.is_to_cut = True

    async def _carry(self, reader: Any, writer: Any) -> None:
        host, _, port = self._back
        there, back = await asyncio.open_connection(host, int(port))
        self._writers.append(back)
        self._run(self._pass_on(reader, back))
        self._run(self._pass_on(there, writer, may_cut=True))

    async def _pass_on(self, source: Any, sink: Any, may_cut: bool = False) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                if may_cut and self.is_to_cut:
                    self.is_to_cut = False
                    break
        sink.close()


async def test_one_that_ends_its_connection_with_each_error_is_ejected(
    start_some: Start, eventually: Any
) -> None:
    """Each new connection made it a stranger, and it never was."""
    tasks = await start_some(3)
    link = Cutting(tasks[0])
    await link.start()
    tasks[0].status = StatusCode.PERMISSION_DENIED
    tasks[0].failing = link.cut
    tasks[0].address = link.address
    async with await ready_channel(tasks, eventually) as channel:

        async def cut() -> None:
            await eventually(lambda: len(channel.balancer().pool.ready) == 3)
            dials = link.dials
            await call(channel, NEW, 5)
            if not ejected(channel):
                await eventually(lambda: link.dials > dials)

        await eventually(lambda: ejected(channel), meanwhile=cut)
        assert ejected(channel) == {link.address: [NEW]}
        assert link.dials > 3
    await link.close()


async def test_why_it_is_ejected_is_told_wherever_one_looks(
    start_some: Start, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient.balancer")
    tasks = await start_some(3)
    tasks[0].status = StatusCode.PERMISSION_DENIED
    async with await ready_channel(tasks, eventually) as channel:
        snapshot()  # from now on picks are kept
        await until_ejected(channel)
        ask: Any = channel.unary_unary(NEW)
        rpc, code = None, StatusCode.OK

        async def try_one() -> None:
            nonlocal rpc, code
            rpc = ask(b"", timeout=10)
            code = await rpc.code()

        await eventually(lambda: code is not StatusCode.OK, meanwhile=try_one)
        assert (
            "it was a trial call, to an ejected backend"
            in (lbclient.info(rpc).history[-1])
        )
        seen = channel.statistics()
        backend = next(b for b in seen.backends if b.ejected)
        [ejection] = backend.ejected
        assert ejection.method == NEW
        assert ejection.why.startswith("PERMISSION_DENIED to ")
        assert " of its last " in ejection.why
        assert ejection.why.endswith(" of the other backends")
        assert (seen.ejected, seen.ejections) == (1, 1)
        page = snapshot()
        assert shape.flaw(page) == ""
        [seen_there] = page["channels"]
        assert any("a trial call" in pick["because"] for pick in seen_there["picks"])
        text = "\n".join(told(seen_there, None, 0.0))
        assert f"ejected for {NEW} since" in " ".join(text.split())
        gauges = dict(samples.backend_gauges(seen, "t", 9))
        assert gauges["lbclient_backend_ejected", "t", tasks[0].address] == 1
        assert gauges["lbclient_backend_ejected", "t", tasks[1].address] == 0
        assert (
            dict(samples.channel_gauges(seen, "t"))["lbclient_ejected_backends", "t"]
            == 1
        )
        assert (
            dict(samples.channel_counts(seen, "t"))["lbclient_ejections_total", "t"]
            == 1
        )
    assert f"for '{NEW}': ejected: PERMISSION_DENIED to " in caplog.text


async def test_one_that_is_well_again_is_found_and_serves(
    start_some: Start, eventually: Any
) -> None:
    tasks = await start_some(3)
    tasks[0].status = StatusCode.INTERNAL
    async with await ready_channel(tasks, eventually) as channel:
        await until_ejected(channel)
        tasks[0].status = StatusCode.OK
        await eventually(
            lambda: not ejected(channel), meanwhile=lambda: call(channel, NEW, 1)
        )
        ended = await call(channel, NEW, 30)
        assert ended[str(tasks[0].port)] == 10


async def test_a_new_task_at_its_address_is_tried_at_once(
    start_some: Start, eventually: Any
) -> None:
    tasks = await start_some(3)
    tasks[0].status = None
    async with await ready_channel(tasks, eventually) as channel:
        await until_ejected(channel)
        balancer = channel.balancer()
        [watch] = balancer.outliers.watching.values()
        [ejection] = watch.ejected.values()
        ejection.period = 30.0
        watch._try_at(ejection, balancer.clock() + 30.0)
        await tasks[0].server.stop(None)
        await eventually(lambda: len(balancer.pool.ready) == 2)
        await start_some(1, port=tasks[0].port)
        await eventually(lambda: len(balancer.pool.ready) == 3)
        assert ejection.trial_at < balancer.clock() + 2.0
        await eventually(
            lambda: not ejected(channel), meanwhile=lambda: call(channel, NEW, 1)
        )


async def test_calls_wait_for_the_others_rather_than_fail_on_it(
    start_some: Start, eventually: Any
) -> None:
    """Or it would take from the queue whatever the others have no room for."""
    tasks = await start_some(3)
    tasks[0].status = None
    async with await ready_channel(tasks, eventually, active_limit=2) as channel:
        await until_ejected(channel)
        for task in tasks:
            task.latency = 0.05
        ask: Any = channel.unary_unary(NEW)
        calls = [ask(b"", timeout=30) for _ in range(40)]
        assert channel.statistics().waiting >= 30
        old: Any = channel.unary_unary(OLD)
        # Another method need not wait for them: the ejected one has room.
        assert await old(b"", timeout=30) == str(tasks[0].port).encode()
        codes = Counter([await rpc.code() for rpc in calls])
        assert codes[StatusCode.UNIMPLEMENTED] <= 1, "a trial at most"
        assert codes[StatusCode.OK] >= 39


async def test_streams_are_judged_as_well(start_some: Start, eventually: Any) -> None:
    tasks = await start_some(3)
    tasks[0].status = StatusCode.FAILED_PRECONDITION
    async with await ready_channel(tasks, eventually) as channel:
        pages: Any = channel.unary_stream(PAGES)
        async with asyncio.timeout(60):
            while not ejected(channel):
                with suppress(grpc.aio.AioRpcError):
                    async for _ in pages(b"", timeout=10):
                        pass
        assert ejected(channel) == {tasks[0].address: [PAGES]}


async def test_a_retry_does_not_go_to_an_ejected_backend(
    start_some: Start, eventually: Any
) -> None:
    tasks = await start_some(3)
    tasks[0].status = StatusCode.UNAVAILABLE
    config = {"idempotent": (NEW,)}
    async with await ready_channel(tasks, eventually, **config) as channel:
        balancer = channel.balancer()
        await until_ejected(channel)
        method: Any = channel.unary_unary(NEW)
        attempts = Attempts(balancer, method, b"", Criticality.CRITICAL, {})
        good = tuple(node for node in balancer.pool.ready if node.endpoint.address
                != tasks[0].address)  # fmt: skip
        now = balancer.clock()
        again = {attempts.pick(now, good[:1]) for _ in range(50)}
        assert again == {good[1]}


async def test_where_the_only_one_that_is_connected_fails_another_is_woken(
    start_some: Start, eventually: Any
) -> None:
    tasks = await start_some(2)
    tasks[0].status = None
    async with await ready_channel(tasks, eventually) as channel:
        balancer = channel.balancer()
        other = balancer.pool.nodes[tasks[1].address]
        other.disconnect_idle(balancer.clock())
        await eventually(lambda: other.state is State.INACTIVE)
        await call(channel, NEW, 3)
        await eventually(lambda: other.state is State.READY)
        await until_ejected(channel)
        assert list(ejected(channel)) == [tasks[0].address]


async def test_where_those_that_are_well_are_full_another_is_woken(
    start_some: Start, eventually: Any
) -> None:
    tasks = await start_some(3)
    tasks[0].status = None
    config = {"active_limit": 1, "idle_after": 0}
    async with await ready_channel(tasks, eventually, **config) as channel:
        await until_ejected(channel)
        balancer = channel.balancer()
        other = balancer.pool.nodes[tasks[2].address]
        other.disconnect_idle(balancer.clock())
        await eventually(lambda: other.state is State.INACTIVE)
        tasks[1].latency = 30.0
        ask: Any = channel.unary_unary(NEW)
        long = ask(b"", timeout=60)  # on the second, or a trial
        short = [ask(b"", timeout=60) for _ in range(2)]
        await eventually(lambda: other.state is State.READY)
        await asyncio.wait([asyncio.ensure_future(rpc.code()) for rpc in short[1:]])
        long.cancel()
        short[0].cancel()


async def test_one_that_answers_late_leaves_the_picks_and_says_why(
    start_some: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Its statuses and its utilization are those of the others."""

    def make() -> lbclient.Server:
        settings = {"utilization": lambda: 0.3, "utilization_replaces": True}
        return lbclient.server(config=lbclient.ServerConfig(**settings))  # type: ignore[arg-type]

    caplog.set_level(logging.INFO, "lbclient.balancer")
    tasks = await start_some(4, make)
    async with await ready_channel(tasks, eventually) as channel:
        late = tasks[0]
        for task in tasks:
            task.latency = 0.005
        await eventually(
            lambda: min(task.begun for task in tasks) >= 60,
            channel.statistics,
            meanwhile=lambda: call(channel, OLD, 20),
        )
        assert not ejected(channel)
        late.latency = 0.5
        await eventually(
            lambda: ejected(channel),
            channel.statistics,
            meanwhile=lambda: call(channel, OLD, 4),
        )
        assert ejected(channel) == {late.address: [OLD]}
        before = late.begun
        await call(channel, OLD, 60)
        assert late.begun <= before + 1, "a trial at most"
        [ejection] = next(b.ejected for b in channel.statistics().backends if b.ejected)
        assert ejection.why.startswith("its last calls took 5")
        assert "usually" in ejection.why
        assert ejection.why in str(snapshot())
        assert any(ejection.why in record.getMessage() for record in caplog.records)
        assert channel.statistics().ejections == 1


async def test_calls_with_keys_are_not_compared_as_what_they_ask_for_differs(
    start_some: Start,
) -> None:
    def make() -> lbclient.Server:
        settings = {"utilization": lambda: 0.3, "utilization_replaces": True}
        return lbclient.server(config=lbclient.ServerConfig(**settings))  # type: ignore[arg-type]

    tasks = await start_some(4, make)
    for task in tasks:
        task.latency = 0.005
    settings = {"picker": "consistent_hashing"}
    async with await ready_channel(tasks, eventually, **settings) as channel:
        ask: Any = channel.unary_unary(OLD)

        async def with_keys() -> None:
            rpcs = []
            for number in range(40):
                with lbclient.key(f"session {number}"):
                    rpcs.append(ask(b""))
            for rpc in rpcs:
                await rpc

        async def without() -> None:
            for rpc in [ask(b"") for _ in range(12)]:
                await rpc

        await eventually(
            lambda: min(task.begun for task in tasks) >= 100,
            channel.statistics,
            meanwhile=without,
        )
        late = max(tasks, key=lambda task: task.begun)
        late.latency, before = 0.3, late.begun
        for _ in range(40):
            await with_keys()
        assert late.begun >= before + 100
        assert not ejected(channel)
        await eventually(
            lambda: ejected(channel), channel.statistics, meanwhile=without
        )
        assert ejected(channel) == {late.address: [OLD]}
