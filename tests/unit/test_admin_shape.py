"""The JSON of the page: what is promised is documented, and what is wrong is found."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbclient.admin.shape import (
    BACKEND,
    CHANNEL,
    COUNTS,
    MAYBE,
    NUMBER,
    PROCESS,
    SERVER,
    TEXT,
    VERSION,
    flaw,
)
from lbclient.admin.snapshot import snapshot, text_of
from lbclient.cli.operate import inspect

PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()


def names(shape: Any, *own: Any) -> Iterator[str]:
    """All of a shape's fields, but not those of what has a table of its own."""
    for name, one in shape.items():
        yield name
        inner = one[0] if isinstance(one, list) else one
        if isinstance(inner, dict) and not any(inner is other for other in own):
            yield from names(inner, *own)


@pytest.mark.parametrize(
    ("title", "shape"),
    [
        ("## The JSON", PROCESS),
        ("### A channel", CHANNEL),
        ("### A backend", BACKEND),
        ("### A server", SERVER),
    ],
)
def test_every_field_is_documented_and_no_other(title: str, shape: Any) -> None:
    table = PAGE.partition(f"{title}\n")[2].partition("\n#")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    heads = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(heads) == set(shape)
    assert set(names(shape, CHANNEL, BACKEND, SERVER)) - {"config"} <= told | {
        "name",
        "value",
        "source",
    }


def test_the_version_is_the_one_of_the_docs_and_of_the_page() -> None:
    script = Path(__file__).parents[2] / "lbclient" / "admin" / "static" / "page.js"
    assert f"`version` is {VERSION}." in PAGE
    assert f"const VERSION = {VERSION};" in script.read_text()


def test_a_snapshot_of_nothing_is_sound() -> None:
    said = snapshot()
    assert flaw(said) == ""
    assert said["version"] == VERSION


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"pid": "7"}, "pid is not number"),
        ({"pid": True}, "pid is not number"),
        ({"pid": None}, "pid is not number"),
        ({"host": 7}, "host is not text"),
        ({"channels": {}}, ".channels is no list"),
        ({"channels": [[]]}, ".channels[0] is no record"),
        ({"channels": [{}]}, "channels[0].number is not number"),
        ({"servers": None}, ".servers is no list"),
    ],
)
def test_what_is_not_as_promised_is_named(change: Any, what: str) -> None:
    sound = snapshot() | {"channels": [], "servers": []}
    assert flaw(sound | {"new in a later release": [1]}) == ""
    assert flaw(sound | change) == what
    assert flaw([]) == "it is no record"


def test_what_may_be_null_is_there() -> None:
    said = snapshot()
    del said["disabled"]
    assert flaw(said) == "disabled is not number or null"


def test_values_are_for_people_and_passwords_for_nobody() -> None:
    assert text_of("redis://user:secret@host/0") == "'redis://...@host/0'"
    assert text_of({"a": len}) == "{'a': len}"
    assert text_of(None) == "None"


def example(shape: Any, maybe: float | None) -> Any:
    """A page that has all that the shape allows, and names that no release knows."""
    if isinstance(shape, list):
        return [example(shape[0], maybe)]
    if isinstance(shape, dict):
        return {name: example(one, maybe) for name, one in shape.items()}
    return {TEXT: "some", NUMBER: 1, MAYBE: maybe, COUNTS: {"new": 0.5}}[shape]


@pytest.mark.parametrize("maybe", [None, 0.0, 2.0])
def test_inspect_shows_whatever_has_the_shape(maybe: float | None) -> None:
    said = example(PROCESS, maybe) | {"version": VERSION}
    said["servers"][0]["attempts"]["recent"] = {"older": 0.5}
    assert flaw(said) == ""
    text = " ".join(" ".join(inspect.lines(inspect.Look(said, said))).split())
    assert "50% of new" in text
    assert "ejected for some" in text
