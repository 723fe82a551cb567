"""`LocalFleet`: what a test does to a backend looks to a client as it does outside."""

import asyncio
import socket
from typing import Any

import grpc
import pytest
from search_pb2 import Answer, Query
from search_pb2_grpc import SearchServicer, SearchStub, add_SearchServicer_to_server

import lbclient
from lbclient.testing import LocalFleet, failure
from lbclient.testing.relay import Relay
from tests.waiting import eventually


class Search(SearchServicer):
    async def Search(self, request: Any, context: Any) -> Any:
        return Answer(text=request.text)


def register(server: Any) -> None:
    add_SearchServicer_to_server(Search(), server)


def states(channel: lbclient.Channel) -> list[str]:
    return sorted(backend.state for backend in channel.statistics().backends)


async def test_each_backend_can_be_out_in_its_own_way() -> None:
    config = lbclient.ChannelConfig(health_interval=0.2)
    async with (
        LocalFleet(register, 3) as fleet,
        lbclient.insecure_channel(fleet.target, config=config) as channel,
    ):
        stub: Any = SearchStub(channel)
        await stub.Search(Query(text="oak"), timeout=30.0)
        await eventually(lambda: states(channel) == ["ready"] * 3)
        dead, frozen, leaving = fleet
        await dead.kill()
        frozen.freeze()
        seen = channel.statistics
        await eventually(lambda: states(channel).count("ready") == 1, seen)
        for _ in range(5):
            await stub.Search(Query(text="oak"), timeout=30.0)
        frozen.thaw()
        await dead.start()
        await eventually(lambda: states(channel) == ["ready"] * 3, seen)
        leaving.lame_duck()
        await eventually(lambda: "lame duck" in states(channel), seen)
        assert leaving.requests >= 5
        assert repr(leaving).endswith(f"lame duck, {leaving.requests} requests>")


async def test_a_killed_backend_ends_the_calls_in_flight() -> None:
    async with (
        LocalFleet(register, 1) as fleet,
        grpc.aio.insecure_channel(fleet[0].address) as channel,
    ):
        fleet[0].latency = 60.0
        stub: Any = SearchStub(channel)
        call = stub.Search(Query(text="oak"))
        await eventually(lambda: fleet[0].requests == 1)
        await fleet[0].kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(RuntimeError, match="is stopped"):
            _ = fleet[0].server


async def test_failures_and_refusals_have_their_trailers() -> None:
    async with (
        LocalFleet(register, 2) as fleet,
        lbclient.insecure_channel(fleet.target) as channel,
    ):
        stub: Any = SearchStub(channel)
        for backend in fleet:
            trailers = [("hint", "oak")]
            backend.failure = failure(grpc.StatusCode.INTERNAL, "no disk", trailers)
        with pytest.raises(grpc.aio.AioRpcError, match="no disk") as caught:
            await stub.Search(Query(text="oak"), timeout=30.0)
        assert dict(tuple(caught.value.trailing_metadata() or ()))["hint"] == "oak"
        fleet[0].failure, fleet[0].is_overloaded = None, True
        async with grpc.aio.insecure_channel(fleet[0].address) as plain:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await SearchStub(plain).Search(Query(text="oak"))
            told = dict(tuple(caught.value.trailing_metadata() or ()))
            assert told["lbclient-refusal"] == "overloaded"
            assert fleet[0].server.statistics().signals  # it can still be sampled
            fleet[0].is_overloaded = False
            assert await SearchStub(plain).Search(Query(text="oak"))


async def test_a_backend_is_in_one_state_whatever_was_done_before() -> None:
    async with LocalFleet(register, 1) as fleet:
        backend = fleet[0]
        backend.thaw()
        assert backend.state == "serving"
        backend.lame_duck()
        for _ in range(2):
            backend.freeze()
            assert backend.state == "frozen"
        with pytest.raises(RuntimeError, match="a frozen backend cannot be drained"):
            await backend.drain()
        backend.thaw()
        assert backend.state == "lame duck"
        backend.freeze()
        await backend.kill()
        backend.thaw()
        assert backend.state == "stopped"
        for act in (backend.freeze, backend.lame_duck):
            with pytest.raises(RuntimeError, match="a stopped backend cannot be"):
                act()
        assert backend.state == "stopped"
        await backend.start()
        assert backend.state == "serving"
        async with grpc.aio.insecure_channel(backend.address) as channel:
            stub: Any = SearchStub(channel)
            await stub.Search(Query(text="oak"), timeout=30.0, wait_for_ready=True)


async def test_a_cut_also_ends_who_has_not_read_what_was_sent_before_the_end() -> None:
    async def send(_: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_client.write(bytes(10_000_000))
        to_client.close()  # once all is sent

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    relay = Relay()
    await relay.open(server.sockets[0].getsockname()[1])
    with socket.create_connection(("127.0.0.1", relay.port)) as client:
        await eventually(
            lambda: any(one.transport.get_write_buffer_size() for one in relay._writers)
        )
        client.shutdown(socket.SHUT_WR)
        await eventually(lambda: any(one.is_closing() for one in relay._writers))
        sockets = [one.get_extra_info("socket") for one in relay._writers]
        await relay.cut()
        assert {one.fileno() for one in sockets} == {-1}
        assert not relay._writers
    server.close()


def test_a_count_that_cannot_be() -> None:
    with pytest.raises(lbclient.ConfigError, match="a whole number from 1 to 100"):
        LocalFleet(register, 0)
