"""The batch proxy as a process of its own, between stock stubs and real servers."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import Criticality, wire
from lbclient.cli import main
from lbclient.cli.operate.proxy import SUBSET_SIZE, channel_of, parse
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.model import TaskState
from lbclient.core.refusal import Refusal
from lbclient.proxy import Forwarder
from lbclient.server.overload.refusal_status import TRAILERS
from lbclient.v1 import compat_pb2
from tests.certificates import certify
from tests.hosts import Host, Methods, stream_stream
from tests.waiting import stands_still
from tests.wire.conftest import earn
from tests.wire.refuser import refuser

CHUNK = bytes(2**17)
STILL = 30  # looks, of 10 ms each
MANY = 2000  # chunks: 250 MB, which is more than can be on the way


class Proxy:
    """A running one."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    def channel(self) -> Any:
        own = ("grpc.use_local_subchannel_pool", 1)
        return grpc.aio.insecure_channel(self.address, options=[own])

    async def end(self) -> dict[str, Any]:
        """What it says at its end, which was in order."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = await self.process.communicate()
        assert self.process.returncode == 0
        facts: dict[str, Any] = json.loads(said)
        return facts


@asynccontextmanager
async def proxy_of(*addresses: str, words: str = "") -> AsyncIterator[Proxy]:
    arguments = ["proxy", "--json", "--listen", "127.0.0.1:0", "--target"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lbclient", *arguments),
        *("ipv4:" + ",".join(addresses), *words.split()),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        said = json.loads(await process.stdout.readline())
        yield Proxy(process, said["listening"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


Behavior = Callable[[Any, Any], Awaitable[None]]


def streams(**behaviors: Behavior) -> Methods:
    """Methods `/test.Any/<name>`, by coroutines that stream."""
    return {f"/test.Any/{name}": stream_stream(one) for name, one in behaviors.items()}


async def results(channel: Any, search: Any) -> list[Any]:
    """What a stock stub gets of each arity, errors and all."""
    stub, query = search.SearchStub(channel), search.Query
    queries = [query(text=text) for text in ("a", "b", "abort")]
    calls: Any = (
        stub.Search(query(text="x"), timeout=10),
        stub.Search(query(text="abort"), timeout=10),
        stub.Index(iter(queries[:2]), timeout=10),
        stub.Index(iter(()), timeout=10),
        stub.Index(iter(queries), timeout=10),
        stub.Pages(query(text="5"), timeout=10),
        stub.Pages(query(text="0"), timeout=10),
        stub.Pages(query(text="fail"), timeout=10),
        stub.Chat(iter(queries[:2]), timeout=10),
        stub.Chat(iter(queries), timeout=10),
        channel.unary_unary("/no.Such/Method")(b"", timeout=10),
    )
    seen = []
    for call in calls:
        texts: Any = []
        with suppress(grpc.aio.AioRpcError):  # its status is looked at below
            if hasattr(call, "read"):
                async for answer in call:
                    texts.append(answer.text)
            else:
                texts = (await call).text
        seen.append((texts, await call.code(), await call.details()))
    return seen


class CancelledOnce(grpc.aio.ServerInterceptor):
    """Takes a cancel of its task for its own, without `uncancel`."""

    async def intercept_service(
        self, continuation: Any, handler_call_details: Any
    ) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await continuation(handler_call_details)


async def test_requests_end_though_an_interceptor_had_cancelled_itself(
    host: Host,
) -> None:
    async def count(requests: Any, context: Any) -> None:
        count = 0
        async for _ in requests:
            count += 1
        await context.write(b"%d" % count)

    server = lbclient.server(interceptors=[CancelledOnce()])
    below = await host(streams(Count=count))
    async with lbclient.insecure_channel(below.address) as backends:
        server.add_generic_rpc_handlers([Forwarder(backends)])
        _, _, channel = await host(server=server)
        call: Any = channel.stream_unary("/test.Any/Count")
        assert await call(iter([b"a"] * 3), timeout=30) == b"3"


async def test_a_stock_stub_sees_the_same_through_the_proxy(
    start: Any, search: Any
) -> None:
    task = await start(lbclient.server)
    async with proxy_of(task.address) as proxy:
        async with grpc.aio.insecure_channel(task.address) as channel:
            direct = await results(channel, search)
        async with proxy.channel() as channel:
            assert await results(channel, search) == direct
            assert len(direct) == 11
        facts = await proxy.end()
    assert facts["requests"]["OK"] == 6
    assert facts["requests"]["UNIMPLEMENTED"] == 1


SENT = (
    ("k", "1"),
    ("k", "2"),
    ("k-bin", b"\0\xff"),
    ("authorization", "bearer x"),
    (wire.CRITICALITY_KEY, "SHEDDABLE_PLUS"),
    (wire.CUSTOMER_KEY, "me"),
    (wire.ATTEMPT_KEY, "2"),
    (wire.DECLINE_KEY, "7"),
)
NOT_PASSED = 2  # the last of them


async def test_metadata_deadline_and_status_pass_as_they_are(host: Host) -> None:
    seen: dict[str, Any] = {}
    said = (("a", "1"), ("a", "2"), ("b-bin", b"\0\1"))

    async def fail(_: Any, context: Any) -> None:
        seen["metadata"] = [tuple(pair) for pair in context.invocation_metadata()]
        seen["left"] = context.time_remaining()
        await context.send_initial_metadata(said)
        await context.read()  # grpcio may lose what comes just before the end
        trailers = (*said, ("grpc-status-details-bin", b"\x08\x05"))
        await context.abort(grpc.StatusCode.DATA_LOSS, "größer %41\n", trailers)

    async def succeed(_: Any, context: Any) -> None:
        seen["left"] = context.time_remaining()
        context.set_trailing_metadata(said)

    config = ServerConfig(utilization=lambda: 0.77, utilization_replaces=True)
    _, address, _ = await host(streams(Fail=fail, Succeed=succeed), config=config)
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        call = channel.stream_stream("/test.Any/Fail")(metadata=SENT, timeout=30)
        assert tuple(await call.initial_metadata()) == said
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = caught.value
        assert (error.code(), error.details()) == (
            grpc.StatusCode.DATA_LOSS,
            "größer %41\n",
        )
        trailers = tuple(error.trailing_metadata())
        details = ("grpc-status-details-bin", b"\x08\x05")
        assert trailers[:-1] == (*said, details)
        # The report is the proxy's own.
        assert trailers[-1][0] == wire.LOAD_KEY
        report = wire.find_report(trailers)
        assert report is not None
        assert report.utilization != 0.77

        passed = [pair for pair in seen["metadata"] if pair[0] != "user-agent"]
        assert sorted(passed, key=str) == sorted(SENT[:-NOT_PASSED], key=str)
        assert [v for k, v in passed if k == "k"] == ["1", "2"]
        assert 0 < seen["left"] <= 31

        call = channel.stream_stream("/test.Any/Succeed")(iter(()))
        assert await call.read() is grpc.aio.EOF
        assert tuple(await call.trailing_metadata())[:-1] == said
        assert seen["left"] is None


async def test_it_names_the_customer_of_who_names_nobody(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBCLIENT_CHANNEL_CUSTOMER", "batch")

    async def respond(requests: Any, context: Any) -> None:
        async for _ in requests:
            pass
        await context.write(b"x")

    server, address, _ = await host(streams(Say=respond), default_quota=1000.0)
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        for metadata in ((), ((wire.CUSTOMER_KEY, "mail"),)):
            call = channel.unary_unary("/test.Any/Say")
            assert await call(b"x", timeout=30, metadata=metadata) == b"x"
    assert {name for name in server.statistics().usage if name} == {"batch", "mail"}


@pytest.mark.parametrize(
    ("words", "in_file", "sent"),
    [
        ("", None, "SHEDDABLE_PLUS"),
        ("", "SHEDDABLE", "SHEDDABLE"),
        ("--criticality critical_plus", "SHEDDABLE", "CRITICAL_PLUS"),
        ("--criticality CRITICAL", None, "CRITICAL"),
    ],
)
async def test_a_batch_job_is_sheddable_unless_somebody_says_otherwise(
    host: Host, tmp_path: Path, words: str, in_file: str | None, sent: str
) -> None:
    told: list[Any] = []

    async def note(_: Any, context: Any) -> None:
        told.append(dict(context.invocation_metadata()).get(wire.CRITICALITY_KEY))
        await context.write(b"")

    if in_file is not None:
        file = tmp_path / "proxy.toml"
        file.write_text(f'[channel]\ncriticality = "{in_file}"\n')
        words += f" --config {file}"
    _, address, _ = await host(streams(Note=note))
    said = [None, *Criticality.__members__]
    async with proxy_of(address, words=words) as proxy, proxy.channel() as channel:
        method = channel.unary_unary("/test.Any/Note")
        for own in said:
            metadata = ((wire.CRITICALITY_KEY, own),) if own else ()
            await method(b"", metadata=metadata, timeout=30)
    assert told == [sent, *Criticality.__members__]


async def test_headers_come_before_the_first_message(host: Host) -> None:
    go = asyncio.Event()

    async def named(_: Any, context: Any) -> None:
        await context.send_initial_metadata((("a", "1"),))
        await go.wait()

    async def empty(_: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await go.wait()
        await context.write(b"x")

    _, address, _ = await host(streams(Named=named, Empty=empty))
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        call = channel.stream_stream("/test.Any/Named")()
        assert tuple(await call.initial_metadata()) == (("a", "1"),)
        call = channel.stream_stream("/test.Any/Empty")()
        assert tuple(await call.initial_metadata()) == ()
        assert not call.done()
        go.set()
        assert await call.read() == b"x"
        assert await call.read() is grpc.aio.EOF


async def test_who_cancels_has_not_said_all(eventually: Any) -> None:
    """To grpcio's handlers a cancelled stream looks at first as if it had ended."""
    async with (
        refuser("late") as backend,  # which answers who has said all
        proxy_of(backend.address) as proxy,
        proxy.channel() as channel,
    ):
        method = channel.stream_stream("/test.Any/Upload")
        calls = [method() for _ in range(50)]
        for call in calls:
            await call.write(b"x")
        await eventually(lambda: backend.taken == 50)
        for call in calls:
            call.cancel()
        with pytest.raises(grpc.aio.AioRpcError):
            await method(iter((b"1", b"2"))).read()
        # At most a few that were cancelled look whole, of the last call's attempts too.
        assert 1 <= backend.refused < 10


