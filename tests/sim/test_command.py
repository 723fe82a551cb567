"""`lbclient sim`: what it prints, writes, draws and refuses."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lbclient.cli import main
from lbclient.cli.lab.sim import (
    COLUMNS,
    Row,
    compare,
    facts,
    parse_arguments,
    picture,
    scenario_of,
)
from lbclient.core.errors import ConfigError
from lbclient.pickers import PICKERS
from lbclient.sim import SCENARIOS, Result, Scenario, simulate
from lbclient.sim.scenario import BOUNDS, parse

SMALL = """
summary = "a few"
loads = [0.4]
clients = 2
backends = 4
subset_size = 2
warm_up = 1
window = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(["sim", *words.split()])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("--list", capsys)
    assert status == 0
    named = [line.split()[0] for line in out.splitlines()[2:]]
    assert named == [*SCENARIOS]


def test_every_picker_has_a_row_for_every_load(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(f"{file} --load 0.3,0.5", capsys)
    assert status == 0
    title, head, _, *rows = out.splitlines()
    assert title == "small: a few; one seed"
    assert all(column.head in head for column in COLUMNS)
    assert len(rows) == 2 * len(PICKERS)
    assert [row[:4].strip() for row in rows if row[0] != " "] == ["0.3", "0.5"]


def test_numbers_are_those_of_the_runs(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, scenario = scenario_of(file)
    result = simulate(scenario, "p2c", load=0.4, seed=3)
    _, out, _ = run(f"{file} --picker p2c --seed 3", capsys)
    load, name, *numbers = out.splitlines()[-1].split()
    assert (load, name) == ("0.4", "p2c")
    assert numbers == [format(column.read(result), column.form) for column in COLUMNS]


def test_several_seeds_have_a_mean_and_a_spread(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, scenario = scenario_of(file)
    spreads = [simulate(scenario, "random", load=0.4, seed=s).spread for s in (1, 2)]
    _, out, _ = run(f"{file} --picker random --seed 1,2", capsys)
    _, _, mean, deviation, *_ = out.splitlines()[-1].split()
    assert mean == f"{sum(spreads) / 2:.3f}"
    assert deviation == f"+-{abs(spreads[0] - spreads[1]) / 2**0.5:.3f}"
    assert out.startswith("small: a few; 2 seeds\n")


def test_everything_is_in_the_json(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "runs.json"
    status, _, _ = run(
        f"{file} --picker random,p2c --seed 1,2 --json {written}", capsys
    )
    assert status == 0
    said = json.loads(written.read_text())
    assert {field.name for field in fields(Scenario)} < set(said)
    assert [(one["picker"], one["seed"]) for one in said["runs"]] == [
        ("random", 1), ("random", 2), ("p2c", 1), ("p2c", 2),
    ]  # fmt: skip
    assert set(Result._fields) < set(said["runs"][0])
    assert len(said["runs"][0]["utilization"]) == said["backends"]


def test_a_picture_is_drawn(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "small.png"
    status, _, _ = run(f"{file} --picker random,p2c --plot {drawn}", capsys)
    assert status == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_a_line_for_each_picker() -> None:
    scenario = Scenario(clients=2, backends=4, subset_size=2, warm_up=1.0, window=2.0)
    rows = [
        Row(load, picker, [simulate(scenario, picker, load=load, seed=1)])
        for load in (0.3, 0.5)
        for picker in ("random", "p2c")
    ]
    latencies, spreads = picture("small", rows).axes
    legend = latencies.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["random", "p2c"]
    for axes, read in ((latencies, "p99 ms"), (spreads, "max/mean")):
        column = next(column for column in COLUMNS if column.head == read)
        line = axes.containers[0][0]
        assert list(line.get_xdata()) == [0.3, 0.5]
        assert list(line.get_ydata()) == pytest.approx(
            [column.read(rows[i].results[0]) for i in (0, 2)]
        )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "scenario = None: want a scenario, or else --list"),
        ("--list S2_diverse", "want a scenario, or else --list"),
        ("S2", "scenario = 'S2': want a file that ends in .toml, or one of S0_start"),
        ("/no/such.toml", "scenario = '/no/such.toml': want a file that can be read"),
        ("S2_diverse --picker best", "picker = 'best': want some of random, round_"),
        ("S2_diverse --load much", "load = 'much': want numbers with commas between"),
        ("S2_diverse --load nan", "loads = nan: want a number, 0.001 to 100"),
        ("S2_diverse --load 0", "loads = 0.0: want a number, 0.001 to 100"),
        ("S2_diverse --seed 1.5", "seed = '1.5': want whole numbers with commas"),
        ("S2_diverse --picker p2c,random,p2c", "picker = 'p2c': want each only once"),
        ("S2_diverse --load 0.5,0.50", "load = 0.5: want each only once"),
        ("S2_diverse --seed 1,2,1", "seed = 1: want each only once"),
        ("S2_diverse --plot x.gif", "plot = 'x.gif': want a name that ends in .png"),
    ],
)
def test_what_cannot_be_is_refused_before_any_run(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(words, capsys)
    assert (status, out) == (2, "")
    assert err.startswith("lbclient sim: ")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "backends = ",
            "wrong.toml: scenario = 'Invalid value (at end of document)': want TOML",
        ),
        ("backend = 3", "backend = 3: want one of "),
        ("backends = 0", "backends = 0: want a whole number, 1 to 10000"),
        ("backends = 2.5", "backends = 2.5: want a whole number"),
        ("backends = true", "backends = True: want a whole number"),
        ("cost = '1'", "cost = '1': want a number, 1e-06 to 1000"),
        ("costs = 'dear'", "costs = 'dear': want one of lognormal, "),
        ("subset = 'mine'", "subset = 'mine': want one of random, "),
        ("summary = 3", "summary = 3: want text"),
        ("admission = 1", "admission = 1: want true or false"),
        ("speeds = 1", "speeds = 1: want a list of numbers"),
        ("speeds = []", "speeds = (): want a list of numbers, one at least"),
        ("speeds = ['fast']", "speeds = 'fast': want a number, 0.01 to 100"),
        ("throttle = 1", "throttle = 1: want 0, or 1.05 to 1000"),
        ("sinkholes = 40", "sinkholes = 40: want fewer than backends"),
        ("event_loop = true\nwait = 1", "wait = 1: want 0 where event_loop is true"),
        (
            "zones = 2\nzone_traffic = [2]\nhot_share = 0.1",
            "hot_share = 0.1: want 0 where zone_traffic is not 1",
        ),
        (
            "zones = 2\nzone_priorities = [0, 0.5]",
            "zone_priorities = 0.5: want a whole number, 0 to 65535",
        ),
        ("slowed = 41", "slowed = 41: want no more than backends"),
        ("liars = 41", "liars = 41: want no more than backends"),
        ("[fleet]", "fleet = {}: want one of "),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    status, _, err = run(str(path), capsys)
    assert status == 2
    assert err.startswith(f"lbclient sim: {path}: ")
    assert complaint in err


def test_a_window_without_requests_is_refused(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_text(SMALL + "cost = 900\n")
    status, _, err = run(f"{file} --load 0.001", capsys)
    assert status == 2
    assert "window = 2" in err


def test_what_cannot_be_written_is_said_before_anything_is_played(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{file} --picker random --json /no/such/runs.json"
    status, out, err = run(words, capsys)
    assert (status, out) == (2, "")
    assert "json = '/no/such/runs.json': want a file that can be written: No" in err


def test_matplotlib_is_missed_before_anything_is_played(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if not installed
    status, out, err = run(f"{file} --picker random --plot a.png", capsys)
    assert (status, out) == (2, "")
    assert "plot = 'a.png': want matplotlib, which is not installed: pip" in err
    assert not Path("a.png").exists()


def test_what_is_played_is_told(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    words = f"{file} --picker random,p2c --load 0.3,0.4 --seed 7,8"
    assert compare(parse_arguments(words.split()), told.append) == 0
    assert told[0] == "load 0.3, random, seed 7: run 1 of 8"
    assert told[-2:] == ["load 0.4, p2c, seed 8: run 8 of 8", ""]
    assert capsys.readouterr().err == ""


def test_an_error_does_not_go_on_in_the_line_of_what_is_played(tmp_path: Path) -> None:
    path = tmp_path / "seldom.toml"
    path.write_text("cost = 900\nwarm_up = 0\nwindow = 1")
    told: list[str] = []
    words = f"{path} --picker random --load 0.001 --seed 1"
    with pytest.raises(ConfigError, match="want a longer one: no request"):
        compare(parse_arguments(words.split()), told.append)
    assert told == ["load 0.001, random, seed 1: run 1 of 1", ""]


def test_ctrl_c_shows_what_is_known(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(what: str) -> None:
        if what.endswith("run 4 of 4"):
            raise KeyboardInterrupt

    written = tmp_path / "runs.json"
    words = f"{file} --picker random,p2c --load 0.3,0.4 --json {written}"
    with pytest.raises(KeyboardInterrupt):
        compare(parse_arguments(words.split()), interrupt)
    _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row[:12].split() for row in rows] == [
        ["0.3", "random"],
        ["p2c"],
        ["0.4", "random"],
    ]
    assert not written.exists()


def test_the_command_needs_no_matplotlib_for_a_table(file: str) -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from lbclient.cli import main
sys.exit(main(["sim", sys.argv[1], "--picker", "random"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_facts_are_json_whatever_is_in_them() -> None:
    scenario = Scenario(clients=1, backends=2, subset_size=2, warm_up=1.0, window=1.0)
    row = Row(0.3, "p2c", [simulate(scenario, "p2c", load=0.3, seed=1)])
    text = json.dumps(facts("x", scenario, [row], [1]), allow_nan=False)
    assert '"p2c"' in text


def test_every_field_is_on_the_page_with_its_default_and_bounds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| .+ \|$", page, re.MULTILINE)
    found = {name: (default, values) for name, default, values in rows}
    for field in fields(Scenario):
        default, values = found[field.name]
        given = int(float(default)) if type(field.default) is int else default
        text = f"{field.name} = {given}"
        assert getattr(parse(text), field.name) == field.default
        if type(field.default) in (int, float, tuple):
            low, high = BOUNDS.get(field.name, (0.0, 1000.0))
            assert values.endswith(f"{low:g} to {high:g}") or field.name == "throttle"


def test_the_fleet_on_the_page_can_be_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In less time than there, so with other numbers."""
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (words, shown) = re.findall(
        r"    \$ lbclient sim fleet.toml (.*)\n((?:    .*\n)+)", page
    )[0]
    file = tmp_path / "fleet.toml"
    file.write_text(re.sub(r"(warm_up|window) = .*", r"\1 = 1", text))
    status, out, _ = run(f"{file} {words}", capsys)
    assert status == 0
    title, head, _, *rows = out.splitlines()
    there, head_there, _, *rows_there = shown.splitlines()
    assert title == there.strip()
    assert head.split() == head_there.split()
    numbers = 2 * (len(COLUMNS) + 1)  # each with its deviation; the sinkhole's share
    named, named_there = (
        [row.split()[:-numbers] for row in table] for table in (rows, rows_there)
    )
    assert named == named_there
