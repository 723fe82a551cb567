"""What peers send that is made to harm: words, names, depth, and time without end."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

import lbclient
from benchmarks.faults import hostile_input
from lbclient import wire
from lbclient.admin.http import Site
from lbclient.admin.snapshot import snapshot
from lbclient.cli import main
from lbclient.cli.operate.proxy import exposition, metrics_at
from lbclient.client.health.check import check
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.statuses import Unanswered
from lbclient.core.counting.call_counts import LONGEST, MOST, OTHERS
from lbclient.core.errors import ResolveError
from lbclient.core.model import TaskState
from lbclient.core.text import is_printable
from lbclient.resolvers.kubernetes import Api, ApiTimeouts, Kubernetes
from lbclient.server import Server
from lbclient.server.quotas.redis_store import RedisStore
from lbclient.v1 import health_pb2, load_pb2
from tests import needs
from tests.hosts import PATH, hosting, unary_stream, unary_unary
from tests.ports import free_port
from tests.waiting import eventually, let_pass

# A forged line of a log, orders to a terminal, text from right to left, and no end.
EVIL = (
    "nobody\n2026-01-01 ERROR root: forged\x1b]0;x\x07\x1b[2J\u202e\u200b" + "x" * 5000
)
TOKEN = "sQ8-secret-of-this-test"


def assert_harmless(text: str, most: int = 1200) -> None:
    """As it is, or in the JSON of it."""
    for line in text.splitlines():
        assert is_printable(line), line[:200]
        assert len(line) <= most, line[:200]
    assert "\n2026" not in text
    assert TOKEN not in text


async def refuse(_: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, EVIL)
    raise AssertionError("abort raises")


async def forbid(_: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, EVIL)
    raise AssertionError("abort raises")


async def refuse_stream(_: Any, context: Any) -> AsyncIterator[bytes]:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, EVIL)
    yield b""


@pytest.fixture
async def stranger() -> AsyncIterator[str]:
    """A server that says that, whatever it is asked. Its address."""
    methods = {
        "/a.A/Ask": unary_unary(refuse),
        wire.CHECK_METHOD: unary_unary(refuse),
        wire.WATCH_METHOD: unary_stream(refuse_stream),
        wire.SERVING_CHECK_METHOD: unary_unary(forbid),
        wire.SERVING_WATCH_METHOD: unary_stream(refuse_stream),
    }
    server = grpc.aio.server(options=[("grpc.max_metadata_size", 1 << 16)])
    async with hosting(methods, server=server) as (_, address, _):
        yield address


async def test_words_of_a_status_are_one_short_line_wherever_they_are_shown(
    stranger: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "lbclient")
    config = lbclient.ChannelConfig(idempotent=("/a.A/*",))
    async with lbclient.insecure_channel(stranger, config=config) as channel:
        ask: Any = channel.unary_unary("/a.A/Ask")
        call = ask(b"", timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.details() == EVIL  # its caller gets what was said
        assert_harmless("\n".join(lbclient.info(call).history))
        assert lbclient.info(call).history
        assert_harmless("\n".join(caught.value.__notes__))
        assert_harmless(repr(channel.statistics()), most=10_000)
        assert_harmless(json.dumps(snapshot(), ensure_ascii=False), most=10**6)
    async with grpc.aio.insecure_channel(stranger) as plain:
        backoff = HealthBackoff(Random(7))
        reason = await check(plain, 10.0, TaskState.SERVING, backoff)
    assert isinstance(reason, Unanswered)
    for text in (reason.why, reason.status):
        assert "forged" in text
        assert_harmless(text)
    for words in (["probe"], ["probe", "--service", "x"], ["doctor"]):
        timeout = ["--timeout", "20"]
        assert await asyncio.to_thread(main, [*words, *timeout, stranger]) in (1, 3)
        said = capsys.readouterr()
        assert "forged" in said.out
        assert_harmless(said.out + said.err)
    assert "forged" in caplog.text
    for record in caplog.records:
        assert_harmless(record.getMessage())


async def test_a_backend_that_talks_nonsense_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = asyncio.Event()

    async def watch(_: Any, context: Any) -> AsyncIterator[bytes]:
        yield health_pb2.HealthReport(state=load_pb2.SERVING).SerializeToString()
        try:
            for _ in range(1000):
                yield b"\xff\xff" + EVIL.encode()
            await asyncio.Event().wait()
        finally:
            said.set()  # the client has read enough, and ends it

    methods = {wire.WATCH_METHOD: unary_stream(watch)}
    async with (
        hosting(methods, server=grpc.aio.server()) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        channel.get_state(try_to_connect=True)
        await asyncio.wait_for(said.wait(), 60)
        await eventually(lambda: "does not parse" in caplog.text)
        await let_pass(0.1)
    warned = [r for r in caplog.records if "does not parse" in r.getMessage()]
    assert len(warned) == 1
    assert_harmless(warned[0].getMessage())


# --- stores and APIs ----------------------------------------------------------------


@asynccontextmanager
async def saying(answer: bytes) -> AsyncIterator[int]:
    """Somebody who answers that to everything, and then is silent. Its port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await reader.read(4096):
                writer.write(answer)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("repeated", [TOKEN, TOKEN[:12]])
