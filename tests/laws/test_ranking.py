"""A ranking finds what a look at all scores would find, whatever happened to them."""

from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.load import Load
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.pickers import WeightedLeastLoaded
from lbclient.pickers.candidate import ABSENT, Candidate
from lbclient.pickers.ranking import AGAIN, ENTRIES, MOST_AGAIN, NEAR, Ranking
from lbclient.pickers.rounds import TUNING as ROUNDS
from lbclient.pickers.weighted_least_loaded import TUNING
from lbclient.testing import FakeNode, fake_nodes

HORIZON = 0.1
COUNT = 8

# Of whom, and what it has from now on: of its own, and of others now.
changes = st.tuples(
    st.integers(0, COUNT - 1), st.floats(0.0, 5.0), st.floats(-5.0, 5.0)
)
pauses = st.sampled_from([0.0, 0.001, 0.05, 0.3])
stories = st.lists(st.tuples(pauses, st.none() | changes), max_size=80)


def ranked(count: int) -> tuple[Ranking, list[Candidate]]:
    candidates = [Candidate(Load(), 0.0, 0.0) for _ in range(count)]
    ranking = Ranking(candidates, HORIZON)
    for index, each in enumerate(candidates):
        each.index = each.slot = index
        ranking.put(each, 0.0)
    return ranking, candidates


def score(candidate: Candidate, now: float) -> float:
    faded = exp((candidate.told_at - now) / HORIZON)
    return candidate.base + candidate.extra * faded


