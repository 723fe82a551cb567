from collections.abc import Callable
from math import inf
from random import Random

import pytest

from lbclient.core.backends.pool import Limits, Pool
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, Outcome, State, Verdict
from lbclient.core.outliers.answer_record import PATIENCE, AnswerRecord
from lbclient.core.outliers.method_outliers import TRIALS
from lbclient.core.outliers.outlier_judgement import Judgement, compared
from lbclient.core.outliers.outliers import METHODS, QUIET, REVIEW, UNUSED, Outliers
from lbclient.pickers import RoundRobin
from lbclient.testing import FakeNode

NOT_FOUND, UNIMPLEMENTED = 5, 12
FIND, STORE = 1, 2  # keys of methods
METHOD = ("unary_unary", "/search.Search/Find")


class Balancer:
    """Of `count` backends of which the first is to go bad."""

    def __init__(
        self, count: int = 4, active_limit: int = 100, make: type[FakeNode] = FakeNode
    ) -> None:
        self.pool: Pool[FakeNode] = Pool(
            lambda endpoint: make(endpoint, State.CONNECTING),
            lambda members: members,
            Limits(count, active_limit, 1.0, 10.0, 0),
        )
        endpoints = tuple(Endpoint(f"b{number}:1") for number in range(count))
        self.nodes = self.pool.reconcile(endpoints, 0.0).opened
        for node in self.nodes:
            self.pool.observe(node, State.READY, 0.0)
        self.bad = self.nodes[0]
        self.good = self.nodes[1:]
        self.outliers = Outliers(self.pool, Random(1))
        self.picker = RoundRobin(Random(1))
        self.now = 1.0

    def answer(
        self, node: FakeNode, status: int = 0, key: int = FIND, sent_at: float = inf
    ) -> Judgement | None:
        if status and key not in self.outliers.watching:
            self.outliers.watch(key, METHOD, self.now)
        sent_at = min(sent_at, self.now)
        return self.outliers.answered(key, node, status, 0.1, sent_at, self.now)

    def all_are_well(self, times: int = 20, key: int = FIND) -> None:
        for _ in range(times):
            self.now += 0.05
            for node in self.good:
                self.answer(node, key=key)

    def eject(self, key: int = FIND) -> int:
        """How many errors it took, the others being well meanwhile."""
        self.answer(self.bad, UNIMPLEMENTED, key)
        self.all_are_well(key=key)
        errors = 1
        while not self.outliers.is_ejected(key, self.bad):
            self.answer(self.bad, UNIMPLEMENTED, key)
            errors += 1
            assert errors < 50
        return errors

    def pick(self, key: int = FIND) -> FakeNode | None:
        return self.outliers.pick(self.picker, key, self.now)

    def trial_after(self, until: float = 100.0) -> float:
        """In how many seconds it gets a call, others being picked until then."""
        began_at = self.now
        while self.pick() is not self.bad:
            self.now += 0.01
            assert self.now < began_at + until
        self.bad.load.begin()
        return self.now - began_at

    def reconnect(self) -> None:
        """The one that goes bad, at once."""
        for state in (State.CONNECTING, State.READY):
            self.pool.observe(self.bad, state, self.now)
            self.outliers.changed(self.bad, self.now)


def test_a_few_errors_that_nobody_else_gives_are_enough() -> None:
    balancer = Balancer()
    balancer.answer(balancer.bad, UNIMPLEMENTED)
    balancer.answer(balancer.bad)
    balancer.all_are_well(100)
    assert balancer.eject() <= 5
    assert balancer.outliers.count == balancer.outliers.total == 1


def test_an_ok_in_between_takes_more_of_them() -> None:
    balancer = Balancer()
    balancer.answer(balancer.bad, UNIMPLEMENTED)
    balancer.all_are_well()
    for _ in range(3):
        balancer.answer(balancer.bad, UNIMPLEMENTED)
    for _ in range(20):
        balancer.answer(balancer.bad)
    for _ in range(3):
        balancer.answer(balancer.bad, UNIMPLEMENTED)
    assert not balancer.outliers.count


