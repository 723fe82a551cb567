"""The CPU time of all workers of a task."""

import os
from pathlib import Path

import pytest

from lbclient.server.meters.task_cpu import TaskCpuMeter

TICK = 1 / os.sysconf("SC_CLK_TCK")
CPUS = 2.0


def use(proc: Path, pid: int, user: int, system: int = 0) -> None:
    """As Linux writes it; a program may call itself anything."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    head = f"{pid} (a) b) S" + " 0" * 10
    (folder / "stat").write_text(f"{head} {user} {system} 0 0\n")


def test_all_processes_count_over_the_cpus_of_the_task(tmp_path: Path) -> None:
    meter = TaskCpuMeter(lambda: (7, 8), lambda: CPUS, str(tmp_path))
    use(tmp_path, 7, 100)
    use(tmp_path, 8, 900)
    assert meter.read(0.0) == 0.0
    use(tmp_path, 7, 150, 10)
    use(tmp_path, 8, 940)
    assert meter.read(0.5) == 0.0  # too soon for what is counted in hundredths
    assert meter.read(2.0) == pytest.approx(100 * TICK / 2.0 / CPUS)
    assert meter.read(2.5) == pytest.approx(100 * TICK / 2.0 / CPUS)
    assert repr(meter).startswith("<2 processes, 0.")


def test_a_process_that_comes_or_goes_is_no_jump(tmp_path: Path) -> None:
    pids = [7]
    meter = TaskCpuMeter(lambda: pids, lambda: CPUS, str(tmp_path))
    use(tmp_path, 7, 100)
    meter.read(0.0)
    use(tmp_path, 8, 5000)
    pids.append(8)
    assert meter.read(1.0) == 0.0
    pids.remove(8)
    assert meter.read(2.0) == 0.0
    (tmp_path / "7" / "stat").unlink()
    assert meter.read(3.0) == 0.0


def test_a_process_of_this_machine_is_read() -> None:
    meter = TaskCpuMeter(lambda: (os.getpid(),), lambda: CPUS)
    meter.read(0.0)
    spent = os.times().user
    while os.times().user < spent + 0.1:
        pass
    assert meter.read(1.0) > 0.0
