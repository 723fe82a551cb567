"""What a task lets in, what it says to those it refuses, and who comes too late."""

from math import e, exp
from random import Random

import pytest

from lbclient.core.counting.tally import STEP, Tally
from lbclient.core.criticality import Criticality
from lbclient.core.overload.admission import (
    MEMORY,
    PATIENCE,
    Admission,
    Places,
    Quickest,
    Signal,
)
from lbclient.core.refusal import Refusal
from lbclient.core.retries.attempt_histogram import MEMORY as ATTEMPT_MEMORY
from lbclient.core.retries.attempt_histogram import TOO_FEW
from lbclient.core.retries.retry import ATTEMPTS

CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE
CPU = Signal("cpu", 0.9, 0.03)
MEMORY_IN_USE = Signal("memory", 0.8, 0.02)


@pytest.fixture
def admission() -> Admission:
    return Admission([CPU, MEMORY_IN_USE], Random(1))


def ask(
    admission: Admission, times: int, of: Criticality = CRITICAL, attempt: int = 0
) -> list[Refusal | None]:
    return [admission.refuses(of, attempt) for _ in range(times)]


def refused(answers: list[Refusal | None]) -> float:
    return sum(answer is not None for answer in answers) / len(answers)


def close(admission: Admission) -> None:
    """Nothing gets in any more: a hundred widths."""
    admission.observe([CPU.target + 100 * CPU.width, 0.0])


def test_up_to_its_targets_a_task_lets_all_in(admission: Admission) -> None:
    admission.observe([CPU.target, MEMORY_IN_USE.target])
    assert set(ask(admission, 1000, SHEDDABLE)) == {None}
    assert repr(admission) == "<admits all>"


@pytest.mark.parametrize("one", Criticality)
def test_each_width_lets_e_times_fewer_in_and_later_what_is_dearer(
    admission: Admission, one: Criticality
) -> None:
    ask(admission, 100 * STEP, one)  # all that comes is of one criticality
    admission.observe([CPU.target + CPU.width * PATIENCE[one], 0.0])
    assert refused(ask(admission, 4000, one)) == pytest.approx(1 - 1 / e, abs=0.03)


def test_a_retry_gets_in_as_often_as_a_first_attempt_also_in_slight_overload(
    admission: Admission,
) -> None:
    ask(admission, 100 * STEP)
    for widths in (0.1, 1.0, 3.0):
        admission.observe([CPU.target + CPU.width * PATIENCE[CRITICAL] * widths, 0.0])
        first, retry = (
            refused(ask(admission, 4000, attempt=attempt)) for attempt in (0, 1)
        )
        assert retry == pytest.approx(first, abs=0.04)
        assert first == pytest.approx(1 - exp(-widths), abs=0.04)


def test_the_worst_signal_counts_and_is_named(admission: Admission) -> None:
    admission.observe([CPU.target + CPU.width, MEMORY_IN_USE.target + 0.06])
    assert admission.worst == "memory"
    assert admission.excess == pytest.approx(3.0)
    assert repr(admission).startswith("<memory 3.0 widths too high: admits ")
    admission.observe([CPU.target + CPU.width, 0.0])
    assert admission.worst == "cpu"


def test_what_is_well_again_lets_all_in_at_once(admission: Admission) -> None:
    close(admission)
    assert refused(ask(admission, 100)) > 0.9
    admission.observe([0.0, 0.0])
    assert refused(ask(admission, 100)) == 0.0


def test_a_missing_signal_is_no_signal_at_zero(admission: Admission) -> None:
    with pytest.raises(ValueError, match="zip"):
        admission.observe([0.5])


def test_cheaper_requests_that_can_make_room_make_others_patient(
    admission: Admission,
) -> None:
    """Of four requests, two of each; one criticality has room for what is above it."""
    assert admission.shares == [1.0] * 4
    admission.mix.counts[:] = [2.0, 0.0, 2.0, 0.0]
    widths = 6.0
    admission.observe([CPU.target + widths * CPU.width, 0.0])
    patience = PATIENCE[CRITICAL] * (1.0 + 2.0 / 4.0)
    critical = 4.0 * exp(-widths / patience)
    assert admission.shares == pytest.approx([0.0, 0.0, critical / 2.0, 1.0], abs=1e-9)


def test_what_is_sheddable_makes_room_for_what_is_critical(
    admission: Admission,
) -> None:
    for _ in range(32 * STEP):
        ask(admission, 9, SHEDDABLE)
        ask(admission, 1, CRITICAL)
    admission.observe([CPU.target + 2 * CPU.width, 0.0])
    # Of ten e^-2 get in, of which one is critical.
    room = exp(-2.0) - 0.1
    assert admission.shares[SHEDDABLE] == pytest.approx(room / 0.9, abs=0.02)
    assert admission.shares[CRITICAL] == 1.0


def test_of_kept_places_each_width_leaves_e_times_fewer() -> None:
    """A tenth more than that would fill them with what matters least."""
    mix = Tally(len(Criticality), 128)
    for _ in range(32 * STEP):
        for _ in range(9):
            mix.add(SHEDDABLE)
        mix.add(CRITICAL)
    places = Places(400, mix, Random(5))  # 40 are kept: 7 widths
    draws = 20_000  # whose chance is a hundredth of what is expected
    for widths in (1.0, 2.0):
        active = places.start + 40 / 7 * widths
        refused = sum(places.refuses(SHEDDABLE, active) for _ in range(draws))
        room = (exp(-widths) - 0.1) / 0.9  # of ten e^-widths get in, one is critical
        assert 1 - refused / draws == pytest.approx(room, abs=0.012)
        assert not places.refuses(CRITICAL, round(active))


