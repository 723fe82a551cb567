"""`lbclient inspect` of real processes, and of those who are none of ours."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import inf, nan
from typing import Any

import pytest

import lbclient
from lbclient import admin
from lbclient.admin.snapshot import snapshot
from lbclient.cli import main
from lbclient.cli.operate.inspect import channel as channel_lines
from tests.terminal import on_a_terminal

Inspect = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Inspect:
    """Status, output and complaints. In a thread, as the page has this loop."""

    async def inspect(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, ["inspect", *words])
        out, complaint = capsys.readouterr()
        return status, out, complaint

    return inspect


@pytest.fixture
async def place() -> AsyncIterator[str]:
    async with admin.page(port=0) as url:
        yield url.removeprefix("http://").removesuffix("/lbz")


async def test_backends_and_reasons_are_shown(
    place: str, start: Any, search: Any, inspect: Inspect
) -> None:
    tasks = [await start(lbclient.server) for _ in range(2)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = lbclient.ChannelConfig(active_limit=50)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()
        stub = search.SearchStub(channel)

        async def call() -> None:
            while True:
                await stub.Search(search.Query(), timeout=5)
                await asyncio.sleep(0.01)

        calling = asyncio.create_task(call())
        tasks[0].server.lame_duck()
        status, out, _ = await inspect("--interval", "0.5", place)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert [tasks[0].address, "lame", "duck"] in [line[:3] for line in lines]
    assert [tasks[1].address, "ready"] in [line[:2] for line in lines]
    assert any(line[:1] == ["picked"] for line in lines)
    assert ["active_limit", "50", "(code)"] in lines
    assert ["server", tasks[1].address] in lines
    assert any(line[:3] == ["UDP", "health", "checks"] for line in lines)


async def test_states_are_coloured_on_a_terminal_and_columns_stay_in_line(
    place: str, start: Any
) -> None:
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(f"ipv4:{task.address}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        words = ("-m", "lbclient", "inspect", "--interval", "0.5", place)
        shown = await asyncio.to_thread(on_a_terminal, *words, no_color="")
    lines = shown.splitlines()
    (row,) = [line for line in lines if "\x1b[32mready\x1b[0m  " in line]
    head = lines[lines.index(row) - 2]
    plain = row.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert len(plain) == len(head)
    assert plain.index("ready") == head.index("state")


async def test_what_cannot_be_described_is_shown_with_its_error(
    inspect: Inspect,
) -> None:
    why_not = {"kind": "channel", "number": 7, "name": "moody", "error": "not today"}
    async with saying(json.dumps(SOUND | {"untold": [why_not]}).encode()) as place:
        status, out, _ = await inspect("--interval", "0.5", place)
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[-2:] == [
        ["channel", "moody"],
        ["cannot", "be", "described", "not", "today"],
    ]


async def test_json_is_what_the_page_says(place: str, inspect: Inspect) -> None:
    status, out, _ = await inspect("--json", f"http://{place}/lbz")
    said = json.loads(out)
    assert (status, said["version"]) == (0, 1)
    assert said.keys() == snapshot().keys()


async def test_a_watch_goes_on_until_it_is_interrupted(place: str) -> None:
    words = ["inspect", "--watch", "--json", "--interval", "0.5", place]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lbclient", *words, stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        seen = [json.loads(await process.stdout.readline()) for _ in range(2)]
        assert seen[0]["clock"] <= seen[1]["clock"]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 130
    finally:
        if process.returncode is None:
            process.kill()


@asynccontextmanager
async def saying(body: bytes) -> AsyncIterator[str]:
    """Somebody who answers that, whatever is asked."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


NESTED = json.loads("[" * 600 + "]" * 600)
SOUND = snapshot() | {"channels": [], "servers": []}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "the response is not JSON"),
        (b"[" * 100_000, "the response is not JSON"),
        (b"[]", "JSON version None is not supported, only 1"),
        (
            json.dumps(SOUND | {"version": 2}).encode(),
            "JSON version 2 is not supported",
        ),
        (json.dumps(SOUND | {"pid": []}).encode(), "pid is not number"),
        (json.dumps(SOUND | {"time": nan}).encode(), "time is not number"),
        (json.dumps(SOUND | {"time": inf}).encode(), "time is not number"),
        (json.dumps(SOUND | {"time": 10**400}).encode(), "time is not number"),
        (json.dumps(SOUND | {"x": NESTED}).encode(), "the response is not JSON"),
        (b" " * (17 * 1024 * 1024), "more than 16,777,216 bytes"),
    ],
)
async def test_what_is_not_understood_is_status_1(
    inspect: Inspect, body: bytes, why: str
) -> None:
    async with saying(body) as place:
        status, out, complaint = await inspect(place)
    assert (status, out) == (1, "")
    assert why in complaint


async def test_a_port_of_grpc_is_not_understood(inspect: Inspect, start: Any) -> None:
    task = await start(lbclient.server)
    status, out, complaint = await inspect(task.address)
    assert (status, out) == (1, "")
    assert "not an HTTP response" in complaint
    assert len(complaint.splitlines()) == 1


