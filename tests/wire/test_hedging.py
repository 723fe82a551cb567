"""Hedged calls over loopback: who gets what, who hears what, and what is counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lbclient
from lbclient import wire
from lbclient.config import ChannelConfig
from lbclient.core.retries.hedging import BURST
from lbclient.grpc_seam import give_up
from lbclient.metrics import opentelemetry
from lbclient.metrics.spans import HEDGE
from lbclient.pickers import RoundRobin
from tests.hosts import PATH, Hosted, hosting, unary_stream, unary_unary
from tests.waiting import eventually, let_pass

OTHER = "/test.Service/Other"  # not idempotent
PAGES = "/test.Service/Pages"  # streams three messages
SHORT = 0.02  # seconds: the hedging delay
LONG = 30.0  # seconds, which nobody waits

Behavior = Callable[[bool, Any], Awaitable[bytes]]


class Fleet:
    """Servers that do as they are told, and what arrived there."""

    def __init__(self, channel: lbclient.Channel, hosts: list[Hosted]) -> None:
        self.channel = channel
        self.hosts = hosts
        self.arrived = Counter[str]()  # by method
        self.metadata: list[dict[str, Any]] = []
        self.in_flight = self.cancelled = 0
        self.behave: Behavior = at_once
        self.pause = 0.0  # between two messages

    async def pages(self, context: Any) -> AsyncIterator[bytes]:
        first = await self.handle(PAGES, context)
        for number in range(3):
            yield first + b" %d" % number
            self.in_flight += 1
            try:
                await asyncio.sleep(self.pause)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.in_flight -= 1

    async def handle(self, path: str, context: Any) -> bytes:
        self.arrived[path] += 1
        metadata = dict(context.invocation_metadata())
        self.metadata.append(metadata)
        self.in_flight += 1
        try:
            return await self.behave(wire.ATTEMPT_KEY in metadata, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    def call(
        self, path: str = PATH, timeout: float | None = LONG, **options: Any
    ) -> Any:
        return self.channel.unary_unary(path)(b"", timeout=timeout, **options)

    async def earn(self, calls: int = 60, path: str = OTHER) -> None:
        """Calls that bring hedges; they are not hedged, however busy the machine is."""
        for _ in range(calls):
            await self.call(path)

    async def one_has_failed(self) -> None:
        """The client knows of an attempt that failed."""
        await eventually(lambda: self.channel.statistics().attempts["failed"])

    async def decided(self, calls: int) -> Any:
        """So many calls have outlived the delay; returns the statistics."""
        said = self.channel.statistics
        await eventually(
            lambda: said().hedges + sum(said().hedges_withheld.values()) == calls, said
        )
        return said()

    async def is_over(self) -> None:
        """Nothing is in flight, and no backend has failed."""
        await eventually(lambda: not self.in_flight)
        said = self.channel.statistics
        await eventually(lambda: said().in_flight == 0, said)
        assert said().waiting == 0
        assert [one.in_flight for one in said().backends] == [0] * len(self.hosts)


async def end(calls: list[Any]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*map(wait_for, calls), return_exceptions=True)


async def at_once(is_hedge: bool, context: Any) -> bytes:
    return b"hedge" if is_hedge else b"first"


async def stall_first(is_hedge: bool, context: Any) -> bytes:
    if not is_hedge:
        await asyncio.sleep(LONG)
    context.set_trailing_metadata((("said-by", "hedge"),))
    return b"hedge"


async def stall_all(is_hedge: bool, context: Any) -> bytes:
    await asyncio.sleep(LONG)
    return b""


def one_refused(it: Fleet, fails: str) -> Behavior:
    """The "first" attempt or the "hedge" is refused while the other one is in flight,
    which answers after that."""

    async def behave(is_hedge: bool, context: Any) -> bytes:
        if is_hedge == (fails == "hedge"):
            await eventually(lambda: it.in_flight == 2)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        await it.one_has_failed()
        return b"other"

    return behave


@asynccontextmanager
async def fleet(
    size: int = 2, interceptors: Any = None, **settings: Any
) -> AsyncIterator[Fleet]:
    settings = {
        "hedging": True, "hedging_delay": SHORT, "hedging_budget": 0.1,
        "idempotent": (PATH, PAGES), "picker": "round_robin", **settings,
    }  # fmt: skip
    found: Fleet

    def handler(path: str) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            return await found.handle(path, context)

        return unary_unary(handle)

    async def pages(request: bytes, context: Any) -> AsyncIterator[bytes]:
        async for page in found.pages(context):
            yield page

    async with AsyncExitStack() as stack:
        methods = {path: handler(path) for path in (PATH, OTHER)}
        methods[PAGES] = unary_stream(pages)
        hosts = [
            await stack.enter_async_context(hosting(methods, max_load=0))
            for _ in range(size)
        ]
        target = "ipv4:" + ",".join(host.address for host in hosts)
        channel = await stack.enter_async_context(
            lbclient.insecure_channel(
                target, config=ChannelConfig(**settings), interceptors=interceptors
            )
        )
        found = Fleet(channel, hosts)
        await channel.channel_ready()
        pool = channel.balancer().pool
        await eventually(lambda: len(pool.ready) == size)
        yield found


async def test_the_hedge_answers_where_the_first_attempt_stalls() -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_first
        it.metadata.clear()
        call = it.call()
        done: list[Any] = []
        call.add_done_callback(done.append)
        assert await call == b"hedge"
        assert done == [call]
        assert await call == b"hedge"
        assert await call.code() is grpc.StatusCode.OK
        assert ("said-by", "hedge") in tuple(await call.trailing_metadata())
        assert (call.done(), call.cancelled(), call.cancel()) == (True, False, False)

        first, hedge = it.metadata
        assert wire.ATTEMPT_KEY not in first
        assert hedge[wire.ATTEMPT_KEY] == "1"
        assert hedge[wire.CRITICALITY_KEY] == "SHEDDABLE_PLUS"
        told = lbclient.info(call)
        assert (told.hedge, told.attempts, told.history) == ("won", 2, ())

        await it.is_over()
        assert it.cancelled == 1
        said = it.channel.statistics()
    assert (said.hedges, said.hedges_won, said.retries) == (1, 1, 0)
    assert said.calls == {"OK": 61}
    assert said.sent_attempts == {"0": 61, "1": 1, "2": 0}
    assert {k: v for k, v in said.attempts.items() if v} == {
        "served": 61,
        "abandoned": 1,
    }
    assert (said.ejected, said.throttle) == (0, ())


async def test_a_first_attempt_that_answers_cancels_its_hedge() -> None:
    async with fleet() as it:
        await it.earn()
        release = asyncio.Event()

        async def behave(is_hedge: bool, context: Any) -> bytes:
            await (asyncio.sleep(LONG) if is_hedge else release.wait())
            return b"first"

        it.behave = behave
        call = it.call()
        await eventually(lambda: it.in_flight == 2)
        assert lbclient.info(call).hedge == "sent"
        release.set()
        assert await call == b"first"
        assert lbclient.info(call).hedge == "lost"
        await it.is_over()
        said = it.channel.statistics()
    assert it.cancelled == 1
    assert (said.hedges, said.hedges_won, said.calls) == (1, 0, {"OK": 61})


async def test_a_call_that_is_not_idempotent_is_never_sent_twice() -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_first
        calls = [it.call(OTHER) for _ in range(20)]
        await eventually(lambda: it.in_flight == 20)
        await let_pass(5 * SHORT)
        assert it.in_flight == 20
        await end(calls)
        await it.is_over()
        assert it.arrived[OTHER] == 80
        said = it.channel.statistics()
    assert (said.hedges, sum(said.hedges_withheld.values())) == (0, 0)


async def test_where_all_backends_stall_no_more_is_sent_than_the_budget() -> None:
    async with fleet(hedging_budget=0.02) as it:
        await it.earn(200)
        it.behave = stall_all
        calls = [it.call() for _ in range(50)]
        said = await it.decided(50)
        await eventually(lambda: it.in_flight == 50 + said.hedges)
        await end(calls)
        await it.is_over()
    assert it.arrived[PATH] == 50 + said.hedges
    assert said.hedges <= 0.02 * 200 + 1
    assert said.hedges_withheld["budget"] + said.hedges_withheld["slow"] >= 45
    assert it.channel.statistics().calls == {"OK": 200, "CANCELLED": 50}


async def test_while_most_calls_are_slow_none_is_hedged() -> None:
    async with fleet(hedging_budget=0.1, active_limit=1000) as it:
        await it.earn(200)
        it.behave = stall_all
        calls = [it.call() for _ in range(50)]
        said = await it.decided(50)
        await end(calls)
    assert said.hedges <= BURST + 1
    assert said.hedges_withheld["slow"] > 30


async def test_a_call_without_another_backend_is_not_hedged() -> None:
    async with fleet(size=1) as it:
        await it.earn()
        it.behave = stall_first
        call = it.call()
        said = await it.decided(1)
        await end([call])
        await it.is_over()
    assert it.arrived[PATH] == 1
    assert said.hedges_withheld["no-backend"] == 1


@pytest.mark.parametrize("how", ["cancel", "task"])
async def test_a_caller_that_gives_up_cancels_both_attempts(how: str) -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_all
        call = it.call()
        task = asyncio.ensure_future(wait_for(call))
        await eventually(lambda: it.in_flight == 2)
        assert call.cancel() if how == "cancel" else task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (call.done(), call.cancelled(), call.cancel()) == (True, True, False)
        assert await call.code() is grpc.StatusCode.CANCELLED
        await it.is_over()
        said = it.channel.statistics()
    assert it.cancelled == 2
    assert said.calls == {"OK": 60, "CANCELLED": 1}
    assert said.attempts["abandoned"] == 2


async def wait_for(call: Any) -> Any:
    return await call


async def test_a_call_is_cancelled_before_it_is_sent() -> None:
    """In the turn of the loop in which it was made: `cancel` raised AttributeError."""
    async with fleet() as it:
        calls = [it.call(), it.channel.unary_stream(PAGES)(b"", timeout=LONG)]
        assert [call.cancel() for call in calls] == [True, True]
        assert [call.done() for call in calls] == [True, True]
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        assert await calls[1].code() is grpc.StatusCode.CANCELLED
        await it.is_over()
        assert not it.arrived


async def test_both_attempts_end_by_the_callers_deadline() -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_all
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.call(timeout=0.5)
        code = error.value.code()
        # The server's timer may be first, whose status then is CANCELLED.
        assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        await it.is_over()
        said = it.channel.statistics()
    assert it.arrived[PATH] == 1 + said.hedges
    assert said.calls == {"OK": 60, code.name: 1}


@pytest.mark.parametrize("fails", ["first", "hedge"])
async def test_an_attempt_that_is_refused_leaves_the_call_to_the_other(
    fails: str,
) -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = one_refused(it, fails)
        call = it.call()
        assert await call == b"other"
        told = lbclient.info(call)
        await it.is_over()
        said = it.channel.statistics()
    assert it.arrived[PATH] == 2
    assert told.hedge == ("lost" if fails == "hedge" else "won")
    assert told.attempts == 2
    assert [line.split(": ")[1] for line in told.history] == ["UNAVAILABLE, 'not now'"]
    assert (said.calls, said.retries) == ({"OK": 61}, 0)


@pytest.mark.parametrize("how", ["stops", "is given up"])
async def test_a_backend_that_is_lost_leaves_the_call_to_the_hedge(how: str) -> None:
    async with fleet() as it:
        await it.earn()
        released = asyncio.Event()

        async def behave(is_hedge: bool, context: Any) -> bytes:
            await released.wait()
            return b"hedge"

        it.behave = behave
        call = it.call()
        await eventually(lambda: it.in_flight == 2)
        address = lbclient.info(call).backend
        [host] = [one for one in it.hosts if one.address == address]
        task = asyncio.ensure_future(wait_for(call))
        if how == "stops":
            await host.server.stop(None)
        else:
            nodes = it.channel.balancer().pool.nodes
            give_up(nodes[host.address].channel, "it is frozen")
        await it.one_has_failed()
        released.set()
        assert await task == b"hedge"
        assert lbclient.info(call).hedge == "won"


async def test_a_third_attempt_follows_where_both_are_refused() -> None:
    async with fleet(size=3) as it:
        await it.earn()
        both = asyncio.Event()

        async def behave(is_hedge: bool, context: Any) -> bytes:
            number = dict(context.invocation_metadata()).get(wire.ATTEMPT_KEY)
            if number == "2":
                return b"third"
            if number == "1":
                both.set()
            await both.wait()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return b""

        it.behave = behave
        call = it.call()
        assert await call == b"third"
        assert len(lbclient.info(call).history) == 2
        await it.is_over()
        said = it.channel.statistics()
    assert said.sent_attempts == {"0": 61, "1": 1, "2": 1}
    assert it.arrived[PATH] == 3


@pytest.mark.parametrize("first", ["stalls", "is refused"])
async def test_an_answer_of_the_application_counts_whoever_gives_it(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trailers of each attempt that failed are parsed once."""
    parsed = []

    def read_trailers(code: int, trailers: Any) -> Any:
        parsed.append(code)
        return read(code, trailers)

    read = wire.read_trailers
    monkeypatch.setattr(wire, "read_trailers", read_trailers)
    async with fleet() as it:
        await it.earn()

        async def behave(is_hedge: bool, context: Any) -> bytes:
            if is_hedge:
                if first == "is refused":
                    await it.one_has_failed()
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
            if first == "is refused":
                await eventually(lambda: it.in_flight == 2)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            await asyncio.sleep(LONG)
            return b""

        it.behave = behave
        call = it.call()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        assert lbclient.info(call).hedge == "won"
        await it.is_over()
        said = it.channel.statistics()
    assert said.calls == {"OK": 60, "NOT_FOUND": 1}
    assert said.hedges_won == 1
    assert (it.arrived[PATH], it.cancelled) == (2, first == "stalls")
    refused = [grpc.StatusCode.UNAVAILABLE.value[0]] * (first == "is refused")
    assert parsed == [*refused, grpc.StatusCode.NOT_FOUND.value[0]]


