"""Compose files brought up for real, wherever a container engine can be had."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from tests import needs
from tests.fleet import base

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "PYTHON_IMAGE": "python:3.13-slim",
    "PROMETHEUS_IMAGE": "prom/prometheus:v3.5.0",
}
PATIENCE = 60.0  # seconds for an engine to start, or for an image to be pulled
# For all until the fleet is up. With a test's own waiting that is less than
# faulthandler_timeout, which ends the whole run.
PREPARED = 110.0
ANSWER = 5.0  # seconds for a query
END = 20.0  # seconds for an engine to end


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "no answer")


def answers() -> bool:
    return shutil.which("docker") is not None and docker("info").returncode == 0


@contextmanager
def engine() -> Iterator[None]:
    """The engine that runs already, else one of our own. Skips where there is none."""
    if answers():
        yield
        return
    needs.program("dockerd")
    if os.geteuid() != 0:
        needs.skip("no container engine runs, and only root can start one")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as data:
        log = Path(data, "log")
        with log.open("w") as output:
            own = subprocess.Popen(
                ["dockerd", "--data-root", f"{data}/data", "--pidfile", f"{data}/pid"],
                stdout=output,
                stderr=output,
            )
        try:
            if not comes_true(lambda: answers() or own.poll() is not None):
                needs.skip("dockerd does not answer")
            if own.poll() is not None:
                needs.skip(f"dockerd does not start: {log.read_text()[-300:]}")
            yield
        finally:
            own.terminate()
            with suppress(subprocess.TimeoutExpired):
                own.wait(END)
            own.kill()
            own.wait()


def images() -> dict[str, str]:
    """What the environment names, else the public ones, else some made here."""
    named = {one: os.environ.get(one, public) for one, public in PUBLIC.items()}
    absent = next((name for name in named.values() if not can_be_had(name)), None)
    if absent is None:
        return named
    base.check()
    try:
        return base.made()
    except (subprocess.SubprocessError, OSError) as error:
        needs.skip(f"no image {absent}, and none could be made: {error}")


def can_be_had(image: str) -> bool:
    return any(
        docker(*words, image).returncode == 0
        for words in (["image", "inspect"], ["pull", "--quiet"])
    )


def compose_command() -> list[str]:
    if docker("compose", "version").returncode == 0:
        return ["docker", "compose"]
    return [needs.program("docker-compose")]


def comes_true(condition: Callable[[], object], within: float = PATIENCE) -> bool:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.25)
    return True


def started(container: str) -> float:
    """When it was, by the clock of `time.time`."""
    told = docker("inspect", "--format", "{{.State.StartedAt}}", container).stdout
    return datetime.fromisoformat(told.strip()).timestamp()


class Composed(NamedTuple):
    """A compose file and what of it is started: all but Grafana, which shows what
    Prometheus has. Less load than when somebody looks: a backend on a machine that is
    busy with something else would refuse some of it. Services of the same image as
    another one are not `built`."""

    file: str
    services: tuple[str, ...]
    built: tuple[str, ...]
    load: dict[str, str]


DEMO = Composed(
    "docker-compose.yml",
    ("fast", "slow", "client", "batch", "proxy", "redis", "prometheus"),
    ("fast", "redis"),
    {"RATE": "30", "BATCH_RATE": "15"},
)
INFERENCE = Composed(
    "examples/inference/compose.yaml",
    ("engine", "client", "prometheus"),
    ("engine",),
    {"SESSIONS": "20"},
)


class Fleet:
    """A project of its own."""

    def __init__(self, of: Composed, environ: dict[str, str], port: int) -> None:
        own = {**environ, **of.load, "PROMETHEUS_PORT": str(port)}
        self._environ = {**os.environ, **own}
        self._services = of.services
        self._name = f"lbclient-test-{os.getpid()}-{port}"
        self._command = [
            *compose_command(),
            *("--project-name", self._name, "--file", of.file),
        ]
        self._url = f"http://127.0.0.1:{port}/api/v1/query"

    def compose(self, *words: str, timeout: float = PATIENCE) -> str:
        done = subprocess.run(
            [*self._command, *words],
            cwd=ROOT,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def scale(self, **counts: int) -> None:
        some = [f"--scale={service}={count}" for service, count in counts.items()]
        self.compose("up", "--detach", "--no-recreate", *some, *self._services)

    def containers(self, service: str) -> list[str]:
        label = "label=com.docker.compose"
        mine = (f"{label}.project={self._name}", f"{label}.service={service}")
        filters = [word for one in mine for word in ("--filter", one)]
        return docker("ps", "--quiet", *filters).stdout.split()

    def backends(self) -> set[str]:
        return {*self.containers("fast"), *self.containers("slow")}

    def words(self, *services: str) -> str:
        """What they last complained of."""
        return self.compose("logs", "--no-color", "--tail", "5", *services)

    def ask(self, query: str) -> dict[str, float]:
        """By instance, or by "" where there is none."""
        return {
            one["metric"].get("instance", ""): float(one["value"][1])
            for one in self.series(query)
        }

    def series(self, query: str) -> list[dict[str, Any]]:
        try:
            url = f"{self._url}?{urlencode({'query': query})}"
            with urlopen(url, timeout=ANSWER) as reply:
                said: dict[str, Any] = json.load(reply)
        except OSError:
            return []  # it starts
        found: list[dict[str, Any]] = said["data"]["result"]
        return found

    def number(self, query: str) -> float:
        return next(iter(self.ask(query).values()), 0.0)


@contextmanager
def skipped_after(seconds: float) -> Iterator[None]:
    """A machine that is too slow for containers fails no test."""

    def end(*_: object) -> None:
        needs.skip(f"the fleet is not up within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except subprocess.TimeoutExpired:
        end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def prepared() -> Iterator[dict[str, str]]:
    """An engine, and the names of the images that it has."""
    with ExitStack() as stack:
        with skipped_after(PREPARED):
            stack.enter_context(engine())
            environ = images()
        yield environ


@contextmanager
def fleet(of: Composed, environ: dict[str, str], port: int) -> Iterator[Fleet]:
    with ExitStack() as stack:
        with skipped_after(PREPARED):
            running = Fleet(of, environ, port)
            stack.callback(running.compose, "down", "--volumes", "--timeout", "1")
            running.compose("build", *of.built, timeout=PREPARED)
            running.scale()
        yield running