async def test_to_cancel_reaches_the_backend(
    start: Any, search: Any, eventually: Any
) -> None:
    task = await start(lbclient.server)
    servicer, query = task.servicer, search.Query(text="sleep 60")
    async with proxy_of(task.address) as proxy, proxy.channel() as channel:
        stub = search.SearchStub(channel)
        calls = [
            stub.Search(query),
            stub.Pages(query),
            stub.Index(iter((query,))),
            stub.Chat(iter((query,))),
        ]
        await eventually(lambda: servicer.served == 4)
        late = stub.Search(query, timeout=0.5)  # once all are connected
        await eventually(lambda: servicer.served == 5)
        for call in calls:
            call.cancel()
        await eventually(lambda: servicer.cancelled == 5)
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_answer_may_come_before_the_end_of_the_requests(host: Host) -> None:
    async def first(requests: Any, context: Any) -> None:
        await context.write(await anext(aiter(requests)))

    _, address, _ = await host(streams(First=first))
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        call = channel.stream_stream("/test.Any/First")()
        await call.write(b"1")
        assert await call.read() == b"1"
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_an_answer_is_whole_though_requests_still_come(host: Host) -> None:
    async def first(requests: Any, context: Any) -> None:
        await anext(aiter(requests))
        for _ in range(5):
            await context.write(b"x")

    _, address, _ = await host(streams(First=first))
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        method = channel.stream_stream("/test.Any/First")

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0)

        for _ in range(20):
            answers: list[bytes] = []
            # Which grpcio raises here, too, if a request cannot be written any more.
            with suppress(grpc.aio.AioRpcError):
                async for message in method(endless()):
                    answers.append(message)  # noqa: PERF401  # it may raise midway
            assert answers == [b"x"] * 5
        facts = await proxy.end()
    assert facts["requests"] == {"OK": 20}