async def test_a_redis_that_repeats_the_password_is_not_quoted(
    caplog: pytest.LogCaptureFixture, repeated: str
) -> None:
    """As Redis does where AUTH has another name; it cuts what is long."""
    needs.module("redis")
    words = f"unknown command 'AUTH', with args beginning with: '{repeated}'\x1b[2J"
    async with saying(f"-ERR {words}{'x' * 5000}\r\n".encode()) as port:
        url = f"redis://:{TOKEN}@127.0.0.1:{port}/0"
        store = RedisStore(url)
        with pytest.raises(lbclient.LbError) as caught:
            await store.exchange("task", {"mail": 1.0})
        await store.close()
        server = Server(config=lbclient.ServerConfig(quota_store=url, default_quota=1))
        server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await eventually(lambda: server.statistics().quotas.failures)
        await server.stop(None)
    assert "quota store failed" in caplog.text
    # asyncio may log what servers of tests before have left.
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("lbclient")]
    for said in (str(caught.value), *ours):
        assert "with args beginning with" in said
        assert repeated not in said
        assert_harmless(said)


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("Not Found", json.dumps({"message": f"{EVIL} of Bearer {TOKEN}"})),
        ("Not Found", json.dumps({"message": f"bad token {TOKEN}"})),
        (f"Nope \x1b[2J {TOKEN}", "<html>"),
        ("Not Found", "[" * 4096),
        ("Not Found", "5"),
    ],
)
async def test_an_api_that_answers_evil_is_one_line_without_the_token(
    tmp_path: Path, reason: str, body: str
) -> None:
    needs.module("aiohttp")
    (tmp_path / "token").write_text(TOKEN)
    size = len(body.encode())
    head = f"HTTP/1.1 404 {reason}\r\nContent-Length: {size}\r\n\r\n"
    async with saying((head + body).encode()) as port:
        api = Api(f"http://127.0.0.1:{port}", tmp_path)
        patience = ApiTimeouts(20.0, 20.0, 20.0, pause=0.05)
        resolver = Kubernetes("search", "prod", "grpc", Random(7), api, patience)
        with pytest.raises(ResolveError) as caught:
            async with aclosing(resolver.watch()) as watch:
                await anext(watch)
    assert_harmless(str(caught.value))


class Evil:
    """A resolver whose words are somebody else's."""

    def __repr__(self) -> str:
        return EVIL

    async def watch(self) -> AsyncIterator[Any]:
        raise ResolveError(EVIL)
        yield ()


async def test_an_error_of_any_resolver_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with lbclient.insecure_channel(Evil()) as channel:
        ask: Any = channel.unary_unary("/a.A/Ask")
        with pytest.raises(lbclient.NoBackend) as caught:
            await ask(b"", timeout=10)
        assert "forged" in str(caught.value.details())
        assert_harmless(str(caught.value.details()))
        assert_harmless(channel.statistics().resolver.error)
        assert "forged" in channel.statistics().resolver.error
        assert is_printable(channel.statistics().target)
    for record in caplog.records:
        assert_harmless(record.getMessage(), most=10_000)