async def test_a_hedge_that_breaks_fails_no_call() -> None:
    async with fleet() as it:
        await it.earn()

        async def behave(is_hedge: bool, context: Any) -> bytes:
            if is_hedge:
                await context.abort(grpc.StatusCode.INTERNAL, "it broke")
            await it.one_has_failed()
            return b"first"

        it.behave = behave
        assert await it.call() == b"first"
        await it.is_over()


async def test_each_of_two_attempts_has_a_span_and_the_call_one_duration() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with fleet() as it:
        await it.earn()
        opentelemetry.trace(it.channel, provider)
        observers = it.channel.balancer().observers
        times = observers.keep_times(lambda: None, measures=True)
        it.behave = stall_first
        assert await it.call() == b"hedge"
        await it.is_over()
        method = times.of(("unary_unary", PATH))
        timed = {(what, code): sum(each.counts) for what, code, each in method.read()}
        bytes_of = {(what, code): each.sum for what, code, each in method.read()}
    spans = {str(span.attributes.get("lbclient.attempt")): span  # type: ignore[union-attr]
             for span in exporter.get_finished_spans()}  # fmt: skip
    call, first, hedge = spans["None"], spans["1"], spans["2"]
    assert first.parent == hedge.parent == call.context
    assert call.status.is_ok
    assert hedge.status.is_ok
    assert (hedge.attributes or {})["lbclient.reason"] == HEDGE
    assert (first.attributes or {})["lbclient.verdict"] == "abandoned"
    cancelled = grpc.StatusCode.CANCELLED.value[0]
    ended = {key: count for key, count in timed.items() if count}
    each = {(what, code): 1 for what in ("attempt", "sent", "received")
            for code in (0, cancelled)}  # fmt: skip
    assert ended == {("call", 0): 1, **each}
    assert bytes_of["received", 0] == len(b"hedge")
    assert bytes_of["received", cancelled] == 0.0
    assert bytes_of["sent", 0] == bytes_of["sent", cancelled]
    inbound = [event.name for event in hedge.events if event.name.startswith("Inb")]
    assert inbound == ["Inbound message"]


