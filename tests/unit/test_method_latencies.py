"""Backends that answer late: whom the client ejects, and whom it does not."""

from collections.abc import Callable
from math import exp, inf, log
from random import Random

import pytest

from lbclient.core.backends.pool import Limits, Pool
from lbclient.core.counting.call_counts import Method
from lbclient.core.model import Endpoint, LoadReport, Outcome, State, Verdict
from lbclient.core.outliers.method_latencies import Lateness
from lbclient.core.outliers.method_outliers import LATE_TRIALS, MOST_TRIALS
from lbclient.core.outliers.outliers import METHODS, UNUSED, Outliers
from lbclient.pickers import RoundRobin
from lbclient.testing import FakeNode
from lbclient.wire.codes import told_against

FIND, STORE = 1, 2
PATHS: dict[int, Method] = {
    FIND: ("unary_unary", "/search.Search/Find"),
    STORE: ("unary_unary", "/search.Search/Store"),
    3: ("unary_stream", "/search.Search/Pages"),
}
DEADLINE_EXCEEDED = 4
USUAL = 0.02  # seconds
RATE = 50.0  # requests a second, of each backend

Latency = Callable[[int], float]
"""From the number of a backend to the mean of its latencies, in seconds."""


def gray(number: int) -> float:
    return USUAL * (1.0 if number else 10.0)


def well(_: int) -> float:
    return USUAL


class Calls:
    """Calls to each of `count` backends in turn, whose latencies are exponential or
    lognormal. Backends report how busy they are, and how many requests they have."""

    def __init__(
        self, count: int = 10, spread: float = 1.0, reports: bool = True
    ) -> None:
        self.pool: Pool[FakeNode] = Pool(
            lambda endpoint: FakeNode(endpoint, State.CONNECTING),
            lambda members: members,
            Limits(count, 1000, 1.0, 10.0, 0),
        )
        endpoints = tuple(Endpoint(f"b{number:03}:1") for number in range(count))
        self.nodes = self.pool.reconcile(endpoints, 0.0).opened
        for node in self.nodes:
            self.pool.observe(node, State.READY, 0.0)
        self.outliers = Outliers(self.pool, Random(1), ejects_late=True)
        self.picker = RoundRobin(Random(1))
        self.now = 1.0
        self.spread = spread
        self.utilization = dict.fromkeys(range(count), 0.3)
        self.reports = reports
        self.rng = Random(count)

    def run(
        self, seconds: float, latency: Latency, key: int = FIND, every: float = 0.2
    ) -> "Calls":
        """A call to each backend in so many seconds, ejected or not."""
        end = self.now + seconds
        while self.now < end:
            self.now += every
            for number, node in enumerate(self.nodes):
                if not self.outliers.is_ejected(key, node):
                    self.answer(node, number, latency(number), key)
        return self

    def answer(self, node: FakeNode, number: int, mean: float, key: int = FIND) -> None:
        took = mean * exp(self.rng.gauss(0.0, self.spread))
        self.end(node, took, self.report(number, mean), key)

    def report(self, number: int, mean: float) -> LoadReport | None:
        if not self.reports:
            return None
        active = round(RATE * mean + self.rng.random())
        return LoadReport(self.utilization[number], RATE, 0.0, active)

    def end(
        self,
        node: FakeNode,
        took: float,
        report: LoadReport | None,
        key: int = FIND,
        status: int = 0,
        chose_freely: bool = True,
    ) -> None:
        verdict = Verdict.FAILED if status else Verdict.SERVED
        outcome = Outcome(verdict, took, report, None, status != DEADLINE_EXCEEDED)
        sent_at = self.now - took
        self.outliers.judge(
            key, node, outcome, status, max(sent_at, 0.5), self.now,
            lambda: PATHS[key], chose_freely=chose_freely,
        )  # fmt: skip
        node.load.begin()
        node.load.finish(outcome, self.now)

    def ejected(self, key: int = FIND) -> list[int]:
        outliers, nodes = self.outliers, enumerate(self.nodes)
        return [number for number, node in nodes if outliers.is_ejected(key, node)]

    def restart(self, number: int) -> None:
        node = self.nodes[number]
        for state in (State.CONNECTING, State.READY):
            self.pool.observe(node, state, self.now)
            self.outliers.changed(node, self.now)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("every", [0.01, 0.2, 0.5])
