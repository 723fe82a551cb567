"""Requests that have arrived and wait until somebody looks at them."""

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import grpc_seam, wire
from lbclient.grpc_seam import intake
from lbclient.server import Server
from lbclient.server.overload import core_queue
from lbclient.server.overload.intake import BEHIND, EACH_TURN
from lbclient.server.overload.shedding import Shedding
from lbclient.server.overload.unseen import Unseen
from tests import needs
from tests.hosts import Passing, add_methods
from tests.waiting import eventually

CALLS = 100
COST = 0.005  # seconds, each time: handlers that long begin one by one


def server_of(handler: Any, **options: Any) -> Server:
    server = lbclient.server(**options)
    add_methods(server, {"/a.B/C": handler})
    return server


def burn() -> None:
    until = time.thread_time() + COST
    while time.thread_time() < until:
        pass


def ask(port: int, calls: int) -> list[grpc.StatusCode]:
    """All at once."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")
        begun = [method.future(b"", timeout=30) for _ in range(calls)]
        return [call.code() for call in begun]


async def most_waiting(server: Server) -> int:
    """So many of a crowd wait where they can be counted."""

    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    most = 0
    # A thread would wait for the handlers before it sends: none would wait in gRPC.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(process, ask, port, CALLS)
        while not asking.done():
            most = max(most, len(server._gate.core.intake))
            await asyncio.sleep(0.001)
    assert set(await asking) == {grpc.StatusCode.OK}
    await server.stop(None)
    return most


async def burn_thrice(_request: bytes, _context: Any) -> bytes:
    for _ in range(3):
        burn()
        await asyncio.sleep(0)
    return b""


BURNING: Any = grpc.unary_unary_rpc_method_handler(burn_thrice)


async def test_requests_that_no_handler_has_seen_are_known() -> None:
    needs.grpcio("1.84", "handlers begin as soon as requests come")
    config = lbclient.ServerConfig(max_load=1000.0)
    assert await most_waiting(server_of(BURNING, config=config)) > 10


async def test_a_grpcio_with_another_server_serves_as_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "find", lambda _path: None)
    intake._subclass.cache_clear()
    server = server_of(BURNING, config=lbclient.ServerConfig(max_load=1000.0))
    assert await most_waiting(server) == 0
    intake._subclass.cache_clear()


async def test_grpcio_is_handed_several_requests_in_one_turn_of_the_loop() -> None:
    """In a flood turns are long: with one request in two or three turns hardly any
    would be served between those that are dropped."""

    async def respond(_request: bytes, _context: Any) -> bytes:
        return b""

    server = server_of(grpc.unary_unary_rpc_method_handler(respond))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    queue = server._gate.core.intake
    queue._handed_on = EACH_TURN  # until all have come
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(process, ask, port, CALLS)
        await eventually(lambda: len(queue) == CALLS)
        queue._begin_turn()
        for _turn in range(CALLS // 2):
            await asyncio.sleep(0)
        assert len(queue) == 0
        assert set(await asking) == {grpc.StatusCode.OK}
    await server.stop(None)


async def test_a_loop_that_ends_does_not_wait_for_a_server_that_nobody_stopped() -> (
    None
):
    """grpcio cancels what it waits for, and gathers it while its server runs."""
    future = intake.AtOnce()
    future.is_running = lambda: True
    await asyncio.wait([future], timeout=0.0)
    future.cancel()
    async with asyncio.timeout(20):
        await asyncio.gather(future, return_exceptions=True)
    heard: list[Any] = []
    future = intake.AtOnce()
    future.is_running = lambda: False  # it stops
    future.set_result("a request")
    future.add_done_callback(heard.append)
    assert not heard
    await asyncio.sleep(0)
    assert heard == [future]


async def test_what_waits_when_a_server_stops_does_not_keep_it() -> None:
    began, going = asyncio.Event(), asyncio.Event()

    async def respond(_request: bytes, _context: Any) -> bytes:
        began.set()
        await going.wait()
        return b""

    server = server_of(grpc.unary_unary_rpc_method_handler(respond))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")
        calls = [method(b"", timeout=20) for _ in range(200)]
        await began.wait()
        await server.stop(None)
        codes = {await call.code() for call in calls}
    assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
    assert len(server._gate.core.intake) == 0


async def test_requests_that_interceptors_see_do_not_look_as_if_they_waited() -> None:
    """As generated code registers its methods: taken for waiting ones, they would have
    all that come later refused."""

    async def respond(request: bytes, _context: Any) -> bytes:
        return request

    server = lbclient.server(interceptors=[Passing()])
    handler: Any = grpc.unary_unary_rpc_method_handler(respond)
    server.add_registered_method_handlers("a.B", {"C": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C", _registered_method=True)  # type: ignore[call-arg,unused-ignore]
        for _ in range(5):
            assert await method(b"x", timeout=20) == b"x"
    core = server._gate.core
    assert core.intake.taken == 5
    assert not core.count(core.intake.taken)
    await server.stop(None)


def flood(
    port: int, calls: int, blocked: Path
) -> tuple[Counter[str], dict[str, int], int]:
    """What becomes of them, of the attempts, and how many count in the throttle.

    The server makes a file once its loop is blocked.
    """

    async def begin() -> tuple[Counter[str], dict[str, int], int]:
        config = lbclient.ChannelConfig(active_limit=2 * calls, health_interval=60)
        address = f"127.0.0.1:{port}"
        async with lbclient.insecure_channel(address, config=config) as channel:
            method = channel.unary_unary("/a.B/C")
            await method(b"", timeout=9)
            [backend] = channel.balancer().pool.ready
            await eventually(lambda: backend.reported.is_ours)
            blocking = method(b"block", timeout=9)
            await eventually(blocked.exists)
            begun = [method(b"", timeout=9) for _ in range(calls)]
            codes = Counter([(await call.code()).name for call in begun])
            said = channel.statistics()
            await blocking.code()
            [counted] = said.throttle
            return codes, dict(said.attempts), counted.refused_there

    return asyncio.run(begin())


async def test_what_the_core_ends_is_counted_on_both_sides(
    eventually: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was nowhere: to its client it was as if the caller had cancelled it."""
    needs.grpcio("1.84", "its core ends none")
    monkeypatch.setattr(core_queue, "READY", BEHIND)  # no room for a burst
    calls, most = 350, 100  # too few to be throttled
    blocked = tmp_path / "blocked"

    async def respond(request: bytes, _context: Any) -> bytes:
        if request == b"block":
            blocked.touch()
            time.sleep(0.7)  # noqa: ASYNC251
        return b""

    handler: Any = grpc.unary_unary_rpc_method_handler(respond)
    limits = [("grpc.server.max_pending_requests", most)]
    limits += [("grpc.server.max_pending_requests_hard_limit", most)]
    config = lbclient.ServerConfig(max_load=1000.0)
    server = server_of(handler, options=limits, config=config)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(process, flood, port, calls, blocked)
        codes, attempts, refused = await asking
    ended = codes["CANCELLED"]
    assert ended > calls / 2
    assert codes == {"CANCELLED": ended, "OK": calls - ended}
    assert (attempts["rejected"], attempts["abandoned"]) == (ended, 0)
    assert refused == ended
    # Nothing comes any more: what is beyond that many has been ended for certain.
    least = ended - most
    await eventually(lambda: server.statistics().refused["unseen"]["UNKNOWN"] >= least)
    assert server.statistics().refused["unseen"]["UNKNOWN"] <= ended
    await server.stop(None)


