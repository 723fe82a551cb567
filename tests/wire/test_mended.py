"""Faults that were there once: what broke, and how it looked."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig
from lbclient.core.criticality import current
from lbclient.core.errors import ConfigError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.refusal import Refusal
from lbclient.pickers import RoundRobin
from lbclient.v1 import compat_pb2, health_pb2, load_pb2
from tests.hosts import (
    PATH,
    add_methods,
    hosting,
    stream_stream,
    stream_unary,
    unary_stream,
)
from tests.waiting import eventually, let_pass
from tests.wire.conftest import earn
from tests.wire.refuser import refuser


async def test_a_health_watch_that_breaks_is_begun_again(
    start: Any, search: Any, eventually: Any
) -> None:
    """It was taken for not offered; then silence was judged of a mute backend."""
    begun = 0

    async def watch(_request: bytes, context: Any) -> Any:
        nonlocal begun
        begun += 1
        report = health_pb2.HealthReport(
            state=load_pb2.SERVING, load=load_pb2.LoadReport()
        )
        yield report.SerializeToString()
        await context.abort(grpc.StatusCode.INTERNAL, "reset by a proxy")

    methods = {wire.WATCH_METHOD: unary_stream(watch)}
    task = await start(lambda: add_methods(grpc.aio.server(), methods))
    config = ChannelConfig(health_interval=0.3)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
        await eventually(lambda: begun >= 3)
        await search.SearchStub(channel).Search(search.Query(), timeout=5)


async def test_a_health_service_of_single_services_only_is_no_obstacle(
    start: Any, search: Any
) -> None:
    async def watch(_request: bytes, _context: Any) -> Any:
        status = compat_pb2.ServingReply.SERVICE_UNKNOWN
        yield compat_pb2.ServingReply(status=status).SerializeToString()
        await asyncio.sleep(5)

    methods = {wire.SERVING_WATCH_METHOD: unary_stream(watch)}
    task = await start(lambda: add_methods(grpc.aio.server(), methods))
    async with lbclient.insecure_channel(task.address) as channel:
        assert (await search.SearchStub(channel).Search(search.Query(), timeout=5)).text


async def test_a_call_collected_in_another_thread_is_settled_in_the_loop(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address) as channel:
        await channel.channel_ready()
        call = search.SearchStub(channel).Pages(search.Query(text="100000"))
        await call.read()
        cycle: list[Any] = [call]
        cycle.append(cycle)
        gc.disable()
        try:
            del call, cycle
            collector = threading.Thread(target=gc.collect)
            collector.start()
            await asyncio.to_thread(collector.join)
        finally:
            gc.enable()
        await eventually(lambda: channel.statistics().in_flight == 0)


async def test_a_request_that_cannot_be_sent_gives_its_place_back(
    start: Any, search: Any
) -> None:
    """Calls that the user kept held their places, until the backend was full."""
    task = await start()
    config = ChannelConfig(active_limit=2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        calls = [stub.Search("no message") for _ in range(2)]
        calls += [stub.Search(search.Query(), metadata={"a": "b"})]
        calls += [stub.Search(search.Query(), metadata=(("a", 1),))]
        for call in calls:
            with pytest.raises((TypeError, ValueError, AttributeError)):
                await call
            assert call.done()
        assert channel.statistics().in_flight == 0
        assert (await stub.Search(search.Query(), timeout=5)).text


async def test_a_call_that_an_interceptor_begins_after_close_is_refused(
    start: Any, search: Any
) -> None:
    begun, is_closed = asyncio.Event(), asyncio.Event()

    class Slow(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(
            self, continuation: Any, client_call_details: Any, request: Any
        ) -> Any:
            begun.set()
            await is_closed.wait()
            return await continuation(client_call_details, request)

    task = await start()
    channel = lbclient.insecure_channel(task.address, interceptors=[Slow()])
    await channel.channel_ready()
    call = search.SearchStub(channel).Search(search.Query())
    await begun.wait()
    closing = asyncio.ensure_future(channel.close())
    is_closed.set()
    await closing
    with pytest.raises(grpc.aio.UsageError):
        await asyncio.wait_for(call, 5)


async def test_a_picker_that_raises_costs_no_call(
    start: Any, search: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RoundRobin):
        def pick(self, ready: Any, now: float) -> Any:
            raise KeyError("oops")

    task = await start()
    config = ChannelConfig(picker=Broken)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        stub = search.SearchStub(channel)
        for _ in ("waiting", "ready"):
            assert (await stub.Search(search.Query(), timeout=5)).text
    assert "picker raised" in caplog.text


class Told:
    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = answers

    async def watch(self) -> AsyncIterator[Endpoints]:
        for answer in self.answers:
            yield tuple(Endpoint(address) for address in answer)
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()

    def refresh(self) -> None:
        raise RuntimeError("a resolver's own mistake")


async def test_an_empty_answer_said_again_and_again_is_believed(
    start: Any, eventually: Any
) -> None:
    """Each one started the clock anew."""
    task = await start()
    config = ChannelConfig(empty_after=0.2)
    resolver = Told((task.address,), *[()] * 2000)
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        await channel.channel_ready()
        await eventually(lambda: not channel.statistics().backends)


async def test_calls_are_told_that_the_subset_algorithm_raised(
    start: Any, search: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that waited hung, and others were told that there are no endpoints."""
    task = await start()
    is_bad = True

    def subset(endpoints: Endpoints) -> Endpoints:
        if is_bad:
            raise LookupError("no zone")
        return endpoints

    resolver = Told(*[(task.address,), (task.address, "127.0.0.1:1")] * 2000)
    config = ChannelConfig(subset=subset)
    async with lbclient.insecure_channel(resolver, config=config) as channel:
        stub = search.SearchStub(channel)
        for _ in range(2):  # before and after its first answer
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(stub.Search(search.Query()), 20)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "subset algorithm raised LookupError('no zone')" in str(caught.value)
        said = channel.statistics().resolver
        assert said.error == "the subset algorithm raised LookupError('no zone')"
        is_bad = False
        await eventually(lambda: not channel.statistics().resolver.error)
        await stub.Search(search.Query(), timeout=20)
    assert "subset algorithm raised; keeping the previous subset" in caplog.text


