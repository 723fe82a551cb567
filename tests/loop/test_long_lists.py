"""What an update of a long list makes anew, by count: its news, and that in pieces."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from lbclient.core.model import Endpoint, Endpoints, Identity
from lbclient.resolvers import Dns, Srv
from lbclient.resolvers.endpoint_slices import Slices
from lbclient.resolvers.file import endpoints_of
from lbclient.resolvers.listing import PIECE, Listing, in_pieces
from lbclient.resolvers.lookups import Addresses, Service, Services
from lbclient.subsets import Rendezvous
from lbclient.subsets.numbered import Choice

MANY, NEW = 10_000, 100

Lists = tuple[Endpoints, Endpoints]


def hosts(generation: int) -> list[str]:
    moved = generation * NEW
    return [f"10.{n >> 8}.{n & 255}.1" for n in range(moved, moved + MANY)]


async def two_of(resolver: Dns | Srv) -> Lists:
    async with aclosing(resolver.watch()) as watch:
        return await anext(watch), await anext(watch)


async def by_dns() -> Lists:
    answers = iter([hosts(0), hosts(1)])

    async def lookup(host: str, port: int) -> Addresses:
        return Addresses(next(answers))

    return await two_of(Dns("search", 1, 10.0, Random(7), lookup))


async def by_srv() -> Lists:
    answers = iter([hosts(0), hosts(1)])

    async def lookup(name: str) -> Services:
        return Services([Service(0, 1, 1, host) for host in next(answers)])

    return await two_of(Srv("search", 10.0, Random(7), lookup))


async def by_file() -> Lists:
    listing = Listing()
    first, second = (
        listing.take(
            endpoints_of(
                [
                    {"targets": [f"{host}:1"], "labels": {"zone": "a", "task": n}}
                    for n, host in enumerate(hosts(generation), generation * NEW)
                ],
                listing.endpoint,
            )
        )
        for generation in (0, 1)
    )
    return first, second


async def by_kubernetes() -> Lists:
    slices = Slices("1")

    def values(generation: int) -> list[dict[str, Any]]:
        """As many slices as it takes: the API has 1,000 endpoints in one, at most."""
        endpoints = [
            {"addresses": [host], "zone": "a", "hostname": f"search-{n}"}
            for n, host in enumerate(hosts(generation), generation * NEW)
        ]
        return [
            {
                "metadata": {"name": f"search-{part}", "resourceVersion": "1"},
                "addressType": "IPv4",
                "endpoints": endpoints[part * 1000 : (part + 1) * 1000],
            }
            for part in range(math.ceil(len(endpoints) / 1000))
        ]

    document = {"metadata": {"resourceVersion": "1"}, "items": values(0)}
    _, first = slices.replace(json.dumps(document))
    events = [{"type": "MODIFIED", "object": value} for value in values(1)]
    lines = [json.dumps(event).encode() for event in events]
    _, second = slices.apply(lines, "1")
    return first, second


SOURCES = {"dns": by_dns, "srv": by_srv, "file": by_file, "k8s": by_kubernetes}


@pytest.mark.parametrize("source", SOURCES)
async def test_whoever_is_told_again_is_the_same_object(source: str) -> None:
    """Lists of new objects brought on full collections, 40 ms in a small program."""
    two_lists: Callable[[], Awaitable[Lists]] = SOURCES[source]
    before, after = await two_lists()
    assert len(before) == len(after) == MANY
    known = {id(endpoint) for endpoint in before}
    assert sum(id(endpoint) not in known for endpoint in after) == NEW


@pytest.mark.parametrize(
    "change", [{"weight": 2.0}, {"zone": "b"}, {"task": 3}, {"lame_duck": True}]
)
def test_whoever_is_told_otherwise_is_another(change: dict[str, object]) -> None:
    listing = Listing()
    listing.take([Endpoint("a:1", zone="a")])
    values: dict[str, object] = {"address": "a:1", "zone": "a"} | change
    assert listing.endpoint(**values) == Endpoint(**values)  # type: ignore[arg-type]


def test_who_left_is_forgotten() -> None:
    listing = Listing()
    (gone,) = listing.take([Endpoint("a:1")])
    listing.take([])
    assert listing.endpoint("a:1") == gone
    assert listing.endpoint("a:1") is not gone


async def test_calls_go_on_while_a_long_list_is_made() -> None:
    made: list[int] = []  # how many there were, at each turn of the loop
    endpoints: list[Endpoint] = []

    async def looking_on() -> None:
        while True:
            made.append(len(endpoints))
            await asyncio.sleep(0)

    def making() -> Iterator[Endpoint]:
        for host in hosts(0):
            endpoints.append(Endpoint(f"{host}:1"))
            yield endpoints[-1]

    watch = asyncio.ensure_future(looking_on())
    await asyncio.sleep(0)
    assert await in_pieces(making()) == endpoints
    watch.cancel()
    assert made == list(range(0, MANY + 1, PIECE))


def test_only_news_are_hashed() -> None:
    class Counting(Rendezvous):
        drawn = 0

        def draw(self, address: str) -> bytes:
            self.drawn += 1
            return super().draw(address)

    first, second = (tuple(Endpoint(f"{h}:1") for h in hosts(n)) for n in (0, 1))
    rendezvous = Counting("me")
    rendezvous(first)
    assert rendezvous.drawn == MANY
    assert list(rendezvous(second)) == list(Rendezvous("me")(second))
    assert rendezvous.drawn == MANY + NEW


def test_a_channel_s_choice_remembers_what_was_drawn() -> None:
    choice = Choice("auto", 20, Identity(None), "me", "")
    choice((Endpoint("a:1"), Endpoint("b:1")))
    drawn = choice._rendezvous._drawn
    choice((Endpoint("a:1"), Endpoint("c:1")))
    assert choice._rendezvous._drawn["a:1"] is drawn["a:1"]
