"""`lbclient sim book`: what the texts claim holds, in a quick form of every figure.

The page's numbers are those of a full run, which takes a minute: here they are only
within their bounds, but for what takes no time.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lbclient.cli import main
from lbclient.cli.lab import book, book_page
from lbclient.cli.lab.book_plots import PLOTS
from lbclient.sim.book import EXPERIMENTS, SHOWS, Claim, Finding

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "book.md").read_text()

INSTANT = (  # as quick in full as `quick` is
    *("shuffles", "active_requests", "lots", "changed", "ring", "probability"),
)
SLOW = [name for name in EXPERIMENTS if name not in INSTANT]

# All that the three texts have.
FIGURES = {
    *(f"SRE book, figure 20-{number}" for number in range(1, 7)),
    "SRE book, ch. 20, shuffled lists",
    "SRE book, ch. 20, tables of active requests",
    "SRE book, ch. 21, list of limits",
    "SRE book, equation 21-1",
    "SRE book, figure 21-1",
    "SRE book, figure 21-2",
    *(f"CACM 2023, figure {number}" for number in range(1, 6)),
    *(f"CACM 2023, table {number}" for number in range(1, 6)),
}


def table_of(name: str) -> str:
    """The table of that name, as the page has it."""
    _, _, rest = PAGE.partition(book_page.BEGIN.format(name))
    return rest.partition(book_page.END)[0]


def claims_of(name: str, quick: bool) -> list[Claim]:
    return EXPERIMENTS[name](1, quick).claims()


def test_every_figure_and_table_has_one_experiment() -> None:
    shown = [source for sources in SHOWS.values() for source in sources]
    assert len(shown) == len(FIGURES)
    assert {*shown} == FIGURES


@pytest.mark.parametrize("name", INSTANT)
def test_the_page_has_what_takes_no_time_as_it_is_computed(name: str) -> None:
    claims = claims_of(name, quick=False)
    check(claims)
    assert table_of(name) == book_page.table(claims), "make book"


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_what_the_texts_claim_holds(name: str) -> None:
    claims = claims_of(name, quick=True)
    check(claims)
    head, lines, *rows = table_of(name).splitlines()
    assert f"{head}\n{lines}\n" == book_page.HEAD
    for claim, written in zip(claims, rows, strict=True):
        value = written.split(" | ")[2]
        full = claim
        if not isinstance(claim.value, str):
            full = replace(claim, value=float(value.replace(",", "")))
        assert book_page.row(full) == f"{written}\n", "make book"
        assert full.holds, written


def check(claims: list[Claim]) -> None:
    """They hold or depart, and say where they are from."""
    assert len(claims) >= 2
    assert [claim for claim in claims if claim.finding is Finding.FAILS] == []
    for claim in claims:
        assert re.match(r"SRE book, ch\. 2[01], |CACM 2023, ", claim.where)
        exact = claim.within == "exactly"
        assert claim.why or claim.text or exact, f"no reason for the bounds: {claim}"


def test_the_page_says_of_each_figure_what_came_of_its_claims() -> None:
    index = table_of(book_page.INDEX)
    for source in FIGURES:
        row = re.search(
            rf"^\| {re.escape(source)} \| .* \| (\d+) \| \d+ \|$", index, re.M
        )
        assert row, source
        assert int(row[1]) > 0, source
    verdicts = re.findall(r" \| (holds|departs|FAILS)(?:: .*)? \|$", PAGE, re.M)
    assert len(verdicts) > 90
    counts = f"{verdicts.count('holds')} | {verdicts.count('departs')}"
    assert f"| {book_page.TOTAL} | | {counts} |\n" in index
    assert "FAILS" not in verdicts


@pytest.mark.slow
def test_what_is_asked_for_is_drawn_and_every_figure_is_in_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    words = f"book --quick --only 21-2,resized --plot {out} --json"
    assert main(["sim", *words.split()]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["layers.png", "resized.png"]
    said = json.loads(capsys.readouterr().out)
    assert said["figures"]["layers"]["growth"]["all retry, three attempts"]["3"] == 27
    assert {*PLOTS} == {*EXPERIMENTS}
    for name in EXPERIMENTS:
        image = ROOT / "docs" / "images" / "book" / f"{name}.png"
        assert f"(images/book/{name}.png)" in PAGE
        assert image.stat().st_size < 60_000


@pytest.mark.slow
def test_the_same_seed_has_the_same_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = []
    for seed in ("5", "5", "6"):
        assert main(["sim", *f"book --quick --figure switched --seed {seed}".split(),
                     "--json"]) == 0  # fmt: skip
        said.append(json.loads(capsys.readouterr().out)["figures"])
    assert said[0] == said[1] != said[2]


def test_a_claim_that_fails_is_said_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def claims(self) -> list[Claim]:
            return [Claim("SRE book, ch. 20, Nowhere", "ours", 2.0, 0.0, 1.0)]

    monkeypatch.setitem(EXPERIMENTS, "layers", lambda seed, quick: Wrong())
    assert book.main(["--only", "layers"]) == 1
    out = capsys.readouterr().out
    assert "  FAILS    ours\n           ours 2, want 0 to 1. SRE book" in out
    assert out.endswith("1 claim: 0 hold, 0 depart, 1 fail\n")


def test_a_departure_is_said_with_its_reason_and_is_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert book.main(["--only", "table 5,equation 21-1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "departs the order of the rows text (0, 8, 2, 4, 6" in out
    assert "Because 2 and 4 are exchanged in print" in out
    assert "holds half of the requests accepted, K = 2: none refused" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--only waste", "only = 'waste': want some of wasted, connections, "),
        ("--only 20-7", "or a figure such as 20-3"),
        ("--figure layers --quick --json /no/such", "json = '/no/such': want a file"),
        ("--seed x", "seed = 'x': want a whole number"),
        ("--plot /dev/null/there", "plot = '/dev/null/there': want a directory"),
    ],
)
def test_what_cannot_be_is_refused(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert book.main(words.split()) == 2
    _, err = capsys.readouterr()
    assert err.startswith("lbclient sim book: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_numbers_need_no_matplotlib_and_pictures_say_that_they_do() -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from lbclient.cli import main
sys.exit(main(["sim", "book", "--quick", "--figure", "layers", *sys.argv[1:]]))
"""
    for more, status, said in (
        ([], 0, ""),
        (["--plot", "."], 2, "want matplotlib, which is not installed: pip install"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *more],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == status
        assert said in done.stderr
