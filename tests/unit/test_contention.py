"""CPU time that was wanted and not got, read from real files in a made-up root."""

import logging
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lbclient import wire
from lbclient.config import ServerConfig
from lbclient.core.overload.admission import CPU_NAME
from lbclient.server import sampler
from lbclient.server.meters.contention import ContentionMeter, wanted
from lbclient.server.meters.cpu import CpuMeter
from lbclient.server.statistics import ContentionStatistics
from tests.parts import parts

STAT = "cpu  {user} 0 0 900 0 0 0 {stolen} 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
GROUP = "sys/fs/cgroup/pod"


class Machine:
    """A root whose files grow, and a meter that reads them once a second."""

    def __init__(self, root: Path, cpus: float = 1.0) -> None:
        self.root = root
        self.used = self.ran = self.waited = self.throttled = 0.0
        self.user = self.stolen = 0
        self._times = count(100.0)
        cpu = CpuMeter(lambda: self.used, lambda: cpus)
        self.busy: float | None = None
        self.meter = ContentionMeter(
            0.01, cpu, root, lambda: self.busy, lambda: self.ran
        )

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def schedstat(self) -> None:
        ran, waited = 1_000 + int(self.ran * 1e9), int(self.waited * 1e9)
        self.write("proc/thread-self/schedstat", f"{ran} {waited} 17\n")

    def stat(self) -> None:
        self.write("proc/stat", STAT.format(user=self.user, stolen=self.stolen))

    def group(self) -> None:
        self.write("proc/self/cgroup", "0::/pod\n")
        self.write(f"{GROUP}/cpu.max", "50000 100000\n")
        grown = int(self.throttled * 1e6)
        text = f"usage_usec 77\nnr_throttled 3\nthrottled_usec {grown}\n"
        self.write(f"{GROUP}/cpu.stat", text)

    def read(self) -> float:
        return self.meter.read(next(self._times))


def seen(**figures: float) -> ContentionStatistics:
    return ContentionStatistics(**figures)


def test_without_contention_the_utilization_is_what_was_used() -> None:
    assert wanted(0.3, 1.0, 0.3, seen()) == pytest.approx(0.3)
    assert wanted(1.7, 1.0, 0.9, seen()) == 1.7


@pytest.mark.parametrize(
    ("used", "cpus", "waiting", "utilization"),
    [
        (0.3, 1.0, 0.3, 0.6),
        (0.15, 2.0, 0.3, 0.6),  # of two CPUs the loop can use one
        (0.125, 8.0, 0.0, 1.0),  # and of eight
        (1.0, 0.5, 0.0, 1.0),
        (0.5, 0.5, 0.25, 0.5),  # half of the CPU can be had, and the quota is no more
        (0.5, 0.5, 0.5, 0.75),  # a third of it can
    ],
)
def test_waiting_for_a_cpu_is_wanting_it(
    used: float, cpus: float, waiting: float, utilization: float
) -> None:
    found = wanted(used, cpus, used * cpus, seen(waiting=waiting))
    assert found == pytest.approx(utilization)


def test_the_wait_for_threads_of_the_same_process_is_not_contention() -> None:
    """All that the loop's thread leaves of the CPU they have, or half of that."""
    assert wanted(1.0, 1.0, 0.1, seen(waiting=0.9)) == 1.0
    assert wanted(0.55, 1.0, 0.1, seen(waiting=0.2)) == pytest.approx(0.65)


@pytest.mark.parametrize("used", [0.9, 1.0, 1.4])
def test_what_is_missed_adds_nothing_beyond_all(used: float) -> None:
    figures = seen(waiting=1.0, throttled=4.0, stolen=1.0)
    assert wanted(used, 1.0, 0.5, figures) == max(used, 1.0)


def test_an_idle_task_loses_nothing_by_a_group_that_is_throttled() -> None:
    """A sidecar uses up the quota. Who uses a fifth of it can have another fifth."""
    assert wanted(0.0, 0.5, 0.0, seen(throttled=1.0)) == 0.0
    assert wanted(0.2, 0.5, 0.1, seen(throttled=1.0)) == pytest.approx(0.4)


def test_throttling_is_counted_once_where_it_is_waiting_as_well() -> None:
    figures = seen(throttled=1.0, waiting=0.3)
    assert wanted(0.2, 0.5, 0.1, figures) == pytest.approx(0.4)