async def test_an_answer_without_end_is_left(
    inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbclient.cli.operate.inspect.TIMEOUT", 0.5)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        status, _, complaint = await inspect(f"127.0.0.1:{port}")
    assert (status, "does not come to an end" in complaint) == (1, True)


@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "]
)
async def test_a_head_without_end_is_left(
    inspect: Inspect, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    """Each byte came in time, and so did no end: a timeout for each is none for all."""
    monkeypatch.setattr("lbclient.cli.operate.inspect.TIMEOUT", 0.5)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        with suppress(OSError):
            while True:
                writer.write(b"x" if start.endswith(b" ") else b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        status, _, complaint = await asyncio.wait_for(inspect(f"127.0.0.1:{port}"), 30)
    assert (status, "does not come to an end" in complaint) == (1, True)


async def test_a_head_that_is_too_long_is_left(inspect: Inspect) -> None:
    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000)
        with suppress(OSError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(flood, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        status, _, complaint = await inspect(f"127.0.0.1:{port}")
    assert (status, "the response header is too long" in complaint) == (1, True)


async def test_nothing_of_what_is_said_moves_the_cursor(inspect: Inspect) -> None:
    said = SOUND | {"program": "\x1b[2J\r\nevil\u202e"}

    async with saying(json.dumps(said).encode()) as place:
        status, out, _ = await inspect("--interval", "0.5", place)
    assert (status, out.splitlines()[0][:12]) == (0, "?[2J??evil? ")
    assert "No channel and no server" in out


async def test_what_an_older_server_does_not_count_is_none(
    inspect: Inspect, start: Any
) -> None:
    await start(lbclient.server)
    told = json.loads(json.dumps(snapshot()))
    told["servers"] = told["servers"][-1:]
    del told["servers"][0]["declined"]
    body = json.dumps(told | {"channels": []}).encode()
    async with saying(body) as place:
        status, out, complaint = await inspect("--interval", "0.5", place)
    assert (status, complaint) == (0, "")
    assert "declined" not in out


async def test_what_was_left_out_is_counted(inspect: Inspect) -> None:
    said = SOUND | {"channels_left_out": 3, "servers_left_out": 1}
    async with saying(json.dumps(said).encode()) as place:
        _, out, _ = await inspect("--interval", "0.5", place)
    assert "and 3 channels more" in out
    assert "and 1 server more" in out


async def test_contention_that_is_not_known_is_said_to_be_unknown(
    inspect: Inspect, start: Any
) -> None:
    await start(lbclient.server)
    told = snapshot()
    kept = {"waiting": 0.25, "throttled": None, "stolen": None}
    kept |= {"loop": 0.75, "lag": 0.001}
    told["servers"] = [one | {"contention": kept} for one in told["servers"][-1:]]
    async with saying(json.dumps(told | {"channels": []}).encode()) as place:
        status, out, complaint = await inspect("--interval", "0.5", place)
    assert (status, complaint) == (0, "")
    shown = " ".join(out.split())
    assert "contention waiting 25%, throttled unknown, stolen unknown" in shown
    assert "event loop 75% busy, timers 1" in shown


async def test_attempts_are_shown_where_some_were_refused(
    start: Any, search: Any
) -> None:
    task = await start(lbclient.server)
    async with lbclient.insecure_channel(f"ipv4:{task.address}") as channel:
        await search.SearchStub(channel).Search(search.Query(), timeout=5)
        told = snapshot()
    one = told["channels"][-1]
    assert (one["sent_attempts"]["0"], one["refused_attempts"]["0"]) == (1, 0)
    assert "refused" not in since(one, None)
    before = one | {"sent_attempts": {"0": 11, "1": 5, "2": 0}}
    one["sent_attempts"] = {"0": 21, "1": 10, "2": 0}
    one["refused_attempts"] = {"0": 3, "1": 1, "2": 0}
    assert "first 10, 30% refused; retry 1 5, 20% refused" in since(one, before)


def since(now: dict[str, Any], before: dict[str, Any] | None) -> str:
    return " ".join(" ".join(channel_lines(now, before, 1.0)).split())


async def test_nobody_there_is_status_1(
    inspect: Inspect, free_port: Callable[[], int]
) -> None:
    status, _, complaint = await inspect(f"127.0.0.1:{free_port()}")
    assert (status, "no answer" in complaint) == (1, True)
    assert "is this the address of lbclient.admin.page?" in complaint


async def test_a_name_that_is_refused_says_so(inspect: Inspect, place: str) -> None:
    # Resolvable, and not a name that the page was given.
    name = place.replace("127.0.0.1", "localhost.")
    status, _, complaint = await inspect(name)
    assert (status, "421" in complaint or "no answer" in complaint) == (1, True)


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("ftp://a:1", "URL = 'ftp://a:1': want host:port"),
        ("http://a:1/other", "URL = 'http://a:1/...': want host:port"),
        ("http://me:word@a:1", "URL = 'http://...@a:1': want host:port"),
        ("http://me:word", "URL = 'http://...': want host:port"),
        ("localhost", "URL = 'localhost': want host:port"),
        ("a:70000", "URL = 'a:70000': want host:port"),
        ("--interval 0 a:1", "interval = 0.0: want seconds, 0.5 to 3600"),
        ("--interval x a:1", "interval = 'x': want seconds, 0.5 to 3600"),
    ],
)
async def test_a_mistake_is_status_2_and_named(
    inspect: Inspect, words: str, want: str
) -> None:
    status, _, complaint = await inspect(*words.split())
    assert (status, want in complaint) == (2, True)