class Counting(grpc.aio.UnaryUnaryClientInterceptor):
    calls = 0

    async def intercept_unary_unary(
        self, continuation: Any, details: Any, request: Any
    ) -> Any:
        self.calls += 1
        return await continuation(details, request)


async def test_interceptors_run_once_for_a_hedged_call() -> None:
    counting = Counting()
    async with fleet(interceptors=[counting]) as it:
        await it.earn()
        it.behave = stall_first
        call = it.call()
        assert await call == b"hedge"
        assert lbclient.info(call).hedge == "won"
        await it.is_over()
    assert counting.calls == 61
    assert it.arrived[PATH] == 2


async def messages_of(call: Any, how: str) -> list[bytes]:
    if how == "iterate":
        return [message async for message in call]
    found = []
    while (message := await call.read()) is not grpc.aio.EOF:
        found.append(message)
    return found


@pytest.mark.parametrize("how", ["iterate", "read"])
async def test_a_stream_is_hedged_before_its_first_message(how: str) -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_first
        call = it.channel.unary_stream(PAGES)(b"", timeout=LONG)
        assert await messages_of(call, how) == [b"hedge 0", b"hedge 1", b"hedge 2"]
        assert await call.code() is grpc.StatusCode.OK
        assert ("said-by", "hedge") in tuple(await call.trailing_metadata())
        told = lbclient.info(call)
        assert (told.hedge, told.attempts) == ("won", 2)
        await it.is_over()
        said = it.channel.statistics()
    assert (it.arrived[PAGES], it.cancelled) == (2, 1)
    assert (said.calls, said.hedges_won) == ({"OK": 61}, 1)


