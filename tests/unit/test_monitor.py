"""What a task reports of itself, with time as an argument."""

import pytest

from lbclient.core.model import LoadReport, Verdict
from lbclient.core.report.load_monitor import LoadMonitor

STEP = 0.1


def _serve(monitor: LoadMonitor, verdict: Verdict, count: int = 1) -> None:
    for _ in range(count):
        monitor.active += 1
        monitor.finish(verdict)


def test_a_new_monitor_reports_nothing() -> None:
    assert LoadMonitor(2.0).report() == LoadReport(active=0)


def test_active_is_what_began_and_has_not_finished() -> None:
    monitor = LoadMonitor(2.0)
    for _ in range(3):
        monitor.active += 1
    monitor.finish(Verdict.SERVED)
    assert (monitor.active, monitor.begun) == (2, 3)
    for verdict in (Verdict.FAILED, Verdict.ABANDONED):
        monitor.finish(verdict)
    assert monitor.active == 0


def test_rates_are_of_the_time_since_the_last_sample() -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(10.0, 0.0)
    _serve(monitor, Verdict.SERVED, 6)
    _serve(monitor, Verdict.FAILED, 2)
    monitor.sample(10.5, 0.3)
    report = monitor.report()
    assert report.qps == pytest.approx(16.0)
    assert report.eps == pytest.approx(4.0)
    assert report.utilization == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("verdict", "qps", "eps"),
    [
        (Verdict.SERVED, 10.0, 0.0),
        (Verdict.REJECTED, 10.0, 10.0),
        (Verdict.FAILED, 10.0, 10.0),
        (Verdict.ABANDONED, 0.0, 0.0),
    ],
)
def test_only_what_the_server_answered_counts(
    verdict: Verdict, qps: float, eps: float
) -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(0.0, 0.0)
    _serve(monitor, verdict)
    monitor.sample(STEP, 0.0)
    assert monitor.report()[1:3] == pytest.approx((qps, eps))


def test_a_step_is_forgotten_with_the_time_constant() -> None:
    """After tau seconds 1/e of the old value is left."""
    monitor = LoadMonitor(2.0)
    for tick in range(400):
        monitor.sample(tick * STEP, 1.0)
    for tick in range(400, 420):
        monitor.sample(tick * STEP, 0.0)
    assert monitor.report().utilization == pytest.approx(0.368, abs=0.01)


def test_a_late_sample_weighs_as_much_as_the_time_it_covers() -> None:
    regular, late = LoadMonitor(2.0), LoadMonitor(2.0)
    for monitor in (regular, late):
        monitor.sample(0.0, 0.0)
        monitor.sample(1.0, 0.2)
    for tick in range(1, 21):
        regular.sample(1.0 + tick * STEP, 0.9)
    late.sample(3.0, 0.9)
    assert late.report().utilization == pytest.approx(regular.report().utilization)


def test_two_samples_at_one_time_lose_no_request() -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(0.0, 0.0)
    _serve(monitor, Verdict.SERVED)
    monitor.sample(0.0, 0.5)
    monitor.sample(STEP, 0.0)
    assert monitor.report().qps == pytest.approx(10.0)


def test_the_applications_utilization_goes_before_the_cpus() -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(0.0, 0.0, 0.0)
    monitor.sample(STEP, 0.2, 0.7)
    assert monitor.report().utilization == pytest.approx(0.7)
    assert monitor.cpu == pytest.approx(0.2)


def test_an_application_at_rest_leaves_the_word_to_the_cpu() -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(0.0, 0.0, 0.0)
    monitor.sample(STEP, 0.2, 0.0)
    assert monitor.report().utilization == pytest.approx(0.2)


def test_reading_changes_nothing() -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(0.0, 0.0)
    _serve(monitor, Verdict.SERVED)
    monitor.sample(STEP, 0.4)
    assert monitor.report() == monitor.report()


def test_it_reads_as_english() -> None:
    monitor = LoadMonitor(2.0)
    monitor.sample(0.0, 0.0)
    monitor.active += 1
    monitor.sample(STEP, 0.25)
    assert repr(monitor) == "<1 active, 0.0 qps, 0.0 eps, utilization 0.25>"
