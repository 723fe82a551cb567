"""Calls that cannot be sent at once: whose turn it is, and what they are told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.config import ChannelConfig
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoints
from lbclient.wire.local_errors import BackendsFull, DeadlineWhileWaiting, NoBackend
from tests.ports import HOST, free_port
from tests.waiting import eventually, let_pass


def closed_port() -> str:
    """An address at which nobody listens."""
    return f"{HOST}:{free_port()}"


async def test_at_most_the_active_limit_is_in_flight_and_the_rest_wait_their_turn(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        order: list[int] = []
        calls = []
        for number in range(7):
            call = stub.Search(search.Query(text="sleep 0.03"), timeout=5)
            call.add_done_callback(lambda _, number=number: order.append(number))
            calls.append(call)
        seen = channel.statistics()
        assert (seen.in_flight, seen.waiting) == (2, 5)
        await asyncio.gather(*calls)
        assert {n // 2 for n in order[:2]} == {0}
        assert order.index(6) == 6, "first come, first served"
        after = channel.statistics()
        assert (after.in_flight, after.waiting, after.waited) == (0, 0, 5)
        assert after.waited_seconds > 0
        assert lbclient.info(calls[6]).waited > lbclient.info(calls[2]).waited > 0


async def test_a_late_call_does_not_overtake_those_that_wait(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        order: list[str] = []
        first = stub.Search(search.Query(text="sleep 0.05"))
        waiting = stub.Search(search.Query(text="x"))
        waiting.add_done_callback(lambda _: order.append("waiting"))
        late: list[Any] = []

        def call_late(_: Any) -> None:
            late.append(stub.Search(search.Query(text="x")))
            late[0].add_done_callback(lambda _: order.append("late"))

        first.add_done_callback(call_late)
        await first
        await late[0]
        await waiting
        assert order == ["waiting", "late"]


async def test_when_full_is_fail_a_call_fails_at_once_and_says_how_many_were_full(
    start: Any, search: Any
) -> None:
    tasks = [await start() for _ in range(2)]
    config = ChannelConfig(active_limit=1, when_full="fail")
    target = "ipv4:" + ",".join(task.address for task in tasks)
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)
        await asyncio.gather(*(stub.Search(search.Query()) for _ in range(1)))
        await eventually(lambda: len(channel.balancer().pool.ready) == 2)
        running = [stub.Search(search.Query(text="sleep 0.2")) for _ in range(2)]
        with pytest.raises(BackendsFull, match="2 full with 1 calls each") as caught:
            await stub.Search(search.Query())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(caught.value, grpc.aio.AioRpcError)
        await asyncio.gather(*running)


async def test_only_so_many_calls_may_wait(start: Any, search: Any) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1, max_waiting=2)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        calls = [stub.Search(search.Query(text="sleep 0.05")) for _ in range(3)]
        with pytest.raises(BackendsFull, match="2 calls wait already"):
            await stub.Search(search.Query())
        await asyncio.gather(*calls)


async def test_the_most_critical_of_those_that_wait_goes_first(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        order: list[str] = []
        calls = [stub.Search(search.Query(text="sleep 0.02"))]
        for name in (
            "SHEDDABLE",
            "CRITICAL",
            "SHEDDABLE_PLUS",
            "CRITICAL",
            "CRITICAL_PLUS",
        ):
            with lbclient.criticality(name):
                call = stub.Search(search.Query())
            label = f"{name} {len(calls)}"
            call.add_done_callback(lambda _, label=label: order.append(label))
            calls.append(call)
        await asyncio.gather(*calls)
    assert order == [
        "CRITICAL_PLUS 5",
        "CRITICAL 2",
        "CRITICAL 4",
        "SHEDDABLE_PLUS 3",
        "SHEDDABLE 1",
    ]


async def test_where_too_many_wait_the_last_of_the_least_critical_gives_way(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1, max_waiting=3)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)

        def begin(name: str) -> Any:
            with lbclient.criticality(name):
                return stub.Search(search.Query(text="sleep 0.02"), timeout=5)

        names = ("CRITICAL", "SHEDDABLE", "SHEDDABLE", "CRITICAL", "CRITICAL_PLUS")
        running, kept, lost, *others = [begin(name) for name in names]
        assert lost.done()
        assert channel.statistics().waiting == 3
        again: list[Any] = []
        # Whoever hears of it may call again, and finds no place.
        kept.add_done_callback(lambda _: again.append(begin("SHEDDABLE")))
        others.append(begin("CRITICAL"))
        for call in (lost, kept, again[0], begin("SHEDDABLE_PLUS"), begin("CRITICAL")):
            with pytest.raises(BackendsFull, match="3 calls wait already"):
                await call
        await asyncio.gather(running, *others)
        said = channel.statistics()
    assert said.calls == {"OK": 4, "RESOURCE_EXHAUSTED": 5}
    assert said.attempts["served"] == 4


async def test_a_deadline_ends_the_wait_and_frees_the_place(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 60"))
        waiting = stub.Search(search.Query(), timeout=0.05)
        with pytest.raises(DeadlineWhileWaiting, match="1 full") as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert channel.statistics().waiting == 0
        assert lbclient.info(waiting).backend is None
        running.cancel()


async def test_a_call_cancelled_while_it_waits_is_never_sent(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 0.1"))
        waiting = stub.Search(search.Query())
        told: list[object] = []
        waiting.add_done_callback(told.append)
        assert waiting.cancel()
        assert told == [waiting]
        assert waiting.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await running
        assert task.servicer.served == 1


async def test_cancelling_who_only_watches_leaves_the_call_alone(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 0.1"))
        waiting = stub.Search(search.Query())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting.code(), 0.02)
        assert (await waiting).text
        await running


async def test_nobody_there_fails_fast_and_says_who_was_tried(search: Any) -> None:
    address = closed_port()
    async with lbclient.insecure_channel(address) as channel:
        stub = search.SearchStub(channel)
        with pytest.raises(NoBackend, match="1 refusing") as caught:
            await stub.Search(search.Query(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert address in str(caught.value.details())
        call = stub.Pages(search.Query())
        with pytest.raises(NoBackend):
            await call.read()
        assert call.done()


async def test_wait_for_ready_waits_until_somebody_is_there(
    start: Any, search: Any
) -> None:
    address = closed_port()
    async with lbclient.insecure_channel(address) as channel:
        stub = search.SearchStub(channel)
        with pytest.raises(NoBackend):
            await stub.Search(search.Query())
        call = stub.Search(search.Query(), wait_for_ready=True, timeout=10)
        await let_pass(0.05)
        assert not call.done()
        await start(port=int(address.rpartition(":")[2]))
        assert (await call).text


async def test_wait_for_ready_ends_at_the_deadline(search: Any) -> None:
    async with lbclient.insecure_channel(closed_port()) as channel:
        stub = search.SearchStub(channel)
        why = r"1 refusing \(as 127\.0\.0\.1:\d+: cannot connect: .*refused"
        with pytest.raises(DeadlineWhileWaiting, match=why):
            await stub.Search(search.Query(), wait_for_ready=True, timeout=0.2)


async def test_a_deadline_says_that_it_is_the_resolver_that_has_not_answered(
    search: Any,
) -> None:
    """It said "0 of 0 backends ready", as if there were none."""

    class Silent:
        async def watch(self) -> AsyncIterator[Endpoints]:
            await asyncio.Event().wait()
            yield ()

    async with lbclient.insecure_channel(Silent()) as channel:
        stub = search.SearchStub(channel)
        why = "0 of 0 backends ready, as the resolver has not answered yet"
        with pytest.raises(DeadlineWhileWaiting, match=why):
            await stub.Search(search.Query(), timeout=0.2)


async def test_a_deadline_says_why_the_resolver_fails(search: Any) -> None:
    class Failing:
        async def watch(self) -> AsyncIterator[Endpoints]:
            raise ResolveError("DNS lookup of 'search.test' failed: SERVFAIL")
            yield ()

    async with lbclient.insecure_channel(Failing()) as channel:
        stub = search.SearchStub(channel)
        why = r"SERVFAIL \(0 of 0 backends ready\)"
        with pytest.raises(DeadlineWhileWaiting, match=why):
            await stub.Search(search.Query(), wait_for_ready=True, timeout=0.2)


@pytest.mark.parametrize("timeout", [0, -1])
async def test_no_time_at_all_is_a_deadline_exceeded(
    start: Any, search: Any, timeout: float
) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address) as channel:
        with pytest.raises(DeadlineWhileWaiting):
            await search.SearchStub(channel).Search(search.Query(), timeout=timeout)


# --- what is over before it is sent ---------------------------------------------------

KINDS = ("Search", "Pages", "Index", "Chat")


def begin(stub: Any, search: Any, kind: str, timeout: float | None) -> Any:
    method = getattr(stub, kind)
    if kind in ("Search", "Pages"):
        return method(search.Query(), timeout=timeout)
    return method(timeout=timeout)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeout", [0.0, -1.0, None])
async def test_what_is_over_before_it_is_sent_says_nothing_of_a_backend(
    start: Any, search: Any, kind: str, timeout: float | None
) -> None:
    """By its deadline, or as it is cancelled at once: without a timeout."""
    task = await start(lbclient.server)
    config = ChannelConfig(active_limit=1)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        call = begin(search.SearchStub(channel), search, kind, timeout)
        heard: list[Any] = []
        if timeout is None:
            call.add_done_callback(heard.append)
            assert call.cancel()
            assert heard == [call]
        code = await call.code()
        said = channel.statistics()
        info = lbclient.info(call)
        assert (info.backend, info.attempts) == (None, 0)
        assert (said.in_flight, said.retries_left) == (0, 0.0)
        assert set(said.attempts.values()) == {0}
        assert said.calls == {code.name: 1}
        assert said.latency.counts == (0,) * len(said.latency.counts)
        (backend,) = said.backends
        assert (backend.started, backend.last_error) == (0, "")
        # Its place is free again.
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
    wanted = "CANCELLED" if timeout is None else "DEADLINE_EXCEEDED"
    assert code.name == wanted
    assert task.servicer.served == 1


async def test_a_deadline_that_has_passed_is_told_in_words(
    start: Any, search: Any
) -> None:
    task = await start()
    async with lbclient.insecure_channel(task.address) as channel:
        await channel.channel_ready()
        with pytest.raises(DeadlineWhileWaiting, match=r"after.* 1 of 1 backends"):
            await search.SearchStub(channel).Search(search.Query(), timeout=0)


async def test_what_ends_here_is_counted_by_its_reason_and_tells_counts(
    start: Any, search: Any
) -> None:
    task = await start()
    config = ChannelConfig(active_limit=1, max_waiting=0)
    async with lbclient.insecure_channel(task.address, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)
        running = stub.Search(search.Query(text="sleep 0.02"))
        for wanted, timeout in ((BackendsFull, 5), (DeadlineWhileWaiting, 0)):
            with pytest.raises(wanted, match="of 1 backends ready"):
                await stub.Search(search.Query(), timeout=timeout)
        await running
        refused = channel.statistics().refused
    assert {reason for reason, calls in refused.items() if not calls} == {
        "no-backend",
        "throttled",
        "quota",
    }
    assert (refused["full"], refused["deadline"]) == (1, 1)
    for resolver in (closed_port(), Empty()):
        async with lbclient.insecure_channel(resolver) as channel:
            with pytest.raises(NoBackend, match=r"0 of [01] backends"):
                await search.SearchStub(channel).Search(search.Query(), timeout=5)
            assert channel.statistics().refused["no-backend"] == 1


class Empty:
    """A resolver that knows of nobody."""

    async def watch(self) -> AsyncIterator[Endpoints]:
        yield ()
        await asyncio.Event().wait()