async def test_in_a_flood_what_would_be_refused_ends_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """But for what names no criticality, as health checks do, and for retries."""
    monkeypatch.setattr(Shedding, "is_flood", lambda *_: True)

    async def respond(request: bytes, _context: Any) -> bytes:
        return request

    handler: Any = grpc.unary_unary_rpc_method_handler(respond)
    config = lbclient.ServerConfig(signals={"full": lambda: 1e6})
    server = server_of(handler, config=config)
    gate = server._gate
    named = (wire.CRITICALITY_KEY, "SHEDDABLE")
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await eventually(lambda: gate.intake.drops is not None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary("/a.B/C")

        async def code_of(*metadata: tuple[str, str]) -> grpc.StatusCode:
            code: grpc.StatusCode = await method(b"", metadata=metadata).code()
            return code

        codes = [await code_of(named) for _ in range(CALLS)]
        assert set(codes) == {grpc.StatusCode.CANCELLED}
        assert gate.refused["unanswered"]["SHEDDABLE"] == CALLS
        for answered in ((), (named, (wire.ATTEMPT_KEY, "1"))):
            assert await code_of(*answered) is grpc.StatusCode.UNAVAILABLE
        assert gate.queue.arrived == gate.core.intake.taken == CALLS + 2
        check: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
        await check(b"")
    await server.stop(None)


class Raising(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method.startswith("/raise"):
            raise ValueError("no such thing")
        return None


@pytest.mark.parametrize("interceptors", [None, [Passing()]])
async def test_every_call_is_counted_once_whatever_becomes_of_it(
    interceptors: Any, eventually: Any
) -> None:
    """Else what was counted wrong would look like a queue for ever."""

    async def respond(_requests: AsyncIterator[bytes], _context: Any) -> None:
        await asyncio.sleep(0.01)

    handler: Any = grpc.stream_stream_rpc_method_handler(respond)
    server = server_of(handler, interceptors=interceptors)
    gate = server._gate
    counted: Callable[[], Any] = gate.core.unseen._read
    server.add_generic_rpc_handlers((Raising(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        paths = ["/a.B/C", "/a.B/none", "/raise/me", wire.SERVING_CHECK_METHOD]
        paths += [wire.WATCH_METHOD, wire.ORCA_METHOD]
        methods: list[Any] = [channel.unary_unary(path) for path in paths]
        for timeout in (0.05, 0.005):
            for method in methods:
                with suppress(grpc.aio.AioRpcError):
                    await method(b"", timeout=timeout)
        cancelled = [methods[0](b"") for _ in range(20)]
        await asyncio.sleep(0)
        for call in cancelled:
            call.cancel()
        with suppress(grpc.aio.AioRpcError):
            await methods[0](b"", timeout=5)
        await eventually(
            lambda: gate.queue.arrived == counted() == gate.core.intake.taken
        )
        assert counted() > len(paths)
    await server.stop(None)


def test_a_grpcio_that_does_not_count_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_seam.servers, "find", lambda _path: None)
    made, read = grpc_seam.counted(lambda: 1)
    assert made == 1
    assert read() is None


async def test_the_calls_of_one_server_are_counted_beside_another() -> None:
    needs.grpcio("1.84", "its core lists servers otherwise")
    first, read = grpc_seam.counted(grpc.aio.server)
    second, read_second = grpc_seam.counted(grpc.aio.server)
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    await second.start()
    await asyncio.to_thread(ask, port, 3)
    assert (read(), read_second()) == (3, 0)
    await first.stop(None)
    await second.stop(None)


async def test_of_two_new_servers_nobody_knows_which_is_which() -> None:
    others: list[Any] = []

    def make() -> int:
        others.extend([grpc.aio.server(), grpc.aio.server()])
        return 2

    made, read = grpc_seam.counted(make)
    assert made == 2
    assert read() is None
    for other in others:
        await other.start()
        await other.stop(None)


def test_an_old_core_keeps_all_whatever_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc, "__version__", "1.83.2")
    assert grpc_seam.with_pending_limit(())[1] == inf
    theirs = (("grpc.server.max_pending_requests_hard_limit", 7),)
    assert grpc_seam.with_pending_limit(theirs) == (theirs, inf)
    unseen = Unseen()
    unseen.count_by(lambda: 5000, inf)
    for tick in range(20):
        unseen.sample(tick / 10, 100 * tick, 16, is_behind=True)
    assert (unseen.ended, unseen.waiting) == (0, 5000 - 1900)


def test_who_sets_the_cores_own_limit_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc, "__version__", "1.84.0")
    ours, most = grpc_seam.with_pending_limit((("a", 1),))
    assert dict(ours)["a"] == 1
    assert dict(ours)["grpc.server.max_pending_requests_hard_limit"] == most
    theirs = (("grpc.server.max_pending_requests_hard_limit", 7),)
    assert grpc_seam.with_pending_limit(theirs) == (theirs, 7)
