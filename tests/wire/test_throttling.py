"""Criticality travels with a call, and a client holds back what would be refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import Criticality, wire
from lbclient.config import ChannelConfig
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import ATTEMPTS, RATIO
from lbclient.core.throttles.throttle import COLD
from lbclient.proxy import Forwarder
from tests.hosts import (
    Methods,
    hosting,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from tests.waiting import eventually
from tests.wire.conftest import earn

CALLS = round(COLD) + 200
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Refusing:
    """A server that refuses as long as `word` is one, and notes what it is told."""

    def __init__(
        self,
        word: str = "",
        pushback: str | None = None,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
    ) -> None:
        self.word = word
        self._code = code
        self._told = () if pushback is None else ((wire.PUSHBACK_KEY, pushback),)
        self.told: list[Any] = []

    async def _take(self, context: Any) -> None:
        told = dict(context.invocation_metadata())
        self.told.append(told.get(wire.CRITICALITY_KEY))
        if self.word:
            trailers = ((wire.REFUSAL_KEY, self.word), *self._told)
            await context.abort(self._code, "too much", trailers)

    async def unary(self, request: Any, context: Any) -> bytes:
        await self._take(context)
        return b"done"

    async def stream(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        await self._take(context)
        yield b"done"

    def methods(self) -> Methods:
        return {
            "/test.Any/unary_unary": unary_unary(self.unary),
            "/test.Any/unary_stream": unary_stream(self.stream),
            "/test.Any/stream_unary": stream_unary(self.unary),
            "/test.Any/stream_stream": stream_stream(self.stream),
        }


@asynccontextmanager
async def to(
    *backends: Refusing, config: ChannelConfig | None = None
) -> AsyncIterator[lbclient.Channel]:
    """A channel to servers that do as told."""
    async with AsyncExitStack() as stack:
        addresses = []
        for backend in backends:
            hosted = hosting(backend.methods(), server=grpc.aio.server())
            addresses.append((await stack.enter_async_context(hosted)).address)
        target = "ipv4:" + ",".join(addresses)
        async with lbclient.insecure_channel(target, config=config) as channel:
            await channel.channel_ready()
            yield channel


async def call(channel: lbclient.Channel, kind: str = "unary_unary", **how: Any) -> Any:
    method = getattr(channel, kind)(f"/test.Any/{kind}")
    request = iter([b"x"]) if kind.startswith("stream") else b"x"
    made = method(request, timeout=5, **how)
    if kind.endswith("stream"):
        return [answer async for answer in made]
    return await made


# --- criticality -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_carries_the_criticality_of_its_context(kind: str) -> None:
    server = Refusing()
    async with to(server) as channel:
        await call(channel, kind)
        with lbclient.criticality(Criticality.SHEDDABLE):
            await call(channel, kind)
            async with asyncio.TaskGroup() as group:
                group.create_task(call(channel, kind))
            with lbclient.criticality(Criticality.CRITICAL):
                await call(channel, kind)
        await call(channel, kind)
    assert server.told == [None, "SHEDDABLE", "SHEDDABLE", "CRITICAL", None]


async def test_what_a_call_says_itself_comes_first_and_the_channel_last() -> None:
    server = Refusing()
    own = ((wire.CRITICALITY_KEY, "CRITICAL_PLUS"), ("other", "kept"))
    config = ChannelConfig(criticality="SHEDDABLE_PLUS")
    async with to(server, config=config) as channel:
        await call(channel)
        with lbclient.criticality(Criticality.SHEDDABLE):
            await call(channel)
            await call(channel, metadata=own)
    assert server.told == ["SHEDDABLE_PLUS", "SHEDDABLE", "CRITICAL_PLUS"]


@pytest.mark.parametrize("said", [*Criticality.__members__, None])
async def test_what_was_said_holds_below_a_channel_with_a_default_of_its_own(
    said: str | None,
) -> None:
    """CRITICAL, being everybody's default, was not sent, and so was lost."""
    below = Refusing()
    config = ChannelConfig(criticality="SHEDDABLE_PLUS")
    async with to(below, config=config) as inner:

        async def hand_on(request: bytes, context: Any) -> bytes:
            return bytes(await call(inner))

        methods = {"/test.Any/unary_unary": unary_unary(hand_on)}
        for above in (hosting(methods), hosting(handlers=[Forwarder(inner)])):
            async with above as (_, address, _):
                with lbclient.criticality(said) if said else nullcontext():
                    async with lbclient.insecure_channel(address) as channel:
                        await call(channel)
    assert below.told == [said or "SHEDDABLE_PLUS"] * 2


async def test_what_was_said_reaches_the_fourth_layer() -> None:
    below = Refusing()
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(to(below))
        for _ in range(3):
            above = hosting(handlers=[Forwarder(channel)])
            _, address, _ = await stack.enter_async_context(above)
            channel = lbclient.insecure_channel(address)
            await stack.enter_async_context(channel)
        with lbclient.criticality("SHEDDABLE"):
            await call(channel)
    assert below.told == ["SHEDDABLE"]