class Learning(RoundRobin):
    """Keeps what it is told of each attempt on PAGES."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.told: list[tuple[str, bool]] = []

    def pick_for(self, call: Any, ready: Any, now: float) -> Any:
        return self.pick(ready, now)

    def answered(self, call: Any, backend: Any, seconds: Any, now: float) -> None:
        if call.method == PAGES:
            self.told.append((backend.endpoint.address, seconds is not None))


@pytest.mark.parametrize("ends", ["ok", "cancelled"])
@pytest.mark.parametrize("wins", ["first", "hedge"])
async def test_a_picker_is_told_once_of_each_attempt_of_a_stream(
    wins: str, ends: str
) -> None:
    """Of a first attempt that won it was told twice, and the attempt was kept for the
    channel's life."""
    async with fleet(picker=Learning) as it:
        await it.earn()
        release = asyncio.Event()

        async def behave(is_hedge: bool, context: Any) -> bytes:
            is_winner = is_hedge == (wins == "hedge")
            await (release.wait() if is_winner else asyncio.sleep(LONG))
            return b""

        it.behave = behave
        call = it.channel.unary_stream(PAGES)(b"", timeout=LONG)
        await eventually(lambda: it.in_flight == 2)
        if ends == "cancelled":
            it.pause = LONG
        release.set()
        if ends == "ok":
            assert len(await messages_of(call, "iterate")) == 3
        else:
            assert await call.read()
            call.cancel()
            await call.code()
        assert lbclient.info(call).hedge == ("won" if wins == "hedge" else "lost")
        await it.is_over()
        [winner] = {lbclient.info(call).backend}
        [loser] = {host.address for host in it.hosts} - {winner}
        pickers = it.channel.balancer().pickers
        assert isinstance(pickers.current, Learning)
        assert sorted(pickers.current.told) == sorted([(winner, True), (loser, False)])
        assert "<0 streams" in repr(pickers.answers)