def test_what_the_others_give_too_is_no_evidence() -> None:
    balancer = Balancer()
    for _ in range(100):
        balancer.now += 0.05
        for node in balancer.nodes:
            balancer.answer(node, NOT_FOUND)
    assert not balancer.outliers.count


def test_who_is_ejected_is_let_in_when_the_others_fail_in_the_same_way() -> None:
    balancer = Balancer()
    balancer.eject()
    for _ in range(40):
        balancer.now += 0.3
        for node in balancer.good:
            balancer.answer(node, UNIMPLEMENTED)
    assert not balancer.outliers.count


def test_a_picked_backend_is_not_one_that_is_ejected_for_the_method() -> None:
    balancer = Balancer()
    balancer.eject()
    picked = {balancer.pick() for _ in range(20)}
    assert picked == set(balancer.good)


def test_other_methods_go_on_with_it() -> None:
    balancer = Balancer()
    balancer.eject(FIND)
    keys = Random(1).choices([FIND, STORE], k=200)
    picked = [(key, balancer.pick(key)) for key in keys]
    assert {node for key, node in picked if key == FIND} == set(balancer.good)
    of_store = [node for key, node in picked if key == STORE]
    assert of_store.count(balancer.bad) >= len(of_store) / 5  # of 4


def test_the_picker_gets_the_same_tuples_as_long_as_nothing_changes() -> None:
    """It goes by `is`, and begins anew with another one."""
    balancer = Balancer()
    balancer.eject(FIND)
    given = [balancer.outliers.allowed(FIND) for _ in range(3)]
    assert given[0] is given[1] is given[2]
    assert given[0] == balancer.good
    assert balancer.outliers.allowed(STORE) is balancer.pool.ready
    balancer.eject(STORE)
    assert balancer.outliers.allowed(STORE) is balancer.outliers.allowed(FIND)


def test_in_whatever_order_they_were_ejected_it_is_the_same_tuple() -> None:
    balancer = Balancer(5)
    for key, order in ((FIND, (0, 1)), (STORE, (1, 0))):
        for number in order:
            balancer.bad, balancer.good = balancer.nodes[number], balancer.nodes[2:]
            balancer.eject(key)
    assert len(balancer.outliers.allowed(FIND)) == 3
    assert balancer.outliers.allowed(STORE) is balancer.outliers.allowed(FIND)


def test_at_most_half_are_ejected() -> None:
    balancer = Balancer(5)
    for bad in balancer.nodes[:3]:
        balancer.bad, balancer.good = bad, balancer.nodes[3:]
        balancer.answer(bad, UNIMPLEMENTED)
        balancer.all_are_well()
        for _ in range(30):
            balancer.answer(bad, UNIMPLEMENTED)
    assert balancer.outliers.count == 2


def test_when_others_are_lost_no_more_than_half_are_left_out() -> None:
    balancer = Balancer(3)
    balancer.eject()
    assert balancer.bad not in balancer.outliers.allowed(FIND)
    for node in balancer.good:
        balancer.pool.observe(node, State.CONNECTING, balancer.now)
        balancer.outliers.changed(node, balancer.now)
    assert balancer.outliers.allowed(FIND) == (balancer.bad,)


def test_where_all_others_are_full_a_call_waits() -> None:
    """On the ejected one it would fail, and so would all that follow."""
    balancer = Balancer(3, active_limit=2)
    balancer.eject()
    for node in balancer.good:
        for _ in range(2):
            node.load.begin()
    assert balancer.pool.ready == (balancer.bad,)
    assert balancer.pick() is None
    assert balancer.pick(STORE) is balancer.bad
    balancer.good[0].load.finish(Outcome(Verdict.SERVED, 0.1), balancer.now)
    assert balancer.pick() is balancer.good[0]


# --- trial calls ---------------------------------------------------------------


def test_one_call_at_a_time_tries_whether_it_is_well() -> None:
    balancer = Balancer()
    balancer.eject()
    assert balancer.trial_after() == pytest.approx(TRIALS.first, rel=0.3)
    balancer.now += 20.0
    assert {balancer.pick() for _ in range(20)} == set(balancer.good)