async def test_a_slow_reader_slows_the_backend(host: Host) -> None:
    sent = 0

    async def flood(_: Any, context: Any) -> None:
        nonlocal sent
        for _ in range(MANY):
            await context.write(CHUNK)
            sent += 1

    _, address, _ = await host(streams(Flood=flood))
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        call = channel.stream_stream("/test.Any/Flood")()
        assert await call.read() == CHUNK
        held = await stands_still(lambda: sent, STILL)
        assert held < MANY / 4
        for _ in range(2 * held):
            assert await call.read() == CHUNK
        assert sent > held
        call.cancel()


async def test_a_slow_backend_slows_the_client(host: Host, eventually: Any) -> None:
    go, taken = asyncio.Event(), 0

    async def digest(requests: Any, _: Any) -> None:
        nonlocal taken
        await go.wait()
        async for _ in requests:
            taken += 1

    _, address, _ = await host(streams(Digest=digest))
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        call = channel.stream_stream("/test.Any/Digest")()
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for _ in range(MANY):
                await call.write(CHUNK)
                sent += 1

        flooding = asyncio.ensure_future(flood())
        held = await stands_still(lambda: sent, STILL)
        assert held < MANY / 4
        go.set()
        await eventually(lambda: sent > 2 * held)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        call.cancel()
        assert taken > 0