def test_what_is_stolen_makes_the_rest_fuller() -> None:
    assert wanted(0.3, 4.0, 0.3, seen(stolen=0.5)) == pytest.approx(0.6)


def test_the_loops_thread_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.schedstat()
    assert machine.read() == 0.0
    machine.used, machine.ran, machine.waited = 0.25, 0.25, 0.5
    machine.schedstat()
    assert machine.read() == pytest.approx(0.75)
    assert machine.meter.statistics().waiting == pytest.approx(0.5)
    assert repr(machine.meter) == (
        "<0.50 waiting, unknown throttled, unknown stolen, 0.25 busy, 0.0 ms late>"
    )
    machine.used, machine.ran = 0.5, 0.5
    machine.schedstat()
    assert machine.read() == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("used", "ran", "busy", "reported"),
    [
        (0.3, 0.3, 0.9, 0.9),  # it blocks, which takes no CPU time
        (0.3, 0.3, None, 0.3),  # nobody knows
        (1.4, 0.5, 0.6, 0.7),  # two CPUs, which threads use
        (0.8, 0.8, 0.5, 0.8),  # a loop whose selector somebody else times
    ],
)
def test_a_task_is_as_full_as_its_loop_or_its_cpus(
    tmp_path: Path, used: float, ran: float, busy: float | None, reported: float
) -> None:
    machine = Machine(tmp_path, cpus=2.0)
    machine.read()
    machine.used, machine.ran, machine.busy = used, ran, busy
    assert machine.read() == pytest.approx(reported)
    assert machine.meter.statistics().loop == pytest.approx(max(ran, busy or 0.0))


def test_a_throttled_group_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cpus=0.5)
    machine.group()
    machine.read()
    machine.used, machine.throttled = 0.1, 0.5
    machine.group()
    assert machine.read() == pytest.approx(0.4)
    assert machine.meter.statistics().throttled == pytest.approx(1.0)


def test_a_throttled_group_of_the_first_version_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cpus=0.5)
    folder = "sys/fs/cgroup/cpu,cpuacct/pod"
    machine.write("proc/self/cgroup", "3:cpu,cpuacct:/pod\n")
    machine.write(f"{folder}/cpu.cfs_quota_us", "50000")
    machine.write(f"{folder}/cpu.cfs_period_us", "100000")
    machine.write(f"{folder}/cpu.stat", "nr_throttled 1\nthrottled_time 1000\n")
    machine.read()
    machine.used = 0.1
    machine.write(f"{folder}/cpu.stat", "nr_throttled 9\nthrottled_time 500001000\n")
    assert machine.read() == pytest.approx(0.4)


OUTER = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("inner", "outer", "lost"),
    [
        (0.1, 4.0, 0.5),  # half of the outer quota, and a fifth of the inner one
        (0.4, 4.0, 0.8),  # fewer seconds, of a smaller quota
        (0.0, 4.0, 0.5),  # who uses up the outer quota keeps it from us, too
    ],
)
def test_of_groups_in_groups_the_one_counts_that_lost_most_of_its_own_quota(
    tmp_path: Path, inner: float, outer: float, lost: float
) -> None:
    machine = Machine(tmp_path, cpus=0.5)
    machine.write(f"{OUTER}/cpu.max", "800000 100000")
    machine.write(f"{OUTER}/cpu.stat", "throttled_usec 0")
    machine.group()
    machine.read()
    machine.used, machine.throttled = 0.1, inner
    machine.group()
    machine.write(f"{OUTER}/cpu.stat", f"throttled_usec {int(outer * 1e6)}")
    assert machine.read() == pytest.approx(0.2 * (1.0 + lost))
    assert machine.meter.statistics().throttled == pytest.approx(lost)


def test_a_group_without_a_quota_is_not_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.group()
    machine.write(f"{GROUP}/cpu.max", "max 100000\n")
    machine.read()
    machine.used, machine.throttled = 0.1, 0.5
    machine.write(f"{GROUP}/cpu.stat", "throttled_usec 500000\n")
    assert machine.read() == pytest.approx(0.1)
    assert machine.meter.statistics().throttled == 0.0


