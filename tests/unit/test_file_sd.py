"""What a document in Prometheus' file_sd format means, good and bad."""

from itertools import islice

import pytest

from lbclient.core.model import Endpoint
from lbclient.resolvers.file import endpoints_of


def group(*targets: object, **labels: object) -> dict[str, object]:
    return {"targets": list(targets), "labels": labels}


GOOD: list[tuple[list[object], list[Endpoint]]] = [
    ([], []),
    ([group()], []),
    ([{"targets": ["a:1"]}], [Endpoint("a:1")]),
    ([{"targets": ["a:1"], "labels": None}], [Endpoint("a:1")]),
    ([group("a:1", env="prod")], [Endpoint("a:1")]),
    ([group("[::1]:1", "unix:/b")], [Endpoint("[::1]:1"), Endpoint("unix:/b")]),
    (
        [group("a:1", task="0", zone="x", weight="0.5"), group("b:1", task=7)],
        [Endpoint("a:1", 0.5, "x", 0), Endpoint("b:1", task=7)],
    ),
    (
        [group("a:1", priority="1"), group("b:1", priority=0)],
        [Endpoint("a:1", priority=1), Endpoint("b:1")],
    ),
    (
        [group("a:1", lame_duck="true"), group("b:1", lame_duck=False)],
        [Endpoint("a:1", lame_duck=True), Endpoint("b:1")],
    ),
]


@pytest.mark.parametrize(("document", "endpoints"), GOOD)
def test_labels_tell_of_all_targets_of_their_group(
    document: list[object], endpoints: list[Endpoint]
) -> None:
    assert list(endpoints_of(document)) == endpoints


# Each with the words that its error must hold.
WRONG: list[tuple[list[object], str]] = [
    ([group("a:1"), "b:1"], "group 1: want targets and labels, not 'b:1'"),
    ([{"target": ["a:1"]}], "group 0: want targets and labels"),
    ([{"targets": ["a:1"], "label": {}}], "want targets and labels"),
    ([{"labels": {}}], "targets: want a list, not None"),
    ([{"targets": "a:1"}], "targets: want a list, not 'a:1'"),
    ([{"targets": ["a:1"], "labels": ["x"]}], "labels: want names and values"),
    ([group(5)], "targets: want host:port, not 5"),
    ([group("a")], "targets: want host:port, not 'a'"),
    ([group("http://a:1")], "targets: want host:port"),
    ([group("::1:1")], "targets: want host:port"),
    ([group("a:70000")], "a port of 1 to 65535"),
    ([group("a:0")], "a port of 1 to 65535"),
    ([group("a:1", task="-1")], "task: want a whole number, not '-1'"),
    ([group("a:1", task=True)], "task: want a whole number, not 'True'"),
    ([group("a:1", task="1.5")], "task: want a whole number"),
    ([group("a:1", task="9" * 5000)], "task: want a whole number, not '999"),
    ([group("a:1", priority="first")], "priority: want a whole number, not 'first'"),
    ([group("a:1", priority="65536")], "priority = 65536: want a whole number, 0 to"),
    ([group("a:1", zone=1)], "zone: want text, not 1"),
    ([group("a:1", weight="much")], "weight: want a number above 0, not 'much'"),
    ([group("a:1", weight="0")], "weight: want a number above 0"),
    ([group("a:1", weight="nan")], "weight: want a number above 0"),
    ([group("a:1", weight="inf")], "weight: want a number above 0"),
    ([group("a:1", lame_duck="yes")], "lame_duck: want true or false, not 'yes'"),
]


@pytest.mark.parametrize(("document", "words"), WRONG)
def test_an_error_names_the_group_and_what_it_wants(
    document: list[object], words: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are below
        list(endpoints_of(document))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_document_is_read_no_further_than_is_asked() -> None:
    endless: list[object] = [group(*["a:1"] * 1000)] * 1_000_000
    assert len(list(islice(endpoints_of(endless), 5))) == 5


@pytest.mark.parametrize("label", ["task", "zone", "weight", "lame_duck", "targets"])
def test_a_mistake_is_not_shown_whole(label: str) -> None:
    """Nine aliases in YAML made a list of 10**9; its text took all memory."""

    class Shown:
        times = 0

        def __repr__(self) -> str:
            Shown.times += 1
            return "x"

    bomb: object = Shown()
    for _ in range(4):
        bomb = [bomb] * 10
    wrong = group(bomb) if label == "targets" else group("a:1", **{label: bomb})
    with pytest.raises(ValueError, match=f"{label}: want"):
        list(endpoints_of([wrong]))
    assert Shown.times < 100
