"""Pickers by name, and the options that they refuse."""

from collections.abc import Callable
from math import inf, nan
from random import Random
from typing import Any

import pytest

from lbclient.core.errors import ConfigError
from lbclient.pickers import (
    PICKERS,
    WITHOUT_SLOW_START,
    RoundRobin,
    WeightedLeastLoaded,
    WeightedRoundRobin,
    picker_factory,
)
from lbclient.testing import fake_nodes


@pytest.mark.parametrize("name", PICKERS)
def test_a_picker_is_found_by_name(name: str) -> None:
    assert picker_factory(name) is PICKERS[name]


def test_a_factory_is_taken_as_it_is() -> None:
    assert picker_factory(RoundRobin) is RoundRobin


@pytest.mark.parametrize("name", PICKERS)
def test_slow_start_goes_to_pickers_by_name(name: str) -> None:
    """Some have none: what a backend has not finished holds it back."""
    nodes = fake_nodes(2)
    nodes[1].load.enter_ready(1000.0)
    for slow_start in (0.0, 20.0):
        weights = picker_factory(name, slow_start)(Random(1)).weights(nodes, 1010.0)
        ramps = slow_start > 0.0 and PICKERS[name] not in WITHOUT_SLOW_START
        share = 0.55 if ramps else 1.0
        assert weights[1] / weights[0] == pytest.approx(share, rel=1e-4)


def test_slow_start_goes_to_pickers_with_an_option_of_their_own() -> None:
    nodes = fake_nodes(2)
    nodes[1].load.enter_ready(1000.0)
    for name, options in (
        ("consistent_hashing", {"balance_factor": 2.0}),
        ("cache_aware", {"miss_cost": 0.01}),
    ):
        picker = picker_factory(name, 20.0, **options)(Random(1))
        weights = picker.weights(nodes, 1010.0)
        assert weights[1] / weights[0] == pytest.approx(0.55, rel=1e-4)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        picker_factory("fastest")
    assert str(caught.value) == (
        "picker = 'fastest': want one of random, round_robin, least_loaded, p2c, "
        "peak_ewma, prequal, weighted_round_robin, weighted_least_loaded, "
        "consistent_hashing, cache_aware"
    )


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        (RoundRobin, "slow_start", -1.0),
        (WeightedRoundRobin, "slow_start", nan),
        (WeightedLeastLoaded, "slow_start", 3601.0),
        (WeightedRoundRobin, "blackout", -1.0),
        (WeightedRoundRobin, "expiration", 0.0),
        (WeightedRoundRobin, "update_period", nan),
        (WeightedRoundRobin, "error_penalty", inf),
        (WeightedLeastLoaded, "gain", 2.1),
        (WeightedLeastLoaded, "bound", -0.1),
        (WeightedLeastLoaded, "bound", 3.1),
        (WeightedLeastLoaded, "blackout", "1"),
        (WeightedLeastLoaded, "expiration", None),
        (WeightedLeastLoaded, "update_period", 0.0),
    ],
)
def test_an_option_out_of_bounds_is_refused(
    make: Callable[..., Any], option: str, value: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(Random(1), **{option: value})
    assert caught.value.field == option
    assert "a number, " in caught.value.want


@pytest.mark.parametrize("name", PICKERS)
def test_a_picker_reads_as_what_it_is(name: str) -> None:
    picker = PICKERS[name](Random(1))
    before = repr(picker)
    picker.pick(fake_nodes(3), 0.0)
    assert name.replace("_", " ") in before
    assert f"{name.replace('_', ' ')} over 3" in repr(picker)