def test_each_trial_that_fails_doubles_the_time_to_the_next() -> None:
    balancer = Balancer()
    balancer.eject()
    pauses = []
    for _ in range(8):
        pauses.append(balancer.trial_after())
        balancer.answer(balancer.bad, UNIMPLEMENTED)
    expected = [min(TRIALS.first * 2**n, TRIALS.longest) for n in range(8)]
    assert pauses == pytest.approx(expected, rel=0.3)


def test_one_that_goes_well_lets_it_back_in() -> None:
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    balancer.answer(balancer.bad)
    assert not balancer.outliers.count
    assert balancer.outliers.allowed(FIND) is balancer.pool.ready


def test_what_was_sent_before_it_was_ejected_is_no_trial() -> None:
    balancer = Balancer()
    balancer.eject()
    balancer.now += 0.5
    balancer.answer(balancer.bad, sent_at=balancer.now - 1.0)
    assert balancer.outliers.count == 1


def test_one_that_flaps_must_do_well_more_often_and_is_tried_less_often() -> None:
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    balancer.answer(balancer.bad)
    assert balancer.eject() <= 4  # its cusum is half of the bar still
    assert balancer.trial_after() == pytest.approx(2 * TRIALS.first, rel=0.3)
    balancer.answer(balancer.bad)
    assert balancer.outliers.count == 1
    assert balancer.pick() is balancer.bad  # at once, as the last one went well
    balancer.now += 0.01
    balancer.answer(balancer.bad)
    assert not balancer.outliers.count


def test_a_call_is_known_as_a_trial_by_when_it_was_sent() -> None:
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    outliers, sent_at = balancer.outliers, balancer.now
    assert outliers.was_trial(FIND, balancer.bad, sent_at)
    assert not outliers.was_trial(FIND, balancer.bad, sent_at - 0.1)
    assert not outliers.was_trial(FIND, balancer.good[0], sent_at)
    assert not outliers.was_trial(STORE, balancer.bad, sent_at)


def test_what_is_no_answer_says_nothing_of_its_status() -> None:
    """A call that ended here, or was never sent."""
    balancer = Balancer()
    balancer.answer(balancer.bad, UNIMPLEMENTED)
    balancer.all_are_well()
    unsent = Outcome(Verdict.FAILED, 0.1, None, None, False)
    for _ in range(50):
        judged = balancer.outliers.judge(
            FIND,
            balancer.bad,
            unsent,
            UNIMPLEMENTED,
            balancer.now,
            balancer.now,
            lambda: METHOD,
        )
        assert judged is None
    assert not balancer.outliers.count


def test_errors_that_are_a_while_apart_are_counted_together() -> None:
    balancer = Balancer()
    balancer.now = 100.0
    balancer.answer(balancer.bad, UNIMPLEMENTED)
    balancer.now += QUIET - 1.0
    balancer.answer(balancer.good[0])
    assert FIND in balancer.outliers.watching
    balancer.now += 2.0 + REVIEW
    balancer.answer(balancer.good[0])
    assert FIND not in balancer.outliers.watching


def test_a_trial_that_nobody_answered_is_made_again() -> None:
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    balancer.outliers.given_up(FIND, balancer.bad, balancer.now, balancer.now)
    assert balancer.trial_after() == pytest.approx(TRIALS.first, rel=0.3)


def test_a_trial_that_was_picked_and_never_sent_is_made_by_the_next_call() -> None:
    """Too late, or sent to another backend after all: to wait for it proves nothing."""
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    balancer.answer(balancer.bad, UNIMPLEMENTED)
    while balancer.pick() is not balancer.bad:
        balancer.now += 0.01
    balancer.now += PATIENCE
    assert balancer.pick() is balancer.bad
    assert balancer.outliers.count == 1
    balancer.bad.load.begin()
    balancer.now += 1.0
    assert balancer.pick() is not balancer.bad
    balancer.answer(balancer.bad)
    assert not balancer.outliers.count


