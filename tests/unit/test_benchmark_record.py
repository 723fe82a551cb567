"""What `python -m benchmarks` makes of the figures that benchmarks tell."""

import sys
from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as program
from benchmarks.harness.figures import Quantile
from benchmarks.harness.measured import Measured, measured
from benchmarks.harness.one_by_one import ran_to_its_end, run
from benchmarks.harness.options import conclude
from benchmarks.harness.page import BEGIN, with_figures
from benchmarks.harness.record import End, Run, load, moved, save
from benchmarks.harness.turns import Ratio, measured_of
from benchmarks.listed import BENCHMARKS, SECTIONS, Listed

RATIO = Measured(name="ours / theirs", value=1.2, spread=(1.1, 1.3), better="less")
RUN = Run(command="python -m benchmarks.x", end=End.HELD, seconds=1.0, measured=[RATIO])
NAME = BENCHMARKS[0].name
FAILED = replace(RUN, end=End.FAILED, measured=[])


def of(**changes: Any) -> dict[str, Run]:
    return {NAME: replace(RUN, measured=[replace(RATIO, **changes)])}


@pytest.mark.parametrize(
    ("now", "is_moved", "is_worse"),
    [
        ({"value": 1.25, "spread": (1.2, 1.35)}, False, True),
        ({"value": 1.5, "spread": (1.1, 1.6)}, False, True),  # too wide to say so
        ({"value": 1.5, "spread": (1.4, 1.6)}, True, True),
        ({"value": 0.9, "spread": (0.8, 1.0)}, True, False),
        ({"value": 1.4, "spread": None}, False, True),  # once: a quarter is noise
        ({"value": 1.7, "spread": None}, True, True),
        ({"value": 9.0, "spread": None, "unit": "ms"}, False, True),
    ],
)
def test_a_ratio_has_moved_if_it_is_beyond_the_noise_of_both_runs(
    now: dict[str, Any], is_moved: bool, is_worse: bool
) -> None:
    changes = moved(of(), of(**now))
    assert [one.is_worse for one in changes] == [is_worse] * is_moved
    assert [str(one).startswith("WORSE") for one in changes] == [is_worse] * is_moved


def test_what_is_worse_is_named_if_it_is_so_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "KEPT", tmp_path)
    (worse,), (better,), (as_before,) = (
        of(value=value, spread=(value, value))[NAME].measured
        for value in (2.0, 0.5, 1.2)
    )
    runs = iter(
        [
            replace(RUN, measured=[worse, replace(worse, name="twice")]),
            replace(RUN, measured=[as_before, replace(worse, name="twice")]),
        ]
    )
    monkeypatch.setattr(program, "run", lambda *_, **__: next(runs))
    file = program.kept_file(is_full=False)
    save(file, {"kept": RUN})  # of a run before
    twice = replace(RATIO, name="twice")
    before = {NAME: replace(RUN, measured=[RATIO, twice]), "other": RUN}
    found = {"other": replace(RUN, measured=[better]), NAME: next(runs)}
    changes = program.told_again(before, found, is_full=False)
    assert [(one.benchmark, one.now.name) for one in changes] == [
        ("other", RATIO.name),  # which is better, and not run again
        (NAME, "twice"),
    ]
    assert found[NAME].measured[0] == as_before
    assert load(file).keys() == {NAME, "other", "kept"}


def test_a_second_run_that_fails_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "KEPT", tmp_path)
    monkeypatch.setattr(program, "run", lambda *_, **__: FAILED)
    found = of(value=2.0, spread=(2.0, 2.0))
    [change] = program.told_again(of(), found, is_full=False)
    assert change.is_worse
    assert found[NAME].end is End.HELD