async def test_an_endpoint_that_comes_back_finds_its_old_connection(
    start: Any, search: Any, eventually: Any
) -> None:
    """Each blip of a resolver left a connection behind under a long stream."""
    tasks = [await start() for _ in range(2)]
    one, two = (task.address for task in tasks)
    resolver = Told((one, two), *[(two,), (one, two)] * 4)
    async with lbclient.insecure_channel(resolver) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = [stub.Search(search.Query(text="sleep 0.6")) for _ in range(4)]
        await eventually(lambda: channel.statistics().resolver.updates >= 8)
        assert channel.statistics().draining <= 1
        await asyncio.gather(*running)


async def test_a_wait_for_a_state_that_is_given_up_leaves_nothing(start: Any) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address) as channel:
        await channel.channel_ready()
        for _ in range(20):
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 0.001
                )
        assert not channel.balancer().backends.connectivity._changes


async def test_a_call_outlives_the_channel_that_its_caller_dropped(
    start: Any, search: Any
) -> None:
    task = await start()

    async def begin() -> Any:
        channel = lbclient.insecure_channel(task.address)
        await channel.channel_ready()
        return search.SearchStub(channel).Search(search.Query(text="sleep 0.1"))

    call = await begin()
    gc.collect()
    assert (await call).text
    await let_pass(0.05)


async def test_a_call_tells_how_long_it_waits_and_waited(search: Any) -> None:
    async with lbclient.insecure_channel("127.0.0.1:1") as channel:
        call = search.SearchStub(channel).Search(
            search.Query(), wait_for_ready=True, timeout=0.1
        )
        await eventually(lambda: lbclient.info(call).waited >= 0.04)
        with pytest.raises(lbclient.DeadlineWhileWaiting):
            await call
        assert lbclient.info(call).waited >= 0.09


@pytest.mark.parametrize("credentials", [None, object()])
def test_no_credentials_are_no_reason_to_speak_in_the_clear(credentials: Any) -> None:
    with pytest.raises(ConfigError, match="credentials"):
        lbclient.secure_channel("127.0.0.1:1", credentials)


async def test_a_call_that_is_over_is_freed_at_once(
    start: Any, search: Any, eventually: Any
) -> None:
    """Not by the next collection: until then its connection could not be closed."""
    task = await start(lbclient.server)

    async def queries() -> AsyncIterator[Any]:
        yield search.Query(text="x")

    async def use(stub: Any) -> list["weakref.ref[Any]"]:
        unary, index = stub.Search(search.Query()), stub.Index(queries())
        pages, chat = stub.Pages(search.Query(text="2")), stub.Chat(queries())
        await unary
        await index
        for stream in (pages, chat):
            assert [answer async for answer in stream]
        return [weakref.ref(call) for call in (unary, index, pages, chat)]

    async with lbclient.insecure_channel(task.address) as channel:
        stub = search.SearchStub(channel)
        gc.collect()
        gc.disable()
        try:
            waited, at_once = await use(stub), await use(stub)
            await eventually(lambda: not any(call() for call in (*waited, *at_once)))
        finally:
            gc.enable()


@pytest.mark.parametrize("writes", [0, 1])
async def test_a_call_dropped_before_it_is_half_closed_gives_its_place_back(
    start: Any, search: Any, eventually: Any, writes: int
) -> None:
    """It kept itself, by its callback on the inner call, until its deadline."""
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(task.address) as channel:
        await channel.channel_ready()
        call = search.SearchStub(channel).Index()
        for _ in range(writes):
            await call.write(search.Query())
        del call
        gc.collect()
        await eventually(lambda: channel.statistics().in_flight == 0)
        assert set(channel.statistics().calls) == {"CANCELLED"}


