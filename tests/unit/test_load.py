"""What one backend's load remembers, and what it lets go."""

from collections.abc import Callable
from math import e, inf, isclose

import pytest

from lbclient.core.load import ERROR_MEMORY, RATIO_MEMORY, Load
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.utilization import utilization_by

SERVED = Outcome(Verdict.SERVED, 0.02)
FAILED = Outcome(Verdict.FAILED, 0.001)
REPORT = LoadReport(utilization=0.5, qps=100.0, active=3)


@pytest.fixture
def load() -> Load:
    load = Load()
    load.enter_ready(0.0)
    return load


def send(load: Load, outcome: Outcome, now: float) -> None:
    load.begin()
    load.finish(outcome, now)


@pytest.mark.parametrize("verdict", Verdict)
def test_every_end_gives_the_place_back(load: Load, verdict: Verdict) -> None:
    load.begin()
    assert load.in_flight == 1
    load.finish(Outcome(verdict, 0.1), 1.0)
    assert load.in_flight == 0
    assert load.started == 1
    assert load.counts[verdict] == sum(load.counts.values()) == 1


def test_only_served_requests_say_how_long_one_takes(load: Load) -> None:
    send(load, SERVED, 1.0)
    for verdict in (Verdict.FAILED, Verdict.REJECTED, Verdict.ABANDONED):
        send(load, Outcome(verdict, 5.0), 1.0)
    assert load.latency == 0.02


def test_mean_latency_moves_by_a_fiftieth(load: Load) -> None:
    send(load, SERVED, 1.0)
    send(load, Outcome(Verdict.SERVED, 1.02), 1.0)
    assert isclose(load.latency, 0.04)


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.REJECTED])
def test_an_error_is_remembered_and_fades(load: Load, verdict: Verdict) -> None:
    send(load, Outcome(verdict, 0.0), 5.0)
    assert load.erred_at == 5.0
    assert load.recent_errors(5.0) == 1.0
    assert isclose(load.recent_errors(5.0 + ERROR_MEMORY), 1 / e)


def test_the_mean_square_is_of_ten_a_second_at_most(load: Load) -> None:
    for now, latency in ((10.0, 0.1), (10.05, 9.0), (10.2, 0.2)):
        load.begin()
        load.finish(Outcome(Verdict.SERVED, latency), now)
    assert load.squared_latency == pytest.approx(0.01 + (0.04 - 0.01) / 50)


def test_a_request_that_we_gave_up_says_nothing_of_errors(load: Load) -> None:
    send(load, Outcome(Verdict.ABANDONED, 0.0), 5.0)
    assert load.erred_at == -inf
    assert load.recent_errors(5.0) == load.failure_ratio(5.0) == 0.0


def test_the_failure_ratio_is_the_failures_among_what_finished(load: Load) -> None:
    for outcome in (SERVED, FAILED, SERVED, FAILED):
        send(load, outcome, 5.0)
    assert load.failure_ratio(5.0) == 0.5


def test_the_failure_ratio_follows_within_seconds(load: Load) -> None:
    for tenth in range(100):
        send(load, SERVED, tenth / 10)
    for tenth in range(100, 100 + int(RATIO_MEMORY * 10)):
        send(load, FAILED, tenth / 10)
    assert load.failure_ratio(10.0 + RATIO_MEMORY) > 1 - 1.1 / e


def test_failures_alone_are_forgotten_with_time(load: Load) -> None:
    send(load, FAILED, 0.0)
    assert load.failure_ratio(0.0) == 1.0
    assert load.failure_ratio(10 * RATIO_MEMORY) < 1e-3


def test_a_failure_ratio_is_never_above_one(load: Load) -> None:
    for now in (0.1, 0.2, 0.30000000000000004, 0.7, 1.9):
        send(load, FAILED, now)
        send(load, FAILED, now)
        assert load.failure_ratio(now + 0.1) <= 1.0


def test_a_report_starts_the_count_of_what_was_sent_since(load: Load) -> None:
    load.begin()
    load.begin()
    assert load.sent_since_report == 2
    load.finish(Outcome(Verdict.SERVED, 0.02, REPORT), 3.0)
    assert load.sent_since_report == 0
    assert (load.report, load.reported_at) == (REPORT, 3.0)


def test_an_error_brings_its_report_too(load: Load) -> None:
    send(load, Outcome(Verdict.FAILED, 0.02, REPORT), 3.0)
    assert load.report is REPORT


def test_a_restarted_task_has_said_nothing_yet(load: Load) -> None:
    load.observe(REPORT, 3.0)
    load.leave_ready()
    assert load.ready_at is None
    load.enter_ready(9.0)
    assert load.ready_at == 9.0
    assert load.report is None


def test_what_is_learned_is_told_and_once_until_it_is_taken(load: Load) -> None:
    written: list[Load] = []
    load.tell(written)
    writes: list[Callable[[], object]] = [
        lambda: load.finish(SERVED, 1.0),
        lambda: load.observe(REPORT, 1.0),
        load.leave_ready,
        lambda: load.enter_ready(2.0),
    ]
    for write in writes:
        load.begin()
        assert written == []
        write()
        load.observe(REPORT, 1.0)
        assert written == [load]
        written.clear()
        load.is_written = False


def test_writes_that_nobody_wants_to_know_of_are_kept_nowhere(load: Load) -> None:
    written: list[Load] = []
    load.observe(REPORT, 1.0)
    load.tell(written)
    assert written == []


def test_a_full_load_tells_and_one_that_has_room_again(load: Load) -> None:
    told: list[int] = []
    load.limit(2, lambda: told.append(load.in_flight))
    for _ in range(3):  # a retry that was picked before may go beyond it
        load.begin()
    assert told == [2]
    load.finish(SERVED, 1.0)
    assert told == [2]
    load.finish(FAILED, 1.0)
    assert told == [2, 1]
    load.begin()
    load.forget()
    assert told == [2, 1, 2, 1]


def test_a_load_reads_as_its_counts(load: Load) -> None:
    load.begin()
    assert repr(load) == "<1 in flight, 1 started>"


def test_the_utilization_is_the_largest_of_the_named_metrics() -> None:
    """What is not told falls back as in gRFC A114, and is not idle."""
    load = Load(utilization_by(["named_metrics.pool", "mem_utilization"]))
    assert load.utilization() == 0.0
    for metrics, used in (
        ({"named_metrics.pool": 0.3, "mem_utilization": 0.2}, 0.3),
        ({"named_metrics.pool": 0.1, "mem_utilization": 0.2}, 0.2),
        ({"named_metrics.pool": 1.5}, 1.5),
        ({"named_metrics.other": 0.9}, 0.5),
    ):
        load.observe(LoadReport(0.5, metrics=metrics), 0.0)
        assert load.utilization() == used
    load.leave_ready()
    assert load.utilization() == 0.0
