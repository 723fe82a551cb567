"""How much of its memory a process uses, read from real files in a made-up root."""

import logging
import sys
from pathlib import Path

import pytest

from lbclient.core.overload.admission import LOAD
from lbclient.server.meters.memory import RECHECK_AFTER, UNLIMITED, MemoryMeter, reader
from lbclient.server.overload.threads import STEEP, Threads, schedstat
from lbclient.server.requests.handler import WAITS

MINE = "0::/pod\n"


def root_of(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/statm": "1 1 1", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_of_a_groups_limit_what_the_kernel_can_drop_is_not_in_use(
    tmp_path: Path,
) -> None:
    group = "sys/fs/cgroup/pod/"
    root = root_of(
        tmp_path,
        {
            "proc/self/cgroup": MINE,
            group + "memory.max": "1000",
            group + "memory.current": "900",
            group + "memory.stat": "anon 500\ninactive_file 300\n",
        },
    )
    assert reader(root)() == pytest.approx(0.6)


def test_the_fullest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = root_of(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/kube/pod\n",
            "sys/fs/cgroup/memory/kube/memory.limit_in_bytes": "1000",
            "sys/fs/cgroup/memory/kube/memory.usage_in_bytes": "800",
            "sys/fs/cgroup/memory/kube/pod/memory.limit_in_bytes": f"{UNLIMITED}",
            "sys/fs/cgroup/memory/kube/pod/memory.usage_in_bytes": "10",
        },
    )
    assert reader(root)() == pytest.approx(0.8)


def test_a_limit_that_changes_is_seen_some_readings_later(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod/"
    files = {group + "memory.max": "max", group + "memory.current": "900"}
    root = root_of(tmp_path, {"proc/self/cgroup": MINE, **files})
    read = reader(root)
    assert read() == 0.0
    (root / group / "memory.max").write_text("1000")
    assert [read() for _ in range(RECHECK_AFTER)][-1] == pytest.approx(0.9)
    (root / group / "memory.max").write_text("2000")
    assert read() == pytest.approx(0.45), "known groups are read as they are"


@pytest.mark.parametrize("limit", ["max", "0", "nonsense", ""])
def test_what_is_no_limit_refuses_nobody(tmp_path: Path, limit: str) -> None:
    group = "sys/fs/cgroup/pod/"
    files = {group + "memory.max": limit, group + "memory.current": "900"}
    root = root_of(tmp_path, {"proc/self/cgroup": MINE, **files})
    assert reader(root)() == 0.0


def test_where_there_is_no_proc_psutil_tells(tmp_path: Path) -> None:
    """The real one: of a machine that runs this some memory is in use, and not all."""
    assert 0.0 < reader(tmp_path)() < 1.0


def test_without_psutil_it_is_said_once_that_nobody_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    caplog.set_level(logging.INFO)
    meter = MemoryMeter(lambda: reader(tmp_path))
    assert [meter.read(float(now)) for now in range(5)] == [0.0] * 5
    assert [record.message for record in caplog.records] == [
        "memory is unknown: no /proc here; pip install 'lbclient[psutil]'"
    ]


def test_where_psutil_misses_proc_as_well_it_is_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in a sandbox on Linux. It failed every second, with a traceback a minute."""
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    caplog.set_level(logging.INFO)
    meter = MemoryMeter(lambda: reader(tmp_path))
    assert [meter.read(float(now)) for now in range(5)] == [0.0] * 5
    (record,) = caplog.records
    assert record.message.startswith("memory is unknown: no /proc here: ")
    assert "meminfo" in record.message


def test_memory_is_read_once_a_second() -> None:
    shares = [0.1, 0.2]
    meter = MemoryMeter(lambda: lambda: shares.pop(0))
    assert [meter.read(now) for now in (5.0, 5.9, 6.0, 6.9)] == [0.1, 0.1, 0.2, 0.2]


def test_where_no_thread_comes_free_those_who_wait_are_load_all_the_same() -> None:
    threads = Threads(dict)
    threads.queue("quick", 0.0)
    threads.leave("quick")
    threads.waited(0.0, None)
    for number in range(50):
        threads.queue(number, 0.01 * number)
    assert threads.load(50.0) == 50
    # Half of a second that they have: twice the target, beyond which it is steep.
    assert threads.load(0.5) == pytest.approx((1.0 + STEEP) * LOAD.target)
    assert threads.load(0.02) < 3, "they may still be quick"


@pytest.mark.parametrize("timeout", [0.4, 1.0, 5.0, 60.0])
def test_who_waits_for_a_thread_is_at_the_target_after_a_quarter_of_its_time(
    timeout: float,
) -> None:
    threads = Threads(dict)
    for _ in range(200):
        threads.waited(0.0, timeout)
    for number in range(1000):
        threads.queue(number, 0.0)
    assert threads.load(timeout / 4) == pytest.approx(LOAD.target, rel=0.01)


def test_where_all_are_alike_nobody_is_refused_before_he_is_too_late() -> None:
    threads = Threads(dict)
    for _ in range(200):
        threads.waited(0.0, 1.0)
    for number in range(1000):
        threads.queue(number, 0.0)
    late = WAITS / (1.0 + WAITS)
    assert threads.load(0.25, lambda: True) < 0.7 * LOAD.target
    assert threads.load(0.95 * late, lambda: True) < LOAD.target
    assert threads.load(1.01 * late, lambda: True) > 1.5 * LOAD.target


def test_a_new_request_waits_for_all_that_wait() -> None:
    """Not as long as the one that has just got its thread, when fewer did."""
    threads = Threads(dict)
    for number in range(441):
        threads.queue(number, 0.0)
    for number in range(400):
        threads.leave(number)
        threads.waited(0.0, 1.0)
        threads.began(0.005 * number)
    assert len(threads.waiting) == 41
    assert threads.load(0.0) == pytest.approx(41 * 0.005 * 32, rel=0.01)
    while len(threads.waiting) > 1:
        threads.leave(next(iter(threads.waiting)))
    threads.began(1.0)
    pace = threads._pace
    threads.leave(440)
    threads.began(1.001)
    threads.began(99.0)  # nobody has waited in between
    assert threads._pace < pace


def test_those_in_a_hurry_are_not_forgotten_beside_those_with_an_hour() -> None:
    threads = Threads(dict)
    for _ in range(200):
        threads.waited(0.0, 1.0)
        threads.waited(0.0, 3600.0)
        threads.waited(0.0, None)
    for number in range(1000):
        threads.queue(number, 0.0)
    assert threads.load(1.0) > LOAD.target


def test_without_schedstat_it_is_said_once_and_the_queue_still_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    threads = Threads(lambda: schedstat(tmp_path / "proc/self/task"))
    for number in range(9):
        threads.queue(number, 0.0)
    threads.leave(0)
    threads.waited(1.0, None)
    for now in range(5):
        threads.sample(float(now))
    assert threads.load(0.0) == 8
    assert [record.message for record in caplog.records] == [
        "cannot read /proc/self/task/*/schedstat: running threads are not counted"
    ]


def test_threads_read_as_english() -> None:
    times = {"1": 0, "2": 0}
    threads = Threads(lambda: dict(times), lambda: 2.0)
    threads.queue("a", 0.0)
    threads.sample(0.0)
    times.update({"1": 10**9, "2": 2 * 10**9})
    threads.sample(1.0)
    said = "<1 wait for a thread, 1.5 for each processor run or want to>"
    assert repr(threads) == said