async def test_a_call_dropped_when_it_is_half_closed_runs_to_its_end(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start(lbclient.server)
    told: list[object] = []
    async with lbclient.insecure_channel(task.address) as channel:
        await channel.channel_ready()
        call = search.SearchStub(channel).Index()
        call.add_done_callback(told.append)
        await call.write(search.Query(text="sleep 0.1"))
        await call.done_writing()
        del call
        gc.collect()
        await eventually(lambda: channel.statistics().calls == {"OK": 1})
        assert len(told) == 1


said: ContextVar[str] = ContextVar("said", default="nothing")


@pytest.mark.parametrize("kind", ["stream_unary", "stream_stream"])
@pytest.mark.parametrize("is_up", [False, True])
async def test_requests_are_made_in_the_callers_context_however_late(
    kind: str, is_up: bool
) -> None:
    """They were made in that of the connection, or the timer, that started the call."""
    seen: list[tuple[str, object]] = []
    refused = 0

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(5):
            seen.append((said.get(), current()))
            await asyncio.sleep(0.01)
            yield b"x"

    async def answer(given: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        nonlocal refused
        if is_up and refused < 2:  # so it is sent again from a timer
            refused += 1
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "too much",
                ((wire.REFUSAL_KEY, Refusal.OVERLOADED.value),),
            )
        yield str(len([one async for one in given])).encode()

    async def answer_once(given: AsyncIterator[bytes], context: Any) -> bytes:
        return await anext(answer(given, context))

    methods = {
        "/test.Any/stream_unary": stream_unary(answer_once),
        "/test.Any/stream_stream": stream_stream(answer),
    }
    server = grpc.aio.server()
    async with (
        hosting(methods, server=server, starts=is_up) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        if is_up:
            await earn(channel, 2)
        token = said.set("mine")
        with lbclient.criticality("SHEDDABLE"):
            method = getattr(channel, kind)(f"/test.Any/{kind}")
            call = method(requests(), wait_for_ready=True, timeout=20)
        said.reset(token)
        if not is_up:
            connecting = grpc.ChannelConnectivity.CONNECTING
            await eventually(lambda: channel.get_state() is connecting)
            await server.start()
        if kind == "stream_unary":
            assert await call == b"5"
        else:
            assert [one async for one in call] == [b"5"]
    assert refused == 2 * is_up
    assert seen == [("mine", lbclient.Criticality.SHEDDABLE)] * 5


def test_calls_work_where_text_compared_with_bytes_is_an_error() -> None:
    """Under `python -bb` nobody could make a server: the words of criticality were keys
    of one dict in both forms, whose hashes are the same."""
    program = """
import asyncio, grpc, lbclient

async def main():
    server = lbclient.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with lbclient.insecure_channel(f"127.0.0.1:{port}") as channel:
        with lbclient.criticality("SHEDDABLE"):
            try:
                await channel.unary_unary("/a.A/Ask")(b"", timeout=20)
            except grpc.aio.AioRpcError as error:
                print(error.code().name)
    await server.stop(None)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-bb", "-W", "error::BytesWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "UNIMPLEMENTED\n", done.stderr


async def test_a_server_that_cannot_be_made_is_one_error() -> None:
    """Another one followed, from `__del__`, which pytest takes for a failure."""
    with pytest.raises(ValueError, match="invalid"):
        lbclient.server(interceptors=["none"])
    gc.collect()


@pytest.mark.parametrize("how", ["own", "all own"])
async def test_a_status_that_is_none_of_grpcs_ends_calls_and_health_checks(
    how: str,
) -> None:
    """Up to 1.80 grpcio hands on what newer ones make UNKNOWN, and raises KeyError. The
    call kept its place on the backend, and no health check was ever over."""
    ended: list[Any] = []

    async def requests() -> AsyncIterator[bytes]:
        yield b""

    async def call(method: Any, request: Any) -> None:
        made = method(request, timeout=20)
        made.add_done_callback(ended.append)
        answer = made.read() if hasattr(made, "read") else made
        with suppress(grpc.aio.AioRpcError, KeyError):
            await answer
            pytest.fail("it was refused")
        await eventually(lambda: ended == [made])
        ended.clear()

    async with (
        refuser(how) as server,
        lbclient.insecure_channel(server.address) as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 20)
        for kind in ("unary_unary", "unary_stream"):
            await call(getattr(channel, kind)(PATH), b"")
        for kind in ("stream_unary", "stream_stream"):
            await call(getattr(channel, kind)(PATH), requests())
        told = channel.statistics()
    assert told.in_flight == 0
    assert told.calls == {"UNKNOWN": 4}