def test_one_that_becomes_ten_times_as_slow_is_ejected_within_5_s(
    spread: float, every: float
) -> None:
    calls = Calls(spread=spread).run(30.0, well, every=every)
    assert calls.outliers.total == 0
    began_at = calls.now
    while not calls.ejected():
        calls.run(every, gray, every=every)
        assert calls.now <= began_at + 5.0
    assert calls.ejected() == [0]


def test_it_tells_how_long_its_calls_took_and_how_long_is_usual() -> None:
    calls = Calls(spread=0.1).run(30.0, well).run(5.0, gray)
    [(method, ejection)] = calls.outliers.of(calls.nodes[0])
    assert method == PATHS[FIND]
    assert isinstance(ejection.against, Lateness)
    own, usual, others = ejection.against
    assert abs(log(own / USUAL / 10.0)) < 0.3
    assert abs(log(usual / USUAL)) < 0.2
    assert abs(log(others / USUAL)) < 0.2
    assert told_against(ejection.against).startswith("its last calls took ")
    assert repr(ejection) == "<ejected as it is late>"


def test_it_is_ejected_for_the_methods_that_it_is_late_with_alone() -> None:
    calls = Calls()
    for _ in range(60):
        calls.run(0.5, well).run(0.5, lambda _: 1.0, STORE)
    for _ in range(10):
        calls.run(0.5, gray).run(0.5, lambda _: 1.0, STORE)
    assert (calls.ejected(FIND), calls.ejected(STORE)) == ([0], [])


def test_unequal_mixes_of_methods_are_no_difference() -> None:
    """Half the backends begin to get the dear method far more often."""
    calls = Calls()
    for _ in range(30):
        calls.run(1.0, well).run(1.0, lambda _: 1.0, STORE)
    for _ in range(300):
        calls.now += 0.1
        for number, node in enumerate(calls.nodes):
            key = STORE if number < 5 and calls.rng.random() < 0.9 else FIND
            calls.answer(node, number, 1.0 if key == STORE else USUAL, key)
    assert calls.outliers.total == 0


@pytest.mark.parametrize("factor", [2.0, 10.0, 50.0])
@pytest.mark.parametrize("count", [3, 10])
def test_where_all_slow_down_none_is_singled_out(factor: float, count: int) -> None:
    calls = Calls(count).run(30.0, well).run(120.0, lambda _: factor * USUAL)
    assert calls.outliers.total == 0
    assert calls.run(60.0, well).outliers.total == 0


def test_machines_that_are_slow_by_nature_keep_their_share() -> None:
    def diverse(number: int) -> float:
        return USUAL * (4.0 if number < 3 else 1.0)

    calls = Calls().run(300.0, diverse)
    assert calls.outliers.total == 0

    def gray_too(number: int) -> float:
        return diverse(number) * (10.0 if number == 9 else 1.0)

    assert calls.run(10.0, gray_too).ejected() == [9]


@pytest.mark.parametrize("factor", [4.0, 10.0])
def test_who_is_slow_from_the_beginning_is_not_taken_for_ill(factor: float) -> None:
    """As in another region: nobody knows what is usual of it."""

    def distant(number: int) -> float:
        return USUAL * (1.0 if number else factor)

    calls = Calls().run(60.0, well)
    calls.restart(0)
    assert calls.run(120.0, distant).outliers.total == 0


def test_a_newcomer_that_is_cold_is_none() -> None:
    calls = Calls().run(60.0, well)
    calls.restart(0)
    assert calls.run(10.0, gray).run(60.0, well).outliers.total == 0


def test_heavy_tails_are_no_evidence() -> None:
    """1 % of the requests take 100 to 1,000 times as long."""
    calls = Calls()
    for _ in range(2000):
        calls.now += 0.1
        for number, node in enumerate(calls.nodes):
            heavy = calls.rng.random() < 0.01
            calls.answer(node, number, USUAL * (300.0 if heavy else 1.0))
    assert calls.outliers.total == 0


def test_a_pause_of_a_process_is_no_illness() -> None:
    """What waited for it comes all at once: so many answers are one."""
    calls = Calls().run(60.0, well)
    for _ in range(30):
        for _ in range(100):
            calls.answer(calls.nodes[0], 0, 2.0)
        calls.run(5.0, well)
    assert calls.outliers.total == 0