class Amiss:
    """It answers, and says what is amiss nevertheless."""

    trouble = EVIL

    async def watch(self) -> AsyncIterator[Any]:
        yield (lbclient.Endpoint("127.0.0.1:1"),)
        await asyncio.Event().wait()


async def test_the_trouble_of_any_resolver_is_one_line() -> None:
    async with lbclient.insecure_channel(Amiss()) as channel:
        channel.get_state(try_to_connect=True)
        await eventually(lambda: channel.statistics().resolver.endpoints)
        assert "forged" in channel.statistics().resolver.error
        assert_harmless(channel.statistics().resolver.error)


# --- names --------------------------------------------------------------------------


class Any_(grpc.GenericRpcHandler):
    """Serves whatever is named, as a proxy does."""

    def service(self, handler_call_details: Any) -> Any:
        async def answer(request: bytes, _: Any) -> bytes:
            return request

        return unary_unary(answer)


async def test_methods_that_clients_invent_are_bounded_in_number_and_length() -> None:
    async with hosting(handlers=[Any_()]) as (server, _, channel):
        for number in range(MOST + 50):
            length = 3 * LONGEST if number % 2 else 5
            ask: Any = channel.unary_unary(f"/a.A/M{number:04}{'x' * length}")
            assert await ask(b"y", timeout=20) == b"y"
        methods = server.statistics().methods
    assert sum(counts["OK"] for counts in methods.values()) == MOST + 50
    assert methods["unary_unary", "/a.A/M0000xxxxx"]["OK"] == 1
    assert methods[OTHERS]["OK"] >= MOST / 2
    assert len(methods) <= MOST + 1
    assert max(len(path) for _, path in methods) <= LONGEST


async def test_customers_that_cannot_be_printed_share_one_account() -> None:
    names = iter(["mail", EVIL[:50], "a\u202eb", "x" * 101, "calendar"])

    async def answer(request: bytes, _: Any) -> bytes:
        return request

    options: dict[str, Any] = {"default_quota": 1.0, "customer": lambda _: next(names)}
    async with hosting(unary_unary(answer), **options) as (server, _, channel):
        ask: Any = channel.unary_unary(PATH)
        for _ in range(5):
            await ask(b"y", timeout=20)
        seen = server.statistics()
    assert set(seen.usage) == {"", "mail", "calendar"}
    assert seen.quotas.pooled == 3


# --- time and connections -------------------------------------------------------------


async def test_the_page_answers_while_a_stranger_holds_connections() -> None:
    rows = await hostile_input.run(2.0)
    assert [row for row in rows if not row.holds] == []
    assert all(row.ours.calls for row in rows)


async def scrape(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: proxy.example\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


async def test_metrics_of_a_proxy_are_there_while_a_stranger_holds_connections() -> (
    None
):
    """prometheus_client's own server gives each connection a thread, for ever."""
    port, threads = free_port(), threading.active_count()
    async with metrics_at(port, "127.0.0.1"), AsyncExitStack() as stack:
        for _ in range(100):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=("127.0.0.2", 0)
            )
            stack.callback(writer.close)
            writer.write(b"GET /metr")
        page = await scrape(port)
        assert threading.active_count() <= threads
    assert page.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Type: text/plain; version=" in page
    assert b"# TYPE " in page


async def test_a_scrape_may_ask_for_openmetrics() -> None:
    site = Site({"/metrics": exposition}, names=None)
    port = await site.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    accept = b"Accept: application/openmetrics-text; version=1.0.0\r\n\r\n"
    writer.write(b"GET /metrics HTTP/1.1\r\n" + accept)
    page = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await site.close()
    assert b"\r\nContent-Type: application/openmetrics-text" in page
    assert page.endswith(b"# EOF\n")
