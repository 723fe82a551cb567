"""JSON that is read item by item means what json.loads says that it means."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbclient.resolvers.json_items import items, members

scalars = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(
    scalars, lambda some: st.lists(some) | st.dictionaries(st.text(), some)
)
indents = st.none() | st.integers(0, 2)
encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])

# What may come of a file that was cut or edited in haste.
almost_json = st.text('[]{}:,"\\ae1- \n\ufeff', max_size=12)


def outcome(read: Any, data: Any) -> Any:
    try:
        return read(data)
    except ValueError:
        return ValueError


@given(st.lists(values), indents, encodings)
def test_a_list_has_the_same_items(
    some: list[Any], indent: int | None, encoding: str
) -> None:
    text = json.dumps(some, indent=indent, ensure_ascii=encoding == "utf-8")
    assert list(items(text.encode(encoding, "surrogatepass"))) == some


@given(st.dictionaries(st.text() | st.just("items"), values), indents)
def test_an_object_has_the_same_members(
    some: dict[str, Any], indent: int | None
) -> None:
    told: dict[str, Any] = {}
    for key, value in members(json.dumps(some, indent=indent)):
        if key == "items" and isinstance(some[key], list):
            told.setdefault(key, []).append(value)
        else:
            told[key] = value
    if some.get("items") == []:
        told["items"] = []
    assert told == some


@example("[1, ]")
@example("[1], 2")
@example("\ufeff[1]")
@given(almost_json.map("[1, {0}".format) | almost_json.map("[{0}]".format))
def test_what_is_no_json_is_an_error_here_too(text: str) -> None:
    data = text.encode()
    assert outcome(lambda data: list(items(data)), data) == outcome(json.loads, data)


@pytest.mark.parametrize("text", ["", " ", "{}", "null", '"a:1"', "7", "x", "\0"])
def test_what_is_no_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"want a list of groups|Expecting"):
        list(items(text.encode()))


def test_an_item_is_there_before_the_next_is_read() -> None:
    assert next(items(b'[{"a": 1}, !')) == {"a": 1}
    assert next(members('{"items": [5, !')) == ("items", 5)
