"""examples/inference runs without containers; its dashboard asks for what there is."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from lbclient.metrics.families import SAMPLES
from tests import needs
from tests.ports import free_ports
from tests.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "inference"
PROGRAMS = {"engine": "engine.py", "client": "client.py"}


@contextmanager
def program(name: str, **environment: object) -> Iterator["subprocess.Popen[str]"]:
    told = {key: str(value) for key, value in environment.items()}
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE / PROGRAMS[name])],
        env={"PATH": "", **told},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def page(port: int) -> str:
    def read() -> str:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())
        return ""

    return await asyncio.to_thread(read)


def names(text: str) -> set[str]:
    return set(re.findall(r"^(\w+)(?:\{| )", text, re.MULTILINE))


def queries() -> list[str]:
    board = json.loads((EXAMPLE / "inference.json").read_text())
    return [query["expr"] for panel in board["panels"] for query in panel["targets"]]


async def test_sessions_find_their_blocks_and_the_dashboard_its_series() -> None:
    first, second, client_port, *metrics = free_ports(5)
    target = f"ipv4:127.0.0.1:{first},127.0.0.1:{second}"
    quick = {"BLOCK_TAKES": 0.005}
    of_client = {"TARGET": target, "SESSIONS": 6, "REPORT": 1}
    with (
        program("engine", PORT=first, METRICS_PORT=metrics[0], **quick),
        program("engine", PORT=second, METRICS_PORT=metrics[1], **quick),
        program("client", METRICS_PORT=client_port, **of_client) as client,
    ):
        seen = ""

        async def look() -> None:
            nonlocal seen
            seen = await page(client_port)

        def has_hits() -> bool:
            found = re.search(r"^lbclient_expected_key_hits_total\S* (\S+)", seen, re.M)
            return found is not None and float(found[1]) > 20.0

        await eventually(has_hits, lambda: seen, meanwhile=look)
        told = names(seen) | names(await page(metrics[0]))
        client.send_signal(signal.SIGTERM)
        said, _ = await asyncio.to_thread(client.communicate)
    report = json.loads(said.splitlines()[-1])
    assert report["failed"] == report["lost"] == 0
    assert 0 < report["hits"] < report["blocks"]
    assert len(report["started"]) == 2
    asked = {
        name
        for query in queries()
        for name in re.findall(r"\b(?:lbclient|inference)_\w+", query)
    }
    for name in asked:
        assert name in told or name in SAMPLES, name
    assert {name for name in asked if name.startswith("inference")} <= told


def test_the_composed_fleet_is_of_these_programs() -> None:
    yaml = needs.module("yaml")
    services: Any = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    for name, file in PROGRAMS.items():
        assert services[name]["command"] == ["python3", f"inference/{file}"]
    jobs = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == list(PROGRAMS)
    for service in services.values():
        for volume in service.get("volumes", []):
            assert (EXAMPLE / volume.partition(":")[0]).exists(), volume
