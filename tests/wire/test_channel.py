"""The channel as a drop-in: all kinds of call, and feedback exactly once."""

import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.config import ChannelConfig
from tests.hosts import PATH, Host, unary_unary
from tests.waiting import eventually, let_pass

ROUND_ROBIN = ChannelConfig(picker="round_robin")


def target(*tasks: Any) -> str:
    return "ipv4:" + ",".join(task.address for task in tasks)


def attempts(channel: lbclient.Channel) -> dict[str, int]:
    counted = channel.statistics().attempts
    return {verdict: count for verdict, count in counted.items() if count}


@pytest.fixture
async def task(start: Any) -> Any:
    return await start()


@pytest.fixture(params=["waiting", "ready"])
async def channel(
    request: pytest.FixtureRequest, task: Any
) -> AsyncIterator[lbclient.Channel]:
    """Once with calls that wait for their backend, once with a ready one."""
    async with lbclient.insecure_channel(target(task), config=ROUND_ROBIN) as channel:
        if request.param == "ready":
            await channel.channel_ready()
        yield channel


@pytest.fixture
def stub(channel: lbclient.Channel, search: Any) -> Any:
    return search.SearchStub(channel)


async def test_a_unary_call_is_answered(
    channel: lbclient.Channel, stub: Any, search: Any, task: Any
) -> None:
    call = stub.Search(search.Query(text="x"), timeout=5)
    answer = await call
    assert answer.text == task.servicer.name
    assert await call == answer, "a call may be awaited again"
    assert await call.code() is grpc.StatusCode.OK
    assert await call.details() == ""
    assert call.done()
    assert not call.cancelled()
    assert not call.cancel()
    assert lbclient.info(call).backend == task.address
    assert lbclient.info(call).attempts == 1
    with pytest.raises(TypeError, match="want what a stub's method returns, not "):
        lbclient.info(await call)
    assert attempts(channel) == {"served": 1}


async def test_pages_stream_in(
    channel: lbclient.Channel, stub: Any, search: Any
) -> None:
    call = stub.Pages(search.Query(text="5"), timeout=5)
    assert len([page async for page in call]) == 5
    assert await call.code() is grpc.StatusCode.OK
    assert attempts(channel) == {"served": 1}


async def test_pages_can_be_read_one_by_one(stub: Any, search: Any) -> None:
    call = stub.Pages(search.Query(text="2"), timeout=5)
    assert await call.read()
    assert await call.read()
    assert await call.read() is grpc.aio.EOF
    with pytest.raises(grpc.aio.UsageError):
        call.__aiter__()


async def test_requests_stream_out_from_an_iterator(
    channel: lbclient.Channel, stub: Any, search: Any
) -> None:
    async def queries() -> AsyncIterator[Any]:
        for _ in range(4):
            yield search.Query(text="x")

    assert (await stub.Index(queries(), timeout=5)).text == "4"
    assert (await stub.Index(iter([search.Query()]), timeout=5)).text == "1"
    assert attempts(channel) == {"served": 2}


async def test_requests_stream_out_by_write(stub: Any, search: Any) -> None:
    call = stub.Index(timeout=5)
    for _ in range(3):
        await call.write(search.Query(text="x"))
    await call.done_writing()
    assert (await call).text == "3"


async def test_a_chat_goes_both_ways(
    channel: lbclient.Channel, stub: Any, search: Any
) -> None:
    call = stub.Chat(timeout=5)
    await call.wait_for_connection()
    for text in ("a", "b"):
        await call.write(search.Query(text=text))
        assert (await call.read()).text == text
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert attempts(channel) == {"served": 1}