@pytest.mark.parametrize("refusal", Refusal)
async def test_a_refusal_from_below_is_not_to_be_retried_above(
    host: Host, refusal: Refusal
) -> None:
    codes = grpc.StatusCode
    is_quota = refusal is Refusal.QUOTA
    code = codes.RESOURCE_EXHAUSTED if is_quota else codes.UNAVAILABLE
    begun = 0

    async def refuse(_: Any, context: Any) -> None:
        nonlocal begun
        begun += 1
        await context.abort(code, "no", TRAILERS[refusal])

    # A handler of ours that has begun could not say `overloaded`.
    _, address, _ = await host(streams(Refuse=refuse), server=grpc.aio.server())
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        await earn(channel, 3)
        call = channel.stream_stream("/test.Any/Refuse")(iter((b"x",)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code(), caught.value.details()) == (code, "no")
        trailers = caught.value.trailing_metadata()
        told = sorted(pair for pair in trailers if pair[0] != wire.LOAD_KEY)
        above = Refusal.QUOTA if is_quota else Refusal.DONT_RETRY
        pushback = (wire.PUSHBACK_KEY, "-1")
        assert told == [pushback, (wire.REFUSAL_KEY, above.value)]
    # To whom it is near the proxy may go again: there is a budget for that.
    # What is declined though nothing was marked is taken for that.
    is_near = refusal in (Refusal.OVERLOADED, Refusal.DECLINED)
    assert begun == (3 if is_near else 1)


async def test_what_one_backend_refuses_is_sent_to_another(host: Host) -> None:
    async def refuse(_: Any, context: Any) -> None:
        code = grpc.StatusCode.UNAVAILABLE
        await context.abort(code, "no", TRAILERS[Refusal.OVERLOADED])

    async def answer(requests: Any, context: Any) -> None:
        await context.send_initial_metadata((("a", "1"),))
        async for request in requests:
            await context.write(request)

    _, refusing, _ = await host(streams(Echo=refuse), server=grpc.aio.server())
    _, answering, _ = await host(streams(Echo=answer))
    async with proxy_of(refusing, answering) as proxy, proxy.channel() as channel:
        method = channel.unary_unary("/test.Any/Echo")
        await earn(channel, 8)
        for n in range(8):
            call = method(b"%d" % n, timeout=10)
            assert await call == b"%d" % n
            assert tuple(await call.initial_metadata()) == (("a", "1"),)
        facts = await proxy.end()
    assert facts["requests"]["OK"] == 8
    assert facts["retries"] == facts["attempts"]["rejected"] > 0


async def test_only_idempotent_methods_are_executed_twice(host: Host) -> None:
    begun = 0

    async def fail(_: Any, context: Any) -> None:
        nonlocal begun
        begun += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "who knows")

    _, address, _ = await host(streams(Get=fail, Put=fail))
    words = "--idempotent /test.Any/Get"
    async with proxy_of(address, words=words) as proxy, proxy.channel() as channel:
        await earn(channel, 3)
        for name, times in (("Put", 1), ("Get", 3)):
            begun = 0
            with pytest.raises(grpc.aio.AioRpcError, match="who knows") as caught:
                await channel.unary_unary(f"/test.Any/{name}")(b"", timeout=10)
            assert begun == times
            trailers = caught.value.trailing_metadata()
            was_retried = times > 1  # so nobody above is to try it again
            assert ((wire.PUSHBACK_KEY, "-1") in tuple(trailers)) is was_retried