def test_a_percentile_of_few_values_may_be_many() -> None:
    thousand = [float(n) for n in range(1000)]
    assert Quantile.of(thousand, 0.5) == (500.0, 468.0, 531.0)
    assert Quantile.of(thousand, 0.999) == (999.0, 997.0, 999.0)
    assert Quantile.of([], 0.99) == (0.0, 0.0, 0.0)
    ratio, between = Quantile(2.0, 1.0, 4.0).over(Quantile(4.0, 2.0, 5.0))
    assert (ratio, between) == (0.5, (0.2, 2.0))


def test_a_simulated_figure_has_moved_with_any_change() -> None:
    before = of(value=0.9, spread=(0.9, 0.9))
    assert moved(before, of(value=0.9, spread=(0.9, 0.9))) == []
    assert len(moved(before, of(value=0.91, spread=(0.91, 0.91)))) == 1


def test_another_form_of_a_benchmark_is_not_compared() -> None:
    worse = of(value=9.0, spread=(9.0, 9.0))
    assert len(moved(of(), worse)) == 1
    longer = {NAME: replace(worse[NAME], command="python -m benchmarks.x --long")}
    assert moved(of(), longer) == []


def test_the_median_and_the_quartiles_are_told() -> None:
    of_many = measured("x", [5.0, 1.0, 2.0, 3.0, 4.0])
    assert (of_many.value, of_many.spread) == (3.0, (1.5, 4.5))
    assert measured("x", [2.0]).spread is None


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = {
        NAME: replace(RUN, missed=['too "slow"'], machine={"cores": 2}, load=0.5),
        "other": replace(RUN, end=End.FAILED, said="no {such} thing", measured=[]),
    }
    file = tmp_path / "folder" / "record.json"
    save(file, record)
    assert load(file) == record
    assert load(tmp_path / "none") == {}


def test_a_run_that_told_nothing_replaces_no_figures() -> None:
    failed, ended = (
        replace(RUN, end=end, measured=[]) for end in (End.FAILED, End.ENDED)
    )
    before = {"whole": RUN, "broken": failed}
    found = {"whole": ended, "broken": ended, "new": failed}
    assert program.recorded(before, found) == {**found, "whole": RUN}
    missed = replace(RUN, end=End.MISSED)
    assert program.recorded(before, {"whole": missed})["whole"] == missed


def test_a_page_shows_losses_and_what_was_not_run() -> None:
    lost = replace(RATIO, goal=1.15)
    missed = replace(RUN, end=End.MISSED, measured=[lost], missed=["it fell"])
    page = with_figures(f"# Head\n{BEGIN}stale", {NAME: missed})
    assert page.startswith(f"# Head\n{BEGIN}")
    assert "stale" not in page
    cell = "ours / theirs | 1.20 (1.10 to 1.30) | at most 1.15 | MISSED |"
    assert page.count(cell) == 1
    assert (
        f"| [{NAME}](#{NAME}) | ours / theirs | 1.20 (1.10 to 1.30) | MISSED |" in page
    )
    assert f"- {NAME}: it fell" in page
    failed = Run(command="x", end=End.FAILED, seconds=3.0, said="no port")
    assert "FAILED: no port, in 3 s" in with_figures(BEGIN, {NAME: failed})
    assert "Not run yet" in with_figures(BEGIN, {})
    assert "Losses\n\nNothing was measured yet." in with_figures(BEGIN, {})
    good = replace(RUN, measured=[replace(RATIO, value=0.9, spread=None)])
    assert "Losses\n\nNone." in with_figures(BEGIN, {NAME: good})
    with pytest.raises(ValueError, match="no place for figures"):
        with_figures("# Head", {})


