"""What a server has beside it: a process that burns a core, or half a core for itself.

Both end with their context, and with this process: a burner ends when its input does,
and a control group that a killed run has left behind is removed by the next one.
"""

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from benchmarks.harness.processes import program

PERIOD = 100_000  # microseconds
PREFIX = "lbclient-benchmark-"
PATIENCE = 5.0  # seconds until the processes of a group are gone
BURNER = """
import os, sys, threading
def follow():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=follow, daemon=True).start()
while True:
    for _ in range(10**6):
        pass
"""


class Impossible(Exception):
    """Why there is no control group here."""


@asynccontextmanager
async def burner() -> AsyncIterator[int]:
    """A process that takes all of a core, if it is given one."""
    async with program(sys.executable, "-c", BURNER) as process:
        yield process.pid


@contextmanager
def cgroup(cores: float) -> Iterator[Path]:
    """A control group whose processes get so many cores. Raises `Impossible`."""
    root, is_v2 = _root()
    for left in root.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(PREFIX)}").exists():
            with suppress(OSError):
                left.rmdir()
    group, quota = root / f"{PREFIX}{os.getpid()}", round(cores * PERIOD)
    try:
        group.mkdir()
    except OSError as error:
        raise Impossible(f"no control group in {root}: {error.strerror}") from None
    try:
        try:
            if is_v2:
                (group / "cpu.max").write_text(f"{quota} {PERIOD}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            want = f"no quota of CPU in {root}: {error.strerror}"
            raise Impossible(want) from None
        yield group
    finally:
        _remove(group)


def _root() -> tuple[Path, bool]:
    """Where groups with quotas of CPU are made, and whether that is cgroup v2."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(where), False
        if kind == "cgroup2":
            controllers = Path(where) / "cgroup.subtree_control"
            if controllers.exists() and "cpu" in controllers.read_text().split():
                return Path(where), True
    raise Impossible("no control groups for CPU are mounted")


def _remove(group: Path) -> None:
    """Its processes have been killed, and are gone a little later."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