@given(stories)
def test_the_least_is_the_least_but_for_what_falls_meanwhile(
    story: "list[tuple[float, tuple[int, float, float] | None]]",
) -> None:
    """A score that falls may look as high as it was when last ranked; nothing else is
    out of order."""
    ranking, candidates = ranked(COUNT)
    now = 0.0
    for pause, change in story:
        now += pause
        if change is not None:
            index, base, extra = change
            candidate = candidates[index]
            candidate.base, candidate.extra, candidate.told_at = base, extra, now
            ranking.put(candidate, now)
        for _ in range(COUNT // MOST_AGAIN):
            ranking.least(now)
        found = candidates[ranking.least(now)]
        late = now - AGAIN * HORIZON
        seen = (max(score(each, now), score(each, late)) for each in candidates)
        assert score(found, now) <= min(seen) + NEAR + 1e-9


@given(st.lists(st.floats(0.0, 9.0), min_size=COUNT, max_size=COUNT), st.integers())
def test_whoever_leaves_is_not_found_until_put_again(
    scores: list[float], seed: int
) -> None:
    ranking, candidates = ranked(COUNT)
    for each, base in zip(candidates, scores, strict=True):
        each.base = base
        ranking.put(each, 0.0)
    gone = Random(seed).sample(candidates, COUNT - 1)
    for each in gone:
        each.slot = ABSENT
        ranking.put(each, 0.0)
    assert candidates[ranking.least(0.0)] not in gone
    for each in gone:
        each.slot = each.index
        ranking.put(each, 0.0)
    assert score(candidates[ranking.least(0.0)], 0.0) <= min(scores) + NEAR


def test_the_heap_does_not_grow() -> None:
    ranking, candidates = ranked(COUNT)
    for i in range(10_000):
        candidate = candidates[i % COUNT]
        candidate.base = 1e4 - i
        ranking.put(candidate, 0.0)
        ranking.least(0.0)
    assert len(ranking._heap) <= ENTRIES * COUNT + 1


# The picker, with more backends than it looks at together

MANY = TUNING.all_at_once + 3


def serve(node: FakeNode, utilization: float, active: int | None, now: float) -> None:
    node.load.begin()
    report = LoadReport(utilization, 100.0, active=active)
    node.load.finish(Outcome(Verdict.SERVED, 0.02, report), now)


@pytest.mark.parametrize("rate", [20.0, 2000.0])
def test_many_idle_equals_take_turns(rate: float) -> None:
    nodes, picker, now = fake_nodes(MANY), WeightedLeastLoaded(Random(1)), 100.0
    often = dict.fromkeys(nodes, 0)
    for i in range(90 * MANY):
        now += 1.0 / rate
        node = picker.pick(nodes, now)
        serve(node, 0.3, 0, now)
        often[node] += i >= 80 * MANY
    assert min(often.values()) >= 8
    assert max(often.values()) <= 12


def test_the_idlest_of_many_is_found_at_once() -> None:
    nodes, picker = fake_nodes(MANY), WeightedLeastLoaded(Random(1))
    picker.pick(nodes, 100.0)
    for batch in range(0, MANY, 30):
        for node in nodes[batch : batch + 30]:
            serve(node, 0.5, 0 if node is nodes[100] else 5, 100.0)
        if batch < 90:
            picker.pick(nodes, 100.0)
    # At the first of these all keys are wrong, and only some are looked at.
    assert nodes[100] in {picker.pick(nodes, 100.0) for _ in range(2)}


def test_weights_of_many_come_to_equal_utilization() -> None:
    """Every second machine is 2.5 times as fast; a slow one has four or five picks in
    a second, so that one more or less is a fifth."""
    nodes, picker, now = fake_nodes(MANY), WeightedLeastLoaded(Random(1)), 100.0
    used = dict.fromkeys(nodes, 0.3)
    for _ in range(60):
        often = dict.fromkeys(nodes, 0)
        for _ in range(5 * MANY):
            now += 1.0 / (5 * MANY)
            node = picker.pick(nodes, now)
            often[node] += 1
            serve(node, used[node], 0, now)
        for index, node in enumerate(nodes):
            had = often[node] / (12.5 if index % 2 else 5.0)
            used[node] += 0.4 * (0.6 * had - used[node])
    assert max(used.values()) / min(used.values()) < 1.4
    slow, fast = (sum(picker.weights(nodes, now)[i::2]) for i in (0, 1))
    assert fast / slow == pytest.approx(2.5, rel=0.1)


@pytest.mark.parametrize("new", [1, 20])
def test_newcomers_among_many_have_their_part_of_a_share(new: int) -> None:
    """Half of it in the middle of the ramp, all after it, and no more."""
    nodes, picker = fake_nodes(MANY + new), WeightedLeastLoaded(Random(1))
    for node in nodes[MANY:]:
        node.load.enter_ready(100.0)
    shares = []
    for second in range(18):
        often = dict.fromkeys(nodes, 0)
        for i in range(8 * MANY):
            now = 100.0 + second + i / (8 * MANY)
            node = picker.pick(nodes, now)
            serve(node, 0.3, 0, now)
            often[node] += 1
        old = sum(often[node] for node in nodes[:MANY]) / MANY
        shares.append(sum(often[node] for node in nodes[MANY:]) / new / old)
    assert shares[0] == pytest.approx(0.15, abs=0.15)
    assert sum(shares[4:7]) / 3 == pytest.approx(0.6, abs=0.15)
    assert shares[14:] == pytest.approx([1.0] * 4, abs=0.2)


def test_all_of_many_are_looked_at_in_time() -> None:
    """Who fell silent is noticed though nobody calls it, at a pick each second."""
    nodes, picker = fake_nodes(MANY), WeightedLeastLoaded(Random(1))
    picker.pick(nodes, 100.0)
    serve(nodes[5], 0.5, 7, 100.0)
    picker.pick(nodes, 100.0)
    candidate = picker._known[nodes[5].load]
    assert candidate.others == 7
    assert ROUNDS.part < ROUNDS.fewest_looks  # each of these picks looks at a part
    for second in range(16, 16 + 2 * (MANY // ROUNDS.part + 1)):
        picker.pick(nodes, 100.0 + second)
    assert candidate.others is None
