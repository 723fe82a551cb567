"""The documented order of backends for a key, which other languages compute, too."""

import re
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.model import Endpoint
from lbclient.core.routing.key_hash import backend_hash, draw, hash64, order, score
from tests.examples import examples

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"
BACKENDS = [hash64(f"10.0.0.{i}:50051") for i in range(20)]
EVEN = [1.0] * len(BACKENDS)
KEYS = [hash64(f"key-{i}") for i in range(20_000)]


def test_the_vectors_on_the_page_are_right() -> None:
    rows = re.findall(r"^\| `(.+)` \| `([0-9a-f]{16})` \|$", PAGE.read_text(), re.M)
    assert len(rows) == 4
    assert {text: f"{hash64(text):016x}" for text, _ in rows} == dict(rows)
    draws = re.findall(
        r"^\| `(.+)` \| `(.+)` \| `([0-9a-f]{16})` \| (.+) \|$", PAGE.read_text(), re.M
    )
    assert len(draws) == 3
    for key, backend, said, place in draws:
        backends = [hash64(each) for _, each, _, _ in draws]
        number = hash64(key)
        assert f"{draw(number, hash64(backend)):016x}" == said
        found = order(number, backends, [1.0] * 3)
        assert ["first", "second", "third"].index(place) == found.index(
            backends.index(hash64(backend))
        )


def test_the_weighted_scores_on_the_page_are_right() -> None:
    rows = re.findall(
        r"^\| `(.+)` \| `(.+)` \| (\d+) \| ([0-9.]+) \| (.+) \|$",
        PAGE.read_text(),
        re.M,
    )
    assert len(rows) == 3
    backends = [hash64(backend) for _, backend, *_ in rows]
    weights = [float(weight) for _, _, weight, *_ in rows]
    number = hash64(rows[0][0])
    for backend, weight, (*_, said, _) in zip(backends, weights, rows, strict=True):
        assert f"{score(draw(number, backend), weight):.6f}" == said
    places = [rows[index][-1] for index in order(number, backends, weights)]
    assert places == ["first", "second", "third"]


def test_the_highest_draw_has_a_score() -> None:
    """As a double its ratio to 2^64 is 1.0, whose logarithm is 0."""
    key = 0xCF9A04AFFA6BADC0
    assert draw(key, 0) == 2**64 - 1
    assert order(key, [1, 0], [1.0, 2.0]) == [1, 0]


def test_a_task_number_goes_before_an_address() -> None:
    """So that a task that restarts at another address gets its keys back."""
    assert backend_hash(Endpoint("a:1", task=7)) == hash64("task 7")
    assert backend_hash(Endpoint("a:1", task=7)) == backend_hash(
        Endpoint("b:1", task=7)
    )
    assert backend_hash(Endpoint("a:1")) == hash64("a:1")


def test_first_choices_are_even() -> None:
    """20,000 keys over 20 backends: 1,000 each, deviation 31, so within 4 of them."""
    counts = Counter(order(key, BACKENDS, EVEN)[0] for key in KEYS)
    assert min(counts.values()) > 1000 - 4 * 31
    assert max(counts.values()) < 1000 + 4 * 31


def test_first_choices_are_in_proportion_to_weights() -> None:
    weights = [1.0] * 10 + [3.0] * 10
    counts = Counter(order(key, BACKENDS, weights)[0] for key in KEYS)
    heavy = sum(counts[index] for index in range(10, 20))
    assert abs(heavy / len(KEYS) - 0.75) < 4 * (0.75 * 0.25 / len(KEYS)) ** 0.5


@examples(20)
@given(
    st.integers(0, 19), st.lists(st.sampled_from([1.0, 2.5]), min_size=20, max_size=20)
)
def test_a_backend_that_leaves_moves_its_own_keys_only(
    gone: int, weights: list[float]
) -> None:
    """And as it comes back, so do they: the least there can be, in both directions."""
    left = [index for index in range(20) if index != gone]
    for key in KEYS[:300]:
        before = order(key, BACKENDS, weights)
        after = order(key, [BACKENDS[i] for i in left], [weights[i] for i in left])
        assert [left[i] for i in after] == [i for i in before if i != gone]