async def test_a_resumable_stream_whose_hedge_won_is_counted_and_asked() -> None:
    async with fleet() as it:
        await it.earn()
        it.behave, it.pause = stall_first, LONG
        moving = asyncio.Event()
        with lbclient.resumable(moving.set):
            call = it.channel.unary_stream(PAGES)(b"", timeout=LONG)
        assert await call.read() == b"hedge 0"
        await eventually(lambda: it.cancelled == 1)
        said = it.channel.statistics
        await eventually(lambda: said().resumable_streams == 1, said)
        backend = lbclient.info(call).backend
        next(host for host in it.hosts if host.address == backend).server.lame_duck()
        await eventually(moving.is_set, turns=4000)
        await end([call])
        await eventually(lambda: said().resumable_streams == 0, said)


async def test_a_stream_that_has_begun_is_not_hedged_however_slow_it_is() -> None:
    async with fleet(hedging_delay=LONG) as it:
        await it.earn()
        it.pause = LONG
        call = it.channel.unary_stream(PAGES)(b"", timeout=2 * LONG)
        assert await call.read() == b"first 0"
        await eventually(lambda: call._timer is None)
        assert not call.done()
        await end([call])
        await it.is_over()
    assert it.arrived[PAGES] == 1


@pytest.mark.parametrize("fails", ["first", "hedge"])
async def test_a_refused_attempt_of_a_stream_has_no_headers(fails: str) -> None:
    """grpc.aio tells of its headers, of which there are none, before its status."""
    async with fleet() as it:
        await it.earn()
        it.behave = one_refused(it, fails)
        call = it.channel.unary_stream(PAGES)(b"", timeout=LONG)
        assert len(await messages_of(call, "iterate")) == 3
        await it.is_over()
        said = it.channel.statistics()
    assert said.calls == {"OK": 61}
    assert (said.hedges, said.retries) == (1, 0)
    assert said.hedges_won == (fails == "first")


