"""The docs tell the truth where a machine can see it."""

import ast
import logging
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.page import with_figures
from benchmarks.harness.record import load
from lbclient.config import RESERVED, ChannelConfig, ServerConfig, settings
from lbclient.config.tables import with_tables
from lbclient.sim import SCENARIOS
from lbclient.sim.book import EXPERIMENTS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CONFIGS = (ChannelConfig, ServerConfig)
DEFAULTS = {field.name: field.default for c in CONFIGS for field in settings(c)}
VARIABLES = {field.variable for c in CONFIGS for field in settings(c)}


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings: `## A b, c: ...` is `#a-b-c-`."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {*map(slug, headings)}


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip()).lower().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue  # the network is not ours to test
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_file_that_contributors_are_sent_to_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`([\w./]+\.(?:py|js|proto|md))`", text))
    assert len(named) > 50
    assert [name for name in sorted(named) if not [*ROOT.glob(f"[a-z]*/**/{name}")]
            and not (ROOT / name).exists()] == []  # fmt: skip


def test_the_tables_of_settings_are_fresh() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == with_tables(page), "stale: run `make settings`"
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert {name: ast.literal_eval(default) for name, default in rows} == DEFAULTS


def test_the_page_of_benchmarks_has_the_figures_of_the_record() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    record = load(ROOT / "benchmarks" / "recorded.json")
    assert page == with_figures(page, record), "stale: `python -m benchmarks --page`"


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for a table"):
        with_tables("# Configuration\n")


def test_every_setting_is_explained() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    lists = re.findall(r"^- (`\w+`(?:, `\w+`)*): ", page, re.MULTILINE)
    explained = {name for names in lists for name in re.findall(r"\w+", names)}
    assert explained == {*DEFAULTS, *RESERVED}


