"""Several workers of one program: forks, one scrape of all, and their pages."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import lbclient
from lbclient import admin
from lbclient.admin.siblings import MOST_BYTES, ask
from lbclient.client.channel import _USED_BEFORE_FORK
from tests import needs
from tests.hosts import PATH, Host, unary_unary
from tests.ports import free_ports
from tests.waiting import eventually, wait_until

WIRE = Path(__file__).parent
WORKERS = 2
CALLS = 20

SERVERS = {
    "gunicorn": ("--preload", "--worker-class=asgi", "--bind=127.0.0.1:{port}"),
    "uvicorn": ("--host=127.0.0.1", "--port={port}"),
}


async def echo(request: bytes, _: object) -> bytes:
    return request


def read(url: str) -> str:
    with urlopen(url, timeout=20) as response:
        return str(response.read().decode())


def is_up(url: str) -> bool:
    try:
        read(f"{url}/metrics")
    except OSError:
        return False
    return True


@asynccontextmanager
async def serving(kind: str, backend: str, directory: Path) -> AsyncIterator[str]:
    port = free_ports(1)[0]
    options = [option.format(port=port) for option in SERVERS[kind]]
    environment = {
        **os.environ,
        "BACKEND": backend,
        "PROMETHEUS_MULTIPROC_DIR": str(directory),
        "PYTHONPATH": str(WIRE),
    }
    command = [sys.executable, "-m", kind, f"--workers={WORKERS}", *options]
    process = subprocess.Popen(  # noqa: ASYNC220  # it only starts it
        [*command, "worker_app:app"],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.communicate, timeout=20)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.communicate)


@pytest.mark.parametrize("kind", SERVERS)
async def test_one_scrape_shows_all_workers(
    kind: str, host: Host, tmp_path: Path
) -> None:
    needs.module(kind)
    _, address, _ = await host(unary_unary(echo))
    async with serving(kind, address, tmp_path) as url:
        answered: set[str] = set()

        await asyncio.to_thread(wait_until, lambda: is_up(url))
        for _ in range(CALLS):
            answered.add(await asyncio.to_thread(read, f"{url}/call"))
        page = json.loads(await asyncio.to_thread(read, f"{url}/lbz.json"))
        assert [one["name"] for one in page["channels"]] == ["backend"]

        async def counted() -> dict[str, float]:
            text = await asyncio.to_thread(read, f"{url}/metrics")
            found = re.findall(r"^(lbclient_\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE)
            return {
                name: float(number)
                for name, labels, number in found
                if 'target="backend"' in labels
                and ('code="OK"' in labels or "code" not in labels)
                and ('le="+Inf"' in labels or "le=" not in labels)
            }

        seen: dict[str, float] = {}

        async def scrape() -> None:
            # prometheus_client fails where a worker has just made a file, empty so far.
            with suppress(HTTPError):
                seen.update(await counted())

        names = (
            "lbclient_calls_total",
            "lbclient_call_duration_seconds_count",
            "lbclient_call_duration_seconds_bucket",
            "lbclient_attempt_latency_seconds_bucket",
        )
        # Each worker writes what it has counted after a moment, one after the other.
        await eventually(
            lambda: [seen.get(name) for name in names] == [CALLS] * 4, meanwhile=scrape
        )
        assert seen["lbclient_channels"] >= len(answered)


@pytest.mark.parametrize("program", ["forking.py", "forking_later.py"])
async def test_channels_work_in_the_child_of_a_fork(host: Host, program: str) -> None:
    """Made before it and not used, or made in the child after others were closed."""
    _, address, _ = await host(unary_unary(echo))
    told = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(WIRE / program), address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (told.stdout, told.returncode) == ("b''", 0), told.stderr


async def test_a_channel_used_before_a_fork_says_so_in_the_child(host: Host) -> None:
    """Without a fork: gRPC's threads are not to be forked in the tests' process."""
    _, address, _ = await host(unary_unary(echo))
    async with lbclient.insecure_channel(address) as channel:
        await channel.unary_unary(PATH)(b"")
        channel._forked()
        try:
            with pytest.raises(RuntimeError, match="used before a fork, by"):
                await channel.unary_unary(PATH)(b"")
        finally:
            channel._balancer = _USED_BEFORE_FORK.pop()


async def until_it_links(url: str, other: dict[str, object]) -> None:
    found: list[dict[str, object]] = []

    async def look() -> None:
        found[:] = await siblings(url)

    await eventually(lambda: other in found, meanwhile=look)


async def test_a_second_page_takes_the_next_port_and_they_link_to_each_other() -> None:
    async with (
        admin.page(port=free_ports(1)[0]) as one,
        admin.page(port=port_of(one)) as two,
    ):
        assert port_of(one) < port_of(two) <= port_of(one) + admin.NEXT
        for url, other in ((one, two), (two, one)):
            shown = json.loads(await asyncio.to_thread(read, f"{url}.json"))
            known = {key: shown[key] for key in ("program", "pid")}
            assert "channels" in shown
            # Where others have these ports, they are no pages, or of other programs.
            await until_it_links(url, {"port": port_of(other), **known})


async def test_whatever_else_has_the_next_port_is_no_page() -> None:
    """It is asked once, and gets no say: whatever it answers, or if it says nothing."""
    answers = [
        b"",
        b"HTTP/1.1 404 Not Found\r\n\r\nnot here",
        b'HTTP/1.1 200 OK\r\n\r\n{"program": 1, "pid": "x"}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * MOST_BYTES,
        b"x" * 10 * MOST_BYTES,
        b"SSH-2.0-x\r\n",
    ]
    asked: list[bytes] = []

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[len(asked) - 1])
        with suppress(ConnectionError):
            await reader.read()  # silent until the other one leaves
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await asyncio.gather(*(ask("127.0.0.1", port) for _ in answers))
    assert found == [None] * len(answers)
    assert {one.split(b"\r\n")[0] for one in asked} == {
        b"GET /lbz/process.json HTTP/1.1"
    }


async def siblings(url: str) -> list[dict[str, object]]:
    text = await asyncio.to_thread(read, f"{url}/siblings.json")
    return list(json.loads(text))


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])