@pytest.mark.parametrize("utilization", [0.6, 0.95])
def test_who_is_busier_than_the_others_is_left_to_its_weight(
    utilization: float,
) -> None:
    calls = Calls().run(30.0, well)
    calls.utilization[0] = utilization
    assert calls.run(20.0, gray).outliers.total == 0


def test_nobody_is_ejected_for_whose_requests_there_is_no_room() -> None:
    calls = Calls()
    calls.utilization = dict.fromkeys(range(10), 0.88)
    assert calls.run(30.0, well).run(20.0, gray).outliers.total == 0


def test_nobody_is_ejected_who_does_not_tell_how_busy_it_is() -> None:
    calls = Calls(reports=False)
    assert calls.run(30.0, well).run(20.0, gray).outliers.total == 0


def test_of_two_backends_nobody_can_say_which_one_is_late() -> None:
    calls = Calls(2)
    assert calls.run(30.0, well).run(20.0, gray).outliers.total == 0


def test_one_of_five_is_ejected_at_most() -> None:
    calls = Calls().run(30.0, well)
    calls.run(60.0, lambda number: USUAL * (10.0 if number < 3 else 1.0))
    assert len(calls.ejected()) <= 2


def test_streams_are_not_timed() -> None:
    calls = Calls()
    assert calls.run(30.0, well, 3).run(30.0, gray, 3).outliers.total == 0
    calls.restart(0)
    calls.outliers.forget(calls.nodes[0])


def test_calls_that_end_by_their_deadlines_have_taken_as_long() -> None:
    calls = Calls(spread=0.3).run(30.0, well)
    while not calls.ejected():
        calls.now += 0.2
        for number, node in enumerate(calls.nodes[1:], start=1):
            calls.answer(node, number, USUAL)
        report = calls.report(0, 10.0 * USUAL)
        calls.end(calls.nodes[0], 6.0 * USUAL, report, status=DEADLINE_EXCEEDED)
        assert calls.now < 45.0
    assert calls.ejected() == [0]


def trial(calls: Calls, until: float = 100.0) -> float:
    """In how many seconds it gets a call, others being picked until then."""
    began_at = calls.now
    while calls.outliers.pick(calls.picker, FIND, calls.now) is not calls.nodes[0]:
        calls.now += 0.05
        assert calls.now < began_at + until
    calls.nodes[0].load.begin()
    return calls.now - began_at


def end_trial(calls: Calls, took: float) -> None:
    sent_at, node = calls.now, calls.nodes[0]
    calls.now += took
    outcome = Outcome(Verdict.SERVED, took, calls.report(0, took))
    calls.outliers.judge(
        FIND, node, outcome, 0, sent_at, calls.now, lambda: PATHS[FIND]
    )
    node.load.finish(outcome, calls.now)


def test_few_trial_calls_find_out_that_it_is_well_again() -> None:
    calls = Calls().run(30.0, well).run(5.0, gray)
    assert calls.ejected() == [0]
    pauses = []
    for _ in range(4):
        pauses.append(trial(calls))
        end_trial(calls, 10.0 * USUAL)
        assert calls.ejected() == [0]
    assert 0.75 * LATE_TRIALS.first - 5.0 <= pauses[0]
    assert all(pause >= 0.75 * LATE_TRIALS.first for pause in pauses[1:])
    assert max(pauses) <= 1.25 * LATE_TRIALS.longest
    trial(calls)
    for _ in range(3):
        assert calls.ejected() == [0]
        end_trial(calls, USUAL)
        if calls.ejected():
            assert trial(calls) == 0.0  # at once
    assert calls.ejected() == []
    calls.run(60.0, well)
    assert (calls.outliers.count, calls.outliers.total) == (0, 1)


def test_it_is_well_again_where_the_others_are_late_by_now_too() -> None:
    calls = Calls().run(30.0, well).run(5.0, gray)
    assert calls.ejected() == [0]
    while calls.ejected():
        calls.run(1.0, lambda _: 10.0 * USUAL)
        if calls.outliers.pick(calls.picker, FIND, calls.now) is calls.nodes[0]:
            calls.nodes[0].load.begin()
            end_trial(calls, 10.0 * USUAL)
        assert calls.now < 300.0


