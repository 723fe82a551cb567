"""Resolvers over virtual time: what they yield, when they ask, how they end."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from itertools import pairwise
from random import Random

import pytest

from lbclient.cli.operate.resolve import answers
from lbclient.config import ChannelConfig
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.resolvers import Dns, Static
from lbclient.resolvers.listing import MAX_ENDPOINTS
from lbclient.resolvers.lookups import Addresses, system_lookup
from lbclient.resolvers.polling import MIN_PAUSE, Hinted

Watch = AsyncGenerator[Endpoints, None]


class Zone:
    """A name service that plays its answers; the last one holds."""

    def __init__(self, *answers: Iterable[str] | Exception, ttl: float = 0.0) -> None:
        self.answers = list(answers)
        self.ttl = ttl
        self.asked_at: list[float] = []

    async def lookup(self, host: str, port: int) -> Addresses:
        assert (host, port) == ("search", 80)
        self.asked_at.append(asyncio.get_running_loop().time())
        answer = self.answers[0]
        if len(self.answers) > 1:
            del self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Addresses(answer, self.ttl)

    def dns(self, interval: float = 10.0) -> Dns:
        return Dns("search", 80, interval, Random(7), self.lookup)


async def following(watch: Watch) -> list[str]:
    return [endpoint.address for endpoint in await anext(watch)]


async def nothing_more(watch: Watch, within: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(within):
            await anext(watch)


async def test_fixed_endpoints_come_once() -> None:
    resolver = Static([Endpoint("b:1"), Endpoint("a:1"), Endpoint("b:1")])
    async with aclosing(resolver.watch()) as watch:
        assert await following(watch) == ["a:1", "b:1"]
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(3600)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_an_answer_is_sorted_and_holds_each_address_once() -> None:
    zone = Zone(["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"])
    async with aclosing(zone.dns().watch()) as watch:
        assert await following(watch) == ["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"]


async def test_a_name_is_looked_up_again_though_nothing_failed() -> None:
    zone = Zone(["10.0.0.1"], ["10.0.0.1", "10.0.0.2"])
    async with aclosing(zone.dns(interval=10.0).watch()) as watch:
        await anext(watch)
        assert await following(watch) == ["10.0.0.1:80", "10.0.0.2:80"]
        assert 8.0 <= asyncio.get_running_loop().time() <= 9.0


async def test_an_answer_in_another_order_is_no_news() -> None:
    zone = Zone(["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"])
    async with aclosing(zone.dns().watch()) as watch:
        await anext(watch)
        await nothing_more(watch, within=100.0)
    assert len(zone.asked_at) >= 9


async def test_by_default_a_second_is_left_of_the_interval_for_what_is_new() -> None:
    zone = Zone(["10.0.0.1"])
    interval = ChannelConfig().resolve_interval
    assert interval == 10.0
    async with aclosing(zone.dns(interval).watch()) as watch:
        await anext(watch)
        await nothing_more(watch, within=10_000.0)
    pauses = [b - a for a, b in pairwise(zone.asked_at)]
    # Of 900 uniform ones, all miss an outer tenth of the range once in e^90 runs.
    assert 8.0 <= min(pauses) < 8.2
    assert 8.8 < max(pauses) <= 9.0


@pytest.mark.parametrize(
    ("ttl", "shortest", "longest"),
    [
        (0.0, 8.0, 9.0),  # unknown
        (0.2, 1.0, 1.1),  # a name server is asked once a second at most
        (1.0, 1.0, 1.1),
        (5.0, 4.0, 4.5),
        (300.0, 8.0, 9.0),  # the interval, where that is shorter
    ],
)
async def test_an_answer_is_asked_for_again_before_it_expires(
    ttl: float, shortest: float, longest: float
) -> None:
    zone = Zone(["10.0.0.1"], ttl=ttl)
    async with aclosing(zone.dns(interval=10.0).watch()) as watch:
        await anext(watch)
        await nothing_more(watch, within=100 * longest)
    pauses = [b - a for a, b in pairwise(zone.asked_at)]
    assert shortest <= min(pauses) < max(pauses) <= longest
    # Of 100 uniform ones the range is less once in 100 million runs.
    assert max(pauses) - min(pauses) > 0.8 * (longest - shortest)


class Cache:
    """Tells how many whole seconds are left of what it has, 0 in the last one."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.expires_at = 0.0
        self.asked_at: list[float] = []
        self.fetched_at: list[float] = []

    async def lookup(self, host: str, port: int) -> Addresses:
        now = asyncio.get_running_loop().time()
        self.asked_at.append(now)
        if now >= self.expires_at:
            self.fetched_at.append(now)
            self.expires_at = now + self.ttl
        return Addresses(["10.0.0.1"], int(self.expires_at - now))


