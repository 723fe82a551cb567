"""What a package index shows: a README with no link that leads nowhere."""

import re
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RELATIVE = re.compile(r"\]\((?!https?:|#)[^)]*\)")
WHOLE = re.compile(r"\]\(https://host/name/lbclient/(blob|raw)/main/([^)#]*)")


def test_without_an_address_no_link_leads_nowhere() -> None:
    assert RELATIVE.search(README)
    shown = hatch_build.readme(README, "")
    assert not RELATIVE.search(shown)
    assert hatch_build.urls("") == {}


def test_with_an_address_each_link_leads_to_a_file_of_the_repository() -> None:
    shown = hatch_build.readme(README, "https://host/name/lbclient")
    assert not RELATIVE.search(shown)
    found = WHOLE.findall(shown)
    assert len(found) == len(RELATIVE.findall(README))
    for what, path in found:
        assert (ROOT / path).exists(), path
        assert (what == "raw") is path.endswith(".png"), path


def test_with_an_address_the_index_has_addresses() -> None:
    urls = hatch_build.urls("https://host/name/lbclient")
    assert urls["Source"] == "https://host/name/lbclient"
    for address in urls.values():
        path = re.sub(r"^https://host/name/lbclient/?((blob|tree)/main/)?", "", address)
        assert (ROOT / path).exists(), address


@pytest.mark.parametrize(
    ("text", "here", "there"),
    [
        ("[a](docs/a.md#b)", "a", "[a](https://h/blob/main/docs/a.md#b)"),
        ("![a](a.png)", "*a*", "![a](https://h/raw/main/a.png)"),
        ("[a](https://grpc.io)", "[a](https://grpc.io)", "[a](https://grpc.io)"),
    ],
)
def test_links_to_other_places_stay(text: str, here: str, there: str) -> None:
    assert hatch_build.readme(text, "") == here + hatch_build.NOTE
    assert hatch_build.readme(text, "https://h") == there
