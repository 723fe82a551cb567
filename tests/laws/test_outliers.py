"""Who is ejected, and who is not, whatever the statuses: in virtual time, seeded.

Bounds are for chance as well: where a share is compared, 2,000 calls to a backend tell
it within 5 %.
"""

import pytest

from lbclient.core.outliers.method_outliers import TRIALS
from lbclient.pickers import PICKERS
from tests.laws.outlier_fleet import (
    INTERNAL,
    LATENCY,
    NOT_FOUND,
    STATUSES,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Answer,
    Fleet,
    ending_connections,
    from_then_on,
    sometimes,
)

FAST = 0.002  # seconds
MOST = 40  # of 2,000 calls: 2 %

every_picker = pytest.mark.parametrize("picker", PICKERS)
every_status = pytest.mark.parametrize("status", STATUSES)
seeds = pytest.mark.parametrize("seed", range(2))


@pytest.mark.slow
@every_picker
@every_status
def test_one_of_five_that_fails_fast_meets_few_calls_whatever_its_status(
    picker: str, status: int
) -> None:
    """It was up to 1,537 of 2,000 for UNIMPLEMENTED; a fair share is 400."""
    behaviour = sometimes([1.0, 0, 0, 0, 0], status, FAST)
    fleet = Fleet(behaviour, picker).run(20.0)
    assert sum(fleet.got.values()) > 1800
    assert fleet.failed[0] <= MOST
    assert fleet.ejected() == [0]


@pytest.mark.slow
@every_picker
@pytest.mark.parametrize("status", [NOT_FOUND, UNIMPLEMENTED, UNAUTHENTICATED])
def test_one_that_ends_its_connection_with_each_error_meets_few_calls(
    picker: str, status: int
) -> None:
    """It was never ejected: each new connection made it a stranger."""
    behaviour = ending_connections(sometimes([1.0, 0, 0, 0, 0], status, FAST))
    fleet = Fleet(behaviour, picker).run(20.0)
    assert sum(fleet.got.values()) > 1800
    assert fleet.failed[0] <= MOST
    assert fleet.ejected() == [0]


@pytest.mark.slow
@every_picker
@seeds
def test_one_that_ended_its_connections_and_is_restarted_well_has_its_share_soon(
    picker: str, seed: int
) -> None:
    bad = ending_connections(sometimes([1.0, 0, 0, 0, 0], UNIMPLEMENTED, FAST))
    fleet = Fleet(bad, picker, seed=seed).run(10.0)
    [(_, ejection)] = fleet.outliers.of(fleet.nodes[0])
    while fleet.now < ejection.failed_at + TRIALS.first:
        fleet.run(0.1)  # else the restart looks like the end of another trial
    fleet.behaviour = sometimes([0.0] * 5)
    fleet.restart(0)
    fleet.run(1.0)
    assert fleet.ejected() == []
    fleet.run(15.0)  # for pickers that remember its errors
    assert 0.8 <= fleet.run(40.0).shares()[0] <= 1.2


@pytest.mark.slow
@every_picker
@seeds
def test_a_restart_in_the_midst_of_errors_leaves_a_good_backend_its_share(
    picker: str, seed: int
) -> None:
    """It gave too few errors to be ejected; its new task gives none."""
    fleet = Fleet(sometimes([0.0] * 5), picker, seed=seed).run(10.0)
    fleet.behaviour = ending_connections(sometimes([1.0, 0, 0, 0, 0], UNIMPLEMENTED))
    for _ in range(100):
        if fleet.run(0.1).failed[0]:
            break
    fleet.behaviour = sometimes([0.0] * 5)
    fleet.run(15.0)
    assert fleet.outliers.total == 0
    assert 0.8 <= fleet.run(40.0).shares()[0] <= 1.2


@pytest.mark.slow
@every_picker
@seeds
def test_one_that_goes_bad_in_a_fleet_with_a_past_is_ejected_after_a_few_calls(
    picker: str, seed: int
) -> None:
    bad = sometimes([1.0, 0.01, 0.01, 0.01, 0.01], UNIMPLEMENTED, FAST)
    behaviour = from_then_on(60.0, sometimes([0.01] * 5), bad)
    fleet = Fleet(behaviour, picker, seed=seed).run(60.0)
    assert fleet.outliers.total == 0
    assert fleet.run(20.0).failed[0] <= MOST


@pytest.mark.slow
@every_picker
@seeds
@pytest.mark.parametrize("latency", [FAST, LATENCY])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 1.0])
def test_a_status_that_all_give_alike_leaves_all_their_shares(
    picker: str, seed: int, latency: float, share: float
) -> None:
    fleet = Fleet(sometimes([share] * 5, NOT_FOUND, latency), picker, seed=seed)
    fleet.run(20.0)
    assert fleet.outliers.total == 0
    if picker not in ("peak_ewma", "prequal"):  # which are as uneven without errors
        assert fleet.shares() == pytest.approx([1.0] * 5, abs=0.2)