def test_a_trial_whose_end_nobody_told_is_made_again() -> None:
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    balancer.pick()
    balancer.bad.load.finish(Outcome(Verdict.ABANDONED, 0.1), balancer.now)
    balancer.now += PATIENCE
    assert balancer.pick() is balancer.bad
    assert balancer.outliers.count == 1


def test_one_that_is_full_when_its_trial_is_due_is_tried_when_it_has_room() -> None:
    balancer = Balancer(3, active_limit=1)
    balancer.eject()
    balancer.bad.load.begin()
    balancer.now += 2 * TRIALS.first
    for _ in range(20):
        assert balancer.pick() in balancer.good
    balancer.bad.load.finish(SERVED, balancer.now)
    assert balancer.trial_after() <= 0.2


def test_a_trial_that_lasts_does_not_fail_fast() -> None:
    """As a stream may, for hours."""
    balancer = Balancer()
    balancer.eject()
    balancer.trial_after()
    balancer.now += PATIENCE
    balancer.pick()
    assert not balancer.outliers.count


def test_a_new_connection_is_tried_soon() -> None:
    balancer = Balancer()
    balancer.eject()
    for _ in range(5):
        balancer.trial_after()
        balancer.answer(balancer.bad, UNIMPLEMENTED)
    balancer.now += 2.0
    balancer.reconnect()
    assert balancer.pick() is balancer.bad
    balancer.answer(balancer.bad)
    assert not balancer.outliers.count


def test_one_that_ends_each_connection_is_not_tried_at_each_of_them() -> None:
    balancer = Balancer()
    balancer.eject()
    tried = 0
    for _ in range(1000):
        balancer.now += 0.01
        balancer.reconnect()
        if balancer.pick() is balancer.bad:
            tried += 1
            balancer.bad.load.begin()
            balancer.answer(balancer.bad, UNIMPLEMENTED)
    assert tried <= 10


def test_new_connections_of_one_that_ends_them_with_each_trial_put_off_the_next() -> (
    None
):
    balancer = Balancer()
    balancer.eject()
    pauses = []
    for _ in range(5):
        pauses.append(balancer.trial_after())
        balancer.answer(balancer.bad, UNIMPLEMENTED)
        balancer.reconnect()
    assert pauses == pytest.approx([TRIALS.first * 2**n for n in range(5)], rel=0.3)


def test_one_that_ends_its_connection_with_each_error_is_ejected_after_a_few() -> None:
    """And the reason tells of all of them."""
    balancer = Balancer()
    balancer.all_are_well()
    errors = 0
    while not balancer.outliers.count:
        balancer.answer(balancer.bad, UNIMPLEMENTED)
        errors += 1
        assert errors <= 20
        balancer.all_are_well(1)
        balancer.reconnect()
    [ejection] = [ejection for _, ejection in balancer.outliers.of(balancer.bad)]
    assert ejection.against.own > errors / 2


def test_an_ok_on_a_new_connection_takes_away_from_the_cusum() -> None:
    balancer = Balancer()
    for _ in range(40):
        balancer.all_are_well()
        balancer.answer(balancer.bad, UNIMPLEMENTED)
        balancer.reconnect()
        for _ in range(5):
            balancer.answer(balancer.bad)
    assert not balancer.outliers.count


def test_the_answers_of_the_task_before_say_nothing_of_the_new_one() -> None:
    balancer = Balancer()
    balancer.answer(balancer.bad, UNIMPLEMENTED)
    balancer.all_are_well()
    sent_at = balancer.now
    for state in (State.CONNECTING, State.READY):
        balancer.pool.observe(balancer.bad, state, balancer.now + 1.0)
        balancer.outliers.changed(balancer.bad, balancer.now + 1.0)
    balancer.now += 2.0
    for _ in range(20):
        assert balancer.answer(balancer.bad, UNIMPLEMENTED, sent_at=sent_at) is None
    assert not balancer.outliers.count


# --- what is learned -------------------------------------------------------------