@pytest.mark.parametrize("said", Criticality.__members__)
async def test_a_deadline_is_the_callers_whatever_the_criticality(said: str) -> None:
    left: list[float | None] = []

    async def tell(request: bytes, context: Any) -> bytes:
        left.append(context.time_remaining())
        return b"done"

    methods = {"/test.Any/unary_unary": unary_unary(tell)}
    async with (
        hosting(methods, server=grpc.aio.server()) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        method = channel.unary_unary("/test.Any/unary_unary")
        with lbclient.criticality(said):
            await method(b"")
            await method(b"", timeout=60)
    assert left[0] is None
    assert left[1] == pytest.approx(60.0, abs=30.0)


async def test_a_channel_of_everybodys_default_says_so_if_it_was_set() -> None:
    """Or a channel further down, with a default of its own, takes it for none."""
    server = Refusing()
    for config in (ChannelConfig(), ChannelConfig(criticality="CRITICAL")):
        async with to(server, config=config) as channel:
            await call(channel)
    assert server.told == [None, "CRITICAL"]


async def test_of_several_criticalities_the_client_goes_by_the_last() -> None:
    """As the server does: it was throttled by one, and refused by another."""
    told = tuple((wire.CRITICALITY_KEY, c) for c in ("CRITICAL_PLUS", "SHEDDABLE"))
    server = Refusing(Refusal.DONT_RETRY.value)
    async with to(server) as channel:
        with pytest.raises(lbclient.Throttled, match="SHEDDABLE requests"):
            await until_throttled(channel, told)


async def until_throttled(channel: lbclient.Channel, metadata: Any) -> None:
    for _ in range(CALLS):
        try:
            await call(channel, metadata=metadata)
        except lbclient.Throttled:
            raise
        except grpc.aio.AioRpcError:
            pass


def test_a_criticality_has_a_name_that_is_one() -> None:
    with lbclient.criticality("SHEDDABLE"):
        pass
    with (
        pytest.raises(lbclient.ConfigError, match="CRITICAL_PLUS"),
        lbclient.criticality("urgent"),
    ):
        pass


# --- throttling --------------------------------------------------------------------


async def refused(channel: lbclient.Channel, count: int) -> list[grpc.aio.AioRpcError]:
    """What so many calls, one after another, raise."""
    errors = []
    for _ in range(count):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
        errors.append(caught.value)
    return errors


async def test_a_client_holds_back_what_would_be_refused() -> None:
    server = Refusing(Refusal.DONT_RETRY.value)
    async with to(server) as channel:
        errors = await refused(channel, CALLS)
        said = channel.statistics()
        here = [error for error in errors if isinstance(error, lbclient.Throttled)]
        assert said.refused["throttled"] == said.throttled
        assert len(here) == said.throttled == CALLS - len(server.told) > 0
        assert said.calls == {"UNAVAILABLE": CALLS}
        assert said.attempts["rejected"] == len(server.told)
        assert "0 were accepted" in str(here[-1])
        assert f"{len(here)} here" in str(here[-1])
        # Of another criticality nothing was refused.
        before = len(server.told)
        with lbclient.criticality(Criticality.CRITICAL_PLUS):
            await refused(channel, 20)
        assert len(server.told) == before + 20


async def test_a_client_that_shall_not_throttle_does_not() -> None:
    server = Refusing(Refusal.DONT_RETRY.value)
    async with to(server, config=ChannelConfig(throttle=0)) as channel:
        await refused(channel, CALLS)
        assert channel.statistics().throttled == 0
    assert len(server.told) == CALLS


async def test_errors_of_the_application_throttle_nobody() -> None:
    server = Refusing("no word that we know")
    async with to(server) as channel:
        await refused(channel, CALLS)
        assert channel.statistics().throttled == 0
    assert len(server.told) == CALLS


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_customer_without_quota_is_held_back_and_no_other_is(
    is_named: bool,
) -> None:
    """A proxy has one channel for all. Those who have no name may be anybody."""
    settings: dict[str, Any] = {
        "quotas": {"good": 1e6, "bad": 1e-6},
        "default_quota": 1e-6,
    }
    bad = ((wire.CUSTOMER_KEY, "bad"),) if is_named else ()
    async with (
        hosting(Refusing().methods(), max_load=0, **settings) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        errors = []
        for number in range(3 * CALLS):
            good = ((wire.CUSTOMER_KEY, "good"),)
            try:
                await call(channel, metadata=bad if number % 10 else good)
            except grpc.aio.AioRpcError as error:
                errors.append((number, error))
        assert all(number % 10 for number, _ in errors)
        assert len(errors) > 2 * CALLS
        said = channel.statistics()
        here = [one for _, one in errors if isinstance(one, lbclient.OutOfQuota)]
        assert said.throttled == 0
        assert said.calls["RESOURCE_EXHAUSTED"] == len(errors)
        assert said.refused["quota"] == len(here)
        assert said.attempts["rejected"] == len(errors) - len(here)
        if not is_named:
            assert here == []
        else:
            # All but those of a cold client, and what an account has at first.
            assert len(errors) - len(here) < 1.5 * COLD
            assert "CRITICAL requests of 'bad' of late" in str(here[-1])
            # Those of another criticality have a quota of their own, perhaps.
            with lbclient.criticality(Criticality.CRITICAL_PLUS):
                await asyncio.gather(
                    *(call(channel, metadata=bad) for _ in range(20)),
                    return_exceptions=True,
                )
            assert channel.statistics().refused["quota"] == len(here)


async def test_a_customer_refused_for_load_is_not_held_back_for_a_quota() -> None:
    """With this K, and others who are served, the throttle of all stays open."""
    server = Refusing()
    customer = ((wire.CUSTOMER_KEY, "a"),)
    quota, load = Refusal.QUOTA.value, Refusal.DONT_RETRY.value
    async with to(server, config=ChannelConfig(throttle=1000)) as channel:
        for word in (quota, *[load] * CALLS):
            server.word = word
            with pytest.raises(grpc.aio.AioRpcError, match="too much"):
                await call(channel, metadata=customer)
            server.word = ""
            await call(channel)


async def test_who_sends_little_goes_by_what_a_server_says_it_refuses() -> None:
    """And once it recovers, its server says so before the next report is due."""
    load = 1000.0
    settings: dict[str, Any] = {"max_load": 0, "signals": {"all": lambda: load}}
    config = ChannelConfig(health_interval=60.0)
    async with (
        hosting(Refusing().methods(), **settings) as (_, address, _),
        lbclient.insecure_channel(address, config=config) as channel,
    ):
        sent = 0

        async def ask() -> None:
            nonlocal sent
            [error] = await refused(channel, 1)
            sent += not isinstance(error, lbclient.Throttled)

        await eventually(lambda: channel.statistics().throttled >= 20, meanwhile=ask)
        assert sent < COLD / 2
        load = 0.0

        served = 0

        async def ask_again() -> None:
            nonlocal served
            try:
                await call(channel)
                served += 1
            except grpc.aio.AioRpcError:  # refused there, until it samples its load
                served = 0

        # In a row: nothing is held back.
        await eventually(lambda: served == 30, meanwhile=ask_again)


@pytest.mark.parametrize(
    ("word", "throttles"),
    [
        ("no word", False),
        (Refusal.QUOTA.value, False),
        (Refusal.OVERLOADED.value, True),
    ],
)
async def test_resource_exhausted_throttles_only_where_it_says_overloaded(
    word: str, throttles: bool
) -> None:
    server = Refusing(word, code=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with to(server) as channel:
        await refused(channel, CALLS)
        assert (channel.statistics().throttled > 0) is throttles


# --- what a refusal says about retrying ----------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_what_one_backend_refuses_another_gets_at_once(kind: str) -> None:
    one, other = Refusing(Refusal.OVERLOADED.value), Refusing()
    config = ChannelConfig(picker="round_robin")
    async with to(one, other, config=config) as channel:
        await eventually(
            lambda: {b.state for b in channel.statistics().backends} == {"ready"}
        )
        await earn(channel, 6)
        done = [b"done"] if kind.endswith("stream") else b"done"
        assert [await call(channel, kind) for _ in range(6)] == [done] * 6
        assert channel.statistics().retries == len(one.told) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("word", "pushback", "attempts"),
    [
        (Refusal.OVERLOADED, None, ATTEMPTS),
        (Refusal.OVERLOADED, "1", ATTEMPTS),
        (Refusal.OVERLOADED, "6000", 1),  # later than the deadline
        (Refusal.OVERLOADED, "-1", ATTEMPTS),  # it is for clients without a budget
        (Refusal.DONT_RETRY, None, 1),
        (Refusal.DONT_RETRY, "1", 1),
        (Refusal.QUOTA, None, 1),
    ],
)
async def test_a_refusal_says_whether_to_try_again(
    word: Refusal, pushback: str | None, attempts: int, kind: str
) -> None:
    server = Refusing(word.value, pushback)
    async with to(server) as channel:
        await earn(channel, attempts)
        with pytest.raises(grpc.aio.AioRpcError, match="too much"):
            await call(channel, kind)
    assert len(server.told) == attempts


# --- the budget of retries -----------------------------------------------------------


async def test_what_was_held_back_here_brings_no_retries() -> None:
    """It did: the budget was a tenth of what was wanted, not of what was sent."""
    server = Refusing(Refusal.OVERLOADED.value)
    async with to(server) as channel:
        errors = await refused(channel, 2 * CALLS)
        said = channel.statistics()
    sent = len([e for e in errors if not isinstance(e, lbclient.Throttled)])
    assert sent < 1.5 * CALLS
    assert said.retries + said.retries_left < RATIO * sent + 1  # that overdraws