@pytest.mark.slow
@every_picker
@seeds
@pytest.mark.parametrize("latency", [FAST, LATENCY])
@pytest.mark.parametrize(("its", "usual"), [(0.03, 0.01), (0.3, 0.1), (0.9, 0.3)])
def test_three_times_the_errors_of_others_are_no_reason_to_lose_a_share(
    picker: str, seed: int, latency: float, its: float, usual: float
) -> None:
    """By its keys."""
    shares = [its, usual, usual, usual, usual]
    fleet = Fleet(sometimes(shares, NOT_FOUND, latency), picker, seed=seed)
    fleet.run(5.0).run(40.0)
    assert fleet.outliers.total == 0
    assert 0.8 <= fleet.shares()[0] <= 1.2


@pytest.mark.slow
@every_picker
@seeds
@pytest.mark.parametrize("backends", [5, 20])
def test_what_befalls_all_at_once_singles_out_none(
    picker: str, seed: int, backends: int
) -> None:
    """They have a past in which hardly anything was amiss."""
    for share in (0.5, 1.0):
        behaviour = from_then_on(
            20.0,
            sometimes([0.1] * backends),
            sometimes([share] * backends, UNAVAILABLE, FAST),
        )
        fleet = Fleet(behaviour, picker, backends, 20.0 * backends, seed).run(30.0)
        assert fleet.outliers.total == 0


@every_picker
def test_of_several_bad_ones_none_hides_another(picker: str) -> None:
    fleet = Fleet(sometimes([1, 1, 0, 0, 0], UNAUTHENTICATED, FAST), picker).run(20.0)
    assert fleet.ejected() == [0, 1]
    assert fleet.failed.total() <= 2 * MOST


@pytest.mark.slow
@every_picker
@pytest.mark.parametrize("bad", [3, 4])
def test_where_most_are_bad_they_attract_no_more_than_their_shares(
    picker: str, bad: int
) -> None:
    """At most half are ejected; those that are left must not drink what they fail."""
    shares = [1.0] * bad + [0.0] * (5 - bad)
    fleet = Fleet(sometimes(shares, UNIMPLEMENTED, FAST), picker).run(20.0)
    assert len(fleet.ejected()) <= 2
    good = min(fleet.shares()[bad:])
    assert good >= 0.6  # of a fair share; it was 0.01 for those that go by load


@every_picker
def test_one_that_fails_half_of_its_calls_is_ejected_too(picker: str) -> None:
    shares = [0.5, 0, 0, 0, 0]
    fleet = Fleet(sometimes(shares, UNIMPLEMENTED, FAST), picker).run(20.0)
    assert fleet.outliers.total
    assert fleet.shares()[0] < 0.3


@every_picker
def test_a_fast_failure_attracts_no_calls_before_any_of_the_others_has_answered(
    picker: str,
) -> None:
    def behave(backend: int, _: float, __: object) -> Answer:
        return Answer(UNIMPLEMENTED, FAST) if backend == 0 else Answer(latency=30.0)

    fleet = Fleet(behave, picker, rate=20.0).run(20.0)
    assert fleet.shares()[0] <= 0.5


@pytest.mark.slow
@every_picker
@seeds
@pytest.mark.parametrize("status", [NOT_FOUND, INTERNAL])
def test_one_that_is_well_again_has_its_share_again(
    picker: str, seed: int, status: int
) -> None:
    behaviour = from_then_on(
        10.0, sometimes([1, 0, 0, 0, 0], status, FAST), sometimes([0] * 5)
    )
    fleet = Fleet(behaviour, picker, seed=seed).run(10.0)
    assert fleet.failed[0] <= MOST
    fleet.run(50.0)  # a trial call is due within twice the time that it was bad
    assert fleet.ejected() == []
    assert 0.8 <= fleet.run(40.0).shares()[0] <= 1.2


@every_picker
def test_one_of_two_that_fails_fast_meets_few_calls(picker: str) -> None:
    fleet = Fleet(sometimes([1.0, 0.0], UNIMPLEMENTED, FAST), picker, 2).run(20.0)
    assert fleet.failed[0] <= MOST


def test_one_alone_is_never_ejected() -> None:
    fleet = Fleet(sometimes([1.0], UNIMPLEMENTED, FAST), backends=1).run(20.0)
    assert fleet.outliers.total == 0
    assert fleet.refused == 0


@pytest.mark.slow
def test_by_chance_alone_nobody_is_ejected_in_24000_answers() -> None:
    """Keys that give one of them three times the errors of others, at the worst."""
    shares = [0.3, 0.1, 0.1, 0.1, 0.1]
    fleet = Fleet(sometimes(shares), "round_robin").run(1200.0)
    assert fleet.outliers.total == 0


def test_of_many_bad_ones_among_hundred_all_are_found() -> None:
    shares = [1.0] * 5 + [0.01] * 95
    fleet = Fleet(sometimes(shares, UNIMPLEMENTED, FAST), "p2c", 100, 1000.0).run(30.0)
    assert fleet.ejected() == [0, 1, 2, 3, 4]


def test_without_an_error_nothing_is_kept() -> None:
    fleet = Fleet(sometimes([0.0] * 5)).run(20.0)
    assert not fleet.outliers.watching


def test_a_minute_after_the_last_error_nothing_is_kept() -> None:
    behaviour = from_then_on(10.0, sometimes([0.1] * 5), sometimes([0.0] * 5))
    fleet = Fleet(behaviour).run(10.0)
    assert fleet.outliers.watching
    assert not fleet.run(75.0).outliers.watching