def test_a_backend_begins_unsuspected_and_counts_what_it_answers() -> None:
    record = AnswerRecord(Balancer().bad)
    assert (record.cusum, record.has_served) == (0.0, False)
    for status in (0, UNIMPLEMENTED, 0):
        record.add(status)
    assert (record.answers, record.oks) == (3, 2)
    record.has_served = True
    record.cusum = 3.0
    record.reconnect()
    assert (record.cusum, record.has_served) == (3.0, False)


def test_an_error_is_unproven_until_the_others_give_it_too() -> None:
    balancer = Balancer()
    for _ in range(2):
        judgement = balancer.answer(balancer.bad, NOT_FOUND)
    assert judgement is not None
    assert (judgement.is_failure, judgement.is_unproven) == (False, True)
    for node in balancer.good:
        balancer.answer(node, NOT_FOUND)
    judgement = balancer.answer(balancer.bad, NOT_FOUND)
    assert judgement is not None
    assert (judgement.is_unproven, judgement.is_usual) == (False, True)


def test_it_is_a_failure_once_there_is_evidence() -> None:
    balancer = Balancer()
    balancer.answer(balancer.bad, NOT_FOUND)
    balancer.answer(balancer.bad)
    balancer.all_are_well(100)
    judgements = [balancer.answer(balancer.bad, NOT_FOUND) for _ in range(4)]
    assert [one and one.is_failure for one in judgements] == [False, False, True, True]


def test_errors_that_turn_out_to_be_usual_are_forgiven() -> None:
    balancer = Balancer()
    load, now = balancer.bad.load, balancer.now
    for _ in range(2):
        judgement = balancer.answer(balancer.bad, NOT_FOUND)
        assert judgement is not None
        outcome, owed = compared(Outcome(Verdict.SERVED, 0.001), judgement, load)
        load.begin()
        load.finish(outcome, now)
        load.owe(owed, now)
    assert load.recent_errors(now) == 1.0  # the first one may be anything
    assert load.failure_ratio(now) == 0.0
    for node in balancer.good:
        balancer.answer(node, NOT_FOUND)
    balancer.answer(balancer.bad, NOT_FOUND)
    assert load.recent_errors(now) == 0.0


SERVED = Outcome(Verdict.SERVED, 0.001)


def test_a_failure_counts_as_one_and_has_no_latency() -> None:
    judgement = Judgement(True, False, False, 0.1)
    learned, owed = compared(SERVED, judgement, Load())
    assert (learned.verdict, owed) == (Verdict.FAILED, 0.0)


def test_a_usual_error_takes_as_long_as_an_ok_and_owes_the_rest() -> None:
    judgement = Judgement(False, False, True, 0.1)
    learned, owed = compared(SERVED, judgement, Load())
    assert (learned.verdict, learned.latency) == (Verdict.SERVED, 0.1)
    assert owed == pytest.approx(0.099)
    slow = Outcome(Verdict.SERVED, 0.5)
    assert compared(slow, judgement, Load()) == (slow, 0.0)


def test_a_method_that_has_nothing_but_usual_errors_has_their_latency() -> None:
    judgement = Judgement(False, False, True, 0.0)
    assert compared(SERVED, judgement, Load()) == (SERVED, 0.0)


def test_an_error_that_is_unproven_says_nothing_of_latency() -> None:
    judgement = Judgement(False, False, False, 0.0)
    learned, _ = compared(SERVED, judgement, Load())
    assert learned.latency == 0.0


def test_what_a_server_answers_as_cancelled_is_an_answer() -> None:
    judgement = Judgement(True, False, False, 0.0)
    cancelled = Outcome(Verdict.ABANDONED, 0.001)
    assert compared(cancelled, judgement, Load())[0].verdict is Verdict.FAILED


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.REJECTED])
def test_a_refusal_and_a_failure_by_its_status_alone_stay_that(
    verdict: Verdict,
) -> None:
    outcome = Outcome(verdict, 0.001)
    judgement = Judgement(False, False, True, 0.1)
    assert compared(outcome, judgement, Load()) == (outcome, 0.0)