def test_where_no_group_is_mounted_throttling_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("proc/self/cgroup", "0::/pod\n")
    machine.read()
    assert machine.meter.statistics().throttled is None


def test_a_quota_whose_cost_one_group_hides_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cpus=0.5)
    machine.group()
    machine.write(f"{OUTER}/cpu.max", "800000 100000")
    machine.read()
    assert machine.meter.statistics().throttled is None


def test_what_can_be_read_again_is_known_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.read()
    assert machine.meter.statistics() == ContentionStatistics()
    machine.schedstat()
    machine.read()
    assert machine.meter.statistics().waiting == 0.0


def test_a_sandbox_that_counts_no_time_of_processors_tells_of_no_steal(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    machine.write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\n")
    machine.read()
    assert machine.meter.statistics().stolen is None
    machine = Machine(tmp_path)
    machine.user = 5
    machine.stat()
    machine.read()
    assert machine.meter.statistics().stolen == 0.0


def test_what_the_hypervisor_steals_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.user, machine.stolen = 500, 20
    machine.stat()
    machine.read()
    machine.used, machine.user, machine.stolen = 0.3, 550, 70
    machine.stat()
    assert machine.read() == pytest.approx(0.6)
    assert machine.meter.statistics().stolen == pytest.approx(0.5)


def test_where_nothing_was_ever_stolen_it_is_looked_for_seldom(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.stat()
    machine.read()
    machine.user = machine.stolen = 50
    machine.stat()
    found = []
    for _ in range(11):
        machine.used += 0.3
        found.append(machine.read())
    assert found == pytest.approx([0.3] * 9 + [0.6] * 2)


@pytest.mark.parametrize("text", ["", "0 0 0\n", "1 2\n", "a b c\n", "1 2 3 4\n"])
def test_where_nothing_is_told_what_was_used_counts_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine(tmp_path)
    if text:
        machine.write("proc/thread-self/schedstat", text)
        machine.write("proc/stat", text)
        machine.group()
        machine.write(f"{GROUP}/cpu.stat", text)
    found = []
    for _ in range(3):
        found.append(machine.read())
        machine.used += 0.4
    assert found == pytest.approx([0.0, 0.4, 0.4])
    assert caplog.messages == [
        "cannot read /proc/thread-self/schedstat: "
        "time spent waiting for a CPU is not counted"
    ]
    assert machine.meter.statistics() == ContentionStatistics()


def test_a_clock_that_stands_still_is_no_contention(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.schedstat()
    assert machine.meter.read(7.0) == 0.0
    machine.waited = 0.5
    machine.schedstat()
    assert machine.meter.read(7.0) == 0.0


def test_the_lag_is_smoothed_and_never_negative(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.meter.note_lag(0.0, 1.0)
    machine.meter.note_lag(0.2, 2.0)
    assert machine.meter.statistics().lag == pytest.approx(0.2)
    machine.meter.note_lag(-0.1, 3.0)
    assert machine.meter.statistics().lag == pytest.approx(0.0)


def test_what_is_reported_and_what_admission_sees_is_with_contention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    machine = Machine(tmp_path)
    machine.schedstat()
    cpu = CpuMeter(lambda: machine.used, lambda: 1.0)
    meter = partial(
        ContentionMeter, cpu=cpu, root=tmp_path, thread_time=lambda: machine.ran
    )
    monkeypatch.setattr(sampler, "ContentionMeter", meter)
    server = parts(ServerConfig(max_cpu=0.5), lambda: now)
    server.sampler.sample()
    for _ in range(100):
        now += 0.1
        machine.used += 0.03
        machine.ran += 0.03
        machine.waited += 0.05
        machine.schedstat()
        server.sampler.sample()
    seen = server.statistics()
    assert seen.contention.waiting == pytest.approx(0.5)
    assert seen.utilization == pytest.approx(0.8)
    trailers = dict(server.reporter.trailers(0))
    assert trailers[wire.LOAD_KEY] == trailers[wire.ORCA_KEY]
    assert server.reporter.load().cpu_utilization == pytest.approx(0.8)
    signals = {signal.name: signal.value for signal in seen.signals}
    assert signals[CPU_NAME] == pytest.approx(0.8)
    assert min(seen.admitted.values()) < 1.0