async def test_the_applications_no_is_good_service(
    channel: lbclient.Channel, stub: Any, search: Any
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Search(search.Query(text="abort"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "no such thing"
    assert attempts(channel) == {"served": 1}
    assert channel.statistics().calls == {"NOT_FOUND": 1}


async def test_a_broken_backend_is_a_failure(
    channel: lbclient.Channel, stub: Any, search: Any
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Search(search.Query(text="fail"), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in stub.Pages(search.Query(text="fail"), timeout=5):
            pass
    assert attempts(channel) == {"failed": 2}


async def test_a_deadline_is_a_failure_and_fixed_at_the_call(
    channel: lbclient.Channel, stub: Any, search: Any
) -> None:
    await stub.Search(search.Query(text="x"), timeout=5)
    call = stub.Search(search.Query(text="sleep 5"), timeout=0.1)
    assert 0.0 < call.time_remaining() <= 0.1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert attempts(channel) == {"served": 1, "failed": 1}


async def test_a_cancelled_call_teaches_nothing(
    channel: lbclient.Channel, stub: Any, search: Any, task: Any, eventually: Any
) -> None:
    call = stub.Search(search.Query(text="sleep 5"), timeout=5)
    await eventually(lambda: task.servicer.served)
    assert call.cancel()
    assert not call.cancel()
    assert call.cancelled()
    assert call.done()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert await call.details() == "Locally cancelled by application!"
    assert attempts(channel) == {"abandoned": 1}
    assert channel.statistics().in_flight == 0
    await eventually(lambda: task.servicer.cancelled)


async def test_cancelling_the_awaiting_task_cancels_the_call(
    channel: lbclient.Channel, stub: Any, search: Any, eventually: Any
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await stub.Search(search.Query(text="sleep 5"))
    await eventually(lambda: channel.statistics().in_flight == 0)
    assert set(channel.statistics().calls) == {"CANCELLED"}


async def test_a_dropped_unary_call_runs_to_its_end(
    channel: lbclient.Channel, stub: Any, search: Any, eventually: Any
) -> None:
    stub.Search(search.Query(text="x"), timeout=5)
    gc.collect()
    await eventually(lambda: attempts(channel) == {"served": 1})


@pytest.mark.parametrize("style", ["iterate", "read", "unread"])
async def test_a_stream_dropped_half_read_is_released(
    channel: lbclient.Channel, stub: Any, search: Any, style: str, eventually: Any
) -> None:
    told: list[object] = []
    call = stub.Pages(search.Query(text="100000"))
    call.add_done_callback(told.append)
    if style == "iterate":
        async for _ in call:
            break
    elif style == "read":
        await call.read()
    else:
        await call.initial_metadata()
    assert channel.statistics().in_flight == 1
    del call
    gc.collect()
    await eventually(lambda: channel.statistics().in_flight == 0)
    assert attempts(channel) == {"abandoned": 1}
    assert len(told) == 1


async def test_an_iterator_alone_keeps_its_call_going(stub: Any, search: Any) -> None:
    pages = stub.Pages(search.Query(text="50")).__aiter__()
    gc.collect()
    assert len([page async for page in pages]) == 50


@pytest.mark.parametrize("when", ["early", "late"])
async def test_done_callbacks_get_the_call_before_its_awaiter_resumes(
    stub: Any, search: Any, when: str
) -> None:
    order: list[object] = []
    call = stub.Search(search.Query(text="x"), timeout=5)
    if when == "late":
        await call
        call.add_done_callback(order.append)
        assert order == [call]
        return
    call.add_done_callback(order.append)
    await call
    order.append("resumed")
    assert order == [call, "resumed"]


async def test_metadata_goes_both_ways(host: Host) -> None:
    async def echo(request: bytes, context: Any) -> bytes:
        seen = dict(context.invocation_metadata())
        await context.send_initial_metadata((("first", seen["mine"]),))
        context.set_trailing_metadata((("last", seen["mine"]),))
        return request

    hosted = await host(unary_unary(echo), server=grpc.aio.server())
    mine = grpc.aio.Metadata(("mine", "yes"))
    async with lbclient.insecure_channel(hosted.address) as channel:
        for _ in ("waiting", "ready"):
            call = channel.unary_unary(PATH)(b"x", metadata=mine)
            assert await call == b"x"
            assert (await call.initial_metadata())["first"] == "yes"
            assert (await call.trailing_metadata())["last"] == "yes"
    assert mine == grpc.aio.Metadata(("mine", "yes"))


async def test_calls_go_round_all_backends(
    start: Any, search: Any, eventually: Any
) -> None:
    tasks = [await start() for _ in range(3)]
    async with lbclient.insecure_channel(target(*tasks), config=ROUND_ROBIN) as channel:
        stub = search.SearchStub(channel)
        await channel.channel_ready()
        await eventually(
            lambda: {b.state for b in channel.statistics().backends} == {"ready"}
        )
        answers = [(await stub.Search(search.Query())).text for _ in range(9)]
    assert sorted(answers) == sorted([task.servicer.name for task in tasks] * 3)


async def test_nothing_connects_before_the_first_use(task: Any) -> None:
    channel = lbclient.insecure_channel(target(task))
    assert isinstance(channel, grpc.aio.Channel)
    assert channel.get_state() is grpc.ChannelConnectivity.IDLE
    await let_pass(0.05)
    assert channel.get_state() is grpc.ChannelConnectivity.IDLE
    assert channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.IDLE
    assert channel.get_state() is grpc.ChannelConnectivity.CONNECTING
    await channel.wait_for_state_change(grpc.ChannelConnectivity.CONNECTING)
    assert channel.get_state() is grpc.ChannelConnectivity.READY
    await channel.close()
    await channel.close()
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_close_cancels_what_runs_and_refuses_what_comes(
    channel: lbclient.Channel, stub: Any, search: Any, task: Any, eventually: Any
) -> None:
    call = stub.Search(search.Query(text="sleep 5"))
    await eventually(lambda: task.servicer.served)
    await channel.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(grpc.aio.UsageError):
        stub.Search(search.Query())


async def test_close_with_grace_lets_calls_finish(
    channel: lbclient.Channel, stub: Any, search: Any, task: Any, eventually: Any
) -> None:
    call = stub.Search(search.Query(text="sleep 0.2"))
    await eventually(lambda: task.servicer.served)
    await channel.close(grace=5)
    assert (await call).text


@pytest.mark.parametrize("late_binding", [False, True])
@pytest.mark.parametrize("grace", [None, 30.0])
async def test_a_close_that_is_cut_short_closes(
    task: Any, search: Any, grace: float | None, late_binding: bool
) -> None:
    """As by a timeout. Calls went on, and a second close had nothing to do."""
    config = ChannelConfig(late_binding=late_binding)
    for turns in range(1, 10):
        channel = lbclient.insecure_channel(target(task), config=config)
        await channel.channel_ready()
        waiting = asyncio.ensure_future(
            channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        )
        stub, query = search.SearchStub(channel), search.Query(text="sleep 25")
        task.servicer.served = 0
        calls = [stub.Search(query), stub.Pages(query)]
        await eventually(lambda: task.servicer.served == 2)
        closing = asyncio.ensure_future(channel.close(grace))
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await asyncio.wait_for(waiting, 20)
        for ended in (calls[0], calls[1].read()):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(ended, 20)
        assert channel.statistics().in_flight == 0
        await channel.close()


async def test_a_call_that_waits_is_cancelled_by_close(search: Any) -> None:
    channel = lbclient.insecure_channel("ipv4:127.0.0.1:1")
    call = search.SearchStub(channel).Search(search.Query(), wait_for_ready=True)
    await eventually(lambda: channel.statistics().waiting == 1)
    await channel.close()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_dropped_channel_leaves_nothing(
    task: Any, search: Any, eventually: Any
) -> None:
    channel = lbclient.insecure_channel(target(task))
    await search.SearchStub(channel).Search(search.Query())
    before = len(asyncio.all_tasks())
    del channel
    gc.collect()
    await eventually(lambda: len(asyncio.all_tasks()) < before)


async def test_a_stub_alone_keeps_its_channel(task: Any, search: Any) -> None:
    channel = lbclient.insecure_channel(target(task))
    stub, alive = search.SearchStub(channel), weakref.ref(channel)
    del channel
    gc.collect()
    assert (await stub.Search(search.Query())).text
    kept = alive()
    assert kept is not None
    await kept.close()


class Tagger(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.calls = 0

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        self.calls += 1
        for _ in range(self.times - 1):
            await (await continuation(client_call_details, request))
        return await continuation(client_call_details, request)


async def test_interceptors_run_once_a_call_and_may_call_twice(
    task: Any, search: Any
) -> None:
    once, twice = Tagger(), Tagger(times=2)
    async with lbclient.insecure_channel(
        target(task), interceptors=[once, twice]
    ) as channel:
        call = search.SearchStub(channel).Search(search.Query(), timeout=5)
        assert (await call).text
        assert await call.code() is grpc.StatusCode.OK
        assert lbclient.info(call).backend == task.address
        assert (once.calls, twice.calls) == (1, 1)
        assert attempts(channel) == {"served": 2}


async def test_what_is_no_interceptor_is_refused(task: Any) -> None:
    with pytest.raises(ValueError, match="Interceptor"):
        lbclient.insecure_channel(target(task), interceptors=[object()])  # type: ignore[list-item]


async def test_a_socket_without_a_file_is_a_target(host: Host, tmp_path: Path) -> None:
    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    at = f"unix-abstract:{tmp_path.name}-{os.getpid()}"
    await host(unary_unary(echo), at=at)
    async with lbclient.insecure_channel(at) as channel:
        await channel.channel_ready()
        method: Any = channel.unary_unary(PATH)
        call = method(b"x", timeout=20)
        assert await call == b"x"
        assert lbclient.info(call).backend == at
        [backend] = channel.statistics().backends
        assert backend.state == "ready"
