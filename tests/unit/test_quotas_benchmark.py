"""What `benchmarks.quotas` asks for, and what it makes of the answers."""

import re
from random import Random

import pytest

from benchmarks.quotas import (
    WILD,
    Call,
    added,
    by_second,
    drawn,
    figures,
    missed,
)


def test_what_is_added_comes_with_how_far_chance_goes() -> None:
    rng = Random(3)
    calls = [
        Call(at / 50, "calm", "OK", rng.expovariate(1.0) * (1.0 + (at >= 1000)))
        for at in range(2000)
    ]
    usual = drawn(by_second([calls], 0.0, 20.0), Random(1))
    same = added(usual, drawn(by_second([calls], 0.0, 20.0), Random(2)))
    twice = added(usual, drawn(by_second([calls], 20.0, 40.0), Random(2)))
    assert all(-0.4 < low < 0.0 < high < 0.4 for low, high in same)
    assert all(low > 0.3 for low, _ in twice)


@pytest.mark.parametrize(
    ("slower", "errors", "said"),
    [
        (1.05, 0, ""),
        (1.5, 0, r"now: \+4\d% or more added to the mean"),
        (1.0, 2, "now: 2 errors of the others"),
    ],
)
def test_a_target_is_missed_by_more_than_chance(
    slower: float, errors: int, said: str
) -> None:
    """As each second is like the others here chance does next to nothing."""
    rng = Random(4)
    calls = [
        Call(at / 50, "calm", "OK", rng.uniform(0.9, 1.1) * (slower if at > 999 else 1))
        for at in range(2000)
    ]
    calls += [Call(30.0, "calm", "UNAVAILABLE", 0.1)] * errors
    calls += [Call(at, WILD, "OK", 1.0) for at in (1.0, 30.0)]
    usual = drawn(by_second([calls], 0.0, 20.0), Random(1))
    rows = [
        figures("calm", [calls], 0.0, 20.0),
        figures("now", [calls], 20.0, 40.0, usual),
    ]
    assert re.fullmatch(said, "; ".join(missed(rows)))