def test_who_leaves_is_forgotten_and_the_methods_are_bounded() -> None:
    calls = Calls()
    calls.now = 2 * UNUSED
    for key in range(1000, 1000 + 2 * METHODS):
        PATHS[key] = ("unary_unary", f"/search.Search/{key}")
        calls.run(0.2, well, key)
    assert len(calls.outliers._latencies) == METHODS
    assert 1000 in calls.outliers._latencies  # it was used, others are not timed
    calls.now += UNUSED
    calls.run(0.2, well, FIND)
    assert FIND in calls.outliers._latencies
    calls.pool.reconcile((), calls.now)
    for node in calls.nodes:
        calls.outliers.forget(node)
    assert len(calls.outliers._latencies) == METHODS
    assert repr(next(iter(calls.outliers._latencies.values()))).startswith(
        "<0 of 0 late"
    )


def test_one_that_is_seldom_called_is_told_by_its_reports() -> None:
    """What is usual of it is not known; what it holds is more than the others do."""
    calls = Calls(spread=0.5)

    def seldom(seconds: float, mean: float) -> None:
        end = calls.now + seconds
        while calls.now < end and not calls.ejected():
            calls.now += 0.1
            for number, node in enumerate(calls.nodes[1:], start=1):
                calls.answer(node, number, USUAL)
            if calls.rng.random() < 0.03 or mean > USUAL:
                calls.answer(calls.nodes[0], 0, mean)

    seldom(31.0, USUAL)
    calls.outliers._latencies[FIND].restart(calls.nodes[0])  # type: ignore[union-attr]
    seldom(5.0, 10.0 * USUAL)
    assert calls.ejected() == [0]


def test_trial_calls_are_judged_where_errors_were_watched_before() -> None:
    calls = Calls()
    calls.now += 0.1
    calls.end(calls.nodes[5], 0.001, None, status=12)
    calls.run(30.0, well).run(5.0, gray)
    assert calls.ejected() == [0]
    for _ in range(2 * MOST_TRIALS):
        trial(calls)
        end_trial(calls, 10.0 * USUAL)
        assert calls.ejected() == [0]
    assert calls.outliers.total == 1


def test_one_that_is_far_away_is_compared_with_itself_from_the_first() -> None:
    """Also after each new connection, which may lead to another task."""
    calls = Calls(spread=0.1)
    for _ in range(5):
        calls.run(30.0, lambda number: USUAL * (1.0 if number else 100.0))
        calls.restart(0)
    assert calls.outliers.total == 0


def test_none_is_ejected_as_late_without_the_setting() -> None:
    calls = Calls()
    calls.outliers = Outliers(calls.pool, Random(1))
    assert calls.run(30.0, well).run(20.0, gray).outliers.total == 0
    assert not calls.outliers._latencies  # nothing is timed
    assert all(node.load.timed_at == inf for node in calls.nodes)


def test_there_is_room_only_at_those_that_are_not_ejected() -> None:
    calls = Calls()
    calls.utilization = dict.fromkeys(range(10), 0.7)
    calls.run(30.0, well)
    for number in range(7, 10):  # they fail
        for _ in range(20):
            calls.now += 0.1
            calls.end(calls.nodes[number], USUAL, None, status=12)
            for other in range(7):
                calls.answer(calls.nodes[other], other, USUAL)
    assert calls.ejected() == [7, 8, 9]
    calls.utilization = dict.fromkeys(range(7), 0.8) | dict.fromkeys(range(7, 10), 0.1)
    calls.run(20.0, gray)
    assert calls.ejected() == [7, 8, 9]


def test_a_trial_call_that_ends_by_its_deadline_was_late() -> None:
    calls = Calls().run(30.0, well).run(5.0, gray)
    trial(calls)
    sent_at, node = calls.now, calls.nodes[0]
    [(_, ejection)] = calls.outliers.of(node)
    calls.now += 1.0
    calls.outliers.given_up(FIND, node, sent_at, calls.now)  # for other reasons
    assert ejection.failed_at == -inf
    trial(calls)
    sent_at = calls.now
    calls.now += 2.0
    late = Outcome(Verdict.FAILED, 2.0, None, None, False)
    where = lambda: PATHS[FIND]  # noqa: E731
    calls.outliers.judge(FIND, node, late, DEADLINE_EXCEEDED, sent_at, calls.now, where)
    assert ejection.failed_at == calls.now