async def test_of_more_calls_than_it_may_have_the_others_are_refused(
    host: Host, eventually: Any
) -> None:
    begun, may_end = 0, asyncio.Event()

    async def wait(_: Any, context: Any) -> None:
        nonlocal begun
        begun += 1
        await may_end.wait()
        await context.write(b"done")

    words = "--max-active 2"
    _, address, _ = await host(streams(Wait=wait))
    async with (
        proxy_of(address, words=words) as proxy,
        proxy.channel() as channel,
    ):
        method = channel.unary_unary("/test.Any/Wait")
        calls = [method(b"", timeout=10) for _ in range(5)]
        await eventually(lambda: sum(call.done() for call in calls) == 3 and begun == 2)
        for call in filter(lambda call: call.done(), calls):
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            found = wire.find_refusal(tuple(await call.trailing_metadata()))
            assert found is Refusal.OVERLOADED
        may_end.set()
        codes = [await call.code() for call in calls]
        assert codes.count(grpc.StatusCode.OK) == 2
        facts = await proxy.end()
    assert facts["refused"]["concurrency"] == 3


async def test_without_backends_it_says_so_and_is_well(free_port: Any) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    async with proxy_of(nowhere) as proxy, proxy.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="0 of 1 backends") as caught:
            await channel.unary_unary("/test.Any/Get")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        serving = compat_pb2.ServingReply(status=compat_pb2.ServingReply.SERVING)
        for service in ("", "test.Any"):
            request = compat_pb2.ServingRequest(service=service).SerializeToString()
            answer = await channel.unary_unary(wire.SERVING_CHECK_METHOD)(request)
            assert answer == serving.SerializeToString()


async def test_at_sigterm_it_serves_what_is_on_the_way(host: Host) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(_: Any, context: Any) -> None:
        begun.set()
        await go.wait()
        await context.write(b"done")

    _, address, _ = await host(streams(Wait=wait))
    async with proxy_of(address) as proxy, proxy.channel() as channel:
        call = channel.unary_unary("/test.Any/Wait")(b"")
        await begun.wait()
        watch = channel.unary_stream(wire.WATCH_METHOD)(b"")
        reports = [wire.parse_health(bytes(await watch.read()))]
        ending = asyncio.ensure_future(proxy.end())
        reports.append(wire.parse_health(bytes(await watch.read())))
        states = [report.state for report in reports if report is not None]
        assert states == [TaskState.SERVING, TaskState.LAME_DUCK]
        go.set()
        assert await call == b"done"
        watch.cancel()
        assert (await ending)["requests"] == {"OK": 1}


CLIENTS, BACKENDS, SUBSET = 200, 8, 4


