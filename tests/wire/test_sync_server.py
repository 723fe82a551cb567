"""Servers of synchronous gRPC that report their load and leave in order."""

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode
from opentelemetry.instrumentation.grpc import (
    GrpcInstrumentorServer,
)
from opentelemetry.instrumentation.grpc import (
    server_interceptor as opentelemetry_interceptor,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from sentry_sdk.integrations.grpc import _wrap_sync_server
from sentry_sdk.integrations.grpc.server import ServerInterceptor as Sentry

import lbclient
from lbclient import grpc_seam, wire
from lbclient.admin.snapshot import snapshot
from lbclient.config import ServerConfig
from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError
from lbclient.core.model import State, TaskState
from lbclient.core.overload import admission
from lbclient.metrics import export
from lbclient.server import SyncServer
from lbclient.v1 import compat_pb2, health_pb2, load_pb2
from tests.hosts import (
    PATH,
    Methods,
    add_methods,
    see_drain,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from tests.waiting import Eventually, wait_until

SERVING = compat_pb2.ServingReply.SERVING
NOT_SERVING = compat_pb2.ServingReply.NOT_SERVING
SETTINGS = {field.name for field in fields(ServerConfig)}
THREADS = 10
DEADLINE = 30.0  # seconds; none of these calls is to meet it


@contextmanager
def sync_hosting(
    methods: Methods, threads: int = THREADS, **options: Any
) -> Iterator[tuple[SyncServer, str]]:
    settings = {name: options.pop(name) for name in SETTINGS & set(options)}
    if settings:
        options["config"] = ServerConfig(**settings)
    with ThreadPoolExecutor(threads) as pool:
        server = lbclient.sync_server(pool, **options)
        add_methods(server, methods)
        port = server.add_insecure_port("127.0.0.1:0")
        try:
            server.start()
            yield server, f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def echo(request: bytes, _context: Any) -> bytes:
    return request


def twice(request: bytes, _context: Any) -> Iterator[bytes]:
    yield request
    yield request


def joined(requests: Iterator[bytes], _context: Any) -> bytes:
    return b"".join(requests)


def each(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
    yield from requests


METHODS: Methods = {
    "/a.B/UnaryUnary": unary_unary(echo),
    "/a.B/UnaryStream": unary_stream(twice),
    "/a.B/StreamUnary": stream_unary(joined),
    "/a.B/StreamStream": stream_stream(each),
}


def call_all(channel: grpc.Channel, **options: Any) -> list[Any]:
    """The answers to a call of each arity."""
    options = {"timeout": DEADLINE, **options}
    twice = [b"x", b"x"]
    unary: Any = channel.unary_unary("/a.B/UnaryUnary")
    stream: Any = channel.unary_stream("/a.B/UnaryStream")
    whole: Any = channel.stream_unary("/a.B/StreamUnary")
    chat: Any = channel.stream_stream("/a.B/StreamStream")
    return [
        unary(b"x", **options),
        [*stream(b"x", **options)],
        whole(iter(twice), **options),
        [*chat(iter(twice), **options)],
    ]


ANSWERS = [b"x", [b"x", b"x"], b"xx", [b"x", b"x"]]


class Held:
    """A handler that holds its thread until it is let go."""

    def __init__(self) -> None:
        self.let_go = Event()
        self.began = 0

    def __call__(self, request: bytes, _context: Any) -> bytes:
        self.began += 1
        self.let_go.wait(DEADLINE)
        return request

    def fill(self, channel: Any, calls: int) -> Any:
        method = channel.unary_unary(PATH)
        return [method.future(b"x", timeout=DEADLINE) for _ in range(calls)]


def check(channel: grpc.Channel, service: str = "") -> Any:
    method: Any = channel.unary_unary(
        wire.SERVING_CHECK_METHOD,
        compat_pb2.ServingRequest.SerializeToString,
        compat_pb2.ServingReply.FromString,
    )
    return method(compat_pb2.ServingRequest(service=service), timeout=DEADLINE).status


def watch(channel: grpc.Channel) -> Any:
    method: Any = channel.unary_stream(
        wire.SERVING_WATCH_METHOD,
        compat_pb2.ServingRequest.SerializeToString,
        compat_pb2.ServingReply.FromString,
    )
    return method(compat_pb2.ServingRequest(), timeout=DEADLINE)


def test_grpcio_runs_handlers_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """New Relic wraps what grpcio runs in its pool, and names methods by that."""
    submit: Any = ThreadPoolExecutor.submit
    names: set[str] = set()

    def spy(pool: Any, *arguments: Any) -> Any:
        names.update(getattr(one, "__qualname__", "") for one in arguments)
        return submit(pool, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", spy)
    methods = {**METHODS, "/a.B/StreamUnary": stream_unary(partial(joined))}
    with (
        sync_hosting(methods) as (_, address),
        grpc.insecure_channel(address) as channel,
    ):
        assert call_all(channel) == ANSWERS
    assert {"echo", "twice", "joined", "each"} <= names


# What it reports


async def test_every_answer_of_a_sync_server_reports(
    eventually: Eventually,
) -> None:
    def failing(request: bytes, context: Any) -> bytes:
        if request == b"abort":
            context.set_trailing_metadata((("mine", "yes"),))
            context.abort(StatusCode.NOT_FOUND, "none")
        raise KeyError("lost")

    with (
        sync_hosting({**METHODS, "/a.C/Fail": unary_unary(failing)}) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        assert call_all(channel) == ANSWERS
        for request, code in (
            (b"abort", StatusCode.NOT_FOUND),
            (b"raise", StatusCode.UNKNOWN),
        ):
            method: Any = channel.unary_unary("/a.C/Fail")
            with pytest.raises(grpc.RpcError) as caught:
                method(request, timeout=DEADLINE)
            error: Any = caught.value
            assert error.code() is code
            trailers = dict(error.trailing_metadata())
            assert wire.find_report(error.trailing_metadata()) is not None
            assert ("mine" in trailers) is (request == b"abort")
        method = channel.unary_unary("/a.B/UnaryUnary")
        _, call = method.with_call(b"x", timeout=DEADLINE)
        report = wire.find_report(call.trailing_metadata())
        assert report is not None
        assert report.active == 0, "without the request itself"
        await eventually(lambda: sum(server.statistics().requests.values()) == 7)
        seen = server.statistics()
    assert seen.requests == {"OK": 5, "NOT_FOUND": 1, "UNKNOWN": 1}
    assert seen.active == 0


def test_a_handlers_context_is_grpcios_to_whoever_looks() -> None:
    seen: dict[str, Any] = {}

    def look(request: bytes, context: Any) -> bytes:
        seen["is one"] = isinstance(context, grpc.ServicerContext)
        seen["left"] = context.time_remaining()
        seen["active"] = context.is_active()
        seen["peer"] = context.peer()
        seen["state"] = context._state.code  # as py-grpc-prometheus reads it
        seen["criticality"] = lbclient.core.criticality.current()
        seen["called back"] = context.add_callback(lambda: seen.update(over=True))
        seen["initial"] = context.send_initial_metadata((("early", "1"),))
        return request

    with (
        sync_hosting({PATH: unary_unary(look)}) as (_, at),
        grpc.insecure_channel(at) as channel,
    ):
        method: Any = channel.unary_unary(PATH)
        metadata = ((wire.CRITICALITY_KEY, "SHEDDABLE"),)
        assert method(b"x", metadata=metadata) == b"x"
    assert seen.pop("left") > 1e8, "as grpcio says where there is no deadline"
    assert seen.pop("peer").startswith("ipv4:127.0.0.1:")
    assert seen == {
        "is one": True,
        "active": True,
        "state": None,
        "criticality": Criticality.SHEDDABLE,
        "called back": True,
        "initial": None,
        "over": True,
    }


async def test_a_sync_server_is_in_the_metrics_and_on_the_page(
    eventually: Eventually,
) -> None:
    with (
        sync_hosting(METHODS) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        assert call_all(channel) == ANSWERS
        await eventually(lambda: server.statistics().requests["OK"] == 4)
        registry = CollectorRegistry()
        export(server, registry)
        text = generate_latest(registry).decode()
        assert 'lbclient_server_requests_total{code="OK"} 4.0' in text
        assert call_all(channel) == ANSWERS
        await eventually(lambda: server.statistics().requests["OK"] == 8)
        text = generate_latest(registry).decode()
        timed = "lbclient_server_request_duration_seconds_count"
        assert sum(line.startswith(timed) for line in text.splitlines()) == 4
        [shown] = [one for one in snapshot()["servers"] if at in one["ports"]]
        assert shown["state"] == "serving"


async def test_backends_of_synchronous_servers_are_balanced_by_their_reports(
    eventually: Eventually,
) -> None:
    """One of two has most of its threads taken by others, and gets few calls.

    On a slow machine what it told of its requests is old when the next call is sent.
    Then utilizations decide, which takes more calls.
    """
    held = Held()
    rounds: list[Counter[str]] = []

    def counted(name: str) -> Callable[[bytes, Any], bytes]:
        def respond(request: bytes, _context: Any) -> bytes:
            rounds[-1][name] += 1
            return request

        return respond

    hold = unary_unary(held)
    with (
        sync_hosting({"/a.B/Ask": unary_unary(counted("free"))}) as (_, free),
        sync_hosting({"/a.B/Ask": unary_unary(counted("full")), PATH: hold}) as (
            _,
            full,
        ),
        grpc.insecure_channel(full) as others,
    ):
        taking = held.fill(others, calls=THREADS - 2)
        try:
            await eventually(lambda: held.began == THREADS - 2)
            async with lbclient.insecure_channel(f"ipv4:{free},{full}") as channel:
                method: Any = channel.unary_unary("/a.B/Ask")
                await eventually(lambda: len(channel.balancer().pool.ready) == 2)
                loads = [b.reported for b in channel.balancer().pool.ready]
                await eventually(lambda: all(load.is_ours for load in loads))

                async def ask() -> None:
                    rounds.append(Counter())
                    for _ in range(200):
                        await method(b"x", timeout=DEADLINE)

                await ask()
                await eventually(
                    lambda: rounds[-1]["free"] > 2 * rounds[-1]["full"],
                    lambda: rounds,
                    turns=5,
                    meanwhile=ask,
                )
        finally:
            held.let_go.set()
        assert [call.result() for call in taking] == [b"x"] * (THREADS - 2)


# Health


async def test_calls_in_all_threads_do_not_hold_up_health(
    eventually: Eventually,
) -> None:
    """Nor do many health streams take threads of calls."""
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        watches = [watch(channel) for _ in range(8)]
        assert [next(one).status for one in watches] == [SERVING] * 8
        calls = held.fill(channel, calls=THREADS + 3)
        await eventually(lambda: held.began == THREADS)
        assert check(channel) == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(channel, "no.Such")
        assert caught.value.code() is StatusCode.NOT_FOUND
        await see_drain(server, at)
        assert [next(one).status for one in watches] == [NOT_SERVING] * 8
        assert held.began == THREADS
        held.let_go.set()
        assert [call.result() for call in calls] == [b"x"] * (THREADS + 3)
        server.drain()
        told = {answer.status for one in watches for answer in one}
        assert told == {NOT_SERVING}, "and no stream has failed"


async def test_a_watcher_that_leaves_or_does_not_read_is_forgotten(
    eventually: Eventually,
) -> None:
    with (
        sync_hosting(METHODS) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        left, kept = watch(channel), watch(channel)
        assert next(left).status == next(kept).status == SERVING
        assert server.statistics().streams["serving"] == 2
        left.cancel()
        await eventually(lambda: server.statistics().streams["serving"] == 1)
        method: Any = channel.unary_stream(
            wire.ORCA_METHOD, compat_pb2.LoadReportRequest.SerializeToString
        )
        loads = method(compat_pb2.LoadReportRequest(), timeout=DEADLINE)
        assert next(loads), "an ORCA report"
        loads.cancel()
        await eventually(lambda: server.statistics().streams["load"] == 0)


# How it leaves


async def test_a_rolling_restart_of_synchronous_servers_loses_no_call(
    free_port: Callable[[], int],
) -> None:
    """Three processes that run `serve_sync`, each ended by SIGTERM and started again,
    while our client goes on calling."""
    program = str(Path(__file__).with_name("sync_task.py"))
    ports = [free_port() for _ in range(3)]

    def start(port: int) -> "subprocess.Popen[str]":
        task = subprocess.Popen(
            [sys.executable, program, str(port)], stdout=subprocess.PIPE, text=True
        )
        assert task.stdout is not None
        assert task.stdout.readline() == "listening\n"
        return task

    tasks = await asyncio.gather(*(asyncio.to_thread(start, port) for port in ports))
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    failures: list[str] = []
    served, over = 0, asyncio.Event()

    async def call(method: Any) -> None:
        nonlocal served
        while not over.is_set():
            try:
                await method(b"x", timeout=DEADLINE)
                served += 1
            except grpc.aio.AioRpcError as error:
                failures.append(f"{error.code()}: {error.details()}")

    try:
        async with lbclient.insecure_channel(target) as channel:
            callers = [
                asyncio.ensure_future(call(channel.unary_unary(PATH))) for _ in range(8)
            ]
            for number, port in enumerate(ports):
                before = served
                tasks[number].send_signal(signal.SIGTERM)
                await asyncio.to_thread(tasks[number].communicate, timeout=DEADLINE)
                assert tasks[number].returncode == 0
                tasks[number] = await asyncio.to_thread(start, port)
                assert served > before
                await asyncio.to_thread(_wait_until_serving, port)
            over.set()
            await asyncio.gather(*callers)
    finally:
        for task in tasks:
            task.kill()
            task.communicate()
    assert not failures
    assert served > 100


def _wait_until_serving(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        statuses = watch(channel)  # the first may come before the warmup is over
        assert SERVING in (one.status for one in statuses)
        statuses.cancel()


def test_a_drain_lets_calls_end_and_refuses_no_call_before_goaway() -> None:
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        watching = watch(channel)
        assert next(watching).status == SERVING
        [call] = held.fill(channel, calls=1)
        draining = Thread(target=server.drain)
        draining.start()
        assert next(watching).status == NOT_SERVING
        [late] = held.fill(channel, calls=1)  # of a client that has not heard
        held.let_go.set()
        assert call.result() == late.result() == b"x"
        draining.join(DEADLINE)
        assert not draining.is_alive()
        assert server.wait_for_termination(0.0) is False


def test_a_server_starts_once_its_warmup_is_over() -> None:
    warm = Event()
    with ThreadPoolExecutor(2) as pool:
        server = lbclient.sync_server(pool)
        at = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        starting = Thread(target=lambda: server.start(lambda: warm.wait()))
        starting.start()
        with grpc.insecure_channel(at) as channel:
            grpc.channel_ready_future(channel).result(DEADLINE)
            assert check(channel) == NOT_SERVING
            warm.set()
            starting.join(DEADLINE)
            assert check(channel) == SERVING
        with pytest.raises(ValueError, match="already-started"):
            server.start()
        server.stop(None).wait()


def test_serve_sync_raises_what_a_warmup_raises() -> None:
    def fail() -> None:
        raise OSError("no disk")

    with ThreadPoolExecutor(2) as pool:
        server = lbclient.sync_server(pool)
        with pytest.raises(OSError, match="no disk"):
            lbclient.serve_sync(server, fail)
        assert server.stop(None).is_set()
        with pytest.raises(TypeError, match="no server of grpc"):
            lbclient.serve_sync(lbclient.serve_sync)  # type: ignore[arg-type]


def test_a_server_that_never_started_can_be_stopped_and_then_started() -> None:
    """It could not be stopped any more, and the first unknown method froze it."""
    with ThreadPoolExecutor(THREADS) as pool:
        server = add_methods(lbclient.sync_server(pool), {PATH: unary_unary(echo)})
        port = server.add_insecure_port("127.0.0.1:0")
        assert server.stop(None).is_set()
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                unknown: Any = channel.unary_unary("/a.B/Unknown")
                with pytest.raises(grpc.RpcError, match="Method not found!"):
                    unknown(b"x", timeout=DEADLINE)
                method: Any = channel.unary_unary(PATH)
                assert method(b"x", timeout=DEADLINE) == b"x"
        finally:
            assert server.stop(None).wait(DEADLINE)
            assert not server.wait_for_termination(DEADLINE)


async def test_serve_sync_names_what_serves_an_asyncio_server() -> None:
    server: Any = lbclient.server()
    with pytest.raises(TypeError, match=r"await lbclient\.serve:"):
        lbclient.serve_sync(server)


def test_a_drain_ends_when_somebody_stops_the_server() -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        sync_hosting(METHODS) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        watching = watch(channel)
        assert next(watching).status == SERVING
        draining = pool.submit(server.drain)
        assert next(watching).status == NOT_SERVING
        assert server.stop(None).wait(DEADLINE)
        assert draining.result(DEADLINE) is None
        server.drain()


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_stop_ends_a_warmup(in_thread: bool) -> None:
    warming, over = Event(), Event()

    async def warm_up() -> None:
        warming.set()
        await asyncio.get_running_loop().create_future()

    def warm_up_in_thread() -> None:
        warming.set()
        over.wait(DEADLINE)

    with ThreadPoolExecutor(2) as pool:
        server = lbclient.sync_server(pool)
        starting = pool.submit(
            server.start, warm_up_in_thread if in_thread else warm_up
        )
        assert warming.wait(DEADLINE)
        assert server.stop(None).wait(DEADLINE)
        assert starting.result(DEADLINE) is None
        assert server.state is TaskState.LAME_DUCK
        over.set()


def test_a_warmup_may_stop_its_server_while_a_request_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lookup held grpcio's lock and waited for the loop, which waited for the
    lock."""
    asked, stopped = Event(), Event()
    calls: list[Any] = []  # or they are cancelled

    with ThreadPoolExecutor(2) as pool:
        config = ServerConfig(quotas={"rich": 100.0})
        server = lbclient.sync_server(pool, config=config)
        add_methods(server, {PATH: unary_unary(echo)})
        port = server.add_insecure_port("127.0.0.1:0")
        call = server._loop.call

        def asking(*arguments: Any) -> Any:
            asked.set()
            return call(*arguments)

        async def warm_up() -> None:
            monkeypatch.setattr(server._loop, "call", asking)
            method: Any = channel.unary_unary(PATH)
            request = method.future(b"x", timeout=DEADLINE)
            assert asked.wait(DEADLINE)
            server.stop(None)
            stopped.set()
            calls.append(request)

        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            Thread(target=server.start, args=(warm_up,), daemon=True).start()
            assert stopped.wait(DEADLINE)
            assert server.stop(None).wait(DEADLINE)


def test_a_warmup_that_cancels_itself_is_no_stop() -> None:
    async def warm_up() -> None:
        raise asyncio.CancelledError

    with ThreadPoolExecutor(2) as pool:
        server = lbclient.sync_server(pool)
        with pytest.raises(CancelledError):
            server.start(warm_up)
        assert server.stop(None).wait(DEADLINE)


def test_a_drain_on_the_servers_own_loop_is_refused() -> None:
    """There it would wait for itself, as a coroutine for a warmup runs there."""
    with ThreadPoolExecutor(1) as pool:
        config = ServerConfig(lame_duck_quiet=0.1)
        server = lbclient.sync_server(pool, config=config)

        async def warm_up() -> None:
            with pytest.raises(RuntimeError, match="to_thread"):
                server.drain()
            await asyncio.to_thread(server.drain)

        server.start(warm_up)
        assert server.stop(None).wait(DEADLINE)


def test_a_server_made_before_a_fork_serves_in_each_child() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("forking_server.py"))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "served\n" * 2), done.stderr


async def test_a_server_that_is_dropped_stops(eventually: Eventually) -> None:
    def threads() -> list[str]:
        return [one.name for one in threading.enumerate()]

    with ThreadPoolExecutor(2) as pool:
        server = lbclient.sync_server(pool)
        add_methods(server, METHODS)
        at = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        with grpc.insecure_channel(at) as channel:
            assert call_all(channel) == ANSWERS
        gone = weakref.ref(server)
        assert "lbclient server" in threads()
        del server
        gc.collect()
        assert gone() is None
        await eventually(lambda: "lbclient server" not in threads())


# What it lets in


async def test_a_refusal_waits_for_no_thread(eventually: Eventually) -> None:
    """All threads are taken for long: what waits too long for one is seen, and the
    least critical requests are refused at once."""
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}, threads=2, max_load=0.5) as (
            server,
            at,
        ),
        grpc.insecure_channel(at) as channel,
    ):
        method: Any = channel.unary_unary(PATH)
        calls = held.fill(channel, calls=60)
        asked: list[Any] = []

        async def ask() -> None:
            metadata = ((wire.CRITICALITY_KEY, "SHEDDABLE"),)
            asked.append(method.future(b"x", timeout=DEADLINE, metadata=metadata))

        await eventually(lambda: any(call.done() for call in asked), meanwhile=ask)
        calls += asked
        refused = next(call for call in asked if call.done())
        assert refused.code() is StatusCode.UNAVAILABLE
        trailers = dict(refused.trailing_metadata())
        assert trailers[wire.REFUSAL_KEY].startswith("overloaded")
        assert wire.LOAD_KEY in trailers
        assert held.began == 2
        held.let_go.set()
        for call in calls:
            with suppress(grpc.RpcError):
                call.result()
        await eventually(lambda: server.statistics().active == 0)
        assert server.statistics().refused["overloaded"]["SHEDDABLE"] > 0


async def test_a_request_given_up_before_it_has_a_thread_is_over(
    eventually: Eventually,
) -> None:
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}, threads=1) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        [first, *others] = held.fill(channel, calls=6)
        await eventually(lambda: server.statistics().active == 6)
        for call in others:
            call.cancel()
        held.let_go.set()
        assert first.result() == b"x"
        await eventually(
            lambda: server.statistics().active == 0, seen=server.statistics
        )


def test_unknown_methods_are_counted_and_wait_for_no_thread() -> None:
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}, threads=1) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        [call] = held.fill(channel, calls=1)
        for name in ("/a.B/One", "/c.D/Two"):
            method: Any = channel.unary_unary(name)
            with pytest.raises(grpc.RpcError, match="Method not found!") as caught:
                method(b"", timeout=DEADLINE)
            error: Any = caught.value
            assert error.code() is StatusCode.UNIMPLEMENTED
            assert wire.find_report(error.trailing_metadata()) is not None
        held.let_go.set()
        assert call.result() == b"x"
        export(server, registry := CollectorRegistry())
        labels = ("type", "service", "method")
        unknown = dict.fromkeys((f"grpc_{label}" for label in labels), "unknown")
        unknown["grpc_code"] = "Unimplemented"
        name = "grpc_server_handled_total"  # counted once they are answered
        wait_until(lambda: registry.get_sample_value(name, unknown) == 2)


def test_a_limit_of_concurrent_requests_holds_in_a_burst() -> None:
    """Each that is refused gets a report."""
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}, maximum_concurrent_rpcs=2) as (
            server,
            at,
        ),
        grpc.insecure_channel(at) as channel,
    ):
        wait_until(lambda: server._requests._gate._is_calm)  # it looks less closely
        calls = held.fill(channel, calls=20)
        wait_until(lambda: sum(call.done() for call in calls) == 18)
        held.let_go.set()
        codes = [call.code() for call in calls]
        assert codes.count(StatusCode.OK) == 2
        assert codes.count(StatusCode.RESOURCE_EXHAUSTED) == 18
        refused = [call for call in calls if call.code() is not StatusCode.OK]
        assert all(wire.find_report(call.trailing_metadata()) for call in refused)
        assert server.statistics().refused["concurrency"]["CRITICAL"] == 18
        ends = {"OK": 2, "RESOURCE_EXHAUSTED": 18}
        wait_until(lambda: server.statistics().requests == ends)
        assert check(channel) == SERVING


class MakingHandlers(grpc.ServerInterceptor):
    """Makes a handler for each request, as OpenTelemetry's and Sentry's do."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler: Any = continuation(details)
        return handler and unary_unary(handler.unary_unary)


@pytest.mark.parametrize("interceptors", [[], [MakingHandlers()]])
def test_what_cannot_be_done_in_time_is_not_begun(
    interceptors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "TRIAL", 1000.0)  # else one may come in a second
    began = []

    def slow(request: bytes, _context: Any) -> bytes:
        began.append(request)
        sleep(3.0)
        return request

    with (
        sync_hosting({PATH: unary_unary(slow)}, interceptors=interceptors) as (
            server,
            at,
        ),
        grpc.insecure_channel(at) as channel,
    ):
        method: Any = channel.unary_unary(PATH)
        assert method(b"x", timeout=DEADLINE) == b"x"
        wait_until(lambda: server.statistics().requests["OK"] == 1)
        server._loop.call(server._parts.sampler.sample)
        with pytest.raises(grpc.RpcError) as caught:
            method(b"x", timeout=2.5)
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert len(began) == 1
        refused = server.statistics
        wait_until(lambda: refused().refused["too-late"]["CRITICAL"] == 1, refused)


def test_a_customer_has_a_quota() -> None:
    seen = []

    def spend(request: bytes, _context: Any) -> bytes:
        seen.append(lbclient.core.quotas.customer.current())
        return request

    with (
        sync_hosting(
            {PATH: unary_unary(spend)}, quotas={"rich": 100.0, "poor": 0.0}
        ) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        method: Any = channel.unary_unary(PATH)
        rich, poor = (((wire.CUSTOMER_KEY, name),) for name in ("rich", "poor"))
        assert method(b"x", timeout=DEADLINE, metadata=rich) == b"x"
        with pytest.raises(grpc.RpcError) as caught:
            method(b"x", timeout=DEADLINE, metadata=poor)
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert seen == ["rich"]
        assert server.statistics().refused["quota"]["CRITICAL"] == 1


# Strangers


class Denying(grpc.ServerInterceptor):
    """Nobody may call anything without this token."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        if dict(details.invocation_metadata).get("authorization") == "token":
            return continuation(details)

        def deny(_request: Any, context: Any) -> None:
            context.abort(StatusCode.UNAUTHENTICATED, "no token")

        return unary_unary(deny)


TOKEN = (("authorization", "token"),)


@pytest.mark.parametrize("asks", [False, True], ids=["passes by", "asks"])
def test_users_interceptors_are_not_asked_about_health(asks: bool) -> None:
    with (
        sync_hosting(
            METHODS, interceptors=[Denying(), Sentry()], intercept_health=asks
        ) as (_, at),
        grpc.insecure_channel(at) as channel,
    ):
        assert call_all(channel, metadata=TOKEN) == ANSWERS
        with pytest.raises(grpc.RpcError) as caught:
            call_all(channel)
        error: Any = caught.value
        assert error.code() is StatusCode.UNAUTHENTICATED
        assert wire.find_report(error.trailing_metadata()) is not None
        if asks:
            with pytest.raises(grpc.RpcError, match="no token"):
                check(channel)
        else:
            assert check(channel) == next(watch(channel)).status == SERVING


@pytest.mark.parametrize("order", [1, -1])
async def test_health_passes_by_what_instruments_grpc_server(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """OpenTelemetry and Sentry replace `grpc.server`, and put their interceptors before
    those of the program."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor: Any = GrpcInstrumentorServer()  # type: ignore[no-untyped-call]

    def by_sentry() -> None:
        monkeypatch.setattr(grpc, "server", _wrap_sync_server(grpc.server))

    def by_opentelemetry() -> None:
        monkeypatch.setattr(grpc, "server", grpc.server)  # to be put back in the end
        instrumentor.instrument(tracer_provider=provider)

    for instrument in (by_sentry, by_opentelemetry)[::order]:
        instrument()
    try:
        with (
            sync_hosting(METHODS, interceptors=[Denying()]) as (server, at),
            grpc.insecure_channel(at) as channel,
        ):
            assert call_all(channel, metadata=TOKEN) == ANSWERS
            assert next(watch(channel)).status == SERVING
            await see_drain(server, at)
    finally:
        instrumentor.uninstrument()
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(names) == sorted(METHODS)


async def test_behind_an_interceptor_health_is_asked_for_by_unary_checks(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a grpcio where ours cannot be put before it no stream takes a thread."""
    monkeypatch.setattr(grpc_seam, "put_first", lambda *_: None)
    make: Any = opentelemetry_interceptor
    outer, plain = make(tracer_provider=TracerProvider()), grpc.server

    def instrumented(pool: Any, *, interceptors: Any, **options: Any) -> Any:
        return plain(pool, interceptors=[outer, *interceptors], **options)

    monkeypatch.setattr(grpc, "server", instrumented)
    with (
        sync_hosting(METHODS) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        assert call_all(channel) == ANSWERS
        async with lbclient.insecure_channel(f"ipv4:{at}") as ours:
            await ours.channel_ready()
            [backend] = ours.balancer().pool.ready
            server.lame_duck()
            await eventually(lambda: backend.state is State.LAME_DUCK)


def test_a_health_service_of_the_users_goes_first() -> None:
    """Also one whose stream grpcio hands over with a callback."""

    def follow(_request: bytes, _context: Any, send: Callable[[Any], None]) -> None:
        send(b"mine")
        send(None)

    def answer(_request: bytes, _context: Any) -> bytes:
        return b"mine"

    vars(follow)["experimental_non_blocking"] = True
    methods = {
        wire.SERVING_WATCH_METHOD: unary_stream(follow),
        "/a.B/Follow": unary_stream(follow),
        wire.SERVING_CHECK_METHOD: unary_unary(answer),
    }
    with (
        sync_hosting(methods) as (_, at),
        grpc.insecure_channel(at) as channel,
    ):
        for path in (wire.SERVING_WATCH_METHOD, "/a.B/Follow"):
            method: Any = channel.unary_stream(path)
            assert [*method(b"", timeout=DEADLINE)] == [b"mine"]
        ask: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
        assert ask(b"", timeout=DEADLINE) == b"mine"
        ours: Any = channel.unary_unary(
            wire.CHECK_METHOD, None, health_pb2.HealthReport.FromString
        )
        report = ours(b"", timeout=DEADLINE)
        assert report.state == load_pb2.SERVING


def test_the_switch_gives_grpcios_own_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient")
    monkeypatch.setenv("LBCLIENT_DISABLE", "1")
    held = Held()
    with (
        sync_hosting({PATH: unary_unary(held)}, threads=1) as (server, at),
        grpc.insecure_channel(at) as channel,
    ):
        assert not isinstance(server, SyncServer)
        assert "this server is grpcio's own" in caplog.text
        watching = [watch(channel) for _ in range(3)]
        assert [next(one).status for one in watching] == [SERVING] * 3
        [call] = held.fill(channel, calls=1)
        open_watch: Any = channel.stream_unary(wire.SERVING_WATCH_METHOD)
        asked = Event()  # the request of a client that takes its time
        slow = open_watch.future(asked.wait() and b"" for _ in range(1))
        assert check(channel) == SERVING, "though the only thread is taken"
        slow.cancel()
        asked.set()
        stopped = server.stop(DEADLINE)
        assert [next(one).status for one in watching] == [NOT_SERVING] * 3
        held.let_go.set()
        assert call.result() == b"x"
        assert stopped.wait(DEADLINE)


def test_what_is_wrong_is_named() -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ConfigError, match="maximum_concurrent_rpcs = 0"):
            lbclient.sync_server(pool, maximum_concurrent_rpcs=0)
        with pytest.raises(ConfigError, match="a ServerConfig"):
            lbclient.sync_server(pool, config={})  # type: ignore[arg-type]