@pytest.mark.parametrize("ttl", [3.0, 5.0, 30.0])
async def test_a_cache_is_asked_when_it_can_know_more(ttl: float) -> None:
    """That of a cluster has answers of 5 s or 30 s, and a thousand clients.

    What it tells is whole seconds, so each of its answers takes two questions, or one
    for each interval and two, and the next comes a good second late at most.
    """
    cache = Cache(ttl)
    resolver = Dns("search", 80, 10.0, Random(7), cache.lookup)
    async with aclosing(resolver.watch()) as watch:
        await anext(watch)
        await nothing_more(watch, within=100 * ttl)
    late = [b - a - ttl for a, b in pairwise(cache.fetched_at)]
    assert max(late) <= 1.1
    assert len(cache.asked_at) / len(cache.fetched_at) <= 2.0 + ttl / 10.0


@pytest.mark.parametrize(
    ("answers", "warnings"),
    [
        ([["10.0.0.1"]], 1),
        ([["::2"]], 1),
        ([["10.0.0.1", "10.0.0.2"]], 0),
        ([["10.0.0.1", "10.0.0.2"], ["10.0.0.1"]], 0),
        ([["127.0.0.1"]], 0),
        ([["::1"]], 0),
        ([[]], 0),
        ([[], ["10.0.0.1"]], 1),
        ([["10.0.0.1"], ["10.0.0.2"]], 1),
    ],
)
async def test_a_name_with_one_address_is_doubted_once(
    answers: list[list[str]], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    resolver = Zone(*answers).dns()
    for _ in range(2):
        async with aclosing(resolver.watch()) as watch:
            await anext(watch)
            with suppress(TimeoutError):
                async with asyncio.timeout(100.0):
                    await anext(watch)
    assert caplog.text.count("is the Service headless?") == warnings


async def test_an_interval_below_a_second_is_kept() -> None:
    zone = Zone(["10.0.0.1"])
    async with aclosing(zone.dns(interval=0.1).watch()) as watch:
        await anext(watch)
        await nothing_more(watch, within=10.0)
    assert 111 <= len(zone.asked_at) <= 126


async def test_an_empty_answer_is_passed_on() -> None:
    zone = Zone(["10.0.0.1"], [])
    async with aclosing(zone.dns().watch()) as watch:
        await anext(watch)
        assert await following(watch) == []


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("too long")])
async def test_a_failed_lookup_says_who_and_why(error: Exception) -> None:
    zone = Zone(["10.0.0.1"], error, ["10.0.0.2"])
    resolver = zone.dns()
    async with aclosing(resolver.watch()) as watch:
        await anext(watch)
        with pytest.raises(
            ResolveError, match=f"DNS lookup of 'search' failed: {error}"
        ):
            await anext(watch)
    async with aclosing(resolver.watch()) as watch:
        assert await following(watch) == ["10.0.0.2:80"]


async def test_a_lookup_that_hangs_does_not_hold_up_its_caller() -> None:
    async def lookup(host: str, port: int) -> Addresses:
        await asyncio.get_running_loop().create_future()
        return Addresses([])

    async with aclosing(Dns("search", 80, 10.0, Random(7), lookup).watch()) as watch:
        await nothing_more(watch, within=60.0)


@pytest.mark.parametrize("answer", [["10.0.0.2"], OSError("no such name")])
async def test_a_lookup_that_hangs_is_told_until_it_ends(
    answer: list[str] | OSError,
) -> None:
    """As a system's may, for ever: nothing told of it."""
    zone = Zone(["10.0.0.1"], answer)

    async def lookup(host: str, port: int) -> Addresses:
        if zone.asked_at:
            await asyncio.sleep(600.0)
        return await zone.lookup(host, port)

    resolver = Dns("search", 80, 10.0, Random(7), lookup)
    async with aclosing(resolver.watch()) as watch:
        await anext(watch)
        next_one = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(18.0)
        assert resolver.trouble == ""
        await asyncio.sleep(2.0)
        assert resolver.trouble == "no answer after 10 s, and none since"
        await asyncio.sleep(600.0)
        assert (resolver.trouble, next_one.done()) == ("", True)
        with suppress(ResolveError):
            await next_one