def test_a_ratio_loses_if_both_quartiles_are_worse_than_one() -> None:
    assert RATIO.loses
    assert not replace(RATIO, spread=(0.99, 1.3)).loses
    assert not replace(RATIO, better="more").loses
    assert replace(RATIO, value=0.8, spread=(0.7, 0.9), better="more").loses
    assert not replace(RATIO, unit="ms").loses


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "better"),
    [
        ("lbclient round_robin", "grpcio round_robin", None, ["less", "more"]),
        ("lbclient, request costs", "lbclient", None, ["", ""]),
        ("grpcio + trailers", "grpcio", None, ["", ""]),
        ("Prometheus", "no exporter", 1.03, ["less", ""]),
    ],
)
def test_only_what_stands_against_grpcio_or_a_goal_can_lose(
    ours: str, theirs: str, target: float | None, better: list[str]
) -> None:
    both = (1.1, 1.2, 1.3), (0.7, 0.8, 0.9)
    one = Ratio("client", ours, theirs, 64, 8, *both, target)
    told = [*measured_of([one])]
    assert [figure.better for figure in told] == better
    assert [figure.value for figure in told] == [1.2, 0.8]
    assert told[0].misses is (target is not None)


def test_a_benchmark_that_breaks_or_lacks_a_program_is_told_as_such(
    tmp_path: Path,
) -> None:
    listed = Listed(section="Cost", name="x", module="no_such", shows="")
    broken = run(listed, tmp_path, is_full=False)
    assert broken.end is End.FAILED
    assert "No module named benchmarks.no_such" in broken.said
    without = run(replace(listed, needs=("no-such-program",)), tmp_path, is_full=False)
    assert without.end is End.LEFT_OUT
    assert without.said == "there is no no-such-program"


def test_a_benchmark_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        assert not ran_to_its_end(sleep, out.fileno(), most=0.1)
        assert ran_to_its_end([sys.executable, "-c", ""], out.fileno(), most=60.0)


def test_a_run_is_resumed_without_what_it_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "KEPT", tmp_path)
    names = ("finished", "failed", "only full")
    finished, failed, full = (
        Listed(section="Cost", name=name, module="no_such", shows="") for name in names
    )
    save(tmp_path / "short.json", {"finished": RUN, "failed": FAILED})
    listed = finished, failed, replace(full, short=None)
    file = program.kept_file(is_full=False)
    resumed = program.run_all(listed, load(file), is_full=False)
    assert resumed["finished"] == RUN
    assert "no_such" in resumed["failed"].said  # it was run once more
    assert resumed.keys() == {"finished", "failed"}
    again = program.run_all(listed, {}, is_full=False)
    assert again["finished"].end is End.FAILED
    assert load(file).keys() == again.keys()


def test_every_benchmark_listed_has_a_section_and_a_name_of_its_own() -> None:
    names = [one.name for one in BENCHMARKS]
    assert len({*names}) == len(names)
    assert {one.section for one in BENCHMARKS} <= {*SECTIONS}
    forms = [(one.short, one.full) for one in BENCHMARKS]
    assert (None, None) not in forms


FORMS = [
    (one, is_full)
    for one in BENCHMARKS
    for is_full in (False, True)
    if one.arguments(is_full=is_full) is not None
]


@pytest.mark.parametrize(
    ("listed", "is_full"),
    FORMS,
    ids=[f"{one.name}-{'full' if is_full else 'short'}" for one, is_full in FORMS],
)
def test_a_benchmark_takes_the_arguments_that_are_listed(
    listed: Listed,
    is_full: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All words before the last are understood, and that names no file."""
    folder = Path(__file__).parents[2] / "benchmarks" / listed.module
    package = f"{listed.module}.__main__" if folder.is_dir() else listed.module
    words = [*(listed.arguments(is_full=is_full) or ()), "--measured", "/no/such"]
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    with pytest.raises(SystemExit):
        import_module(f"benchmarks.{package}").main()
    assert "argument --measured: want a file" in capsys.readouterr().err


def test_a_goal_that_is_missed_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    given = Namespace(json=None, plot=None, measured=None)
    told = [replace(RATIO, name="one", goal=1.0), replace(RATIO, name="two", goal=1.0)]
    assert conclude(given, [], ["two is 1.2, target 1"], measured=told) == 1
    assert capsys.readouterr().out == "MISSED: two is 1.2, target 1; one\n"