def test_a_trial_call_without_end_does_not_let_a_late_backend_in() -> None:
    calls = Calls().run(30.0, well).run(5.0, gray)
    for _ in range(3):
        trial(calls, 200.0)
        assert calls.ejected() == [0]


def test_a_late_backend_is_better_than_too_few_others() -> None:
    calls = Calls(3).run(30.0, well).run(5.0, gray)
    assert calls.ejected() == [0]
    calls.pool.observe(calls.nodes[1], State.CONNECTING, calls.now)
    calls.outliers.changed(calls.nodes[1], calls.now)
    assert calls.ejected() == []


def test_calls_that_later_ones_overtook_are_late_for_their_own_sake() -> None:
    """Long polls that end one after the other, of a backend that holds many."""
    calls = Calls(spread=0.1).run(30.0, well)
    for _ in range(50):
        calls.now += 0.2
        calls.end(calls.nodes[0], 20.0, LoadReport(0.3, RATE, 0.0, 30))
        for number, node in enumerate(calls.nodes[1:], start=1):
            calls.answer(node, number, USUAL)
    assert calls.outliers.total == 0
    assert calls.run(5.0, gray).ejected() == [0]


def test_calls_whose_key_chose_the_backend_are_not_compared() -> None:
    calls = Calls().run(30.0, well)
    for _ in range(100):
        calls.now += 0.2
        late = calls.report(0, 10.0 * USUAL)
        calls.end(calls.nodes[0], 10.0 * USUAL, late, chose_freely=False)
        for number, node in enumerate(calls.nodes[1:], start=1):
            calls.answer(node, number, USUAL)
    assert calls.outliers.total == 0


def test_a_late_backend_is_let_in_when_the_others_are_full_and_only_then() -> None:
    calls = Calls().run(30.0, well).run(5.0, gray)
    assert calls.ejected() == [0]
    calls.utilization = dict.fromkeys(range(10), 0.94)
    assert calls.run(5.0, gray).ejected() == [0]
    calls.utilization = dict.fromkeys(range(10), 0.97)
    assert calls.run(2.0, gray).ejected() == []
    assert calls.run(20.0, gray).ejected() == []
    calls.utilization = dict.fromkeys(range(10), 0.5)
    assert calls.run(5.0, gray).ejected() == [0]


@pytest.mark.parametrize("active", [None, 30])
def test_one_whose_rate_rose_has_a_queue_also_if_it_does_not_tell_its_requests(
    active: int | None,
) -> None:
    """As servers of other languages do, whose reports have no number of requests."""
    calls = Calls(spread=0.3)
    usual = None if active is None else 1
    for rate, held, times in ((RATE, usual, 1.0), (3.0 * RATE, active, 10.0)):
        for _ in range(100):
            calls.now += 0.2
            for number, node in enumerate(calls.nodes):
                took = USUAL * exp(calls.rng.gauss(0.0, calls.spread))
                if number:
                    calls.end(node, took, LoadReport(0.3, RATE, 0.0, usual))
                else:
                    calls.end(node, times * took, LoadReport(0.3, rate, 0.0, held))
    assert calls.outliers.total == 0


def test_while_the_others_have_more_requests_than_usual_none_is_ejected() -> None:
    """More come than usual: the late one has the longest queue of all."""
    calls = Calls(spread=0.3)

    def run(times: float, held: int, seconds: int) -> None:
        for _ in range(5 * seconds):
            calls.now += 0.2
            for number, node in enumerate(calls.nodes):
                if number or not calls.ejected():
                    took = USUAL * exp(calls.rng.gauss(0.0, calls.spread))
                    is_late = times > 1.0 and not number
                    active = 30 if is_late else held
                    report = LoadReport(0.3, RATE * held, 0.0, active)
                    calls.end(node, took * (times if is_late else 1.0), report)

    run(1.0, 1, 30)
    run(10.0, 4, 10)
    assert calls.outliers.total == 0
    run(10.0, 1, 10)
    assert calls.ejected() == [0]