async def test_a_hint_brings_the_next_lookup_forward() -> None:
    zone = Zone(["10.0.0.1"], ["10.0.0.2"])
    resolver = zone.dns(interval=3600.0)
    async with aclosing(resolver.watch()) as watch:
        await anext(watch)
        asyncio.get_running_loop().call_later(100.0, resolver.refresh)
        assert await following(watch) == ["10.0.0.2:80"]
    assert zone.asked_at == [0.0, pytest.approx(100.0)]


async def test_hints_cause_no_more_than_a_lookup_a_second() -> None:
    zone = Zone(["10.0.0.1"])
    resolver = zone.dns(interval=3600.0)

    async def hint_often() -> None:
        while True:
            resolver.refresh()
            await asyncio.sleep(0.01)

    hints = asyncio.ensure_future(hint_often())
    async with aclosing(resolver.watch()) as watch:
        await anext(watch)
        await nothing_more(watch, within=100.0)
    hints.cancel()
    assert 90 <= len(zone.asked_at) <= 101


@pytest.mark.parametrize(
    ("hinted_after", "lasts"), [(0.0, MIN_PAUSE), (0.5, MIN_PAUSE), (20.0, 20.0)]
)
async def test_a_hint_ends_a_pause_but_never_within_a_second(
    hinted_after: float, lasts: float
) -> None:
    """The pause after an error, too, which the channel makes, not the resolver."""
    loop = asyncio.get_running_loop()
    hinted = Hinted()
    began = loop.time()
    loop.call_later(hinted_after, hinted.hint)
    await hinted.pause(60.0)
    assert loop.time() - began == pytest.approx(lasts)
    await hinted.pause(60.0)  # one hint, one pause
    assert loop.time() - began == pytest.approx(lasts + 60.0)


async def test_a_hint_during_a_lookup_is_not_lost() -> None:
    asked_at: list[float] = []

    async def lookup(host: str, port: int) -> Addresses:
        asked_at.append(asyncio.get_running_loop().time())
        resolver.refresh()
        return Addresses([f"10.0.0.{len(asked_at)}"])

    resolver = Dns("search", 80, 3600.0, Random(7), lookup)
    async with aclosing(resolver.watch()) as watch:
        await anext(watch)
        assert await following(watch) == ["10.0.0.2:80"]
    assert asked_at == [0.0, 1.0]


async def test_an_answer_without_bound_is_cut() -> None:
    zone = Zone([f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(100_001)])
    async with aclosing(zone.dns().watch()) as watch:
        assert len(await anext(watch)) == MAX_ENDPOINTS


def test_the_system_knows_its_own_name() -> None:
    assert {"127.0.0.1", "::1"} >= set(
        asyncio.run(system_lookup("localhost", 80)).hosts
    )


def test_the_system_says_why_it_cannot_tell() -> None:
    name = "x" * 64  # refused on this machine, so the test needs no network

    async def ask() -> None:
        await anext(Dns(name, 80, 10.0, Random(7), system_lookup).watch())

    with pytest.raises(
        ResolveError, match=f"DNS lookup of '{name}' failed: .*too long"
    ):
        asyncio.run(ask())


class Failing:
    """Fails three times, a second each, then tells."""

    def __init__(self, paces_itself: bool) -> None:
        self.paces_itself = paces_itself
        self.failures = 0

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        await asyncio.sleep(1.0)
        if self.failures < 3:
            self.failures += 1
            raise ResolveError("not yet")
        yield (Endpoint("a:1"),)


@pytest.mark.parametrize(("paces_itself", "takes"), [(False, 11.0), (True, 4.0)])
async def test_lbclient_resolve_adds_no_pauses_to_those_of_a_resolver_with_its_own(
    paces_itself: bool, takes: float
) -> None:
    async with aclosing(answers(Failing(paces_itself), 10.0)) as told:
        for _ in range(3):
            assert isinstance(await anext(told), ResolveError)
        assert await anext(told) == (Endpoint("a:1"),)
    assert asyncio.get_running_loop().time() == pytest.approx(takes)
