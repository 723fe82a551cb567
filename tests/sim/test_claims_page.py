"""docs/simulator.md has the tables that `python -m benchmarks.simulator` writes."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator import __main__ as program
from benchmarks.simulator.parts import PARTS
from benchmarks.simulator.runs import Case, OutOfTime, Runs
from lbclient.sim import SCENARIOS

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
SHORT = {"warm_up": 1.0, "window": 2.0}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "queue_delay"
    for each in (name, f"{name}_without"):
        monkeypatch.setitem(SCENARIOS, each, replace(SCENARIOS[each], **SHORT))  # type: ignore[arg-type]


def test_the_page_has_a_place_for_each_table() -> None:
    page = PAGE.read_text()
    for name in (one for one in PARTS if PARTS[one].is_on_page):
        assert program.with_table(page, name, [["head"], ["cell"]]) != page
    with pytest.raises(ValueError, match="no place"):
        program.with_table(page, "other", [["head"]])


def test_scenarios_and_loads_can_be_played() -> None:
    for part in PARTS.values():
        for title in part.titles:
            for case in part.cases(title):
                assert case.scenario.loads
                assert callable(case.factory())


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_runs_are_kept_and_verdicts_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.jsonl"
    words = ["simulator", "queue", "--seeds", "1", "--runs", str(runs)]
    monkeypatch.setattr(sys, "argv", [*words, "--for", "-1"])
    assert program.main() == program.MORE
    monkeypatch.setattr(sys, "argv", words)
    program.main()
    first = capsys.readouterr().out
    assert "holds    queue_delay@0.9: goodput" in first
    kept = runs.read_text()
    assert len(kept.splitlines()) == 8
    monkeypatch.setattr(sys, "argv", [*words, "--for", "-1"])
    program.main()
    assert runs.read_text() == kept


def test_no_run_begins_after_its_time() -> None:
    with pytest.raises(OutOfTime):
        Runs(None, [1], -1.0).of(Case("far", 0.3, "random"))
