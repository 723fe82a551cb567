"""How many CPUs a process may use, read from real files in a made-up root."""

import os
from pathlib import Path

import pytest

from lbclient.server.meters.cpu import (
    RECHECK_AFTER,
    CpuMeter,
    available_cpus,
    cgroup_limit,
    parse_cfs,
    parse_cpu_max,
)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("200000 100000\n", 2.0),
        ("50000 100000\n", 0.5),
        ("150000\n", 1.5),
        ("max 100000\n", None),
        ("max\n", None),
        ("", None),
        ("0 100000", None),
        ("100000 0", None),
        ("-1 100000", None),
        ("two three four", None),
    ],
)
def test_cpu_max_is_quota_and_period(text: str, cpus: float | None) -> None:
    assert parse_cpu_max(text) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [
        ("400000\n", "100000\n", 4.0),
        ("-1\n", "100000\n", None),
        ("100000", "0", None),
        ("", "", None),
    ],
)
def test_cfs_quota_is_per_period(quota: str, period: str, cpus: float | None) -> None:
    assert parse_cfs(quota, period) == cpus


def test_a_limit_of_the_second_version_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kube/pod\n",
            "sys/fs/cgroup/kube/pod/cpu.max": "50000 100000\n",
        },
    )
    assert cgroup_limit(tmp_path) == 0.5


@pytest.mark.parametrize(
    ("outer", "inner", "limit"),
    [
        ("100000 100000", "max 100000", 1.0),
        ("100000 100000", "400000 100000", 1.0),
        ("400000 100000", "100000 100000", 1.0),
        ("max 100000", "max 100000", None),
    ],
)
def test_the_smallest_quota_on_the_way_up_is_the_limit(
    tmp_path: Path, outer: str, inner: str, limit: float | None
) -> None:
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kube/pod/task\n",
            "sys/fs/cgroup/kube/cpu.max": outer,
            "sys/fs/cgroup/kube/pod/task/cpu.max": inner,
        },
    )
    assert cgroup_limit(tmp_path) == limit


def test_a_limit_of_the_first_version_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/pod\n2:cpuset:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_limit(tmp_path) == 1.5


def test_a_container_that_sees_the_hosts_path_finds_its_mounts_root(
    tmp_path: Path,
) -> None:
    _write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu:/docker/0123abcd\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_limit(tmp_path) == 2.0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "nonsense\n"},
        {"proc/self/cgroup": "0::/x\n", "sys/fs/cgroup/x/cpu.max": "?"},
        {"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "1"},
    ],
)
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert cgroup_limit(_write(tmp_path, files)) is None


def test_bytes_that_are_no_text_are_no_limit(tmp_path: Path) -> None:
    _write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": ""})
    (tmp_path / "sys/fs/cgroup/cpu.max").write_bytes(b"\xff\xfe")
    assert cgroup_limit(tmp_path) is None


def test_the_affinity_is_a_limit_too(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 100000"}
    assert available_cpus(_write(tmp_path, files)) == len(os.sched_getaffinity(0))


def test_a_quota_below_the_affinity_is_what_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "25000 100000"}
    assert available_cpus(_write(tmp_path, files)) == 0.25


def test_the_meter_reads_cpu_time_over_the_cpus_there_are() -> None:
    used = [5.0, 5.5, 6.5]
    meter = CpuMeter(lambda: used.pop(0), lambda: 2.0)
    assert [meter.read(now) for now in (100.0, 101.0, 102.0)] == [0.0, 0.25, 0.5]


def test_the_meter_survives_a_clock_that_stands_still() -> None:
    meter = CpuMeter(lambda: 1.0, lambda: 1.0)
    assert [meter.read(7.0), meter.read(7.0)] == [0.0, 0.0]


def test_a_changed_quota_is_noticed() -> None:
    cpus = [1.0, 4.0]
    used = [0.0, 1.0, 1.0 + RECHECK_AFTER]
    meter = CpuMeter(lambda: used.pop(0), lambda: cpus.pop(0))
    now = [0.0, 1.0, 1.0 + RECHECK_AFTER]
    assert [meter.read(at) for at in now] == [0.0, 1.0, 0.25]