async def test_of_200_clients_the_backends_see_one_subset(
    start: Any,
    search: Any,
    connections: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proxy is alone, and so on a busy machine its subset would grow."""
    monkeypatch.setenv("LBCLIENT_MAX_SUBSET_SIZE", str(SUBSET))
    tasks = [await start(lbclient.server) for _ in range(BACKENDS)]
    ports = [int(task.address.rpartition(":")[2]) for task in tasks]
    words = f"--subset-size {SUBSET} --criticality CRITICAL"  # none of a burst is shed
    async with AsyncExitStack() as stack:
        running = proxy_of(*(task.address for task in tasks), words=words)
        proxy = await stack.enter_async_context(running)
        clients = [
            await stack.enter_async_context(proxy.channel()) for _ in range(CLIENTS)
        ]
        stubs = [search.SearchStub(client) for client in clients]
        for _ in range(2):
            calls = [stub.Search(search.Query(), timeout=30) for stub in stubs]
            answers = await asyncio.gather(*calls)
        assert len(connections(int(proxy.address.rpartition(":")[2]))) == CLIENTS
        assert len({answer.text for answer in answers}) > 1
        # A backend that was silent, as its loop was busy, is replaced for a while.
        await eventually(lambda: len(connections(*ports)) == SUBSET)
        assert len({port for port, _ in connections(*ports)}) == SUBSET
        facts = await proxy.end()
    assert facts["requests"] == {"OK": 2 * CLIENTS}


async def test_it_speaks_tls_on_both_sides_and_shows_metrics(
    host: Host, tmp_path: Path, free_port: Any
) -> None:
    pems = certify(tmp_path, "IP:127.0.0.1")
    authority, key, certificate, own_key, own_certificate = (
        (pems / name).read_bytes()
        for name in ("ca.pem", "server.key", "server.pem", "client.key", "client.pem")
    )

    async def who(_: Any, context: Any) -> None:
        names = context.auth_context()["x509_common_name"]
        await context.write(names[0])

    pairs = [(key, certificate)]
    needs = grpc.ssl_server_credentials(pairs, authority, require_client_auth=True)
    _, address, _ = await host(streams(Who=who), credentials=needs)
    metrics = free_port()
    words = (
        f"--cert {pems}/server.pem --key {pems}/server.key --ca {pems}/ca.pem "
        f"--target-ca {pems}/ca.pem --target-cert {pems}/client.pem "
        f"--target-key {pems}/client.key --metrics {metrics}"
    )
    shows = grpc.ssl_channel_credentials(authority, own_key, own_certificate)
    async with (
        proxy_of(address, words=words) as proxy,
        grpc.aio.secure_channel(proxy.address, shows) as channel,
    ):
        ask: Any = channel.unary_unary("/test.Any/Who")
        assert await ask(b"") == b"client"  # that is the proxy's
        reader, writer = await asyncio.open_connection("127.0.0.1", metrics)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
    assert 'lbclient_server_requests_total{code="OK"} 1.0' in page
    assert re.search(r'lbclient_calls_total\{code="OK",target=".*"\} 1.0', page)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--listen 50051", "listen = '50051': want HOST:PORT"),
        ("--listen a:65536", "listen = 'a:65536': want a port of 0 to 65535"),
        ("--target xds:///x", "target = 'xds:///x': want a scheme of"),
        ("--subset-size 0", "subset_size = 0: want a whole number"),
        ("--idempotent Get", "idempotent = 'Get': want paths such as"),
        ("--subset-size x", "subset_size = 'x': want a whole number, 1 to 1000000"),
        ("--max-message 1GB", "max_message = '1GB': want bytes, 1 to 2147483647"),
        ("--max-active x", "max_active = 'x': want calls at a time, 1 or more"),
        ("--metrics x", "metrics = 'x': want a port, 1 to 65535"),
        ("--max-message 0", "max_message = 0: want bytes"),
        ("--criticality HIGH", "criticality = 'HIGH': want one of SHEDDABLE, "),
        ("--max-active 0", "max_active = 0: want calls at a time, 1 or more"),
        ("--metrics 0", "metrics = 0: want a port"),
        ("--cert a.pem", "key = None: want a PEM file"),
        ("--ca {here}", "ca = '{here}': want a PEM file"),
        ("--ca /nowhere", "ca = '/nowhere': want a file that can be read"),
        ("--target-key a.pem", "target_cert = None: want a PEM file"),
        ("--config /nowhere", "LBCLIENT_CONFIG = '/nowhere': want a readable"),
    ],
)
def test_a_bad_argument_is_status_2(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = "proxy --listen 127.0.0.1:0 --target ipv4:127.0.0.1:1"
    here = {"here": __file__}
    status = main([*sound.split(), *words.format(**here).split()])
    said = f"lbclient proxy: {complaint.format(**here)}"
    assert (status, capsys.readouterr().err[: len(said)]) == (2, said)


@pytest.mark.parametrize(
    ("key", "certificate", "complaint"),
    [
        ("server.pem", "server.key", "key = '{}/server.pem': want a PEM file, which"),
        ("server.key", "client.key", "cert = '{}/client.key': want a PEM file, which"),
        ("client.key", "server.pem", "key = '{}/client.key': want the key, without a"),
    ],
)
def test_pem_files_that_do_not_belong_together_are_named(
    tmp_path: Path,
    key: str,
    certificate: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    certify(tmp_path, "IP:127.0.0.1")
    words = f"--key {tmp_path}/{key} --cert {tmp_path}/{certificate}"
    sound = "proxy --listen 127.0.0.1:0 --target ipv4:127.0.0.1:1"
    assert main([*sound.split(), *words.split()]) == 2
    assert complaint.format(tmp_path) in capsys.readouterr().err


async def test_a_server_that_cannot_bind_says_that_it_may_be_the_credentials(
    tmp_path: Path,
) -> None:
    pems = certify(tmp_path, "IP:127.0.0.1")
    key, certificate = ((pems / f"server.{end}").read_bytes() for end in ("key", "pem"))
    swapped = grpc.ssl_server_credentials([(certificate, key)])
    server = lbclient.server()
    with pytest.raises(RuntimeError, match="pairs of private key and certificate"):
        server.add_secure_port("127.0.0.1:0", swapped)
    await server.stop(None)


def test_a_port_that_is_taken_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["proxy", "--listen", address, "--target", "ipv4:1.2.3.4:1"]) == 1
    said = f"listen = '{address}': want an address that is free: Address already in use"
    assert said in capsys.readouterr().err


def test_the_subset_is_large_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text("[channel]\nsubset_size = 7\n")
    read = ChannelConfig.from_environment
    large: dict[str, Any] = {"subset_size": SUBSET_SIZE}
    assert read({}, **large).subset_size == SUBSET_SIZE
    assert read({"LBCLIENT_SUBSET_SIZE": "8"}, **large).subset_size == 8
    assert read({"LBCLIENT_CONFIG": str(path)}, **large).subset_size == 7


async def test_the_table_of_its_target_is_for_the_proxy(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text("[channel.'ipv4:127.0.0.1:1']\nsubset_size = 7\n")
    environ = {"LBCLIENT_CONFIG": str(path)}
    sizes = {"ipv4:127.0.0.1:1": 7, "ipv4:127.0.0.1:2": SUBSET_SIZE}
    for target, size in sizes.items():
        given = parse(["--listen", "127.0.0.1:0", "--target", target])
        async with channel_of(given, environ) as channel:
            assert channel._config.subset_size == size


async def test_a_secret_of_bytes_that_are_no_text_is_named() -> None:
    """It ended with a traceback."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lbclient", "proxy"),
        *("--listen", "127.0.0.1:0", "--target", "ipv4:127.0.0.1:1"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environb, b"LBCLIENT_UDP_SECRET": b"no text but secret \xff"},
    )
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode == 2
    want = "LBCLIENT_UDP_SECRET = '<20 characters>': want text in UTF-8"
    assert said.decode() == f"lbclient proxy: {want}\n"
