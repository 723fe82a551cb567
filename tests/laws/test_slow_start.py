"""What slow start promises of every picker that has it.

A newcomer's share of the picks is on the ramp, the others are not disturbed, and
nobody is slowed where all are new.
"""

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet import Fleet, Simulation
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.protocols import Picker
from lbclient.pickers import PICKERS, WITHOUT_SLOW_START, picker_factory
from lbclient.pickers.slow_start import FLOOR, FULL, MOMENT, SLOW_START, STEP
from lbclient.testing import FakeNode, fake_nodes
from tests.examples import examples

RAMPING = [name for name in PICKERS if PICKERS[name] not in WITHOUT_SLOW_START]
EVEN = [name for name in RAMPING if name != "random"]  # whose counts are no chance
NOW = 1000.0
SERVED = Outcome(Verdict.SERVED, 0.001, LoadReport(0.5, 100.0, 0.0, 0))

every_ramping_picker = pytest.mark.parametrize("name", RAMPING)
every_even_picker = pytest.mark.parametrize("name", EVEN)


def ramp(age: float) -> float:
    return min(1.0, FLOOR + (1.0 - FLOOR) * max(0.0, age) / SLOW_START)


def picked(
    picker: Picker, ready: tuple[FakeNode, ...], now: float, seconds: float, count: int
) -> list[int]:
    """How often each was, of `count` picks; each request ends before the next."""
    picks = dict.fromkeys(ready, 0)
    for i in range(count):
        at = now + seconds * i / count
        node = picker.pick(ready, at)
        node.load.begin()
        node.load.finish(SERVED, at)
        picks[node] += 1
    return list(picks.values())


def with_newcomers(
    picker: Picker, old: int, new: int, count: int
) -> tuple[FakeNode, ...]:
    """Nodes of which the last ones are ready from `NOW` on."""
    nodes = fake_nodes(old + new)
    picked(picker, nodes[:old], NOW - 5.0, 5.0, 5 * count)
    for node in nodes[old:]:
        node.load.enter_ready(NOW)
    return nodes


@every_even_picker
@examples(6)
@given(st.integers(1, 6), st.integers(1, 2))
def test_a_newcomers_share_is_on_the_ramp(name: str, old: int, new: int) -> None:
    """In each second, relative to that of an old one.

    Not above what it is at the second's end nor below what it was an update before
    its start, but for the chance of picks, of which there are 400 for each node.
    """
    picker = PICKERS[name](Random(1))
    count = 400 * (old + new)
    nodes = with_newcomers(picker, old, new, count)
    for second in range(int(SLOW_START) + 2):
        picks = picked(picker, nodes, NOW + second, 1.0, count)
        share = (sum(picks[old:]) / new) / (sum(picks[:old]) / old)
        assert ramp(second - 1.0) - 0.08 <= share <= ramp(second + 1.0) + 0.08, second


@every_ramping_picker
@given(st.integers(1, 6), st.floats(0.0, 2 * SLOW_START))
def test_the_weights_show_the_ramp_and_have_mean_one(
    name: str, old: int, age: float
) -> None:
    picker = PICKERS[name](Random(1))
    nodes = with_newcomers(picker, old, 1, 10)
    weights = picker.weights(nodes, NOW + age)
    assert sum(weights) / len(weights) == pytest.approx(1.0)
    assert weights[-1] / weights[0] == pytest.approx(ramp(age), rel=0.01)


