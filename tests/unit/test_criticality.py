"""Four words, what is made of others, and who goes first."""

import asyncio

import pytest

from lbclient.criticality import DEFAULT, Criticality, criticality, current, parse


@pytest.mark.parametrize("one", Criticality)
@pytest.mark.parametrize("form", [str, str.lower, str.encode])
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
