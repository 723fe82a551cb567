"""Tests of finder.py with lbclient.testing; docs/testing.md explains them."""

import asyncio
from collections.abc import Callable

import grpc
import pytest
from finder import Finder
from search_pb2 import Answer, Query
from search_pb2_grpc import SearchServicer, add_SearchServicer_to_server

import lbclient
from lbclient.testing import FakeChannel, FakeReply, LocalFleet, failure, virtual_time

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

# --- 1. the client against a fleet ---------------------------------------------------


class Search(SearchServicer):
    async def Search(self, request: Query, context: object) -> Answer:
        return Answer(text=f"found {request.text}")


def register(server: grpc.aio.Server) -> None:
    add_SearchServicer_to_server(Search(), server)


async def find_many(finder: Finder, count: int) -> None:
    for number in range(count):
        assert await finder.find(f"tree {number}") == f"found tree {number}"


async def test_a_slow_backend_gets_fewer_requests(
    lbclient_fleet: Callable[..., LocalFleet],
) -> None:
    async with (
        lbclient_fleet(register, 3) as fleet,
        lbclient.insecure_channel(fleet.target) as channel,
    ):
        slow, *others = fleet
        slow.latency = 0.5
        await asyncio.gather(*(find_many(Finder(channel), 25) for _ in range(4)))
        assert slow.requests < min(backend.requests for backend in others)


async def test_users_do_not_notice_a_backend_that_dies(
    lbclient_fleet: Callable[..., LocalFleet],
) -> None:
    async with (
        lbclient_fleet(register, 3) as fleet,
        lbclient.insecure_channel(fleet.target) as channel,
    ):
        users = asyncio.gather(*(find_many(Finder(channel), 25) for _ in range(4)))
        await fleet[0].kill()
        await users
        await fleet[0].start()


async def test_no_request_is_lost_in_a_restart(
    lbclient_fleet: Callable[..., LocalFleet],
) -> None:
    async with (
        lbclient_fleet(register, 3) as fleet,
        lbclient.insecure_channel(fleet.target) as channel,
    ):
        users = asyncio.gather(*(find_many(Finder(channel), 25) for _ in range(4)))
        await fleet[0].drain()
        await users
        seen = fleet[0].requests
        await find_many(Finder(channel), 10)
        assert fleet[0].requests == seen


# --- 2. the client's own code, with scripted answers ---------------------------------


async def test_no_answer_is_none(lbclient_channel: FakeChannel) -> None:
    lbclient_channel.answer("Search", failure(grpc.StatusCode.NOT_FOUND))
    assert await Finder(lbclient_channel).find("plastic") is None
    [call] = lbclient_channel.calls
    assert call.request == Query(text="plastic")
    assert call.timeout == 5.0
    assert call.metadata["tenant"] == "shop"


async def test_pages_are_kept_when_the_stream_fails(
    lbclient_channel: FakeChannel,
) -> None:
    pages = [Answer(text="one"), FakeReply(Answer(text="two"), delay=0.01)]
    lbclient_channel.answer("Pages", [*pages, failure(UNAVAILABLE, "gone")])
    assert await Finder(lbclient_channel).pages("oak") == ["one", "two"]


async def test_a_stream_that_moves_goes_on_after_its_last_page(
    lbclient_channel: FakeChannel,
) -> None:
    first = [Answer(text="one"), FakeReply.never()]
    lbclient_channel.answer("Pages", first, [Answer(text="two")])
    pages = Finder(lbclient_channel).follow("oak")
    assert (await anext(pages)).text == "one"
    lbclient_channel.calls[-1].ask_to_move()
    assert (await anext(pages)).text == "two"
    assert lbclient_channel.calls[-1].request == Query(text="oak after one")


async def test_other_errors_are_the_callers(lbclient_channel: FakeChannel) -> None:
    lbclient_channel.answer("Search", failure(grpc.StatusCode.PERMISSION_DENIED, "no"))
    with pytest.raises(grpc.aio.AioRpcError, match="no"):
        await Finder(lbclient_channel).find("oak")
    assert len(lbclient_channel.calls) == 1


# --- 3. its retries and timeouts, on a virtual clock ---------------------------------


@virtual_time
async def test_it_tries_again_after_longer_and_longer_pauses(
    lbclient_channel: FakeChannel,
) -> None:
    down = failure(UNAVAILABLE, "down")
    lbclient_channel.answer("Search", down, down, down, Answer(text="larch"))
    assert await Finder(lbclient_channel).find("tree") == "larch"
    assert asyncio.get_running_loop().time() == 0.5 + 2.0 + 8.0


@virtual_time
async def test_the_server_says_when(lbclient_channel: FakeChannel) -> None:
    busy = failure(UNAVAILABLE, "busy", trailers=[("retry-after", "30")])
    lbclient_channel.answer("Search", busy, Answer(text="larch"))
    assert await Finder(lbclient_channel).find("tree") == "larch"
    assert asyncio.get_running_loop().time() == 30.0


@virtual_time
async def test_an_attempt_ends_after_five_seconds(
    lbclient_channel: FakeChannel,
) -> None:
    lbclient_channel.answer("Search", FakeReply.never())
    with pytest.raises(grpc.aio.AioRpcError, match="Deadline Exceeded"):
        await Finder(lbclient_channel).find("tree")
    assert asyncio.get_running_loop().time() == 5.0
