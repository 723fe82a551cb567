"""Without reports, or with late ones, pickers fall back by themselves."""

from dataclasses import replace
from functools import cache

import pytest

from lbclient.sim import SCENARIOS, Result, Scenario, simulate
from lbclient.sim.scenario import parse

EVEN = Scenario(clients=8, backends=8, subset_size=8, warm_up=12.0, window=12.0)
MIXED = replace(EVEN, speeds=(1.0, 2.5))
WEIGHTED = ("weighted_round_robin", "weighted_least_loaded")


@cache
def play(scenario: Scenario, picker: str, load: float = 0.6) -> Result:
    return simulate(scenario, picker, load=load, seed=1)


def test_without_reports_weighted_round_robin_takes_turns() -> None:
    """gRFC A58: with fewer than two weights it is round robin."""
    silent = replace(EVEN, silent_share=1.0)
    weighted, plain = (
        play(silent, picker) for picker in ("weighted_round_robin", "round_robin")
    )
    assert weighted.spread == pytest.approx(plain.spread, abs=0.05)
    assert weighted.p99 == pytest.approx(plain.p99, rel=0.15)


def test_without_reports_weighted_least_loaded_goes_by_what_is_in_flight() -> None:
    """As least_loaded does, and better: also by the mean of it."""
    silent = replace(MIXED, silent_share=1.0)
    ours, least = (
        play(silent, picker) for picker in ("weighted_least_loaded", "least_loaded")
    )
    assert ours.errors == 0.0
    assert ours.spread < least.spread - 0.05
    assert ours.p99 < least.p99


@pytest.mark.slow
@pytest.mark.parametrize("picker", WEIGHTED)
def test_a_tenth_of_the_reports_may_be_lost(picker: str) -> None:
    """It changes next to nothing: the next one comes with the next answer."""
    lost = play(replace(MIXED, report_loss=0.1), picker)
    told = play(MIXED, picker)
    assert lost.spread == pytest.approx(told.spread, abs=0.05)
    assert lost.errors == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_reports_that_end_are_missed_at_once(share: float) -> None:
    """Then it goes by its own requests, as where there were no reports from the first.

    Once the last ones were kept: all looked busy for ever, and the fast got too much.
    """
    many = replace(MIXED, clients=16, backends=16, cores=2)
    silent = replace(many, silent_share=share)
    ended, never = (
        play(scenario, "weighted_least_loaded")
        for scenario in (replace(silent, silent_from=6.0), silent)
    )
    assert ended.errors == 0.0
    assert ended.spread < never.spread + 0.1


@pytest.mark.slow
def test_gone_reports_are_used_by_weighted_round_robin_until_they_expire() -> None:
    """gRFC A58: for 180 s. The weights stay, and are as good as they were."""
    ended = replace(MIXED, silent_share=1.0, silent_from=12.0)
    kept, told = (play(scenario, "weighted_round_robin") for scenario in (ended, MIXED))
    assert kept.spread == pytest.approx(told.spread, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("picker", WEIGHTED)
def test_a_factor_that_is_the_same_for_all_changes_nothing(picker: str) -> None:
    """CPU of a machine four times too large: only ratios matter to a picker. Ejection
    of late backends needs the whole number, which tells the busy from the ill."""
    mixed = replace(MIXED, eject_late=False)
    scaled = play(replace(mixed, wrong_share=1.0, wrong_factor=0.25), picker)
    told = play(mixed, picker)
    assert scaled.spread == pytest.approx(told.spread, abs=0.03)
    assert scaled.p99 == pytest.approx(told.p99, rel=0.2)


@pytest.mark.slow
def test_half_the_fleet_may_be_silent() -> None:
    """Who is silent is judged by the client's own requests, among those who report."""
    half = play(replace(MIXED, silent_share=0.5), "weighted_least_loaded")
    told = play(MIXED, "weighted_least_loaded")
    assert half.errors == 0.0
    assert half.spread < 1.15
    assert half.p99 < 1.25 * told.p99


@pytest.mark.slow
def test_old_counts_are_found_out() -> None:
    """All would send to whoever was idle a second ago: then a third failed."""
    late = replace(MIXED, report_delay=1.0)
    ours, least = (
        play(late, picker) for picker in ("weighted_least_loaded", "least_loaded")
    )
    assert ours.errors == 0.0
    assert ours.p99 < 1.2 * least.p99


def test_late_rates_cost_evenness_only() -> None:
    """Counts of active requests are as fresh as the response that they come with."""
    late = play(replace(MIXED, rates_delay=1.0), "weighted_least_loaded")
    told = play(MIXED, "weighted_least_loaded")
    assert late.errors == 0.0
    assert late.spread < told.spread + 0.03
    assert late.p99 < 1.1 * told.p99


def test_every_case_of_robustness_has_a_name() -> None:
    for name in (
        "reports_late",
        "rates_late",
        "reports_lost",
        "reports_half",
        "reports_none",
        "reports_stop",
        "reports_stop_all",
        "reports_scaled",
        "one_liar",
        "S10_sparse",
        "three_backends",
        "large_subset",
    ):
        assert name in SCENARIOS


def test_what_can_go_wrong_is_a_line_of_toml() -> None:
    text = "refusing = 1\nretry_ratio = 0.2\nrefusal_cost = 0.05\nreport_delay = 1"
    assert parse(text).refusing == 1