def test_what_ends_too_soon_counts_as_a_request_for_the_rest_of_the_time() -> None:
    """By Little's law: 20 a second, each owing 0.1 s, are two requests in flight."""
    load, now = Load(), 0.0
    for _ in range(2000):
        now += 0.05
        load.owe(0.1, now)
    assert load.recent_errors(now) == pytest.approx(2.0, rel=0.05)


# --- many -------------------------------------------------------------------------


class Counted(FakeNode):
    """Counts how often one of them is compared or hashed."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return self is other

    def __hash__(self) -> int:
        Counted.looks += 1
        return id(self)


def looks(work: Callable[[], object]) -> int:
    before = Counted.looks
    work()
    return Counted.looks - before


def half_ejected() -> Balancer:
    """The first 500 of 1,000."""
    balancer = Balancer(1000, make=Counted)
    bad, balancer.good = balancer.nodes[:500], balancer.nodes[500:]
    for node in bad:
        balancer.answer(node, UNIMPLEMENTED)
    balancer.all_are_well(2)
    balancer.now += 1.0
    for node in bad:
        for _ in range(30):
            balancer.answer(node, UNIMPLEMENTED)
    assert balancer.outliers.count == 500
    return balancer


def test_to_leave_out_half_of_1000_costs_a_few_looks_at_each() -> None:
    """It was half a million of them at each change of who is ready."""
    balancer = half_ejected()
    balancer.now += 0.5  # no trial is due

    def change() -> None:
        node = balancer.nodes[-1]
        for state in (State.CONNECTING, State.READY):
            balancer.pool.observe(node, state, balancer.now)
            balancer.outliers.changed(node, balancer.now)

    balancer.pick()
    assert looks(balancer.pick) <= 5
    change()
    assert len(balancer.pool.ready) == 1000
    assert looks(balancer.pick) <= 10 * 1000
    assert len(balancer.outliers.allowed(FIND)) == 500


def test_picks_do_not_look_for_trials_each_time_while_all_ejected_are_lost() -> None:
    balancer = half_ejected()
    for node in balancer.nodes[:500]:
        balancer.pool.observe(node, State.CONNECTING, balancer.now)
        balancer.outliers.changed(node, balancer.now)
    balancer.now += 100.0  # all trials are due, and nobody is there
    balancer.pick()
    assert looks(balancer.pick) <= 5


# --- bounds -----------------------------------------------------------------------


def test_methods_are_bounded_and_those_with_ejections_are_the_last_to_go() -> None:
    balancer = Balancer()
    balancer.eject(FIND)
    for key in range(10, 10 + 3 * METHODS):
        balancer.now += 0.01
        balancer.answer(balancer.bad, NOT_FOUND, key)
    assert len(balancer.outliers.watching) == METHODS
    assert balancer.outliers.is_ejected(FIND, balancer.bad)


def test_what_nobody_calls_any_more_is_forgotten_with_its_ejections() -> None:
    balancer = Balancer()
    balancer.eject(FIND)
    balancer.now += UNUSED + 60.0
    balancer.answer(balancer.bad, NOT_FOUND, STORE)
    assert list(balancer.outliers.watching) == [STORE]
    assert balancer.outliers.count == 0


def test_nothing_is_kept_of_a_backend_that_left() -> None:
    balancer = Balancer()
    balancer.eject()
    left = balancer.pool.reconcile(
        tuple(node.endpoint for node in balancer.good), balancer.now
    ).drained
    assert left == (balancer.bad,)
    balancer.outliers.forget(balancer.bad)
    balancer.answer(balancer.bad, UNIMPLEMENTED)  # of a call that was under way
    watch = balancer.outliers.watching[FIND]
    assert balancer.bad not in watch.records
    assert balancer.outliers.count == 0
    assert balancer.outliers.of(balancer.bad) == []


def test_news_of_ejections_is_bounded_if_nobody_takes_it() -> None:
    balancer = Balancer()
    for _ in range(200):
        balancer.eject()
        balancer.now += UNUSED
        balancer.pick()
        for _ in range(3):
            balancer.answer(balancer.bad)
            balancer.now += 0.1
    assert balancer.outliers.total == 200
    assert len(balancer.outliers.news) == 100
