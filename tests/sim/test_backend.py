"""A simulated backend computes as processors that are shared do."""

from collections import deque
from dataclasses import replace
from heapq import heappop
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.model import Endpoint, LoadReport, Verdict
from lbclient.pickers import Prequal, RoundRobin
from lbclient.sim.backend import FAILING, Answer, Heap, SimulatedBackend
from lbclient.sim.client import Client, Question, SimulatedNode
from lbclient.sim.reports import LIE, TICK, SimulatedReports
from lbclient.sim.scenario import Scenario

ENDPOINTS = (Endpoint("b:1"),)
SMALL = Scenario(clients=1, backends=1, cores=1, round_trip=0.0)


class Bench:
    """One backend, and the one client that it answers."""

    def __init__(self, scenario: Scenario = SMALL) -> None:
        self.heap: Heap = []
        self.answers: deque[Answer] = deque()
        self.backend = SimulatedBackend(
            scenario, 1.0, 2.0, self.heap, self.answers, Random(1)
        )
        client = Client(0, scenario, ENDPOINTS, [self.backend], RoundRobin, 1)
        self.node: SimulatedNode = client.pool.ready[0]
        self.sent = 0

    def send(self, cost: float, now: float, wait: float = 0.0) -> None:
        self.play(now)
        self.backend.accept(self.node, self.sent, cost, wait, now)
        self.sent += 1

    def play(self, until: float) -> None:
        while self.heap and self.heap[0][0] <= until:
            at, _, act, given = heappop(self.heap)
            act(at, given)

    def finished(self) -> dict[int, float]:
        """When each request was, by its number."""
        self.play(1e9)
        return {answer[2]: answer[0] for answer in self.answers}

    def reports(self) -> list[LoadReport | None]:
        self.play(1e9)
        return [answer[4] for answer in self.answers]


def test_all_requests_get_on_equally_fast() -> None:
    """Until 4 s both have half of the processor, then one has all of it."""
    bench = Bench()
    bench.send(2.0, now=0.0)
    bench.send(3.0, now=0.0)
    assert bench.finished() == pytest.approx({0: 4.0, 1: 5.0})


def test_who_comes_later_takes_from_who_is_there() -> None:
    bench = Bench()
    bench.send(2.0, now=0.0)
    bench.send(0.25, now=1.0)
    assert bench.finished() == pytest.approx({1: 1.5, 0: 2.25})


def test_nobody_gets_more_than_one_processor() -> None:
    bench = Bench(Scenario(clients=1, backends=1, cores=4, round_trip=0.0))
    for cost in (1.0, 2.0, 3.0):
        bench.send(cost, now=0.0)
    assert bench.finished() == pytest.approx({0: 1.0, 1: 2.0, 2: 3.0})
    assert bench.backend.busy == pytest.approx((1.0 + 2.0 + 3.0) / 4)


def test_a_change_of_pace_is_for_what_is_left() -> None:
    bench = Bench()
    bench.send(2.0, now=0.0)
    bench.backend.set_pace(0.5, now=1.0)
    assert bench.finished() == pytest.approx({0: 3.0})


def test_to_get_faster_is_noticed_before_the_old_time() -> None:
    bench = Bench()
    bench.send(4.0, now=0.0)
    bench.backend.set_pace(3.0, now=1.0)
    assert bench.finished() == pytest.approx({0: 2.0})


def test_a_full_backend_refuses_at_once() -> None:
    bench = Bench(Scenario(clients=1, backends=1, full=2, round_trip=0.0))
    for _ in range(3):
        bench.send(1.0, now=0.0)
    assert [(answer[2], answer[3]) for answer in bench.answers] == [
        (2, Verdict.REJECTED)
    ]


def test_who_waits_is_active_and_takes_no_processor() -> None:
    bench = Bench()
    bench.send(5.0, now=0.0, wait=10.0)
    bench.send(1.0, now=0.0)
    assert bench.finished() == pytest.approx({1: 1.0, 0: 15.0})
    report = bench.reports()[0]
    assert report is not None
    assert report.active == 1  # the other; the answered one is not counted


def test_a_sinkhole_fails_all_at_once() -> None:
    bench = Bench()
    bench.backend.faults.is_sinkhole = True
    bench.send(1.0, now=0.0)
    assert bench.finished() == {0: FAILING}
    assert bench.answers[0][3] is Verdict.FAILED


def test_reports_have_all_fields_though_they_are_made_by_position() -> None:
    bench = Bench()
    bench.send(1.0, 0.0)
    bench.play(10.0)
    *_, with_answer, _ = bench.answers[0]
    for report in (with_answer, bench.backend.answer_probe()):
        assert isinstance(report, LoadReport)
        assert len(report) == len(LoadReport._fields)


def test_reports_are_of_what_was_measured() -> None:
    """Half a second of work in each second; a request for each."""
    bench = Bench()
    for tick in range(round(60 / TICK)):
        if tick % round(1 / TICK) == 0:
            bench.send(0.5, now=tick * TICK)
        bench.play(tick * TICK)
        bench.backend.sample(tick * TICK)
    report = bench.backend.report()
    assert report is not None
    # Within what a mean over 2 s moves in the half second since the work was done.
    assert report.utilization == pytest.approx(0.5, abs=0.5 * 0.5 / 2.0)
    assert report.qps == pytest.approx(1.0, rel=0.3)
    assert report.eps == 0.0


def test_reports_get_lost() -> None:
    bench = Bench(Scenario(report_loss=1.0))
    bench.send(1.0, now=0.0)
    assert bench.reports() == [None]


