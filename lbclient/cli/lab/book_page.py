"""docs/book.md: its tables, and its pictures beside it, from a full run.

`make book` runs this. The words of the page are written by hand.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lbclient.cli.lab.book import draw, experiments
from lbclient.config.tables import with_table
from lbclient.sim.book import EXPERIMENTS, SHOWS, Claim, Finding

SEED = 1  # of all runs: the page has the figures of one run
BEGIN = "<!-- {}: `make book` writes this table -->\n"
END = "<!-- end of the table -->\n"
INDEX = "figures"
TOTAL = "all claims, each once, with those on words beside the figures"
HEAD = (
    "| claim, and its source | the text | here | expected | verdict |\n"
    "|---|---|---|---|---|\n"
)
INDEX_HEAD = "| figure or table | experiment | hold | depart |\n|---|---|---|---|\n"


def row(claim: Claim) -> str:
    """A claim in Markdown."""
    text = claim.text or "words or a picture"
    expected = claim.within + (f": {claim.why}" if claim.why else "")
    verdict = claim.finding + (f": {claim.departs}" if claim.departs else "")
    cells = (f"{claim.says} ({claim.where})", text, claim.ours, expected, verdict)
    return f"| {' | '.join(cells)} |\n"


def table(claims: list[Claim]) -> str:
    return HEAD + "".join(map(row, claims))


def index(page: str, found: Mapping[str, list[Claim]]) -> str:
    """Every figure and table of the texts, and what came of its claims.

    The total counts each claim once, those of words beside a figure included.
    """
    held, departed = _count(claim for claims in found.values() for claim in claims)
    total = f"| {TOTAL} | | {held} | {departed} |\n"
    return INDEX_HEAD + "".join(_index_rows(page, found)) + total


def _count(claims: Iterable[Claim]) -> tuple[int, int]:
    findings = [claim.finding for claim in claims]
    return findings.count(Finding.HOLDS), findings.count(Finding.DEPARTS)


def _index_rows(page: str, found: Mapping[str, list[Claim]]) -> Iterator[str]:
    for name, claims in found.items():
        title = page.partition(BEGIN.format(name))[0].rpartition("\n## ")[2]
        title = title.partition("\n")[0]
        link = (
            f"[{title}](#{re.sub('[^a-z0-9-]', '', title.lower().replace(' ', '-'))})"
        )
        for source in SHOWS[name] or ("words of the SRE book",):
            of = [
                one for one in claims if one.where.endswith(source.partition(", ")[2])
            ]
            held, departed = _count(of or claims)
            yield f"| {source} | {link} | {held} | {departed} |\n"


def main() -> None:
    file = Path(sys.argv[1])
    page, found = file.read_text(), {}
    for name, experiment in experiments([*EXPERIMENTS], SEED, quick=False):
        found[name] = experiment.claims()
        page = with_table(page, BEGIN.format(name), table(found[name]), END)
        draw(file.parent / "images" / "book" / f"{name}.png", name, experiment)
    rows = index(page, found)
    file.write_text(with_table(page, BEGIN.format(INDEX), rows, END))


if __name__ == "__main__":
    main()
