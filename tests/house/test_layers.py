"""The purity line: what decides knows no clock, no loop, no wire and no chance.

So it can be tested by calling it, and the simulator runs production code.
"""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ABOVE = (
    "account.py",
    "accounts.py",
    "admission.py",
    "concurrency.py",
    "config.py",
    "criticality.py",
    "customers.py",
    "deadlines.py",
    "demand.py",
    "errors.py",
    "ewma.py",
    "shared_address.py",
    "handled.py",
    "health/datagram.py",
    "health/stream_permit.py",
    "histogram.py",
    "judgement.py",
    "latency.py",
    "latency_probe.py",
    "latency_window.py",
    "lifecycle.py",
    "load.py",
    "locality.py",
    "model.py",
    "outliers.py",
    "pickers/*",
    "pool.py",
    "protocols.py",
    "queue_delay.py",
    "quota.py",
    "redis_place.py",
    "recent.py",
    "retry.py",
    "sim/*",
    "standings.py",
    "subsets/*",
    "text.py",
    "throttle.py",
    "window.py",
)
BELOW = (
    "__init__.py",
    "__main__.py",
    "admin/*",
    "attempt.py",
    "backend.py",
    "balancer.py",
    "calls.py",
    "census.py",
    "direct.py",
    "method_config.py",
    "requests.py",
    "channel.py",
    "cli/*",
    "grpc_codes.py",
    "grpc_seam/*",
    "health/__init__.py",
    "health/check.py",
    "health/streams.py",
    "health/udp.py",
    "health/watch.py",
    "identity.py",
    "metrics/*",
    "methods.py",
    "pace.py",
    "probing.py",
    "proxy.py",
    "resolvers/*",
    "server/*",
    "statistics.py",
    "tasks.py",
    "testing.py",
    "turns.py",
    "v1/*",
    "waiting.py",
    "waking.py",
    "wire.py",
    "within.py",
)

# What tells the time, waits, or reaches outside the process.
FORBIDDEN = {
    "asyncio",
    "datetime",
    "google",
    "grpc",
    "importlib",
    "logging",
    "prometheus_client",
    "socket",
    "threading",
    "time",
}


def files() -> list[str]:
    package = ROOT / "lbclient"
    return sorted(
        path.relative_to(package).as_posix() for path in package.rglob("*.py")
    )


def is_above(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in ABOVE)


def file_of(module: str) -> str:
    """`lbclient.pickers` is pickers/__init__.py, `lbclient.pool.Pool` is pool.py."""
    path = "/".join(module.split(".")[1:])
    known = files()
    while path:
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if file in known:
                return file
        path = path.rpartition("/")[0]
    return "__init__.py"


def imports(source: str) -> Iterator[str]:
    """Every name that is imported, in functions and type-checking blocks too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            yield from (f"{package}.{alias.name}" for alias in node.names)


def crosses(name: str) -> bool:
    """Whether importing this steps over the line."""
    first = name.partition(".")[0]
    if first == "random":
        return name != "random.Random"
    if first == "lbclient":
        return not is_above(file_of(name))
    return first in FORBIDDEN or not first


def test_every_file_is_on_one_side_of_the_line() -> None:
    for file in files():
        sides = [p for p in (*ABOVE, *BELOW) if fnmatch(file, p)]
        assert len(sides) == 1, f"{file} must be in one list of {__file__}: {sides}"


def test_the_lists_name_no_file_that_is_gone() -> None:
    for pattern in (*ABOVE, *BELOW):
        assert any(fnmatch(file, pattern) for file in files()), pattern


@pytest.mark.parametrize("file", [f for f in files() if is_above(f)])
def test_what_decides_is_pure(file: str) -> None:
    source = (ROOT / "lbclient" / file).read_text()
    assert [name for name in imports(source) if crosses(name)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import time as clock",
        "from time import monotonic",
        "from grpc.aio import Channel",
        "import lbclient.channel",
        "from lbclient import channel",
        "from lbclient.channel import Channel",
        "from lbclient import Channel",
        "from . import channel",
        "from random import choice",
        "import random",
        "def later():\n    import logging",
    ],
)
def test_a_step_over_the_line_is_seen(source: str) -> None:
    assert any(map(crosses, imports(source)))


@pytest.mark.parametrize(
    "source",
    [
        "from math import exp",
        "from random import Random",
        "from lbclient import pool",
        "from lbclient.pool import Pool",
        "from lbclient.pickers import PICKERS",
    ],
)
def test_what_stays_above_the_line_is_welcome(source: str) -> None:
    assert not any(map(crosses, imports(source)))
