"""A real Prometheus on loopback, which scrapes every second and forgets it all."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests import needs
from tests.ports import free_port

PATIENCE = 60.0  # seconds for it to answer


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **words: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(words)}") as reply:
            return json.load(reply)["data"]

    def ask(self, query: str) -> list[float]:
        found = self.get("query", query=query)["result"]
        return [float(one["value"][1]) for one in found]

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready") as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(
    where: Path, jobs: Mapping[str, int], rules: str
) -> Iterator[Prometheus]:
    """Scrapes a port of this machine for each job."""
    needs.program("prometheus")
    port = free_port()
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]}
        for job, at in jobs.items()
    ]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": ["rules"], "scrape_configs": scrapes}
    (where / "rules").write_text(rules)
    (where / "config").write_text(json.dumps(config))  # which is YAML, too
    command = [
        "prometheus",
        f"--config.file={where / 'config'}",
        f"--storage.tsdb.path={where / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    running = Prometheus(port)
    process = subprocess.Popen(command)
    try:
        until = time.monotonic() + PATIENCE
        while not running.is_ready():
            assert process.poll() is None, "prometheus does not start"
            assert time.monotonic() < until, "prometheus does not answer"
            time.sleep(0.1)
        yield running
    finally:
        process.kill()
        process.wait()