def test_reports_are_off_by_up_to_as_much_as_the_noise() -> None:
    bench = Bench(replace(SMALL, report_noise=0.5))
    bench.send(100.0, now=0.0)
    for tick in range(3):
        bench.backend.sample(tick * TICK)
    reports = [bench.backend.report() for _ in range(200)]
    said = [report.utilization for report in reports if report is not None]
    assert len(said) == 200
    assert 0.5 <= min(said) < 0.55
    assert 1.45 < max(said) <= 1.5


def test_backends_mislead() -> None:
    bench = Bench()
    bench.send(100.0, now=0.0)
    for tick in range(3):
        bench.backend.sample(tick * TICK)
    bench.backend.reports.mislead(silent=False, scale=0.25, liar=False)
    report = bench.backend.report()
    assert report is not None
    assert report.utilization == pytest.approx(0.25)
    bench.backend.reports.mislead(silent=False, scale=1.0, liar=True)
    report = bench.backend.report()
    assert report is not None
    assert report.utilization == LIE
    bench.backend.reports.mislead(silent=True, scale=1.0, liar=False)
    assert bench.backend.report() is None


def test_delayed_reports_tell_of_the_past() -> None:
    bench = Bench(Scenario(cores=1, clients=1, backends=1, report_delay=1.0))
    for tick in range(30):
        if tick == 20:
            bench.send(100.0, now=tick * TICK)
        bench.backend.sample(tick * TICK)
        report = bench.backend.report()
        assert report is not None
        assert (report.active or 0) == (tick * TICK >= 3.0 - 1e-9 - TICK)


def test_an_answer_takes_its_time_and_gives_way_to_what_is_newer() -> None:
    backend = Bench().backend
    client = Client(0, SMALL, ENDPOINTS, [backend], Prequal, 1)
    ready = client.pool.ready
    question = Question([ready[0]], client.heard, back=0.25)
    for now in (1.0, 2.0):
        question.accept(question, 0, 0.0, 0.0, now)
    client.pick(ready, 1.2)
    assert ready[0].load.report is None
    client.pick(ready, 1.25)
    assert ready[0].load.reported_at == 1.25
    newer = LoadReport(0.5, active=7)
    ready[0].load.observe(newer, 2.3)
    client.pick(ready, 2.4)
    assert ready[0].load.report is newer
    assert not client.heard


def test_another_picker_has_its_own_questions_and_answers() -> None:
    client = Client(0, SMALL, ENDPOINTS, [Bench().backend], Prequal, 1)
    question = Question([client.pool.ready[0]], client.heard, back=0.25)
    question.accept(question, 0, 0.0, 0.0, 1.0)
    client.switch(RoundRobin)
    assert (client.probes, [*client.heard]) == ([], [])
    client.switch(Prequal)
    assert client.probes is getattr(client.picker, "probes", None)


arrivals = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.floats(0.001, 3.0)), min_size=1, max_size=40
)


@given(arrivals, st.integers(1, 5), st.floats(0.1, 10.0))
def test_all_work_is_done_and_none_twice(
    requests: list[tuple[float, float]], cores: int, pace: float
) -> None:
    """Busy time x processors x pace is the work that came, whatever the order."""
    bench = Bench(Scenario(cores=cores, clients=1, backends=1, round_trip=0.0))
    bench.backend.set_pace(pace, 0.0)
    now = 0.0
    for pause, cost in requests:
        now += pause
        bench.send(cost, now)
    assert len(bench.finished()) == len(requests)
    done = bench.backend.busy * cores * pace
    assert done == pytest.approx(sum(cost for _, cost in requests))


def test_one_that_is_farther_answers_later_by_as_much() -> None:
    bench = Bench()
    bench.backend = SimulatedBackend(
        SMALL, 1.0, 2.0, bench.heap, bench.answers, Random(1), farther=0.4
    )
    bench.send(2.0, now=0.0)
    assert bench.finished() == {0: pytest.approx(2.4)}


def test_a_crash_loses_what_runs_what_waits_and_what_comes() -> None:
    bench = Bench()
    bench.send(2.0, now=0.0)
    bench.send(2.0, now=0.5, wait=5.0)
    bench.play(1.0)
    bench.backend.crash(1.0)
    bench.send(2.0, now=1.5)
    assert bench.finished() == {0: 1.0, 1: 1.0, 2: 1.5}
    assert [answer[3] for answer in bench.answers] == [Verdict.FAILED] * 3
    assert repr(bench.backend) == "<0 active, 0 runnable>"
    bench.backend.faults.is_gone = False
    bench.send(2.0, now=20.0)
    assert bench.finished()[3] == pytest.approx(22.0)


def test_one_that_fails_some_fails_these_at_once() -> None:
    bench = Bench()
    bench.backend.faults.fails = lambda number: number == 1
    bench.send(2.0, now=0.0)
    bench.send(2.0, now=1.0)
    bench.play(1e9)
    verdicts = {answer[2]: answer[3] for answer in bench.answers}
    assert verdicts == {0: Verdict.SERVED, 1: Verdict.FAILED}
    assert bench.finished()[1] == pytest.approx(1.0 + 2.0 * FAILING)


def test_a_server_may_see_a_part_of_the_use_of_its_processors() -> None:
    reports = SimulatedReports(replace(SMALL, seen=0.2), 2.0, Random(1))
    for tick in range(1, 101):
        reports.sample(0.5 * TICK, 1, 0, tick * TICK, 1, 1)
    report = reports.report(1, 1)
    assert report is not None
    assert report.utilization == pytest.approx(0.1)