async def test_a_stream_that_is_dropped_cancels_both_attempts() -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_all
        call = it.channel.unary_stream(PAGES)(b"", timeout=LONG)
        await eventually(lambda: it.in_flight == 2)
        assert not call.done()
        del call
        await it.is_over()
        said = it.channel.statistics()
    assert it.cancelled == 2
    assert said.calls == {"OK": 60, "CANCELLED": 1}


async def test_a_channel_that_closes_ends_both_attempts() -> None:
    async with fleet() as it:
        await it.earn()
        it.behave = stall_all
        call = it.call()
        await eventually(lambda: it.in_flight == 2)
        await it.channel.close()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        await eventually(lambda: not it.in_flight)
        assert call.done()


async def test_the_delay_follows_the_latency_of_the_method() -> None:
    """No setting tells it: a hundred calls do."""
    async with fleet(hedging_delay=None) as it:
        it.behave = stall_first
        call = it.call()
        await eventually(lambda: it.in_flight == 1)
        await let_pass(5 * SHORT)
        assert it.in_flight == 1  # nothing is known: no hedge
        await end([call])
        it.behave = at_once
        await it.earn(150, PATH)
        await it.earn()  # on a busy machine some of these were hedged
        it.behave = stall_first
        assert await it.call() == b"hedge"
        await it.is_over()


async def test_by_default_nothing_is_hedged() -> None:
    assert not ChannelConfig().hedging
    async with fleet(hedging=False) as it:
        await it.earn()
        it.behave = stall_first
        call = it.call()
        await eventually(lambda: it.in_flight == 1)
        await let_pass(5 * SHORT)
        await end([call])
        said = it.channel.statistics()
    assert it.arrived[PATH] == 1
    assert (said.hedges, said.hedges_withheld) == (0, {})
