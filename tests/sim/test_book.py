"""`lbclient sim book`: what the texts claim holds, in a quick form of every figure."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lbclient.cli import main
from lbclient.cli.lab import book
from lbclient.sim.book import EXPERIMENTS, Claim, Experiment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=EXPERIMENTS)
def experiment(request: pytest.FixtureRequest) -> Experiment:
    run = EXPERIMENTS[request.param]
    return run(1, True)


@pytest.mark.slow
def test_what_the_texts_claim_holds(experiment: Experiment) -> None:
    claims = experiment.claims()
    assert len(claims) >= 2
    assert [claim for claim in claims if not claim.holds] == []


@pytest.mark.slow
def test_a_claim_says_where_it_is_from(experiment: Experiment) -> None:
    for claim in experiment.claims():
        assert re.match(r"SRE book, ch\. 2[01], |CACM 2023, ", claim.where)


def test_what_is_asked_for_is_drawn_and_every_figure_is_in_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made"
    words = f"book --quick --figure layers,resized --out {out} --json"
    assert main(["sim", *words.split()]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["layers.png", "resized.png"]
    said = json.loads(capsys.readouterr().out)
    assert said["figures"]["layers"]["growth"]["all retry, three attempts"]["3"] == 27
    page = (ROOT / "docs" / "book.md").read_text()
    for name in EXPERIMENTS:
        image = ROOT / "docs" / "images" / "book" / f"{name}.png"
        assert f"(images/book/{name}.png)" in page
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
    assert book.main(["--figure", "layers"]) == 1
    assert "FAILS        2  ours (0 to 1). SRE book" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--figure waste", "figure = 'waste': want some of wasted, spread, "),
        ("--figure layers --quick --json /no/such", "json = '/no/such': want a file"),
        ("--seed x", "seed = 'x': want a whole number"),
        ("--out /dev/null/there", "out = '/dev/null/there': want a directory"),
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
        (["--out", "."], 2, "want matplotlib, which is not installed: pip install"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *more],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == status
        assert said in done.stderr


@pytest.mark.slow
def test_the_page_has_every_claim(experiment: Experiment) -> None:
    """With the numbers of a full run, which takes a minute, and so not here."""
    page = (ROOT / "docs" / "book.md").read_text()
    for claim in experiment.claims():
        row = f"| {claim.says} ({claim.where}) | "
        assert page.count(row) == 1, row
        value = float(page.partition(row)[2].split()[0])
        assert claim.low <= value <= claim.high, row