def test_a_first_refusal_says_that_others_may_have_room(admission: Admission) -> None:
    close(admission)
    assert set(ask(admission, 10)) <= {Refusal.OVERLOADED, None}
    assert admission.refuses(CRITICAL, 1) is Refusal.OVERLOADED


def test_a_last_attempt_is_not_told_to_retry(admission: Admission) -> None:
    close(admission)
    for attempt in (ATTEMPTS - 1, ATTEMPTS, 10**100):
        assert admission.refuses(SHEDDABLE, attempt) is Refusal.DONT_RETRY


def test_an_absurd_attempt_counts_as_a_first(admission: Admission) -> None:
    close(admission)
    assert admission.refuses(SHEDDABLE, -5) is Refusal.OVERLOADED


@pytest.mark.parametrize(("retries", "is_in_vain"), [(9, True), (5, False)])
def test_retrying_is_in_vain_where_many_requests_are_retries(
    admission: Admission, retries: int, is_in_vain: bool
) -> None:
    for _ in range(20):
        ask(admission, 100, attempt=0)
        ask(admission, retries - 1, attempt=1)
        ask(admission, 1, attempt=2)
    close(admission)
    expected = Refusal.DONT_RETRY if is_in_vain else Refusal.OVERLOADED
    assert admission.attempts.is_in_vain() is is_in_vain
    assert admission.refuses(SHEDDABLE) is expected


def test_a_few_retries_may_be_chance(admission: Admission) -> None:
    """One more than `TOO_FEW`, as they fade."""
    ask(admission, STEP - TOO_FEW + 3)
    ask(admission, TOO_FEW - 3, attempt=1)
    assert not admission.attempts.is_in_vain()
    ask(admission, STEP - 4)
    ask(admission, 4, attempt=2)
    assert admission.attempts.is_in_vain()


def test_retries_of_long_ago_are_forgotten(admission: Admission) -> None:
    for attempt in (1, 2):
        ask(admission, 100, attempt=attempt)
    ask(admission, STEP)
    assert admission.attempts.is_in_vain()
    ask(admission, 5 * ATTEMPT_MEMORY)
    assert not admission.attempts.is_in_vain()


def test_a_tally_fades_with_what_comes() -> None:
    tally = Tally(2, memory=10 * STEP)
    news = [tally.add(1) for _ in range(10 * STEP)]
    assert news.count(True) == 10
    assert tally.counts[0] == pytest.approx(1 / e)


def test_a_deadline_that_has_passed_is_too_late() -> None:
    assert Quickest().is_too_late(0.0, 5.0)
    assert not Quickest().is_too_late(1e-6, 5.0)


def test_what_has_less_time_than_the_quickest_took_is_too_late() -> None:
    quickest = Quickest()
    for seconds in (0.3, 0.1, 0.2, 0.4, 0.5):
        quickest.observe(seconds, 1.0)
    assert quickest.is_too_late(0.09, 2.0)
    assert not quickest.is_too_late(0.1, 2.0)


def test_what_was_quick_long_ago_does_not_count() -> None:
    quickest = Quickest()
    quickest.observe(0.1, 0.0)
    quickest.observe(0.5, MEMORY)
    assert not quickest.is_too_late(0.4, MEMORY)
    quickest.observe(0.5, 2.0 * MEMORY)
    assert quickest.is_too_late(0.4, 2.0 * MEMORY)


def test_of_those_that_are_too_late_one_a_second_may_try() -> None:
    """The only request that was served may have been slow as the task was frozen."""
    quickest = Quickest()
    quickest.observe(4.3, 10.0)
    assert not quickest.has_trial(10.9)
    assert [quickest.has_trial(11.0 + 0.25 * n) for n in range(8)] == [
        True, False, False, False, True, False, False, False,
    ]  # fmt: skip
    quickest.observe(0.01, 13.0)
    assert not quickest.is_too_late(2.0, 13.0)


def test_after_a_silence_everybody_may_try() -> None:
    quickest = Quickest()
    quickest.observe(0.5, 0.0)
    assert quickest.is_too_late(0.4, 1.9 * MEMORY)
    assert not quickest.is_too_late(0.4, 2.0 * MEMORY)
    quickest.observe(0.7, 10.0 * MEMORY)
    assert quickest.is_too_late(0.6, 10.0 * MEMORY)


@pytest.mark.parametrize("times", [STEP, 10 * STEP, 100 * STEP])
def test_many_of_one_kind_are_counted_at_once_as_one_by_one(times: int) -> None:
    one_by_one, at_once = Tally(3, 128), Tally(3, 128)
    for tally in (one_by_one, at_once):
        for _ in range(4 * STEP):
            tally.add(2)
    for _ in range(times):
        one_by_one.add(0)
    at_once.add_many(0, times)
    assert at_once.counts == pytest.approx(one_by_one.counts)


def test_those_let_in_unasked_dilute_the_retries_seen_before() -> None:
    admission = Admission([CPU, MEMORY_IN_USE], Random(1))
    ask(admission, 10 * STEP, attempt=1)
    assert admission.attempts.is_in_vain()
    admission.let_in(10 * ATTEMPT_MEMORY)
    assert not admission.attempts.is_in_vain()