# What others may set: named to say that it has no effect.
FOREIGN = {"LBCLIENT_PROXY_SERVICE_HOST", "LBCLIENT_TARGET"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_that_is_named_exists(page: Path) -> None:
    known = {*RESERVED, *FOREIGN, *VARIABLES}
    assert set(re.findall(r"LBCLIENT_[A-Z_]*[A-Z]", page.read_text())) <= known


def test_every_alert_is_explained() -> None:
    """They were copied there by hand, and two were forgotten."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    alerts = re.findall(r"^ *- alert: (\w+)$", rules, re.MULTILINE)
    assert re.findall(r"^\| `(Lbclient\w+)` \|", page, re.MULTILINE) == alerts != []
    recorded = re.findall(r"^ *- record: (\S+)$", rules, re.MULTILINE)
    listed = re.findall(r"^\| `(\w+:\S+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(recorded) != []


ON_BALANCING = ROOT / "docs" / "statements-load-balancing.md"
ON_OVERLOAD = ROOT / "docs" / "statements-handling-overload.md"


@pytest.mark.parametrize("letter", ["S", "C"])
def test_the_counts_of_statements_are_those_of_their_table(letter: str) -> None:
    page = ON_BALANCING.read_text()
    rows = re.findall(rf"^\| {letter}(\d+) \|.*\| ([^|]+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, len(rows) + 1)] != []
    verdicts = [re.match(r"holds|departs: |not ours: ", verdict) for _, verdict in rows]
    counts = Counter(found[0].rstrip(": ") for found in verdicts if found)
    assert counts.total() == len(rows)
    expected = (
        f"Of {len(rows)} statements {counts['holds']} hold, {counts['departs']} depart"
        f" and {counts['not ours']} are not ours."
    )
    assert expected in " ".join(page.split())


def statements(page: Path) -> Iterator[tuple[str, Counter[str]]]:
    """By section: the verdicts."""
    for section in page.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        rows = re.findall(
            r"^\| [SC]?\d+ \| .* \| (holds|departs|not ours)\b[^|]*\|$", text, re.M
        )
        if rows:
            yield title, Counter(rows)


def test_the_table_of_statements_is_that_of_their_pages() -> None:
    found = [
        (f"[{title}]({page.name}#{slug(title)})", counts)
        for page in (ON_BALANCING, ON_OVERLOAD)
        for title, counts in statements(page)
    ]
    total: Counter[str] = sum((counts for _, counts in found), Counter())
    table = "".join(
        f"| {title} | {counts.total()} | {counts['holds']} | {counts['departs']} |"
        f" {counts['not ours']} |\n"
        for title, counts in [*found, ("all", total)]
    )
    head = (
        "| section | statements | hold | depart | not ours |\n|---|---|---|---|---|\n"
    )
    assert head + table in (ROOT / "docs" / "book.md").read_text(), head + table


def exists(name: str) -> bool:
    """Whether a dotted name is an object, a module, a logger, or of our protos."""
    if name in logging.Logger.manager.loggerDict:
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        last = name.rpartition(".")[2]
        protos = "".join(file.read_text() for file in ROOT.glob("proto/**/*.proto"))
        return bool(
            re.search(rf"^(service|message|enum) {last}\b", protos, re.MULTILINE)
        )
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    found = re.findall(r"\b(tests/[\w/.-]+\w)(?:::(\w+))?", page.read_text())
    for path, test in found:
        assert (ROOT / path).exists(), path
        names = re.findall(r"^(?:async )?def (\w+)", _text(path), re.MULTILINE)
        assert not test or test in names, f"{path}::{test}"


def _text(path: str) -> str:
    return (ROOT / path).read_text() if path.endswith(".py") else ""


def test_each_input_that_is_bounded_names_the_test_that_shows_it() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| (?!input|rule|---).*\|$", page, re.MULTILINE)
    without = [row for row in rows if "::test_" not in row]
    assert len(rows) > 40
    assert [row for row in without if not row.endswith("| not ours |")] == []


def test_each_bound_is_set_where_the_page_says() -> None:
    """`module.NAME` in the third column; several modules may have the same name."""
    page = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| (?!input|rule|---).*\|$", page, re.MULTILINE)
    named = [
        found
        for row in rows
        for found in re.findall(
            r"`([a-z_.]+)\.([A-Z]\w*)`", "".join(row.split(" | ")[2:3])
        )
    ]
    assert len(named) > 30
    for module, name in named:
        last = module.rpartition(".")[2]
        files = [
            *(ROOT / "lbclient").rglob(f"{last}.py"),
            *(ROOT / "lbclient").rglob(f"{last}/__init__.py"),
        ]
        assert any(re.search(rf"\b{name}\b", file.read_text()) for file in files), (
            f"{module}.{name}"
        )


def test_statements_are_numbered_and_counted() -> None:
    page = ON_OVERLOAD.read_text()
    rows = re.findall(
        r"^\| (\d+) \| .* \| (.*) \| (holds|departs|missing|not ours)\b.*\|$",
        page,
        re.MULTILINE,
    )
    assert [int(number) for number, _, _ in rows] == [*range(1, len(rows) + 1)]
    _, _, table = page.partition("\n## Count\n")
    counts = re.findall(r"^\| ([a-z, ]+) \| (\d+) \|$", table, re.MULTILINE)
    assert {name: int(count) for name, count in counts} == {
        "all": len(rows),
        **Counter(verdict for _, _, verdict in rows),
        "of all, not verified": sum(by.startswith("not verified") for _, by, _ in rows),
    }


@pytest.mark.parametrize("file", [ON_BALANCING, ON_OVERLOAD], ids=lambda one: one.name)
def test_commands_that_verify_statements_exist(file: Path) -> None:
    page = file.read_text()
    for name in re.findall(r"python -m benchmarks\.(\w+)", page):
        one = ROOT / "benchmarks" / name
        assert one.with_suffix(".py").exists() or (one / "__main__.py").exists(), name
    assert set(re.findall(r"lbclient sim book --only (\w+)", page)) <= {*EXPERIMENTS}
    assert set(re.findall(r"lbclient sim (?!book)(\w+)", page)) <= {*SCENARIOS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_ours_exists(page: Path) -> None:
    names = set(re.findall(r"`(lbclient(?:\.\w+)+)", page.read_text()))
    assert [name for name in sorted(names) if not exists(name)] == []


def test_modules_that_the_source_names_by_their_folder_are_there() -> None:
    """`core.retries.retry`, in docstrings and comments."""
    name = re.compile(r"`((?:core|wire|grpc_seam|resolvers|pickers)(?:\.[a-z_]+)+)`")
    files = [*(ROOT / "lbclient").rglob("*.py")]
    named = {found for file in files for found in name.findall(file.read_text())}
    assert len(named) > 5
    assert [each for each in sorted(named) if not exists(f"lbclient.{each}")] == []


def test_modules_that_moved_are_where_the_page_says() -> None:
    page = (ROOT / "docs" / "moved.md").read_text()
    moves = re.findall(r"^\| `[\w.]+` \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert moves
    for now in moves:
        assert exists(f"lbclient.{now}"), now


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_on_a_page_is_python(page: Path) -> None:
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        compile(program, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
