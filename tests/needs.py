"""What some tests need and not every machine has: the one place that skips tests.

Where .ci/run runs them, a program or module that is missing fails its tests, as .ci/run
installs all of them. What no installation gives is skipped there, too: a container
engine that does not start, network namespaces for users other than root.
"""

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never

import grpc
import pytest

from benchmarks.faults.network import NoNetworkError

DEMANDED = "TESTS_DEMAND_PROGRAMS"  # by .ci/run; LBCLIENT_* are settings

# Of each program the package of Debian that has it.
PACKAGES = {
    "apt-cache": "apt",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "curl": "curl",
    "docker-compose": "docker-compose",
    "dockerd": "docker.io",
    "haproxy": "haproxy",
    "ip": "iproute2",
    "make": "make",
    "nginx": "nginx",
    "node": "nodejs",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "unshare": "util-linux",
}
ALSO = "/usr/sbin:/usr/local/sbin"  # which only root has in PATH


def found(name: str) -> str | None:
    """Where a program is."""
    return shutil.which(name) or shutil.which(name, path=ALSO)


def program(name: str) -> str:
    """Where a program is; the test ends where there is none."""
    return found(name) or _missing(name, f"apt-get install {PACKAGES[name]}")


def module(name: str) -> Any:
    """A module of another distribution, imported; the test ends where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        _missing(name, "pip install '.[dev]'")


def grpcio(version: str, why: str) -> None:
    """The test ends with an older grpcio, which does otherwise than it expects."""
    if _parts(grpc.__version__) < _parts(version):
        skip(f"grpcio {grpc.__version__}: {why}")


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def _missing(name: str, cure: str) -> Never:
    reason = f"no {name}: {cure}"
    if os.environ.get(DEMANDED):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def skip(reason: str) -> Never:
    """Ends a test of what this machine cannot do, whatever is installed."""
    pytest.skip(reason)


@contextmanager
def namespaces() -> Iterator[None]:
    """Around what uses `benchmarks.faults.network`."""
    program("ip")
    try:
        yield
    except NoNetworkError as error:
        skip(str(error))
