"""A connection that is silent after SETTINGS holds no calls, and is replaced."""

import pytest

from benchmarks.faults.black_hole import all_of_three, one_of_three

SECONDS = 2.0


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_calls_go_to_others_and_the_silent_one_comes_back(kind: str) -> None:
    row = await one_of_three(kind, SECONDS)
    assert row.holds, row
    assert row.theirs is not None
    assert row.theirs.failed, "the fault is none"


@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_all_silent_ones_come_back(kind: str) -> None:
    row = await all_of_three(kind, SECONDS)
    assert row.holds, row
    assert "connected; no health response yet" in row.ours.said
