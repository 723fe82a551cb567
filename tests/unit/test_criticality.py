"""Four words, what is made of others, and who goes first."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Generator

import pytest

from lbclient.core.criticality import (
    DEFAULT,
    Criticality,
    criticality,
    current,
    named,
    parse,
)
from lbclient.core.errors import ConfigError


@pytest.mark.parametrize("one", Criticality)
@pytest.mark.parametrize("form", [str, str.lower, str.title, str.encode])
def test_each_word_is_understood_as_text_and_as_bytes(
    one: Criticality, form: type[str]
) -> None:
    assert parse(form(one.name)) == (one, True)


@pytest.mark.parametrize(
    "text", ["", "critical-plus", "2", "SHEDDABLE " * 1024, b"\xff"]
)
def test_an_unknown_word_means_the_default_and_is_told(text: str | bytes) -> None:
    assert parse(text) == (DEFAULT, False)


def test_who_says_nothing_is_understood() -> None:
    assert parse(None) == (DEFAULT, True)


@pytest.mark.parametrize(
    "value", [Criticality.SHEDDABLE, "SHEDDABLE", "sheddable", "Sheddable"]
)
def test_a_setting_names_one_in_capitals_or_not(value: object) -> None:
    assert named("criticality", value) is Criticality.SHEDDABLE


@pytest.mark.parametrize("value", ["", "urgent", 2, None, b"CRITICAL", ["CRITICAL"]])
def test_a_setting_that_names_none_is_told_which_there_are(value: object) -> None:
    with pytest.raises(ConfigError, match="want one of SHEDDABLE, SHEDDABLE_PLUS, CR"):
        named("criticality", value)


def test_what_is_refused_first_is_lowest() -> None:
    names = [one.name for one in sorted(Criticality)]
    assert names == ["SHEDDABLE", "SHEDDABLE_PLUS", "CRITICAL", "CRITICAL_PLUS"]


def test_the_innermost_word_holds_and_then_the_one_before() -> None:
    assert current() is None
    with criticality(Criticality.SHEDDABLE):
        with criticality(Criticality.CRITICAL_PLUS):
            assert current() is Criticality.CRITICAL_PLUS
        assert current() is Criticality.SHEDDABLE
    assert current() is None


def test_the_word_before_holds_again_after_an_error() -> None:
    with pytest.raises(KeyError), criticality(Criticality.SHEDDABLE):
        raise KeyError
    assert current() is None


def test_a_word_of_ones_own_is_refused() -> None:
    with pytest.raises(ValueError, match="7"), criticality(7):  # type: ignore[arg-type]
        pass
    assert current() is None


async def test_a_task_has_the_criticality_it_was_begun_with() -> None:
    async def later() -> Criticality | None:
        await asyncio.sleep(0)
        return current()

    with criticality(Criticality.SHEDDABLE_PLUS):
        begun = asyncio.create_task(later())
    assert await begun is Criticality.SHEDDABLE_PLUS
    assert await later() is None


# --- as a decorator -----------------------------------------------------------------

Word = Criticality | None


@criticality("SHEDDABLE")
def function(*more: Word) -> tuple[Word, ...]:
    """Says so."""
    return (current(), *more)


@criticality("SHEDDABLE")
async def coroutine(*more: Word) -> tuple[Word, ...]:
    await asyncio.sleep(0)
    return (current(), *more)


@criticality("SHEDDABLE")
def generator(ends: list[Word]) -> Generator[Word, None, None]:
    try:
        yield current()
        yield current()
    finally:
        ends.append(current())


@criticality("SHEDDABLE")
async def async_generator(ends: list[Word]) -> AsyncGenerator[Word, None]:
    try:
        yield current()
        await asyncio.sleep(0)
        yield current()
    finally:
        await asyncio.sleep(0)
        ends.append(current())


LOW = Criticality.SHEDDABLE


async def test_a_function_of_any_kind_has_it_within_and_nobody_else() -> None:
    ends: list[Word] = []
    assert function(None) == (LOW, None)
    assert await coroutine(None) == (LOW, None)
    for word in generator(ends):
        assert (word, current()) == (LOW, None)
    async for word in async_generator(ends):
        assert (word, current()) == (LOW, None)
    assert ends == [LOW, LOW]


async def test_a_generator_that_is_left_half_read_ends_with_it() -> None:
    ends: list[Word] = []
    for _ in generator(ends):
        break
    some = async_generator(ends)
    await anext(some)
    await some.aclose()
    assert ends == [LOW, LOW]
    assert current() is None


def test_grpc_finds_what_kind_a_function_is_of() -> None:
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(async_generator)
    assert (function.__name__, function.__doc__) == ("function", "Says so.")


async def test_calls_of_one_function_that_overlap_do_not_disturb_each_other() -> None:
    calls = [asyncio.create_task(coroutine()) for _ in range(3)]
    assert await asyncio.gather(*calls, coroutine()) == [(LOW,)] * 4
    assert current() is None


async def test_one_may_be_around_blocks_that_overlap() -> None:
    shared = criticality(Criticality.SHEDDABLE)

    async def outer(begun: asyncio.Event, end: asyncio.Event) -> Criticality | None:
        with criticality(Criticality.CRITICAL_PLUS):
            with shared:
                begun.set()
                await end.wait()
            return current()

    first, second, end = (asyncio.Event() for _ in range(3))
    tasks = [asyncio.create_task(outer(first, second))]
    await first.wait()
    tasks.append(asyncio.create_task(outer(second, end)))
    assert await tasks[0] is Criticality.CRITICAL_PLUS
    end.set()
    assert await tasks[1] is Criticality.CRITICAL_PLUS


def test_what_is_no_function_is_not_decorated() -> None:
    for thing in (Criticality, 7):
        with pytest.raises(TypeError, match="criticality decorates functions, not"):
            criticality("SHEDDABLE")(thing)  # type: ignore[type-var]
