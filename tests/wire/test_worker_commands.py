"""What `lbclient probe` and `doctor` say of a task of several workers."""

import asyncio
import json
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest

from lbclient.cli import main
from tests.hosts import hosting
from tests.ports import free_ports
from tests.waiting import eventually
from tests.wire.workers_program import WHO
from tests.wire.workers_task import PROGRAM, command, is_alive, mapped, serving


async def facts(*words: str) -> Any:
    return json.loads((await command(*words, "--json")).stdout)


async def checks(address: str) -> list[Any]:
    """Of workers, by `lbclient doctor`."""
    return [one for one in await facts("doctor", address) if one["name"] == "workers"]


async def test_they_say_how_many_workers_serve() -> None:
    async with serving("make_server", "--port=0", "--host=127.0.0.1") as task:
        address = await task.address()
        probed = await facts("probe", address)
        assert probed["state"] == "serving"
        assert (probed["workers"], probed["workers_wanted"]) == (2, 2)
        line = await command("probe", address)
        assert "2 of 2 workers serve" in line.stdout
        [check] = await checks(address)
        assert check["level"] == "ok"
        assert check["found"] == "2 of 2 workers of 1 task serve, and answer"


async def test_doctor_says_which_own_ports_are_not_reached() -> None:
    async with (
        serving("make_server", "--port=0", "--host=127.0.0.1") as task,
        mapped(await task.address()) as address,
    ):
        [check] = await checks(address)
        assert check["level"] == "warn"
        assert check["found"].startswith("2 of 2 workers not reached by their own")
        assert any(str(port) in check["found"] for port in task.own_ports())
        assert "LBCLIENT_WORKER_PORTS=next" in check["do"]


async def test_a_server_alone_has_no_workers() -> None:
    async with hosting() as hosted:
        probed = await facts("probe", hosted.address)
        assert probed["workers"] is None
        assert await checks(hosted.address) == []


def only_folder(under: Path) -> Path:
    [found] = under.glob("lbclient-metrics-*")
    return found


def counters(folder: Path) -> list[str]:
    return [file.name for file in folder.glob("counter_*.db")]


async def test_one_scrape_has_the_requests_of_all_workers(tmp_path: Path) -> None:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    counted: dict[str, float] = {}

    def scrape() -> None:
        with urlopen(url, timeout=20) as response:
            text = response.read().decode()
        found = re.findall(r"^lbclient_server_requests_total{(.*)} (\S+)$", text, re.M)
        counted["served"] = sum(float(n) for labels, n in found if '"OK"' in labels)

    options = ("--port=0", f"--metrics={port}")  # everywhere, as in a container
    async with serving("make_server", *options, TMPDIR=str(tmp_path)) as task:
        answered: set[bytes] = set()
        calls = 0
        while len(answered) < 2:
            own = [("grpc.use_local_subchannel_pool", 1)]
            address = await task.address()
            async with grpc.aio.insecure_channel(address, options=own) as channel:
                call: Any = channel.unary_unary(WHO)
                answered.add(await call(b"", timeout=20))
                calls += 1
        await eventually(
            lambda: counted.get("served") == calls,
            lambda: (calls, counted),
            meanwhile=lambda: asyncio.to_thread(scrape),
        )
        # What ended workers counted is kept, in as many files as before.
        folder = only_folder(tmp_path)
        task.send(signal.SIGHUP)
        await eventually(lambda: task.found("reloaded 2 workers"), lambda: task.log)
        await eventually(lambda: len([*folder.glob("counter_*.db")]) == 3)
        await asyncio.to_thread(scrape)
        assert counted["served"] == calls
        task.send(signal.SIGTERM)
        assert await task.ended() == 0
    assert not folder.exists()


async def test_one_page_has_the_servers_of_all_workers() -> None:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/lbz.json"
    shown: list[Any] = []

    def look() -> None:
        with urlopen(url, timeout=20) as response:
            shown[:] = json.loads(response.read())["servers"]

    options = ("--port=0", "--host=127.0.0.1", f"--page={port}")
    async with serving("make_server", *options) as task:
        await task.address()

        def are_all() -> bool:
            alive = {pid for pid in task.pids() if is_alive(pid)}
            return len(shown) == 2 and {one["pid"] for one in shown} == alive

        def looking() -> Any:
            return asyncio.to_thread(look)

        await eventually(are_all, lambda: shown, meanwhile=looking)
        assert [one["worker_number"] for one in shown] == [1, 2]
        assert len({one["number"] for one in shown}) == 2
        killed = task.pids()[0]
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: len(task.pids()) == 3)
        await eventually(are_all, lambda: shown, meanwhile=looking)
        inspected = await command("inspect", url, "--json")
        assert "worker_number" in inspected.stdout, inspected.stderr


async def test_a_folder_that_is_set_for_metrics_is_used_and_left(
    tmp_path: Path,
) -> None:
    """Its owner may scrape it with what other programs write there."""
    [port] = free_ports(1)
    options = ("--port=0", "--host=127.0.0.1", f"--metrics={port}")
    theirs = str(tmp_path)
    async with serving(
        "make_server", *options, PROMETHEUS_MULTIPROC_DIR=theirs
    ) as task:
        await task.address()
        await eventually(lambda: len(counters(tmp_path)) == 2)
        task.send(signal.SIGTERM)
        assert await task.ended() == 0
    assert counters(tmp_path) == [f"counter_ended-{task.process.pid}.db"]


async def test_a_folder_for_metrics_that_is_not_there_is_a_mistake() -> None:
    options = ("--port=0", "--host=127.0.0.1", "--metrics=1")
    async with serving(
        "make_server", *options, PROMETHEUS_MULTIPROC_DIR="/none"
    ) as task:
        assert await task.ended() == 2
        assert task.found("PROMETHEUS_MULTIPROC_DIR = '/none'"), task.log


def test_metrics_need_a_folder_to_write_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a container whose file system is read-only there may be none."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    words = f"serve {PROGRAM}:make_server --port 0 --metrics 1"
    assert main(words.split()) == 2
    want = "PROMETHEUS_MULTIPROC_DIR = None: want a folder to write in"
    assert want in capsys.readouterr().err