@every_ramping_picker
@examples(6)
@given(st.integers(2, 6), st.integers(1, 4))
def test_a_newcomer_has_its_full_share_where_the_others_are_full(
    name: str, old: int, new: int
) -> None:
    """From the first second on, but for the chance of `random`'s picks."""
    picker = PICKERS[name](Random(1))
    count = 400 * (old + new)
    nodes = with_newcomers(picker, old, new, count)
    for node in nodes[: (old + 1) // 2]:
        node.load.observe(LoadReport(FULL, 100.0), NOW)
    picks = [picker.pick(nodes, NOW + i / count) for i in range(count)]
    share = sum(picks.count(node) for node in nodes[old:]) / new / 400
    assert share == pytest.approx(1.0, abs=0.25)


@every_even_picker
def test_after_the_ramp_all_is_as_before(name: str) -> None:
    """Nothing is made up for: no second has more than its share."""
    picker = PICKERS[name](Random(1))
    nodes = with_newcomers(picker, 4, 1, 1000)
    picked(picker, nodes, NOW, SLOW_START, 10_000)
    for second in range(5):
        picks = picked(picker, nodes, NOW + SLOW_START + second, 1.0, 1000)
        assert picks == pytest.approx([200] * 5, abs=10)


@every_ramping_picker
@given(
    st.integers(2, 8),
    st.lists(st.floats(0.0, 0.9 * MOMENT), min_size=8, max_size=8),
    st.integers(),
)
def test_where_all_are_new_picks_are_those_without_slow_start(
    name: str, count: int, delays: list[float], seed: int
) -> None:
    once: list[list[str]] = []
    for slow_start in (0.0, SLOW_START):
        nodes = fake_nodes(count)
        for node, delay in zip(nodes, delays, strict=False):
            node.load.enter_ready(NOW + delay)
        picker = picker_factory(name, slow_start)(Random(seed))
        now, picks = NOW + MOMENT, []
        for _ in range(100):
            now += STEP / 2
            node = picker.pick(nodes, now)
            node.load.begin()
            node.load.finish(SERVED, now)
            picks.append(node.endpoint.address)
        once.append(picks)
    assert once[0] == once[1]


@pytest.mark.slow
@every_ramping_picker
@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_in_a_fleet_a_returned_backends_share_is_on_the_ramp(
    name: str, clients: int, load: float
) -> None:
    """With few requests for each client and with many, by all clients together."""
    fleet = Fleet(
        backends=6,
        clients=clients,
        load=load,
        fast=1.0,
        cold=1.0,
        returning=1,
        warm_up=5.0,
        seconds=SLOW_START,
    )
    simulation = Simulation(fleet, PICKERS[name])
    accepted: list[list[int]] = []

    def count() -> None:
        accepted.append([backend.accepted for backend in simulation.backends])
        simulation.after(2.5, count)

    simulation.after(fleet.warm_up, count)
    simulation.run()
    for i, (before, after) in enumerate(pairwise(accepted)):
        first, *others = (b - a for a, b in zip(before, after, strict=True))
        share = first * len(others) / sum(others)
        assert share == pytest.approx(ramp(2.5 * i + 1.25), abs=0.2), i


def cold_return(name: str, slow_start: float, seed: int = 1) -> Simulation:
    fleet = Fleet(
        seed=seed,
        backends=6,
        clients=4,
        load=0.7,
        fast=1.0,
        returning=1,
        cold=6.0,
        slow_start=slow_start,
        warm_up=5.0,
        seconds=12.0,
    )
    return Simulation(fleet, picker_factory(name, slow_start))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["round_robin", "weighted_round_robin"])
def test_a_cold_backend_drowns_if_it_has_its_full_share_at_once(name: str) -> None:
    """Those that do not see a queue have nothing else to save it."""
    assert cold_return(name, 0.0).run().errors > 0.0
    assert cold_return(name, SLOW_START).run().errors == 0.0


@pytest.mark.slow
def test_the_default_has_a_shorter_tail_when_a_cold_backend_returns() -> None:
    """By 2 % in the mean, and in 9 of 12 seeds: counts of active requests save most."""
    name = "weighted_least_loaded"
    without, with_it = (
        fmean(cold_return(name, slow, seed).run().p99 for seed in range(1, 13))
        for slow in (0.0, SLOW_START)
    )
    assert with_it < 0.99 * without
