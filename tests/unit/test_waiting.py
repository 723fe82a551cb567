"""A condition that never comes true is told with the values in it."""

from collections.abc import Callable

import pytest

from tests.waiting import eventually, stands_still, wait_until

GOAL = 3


async def failure(condition: Callable[[], object], *seen: Callable[[], object]) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        await eventually(condition, *seen, turns=2)
    return str(caught.value)


async def test_both_sides_of_a_comparison_are_shown() -> None:
    counts = {"a": 1}
    said = await failure(lambda: counts["a"] == GOAL and not counts.get("b"))
    assert said.splitlines() == [
        "never true in 2 looks: counts['a'] == GOAL and (not counts.get('b'))",
        "  counts['a'] = 1",
        "  GOAL = 3",
        "  counts.get('b') = None",
    ]


async def test_so_are_values_that_a_loop_bound_and_a_function_s_own() -> None:
    def is_large(number: int = 1) -> bool:
        return number > GOAL

    assert "number = 1" in await failure(is_large)

    def is_there() -> bool:
        """Which is long to say."""
        return GOAL in there

    there = [1, 2]
    assert "there = [1, 2]" in await failure(is_there)


async def test_so_are_those_of_a_bound_method_and_what_a_function_computes() -> None:
    class Counter:
        counts = (1, 2)

        def is_large(self) -> bool:
            last = self.counts[-1]
            return last > GOAL or any(each > GOAL + last for each in self.counts)

    assert (await failure(Counter().is_large)).splitlines()[1:] == [
        "  last = 2",
        "  GOAL = 3",
        "  any((each > GOAL + last for each in self.counts)) = False",
    ]


async def test_what_cannot_be_looked_at_alone_is_no_error() -> None:
    said = await failure(lambda: [each for each in (1, 2) if each > GOAL])
    assert said.startswith("never true in 2 looks: [each for each in (1, 2)")
    assert "bool" in await failure(bool)


async def test_more_may_be_shown() -> None:
    assert "seen: [3]" in await failure(lambda: False, lambda: [GOAL])


def test_without_a_loop_it_is_told_likewise() -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        wait_until(lambda: GOAL == 0, lambda: [GOAL], turns=2)
    assert str(caught.value).splitlines() == [
        "never true in 2 looks: GOAL == 0",
        "  GOAL = 3",
        "  seen: [3]",
    ]
    looks = iter((False, True, False))
    wait_until(lambda: next(looks))
    assert list(looks) == [False]


async def test_something_may_be_done_between_two_looks() -> None:
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)

    await eventually(lambda: len(calls) == GOAL, meanwhile=call)
    assert len(calls) == GOAL


async def test_a_count_that_has_not_begun_or_still_grows_does_not_stand_still() -> None:
    counts = iter((0, 0, 0, 1, 2, 2, 2, 3))
    assert await stands_still(lambda: next(counts)) == 2
    assert list(counts) == [3]


async def test_whoever_passes_does_not_wait() -> None:
    looks = iter((False, False, True, False))
    await eventually(lambda: next(looks))
    assert list(looks) == [False]
