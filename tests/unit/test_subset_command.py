"""`lbclient subset` says what is so, in 80 columns, and what is wrong, in one line."""

import json
import re
import subprocess
import sys
from itertools import islice, pairwise
from math import pi
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch

from lbclient.cli import main
from lbclient.cli.lab.subset_answers import CHOOSERS, Fleet
from lbclient.cli.lab.subset_plots import (
    CLIENT,
    MARKED,
    PICTURES,
    RINGS,
    Scene,
)
from lbclient.cli.layout import histogram, ratio, short
from lbclient.subsets import ALGORITHMS, job_offset, subset
from lbclient.subsets.advice import Adviser, Bursts
from lbclient.subsets.numbered import ROCKSTEADIER
from lbclient.subsets.properties import (
    balance,
    choose,
    churn,
    diversity,
    scenarios,
    spread,
)

ROOT = Path(__file__).parents[2]

Capture = pytest.CaptureFixture[str]


def text(capsys: Capture, *arguments: str) -> str:
    assert main(["subset", *arguments]) == 0
    output, complaints = capsys.readouterr()
    assert complaints == ""
    return output


def facts(capsys: Capture, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(capsys, *arguments, "--json"))
    return found


SMALL = ("--clients", "50", "--backends", "73", "--size", "9")


def test_a_report_has_the_properties_of_the_algorithm(capsys: Capture) -> None:
    found = facts(capsys, *SMALL, "--algorithm", "random", "--resize", "80")
    subsets = choose(ALGORITHMS["random"], 50, 73, 9)
    even = balance(subsets, 73)
    assert found["connections"]["utilization"] == even.utilization
    assert found["connections"]["most"] == even.most
    assert found["connections"]["total"] == 50 * 9
    assert sum(found["connections"]["histogram"].values()) == 73
    assert found["diversity"]["distinct"] == diversity(subsets).distinct
    moved = churn(subsets, choose(ALGORITHMS["random"], 50, 80, 9))
    assert found["churn"]["mean"] == moved.mean
    assert found["spread"]["max_share"] == spread(subsets, 8).max_share


def test_a_report_shows_what_is_in_its_facts(capsys: Capture) -> None:
    found = facts(capsys, *SMALL)
    words = " ".join(text(capsys, *SMALL).split())
    even = found["connections"]
    assert f"connections {50 * 9} in all, {even['least']} to {even['most']} " in words
    assert f"provisioned for {even['max_over_mean']:.2f} x the mean" in words
    assert f"{found['diversity']['distinct']} distinct subsets" in words
    assert "73 -> 74 a client opens" in words


WORKERS = ("--clients", "40", "--backends", "60", "--workers", "8")


def test_workers_are_as_even_as_the_facts_say(capsys: Capture) -> None:
    found = facts(capsys, *WORKERS)
    assert found["workers_of_each_task"] == 5
    assert found["connections_of_a_client"] == 100
    assert found["connections_with_all_workers"] == 160
    each = found["connections_of_a_worker"]
    assert each["mean"] == 40 * 100 / (60 * 8)
    assert each["fewest"] > 0.7 * each["mean"]
    assert each["most"] < 1.25 * each["mean"]
    # A client swaps two tasks at most, with the workers that it has of them.
    assert 0 < found["opened_for_one_more_task"]["mean"] < 2 * 5
    assert found["opened_for_one_more_task"]["most"] <= 2 * 5
    assert "max_connections=160 connects each client" in text(capsys, *WORKERS)
    all_ = text(capsys, *WORKERS, "--max-connections", "160")
    assert "8 of 8 workers of each task" in all_
    assert "connects each client" not in all_


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--workers", "0"), "workers = 0: want a whole number, 1 to 64"),
        (("--workers", "65"), "workers = 65: want a whole number, 1 to 64"),
        (
            ("--workers", "2", "--max-connections", "x"),
            "max_connections = 'x': want a whole number, 1 to 1000000",
        ),
        (("--max-connections", "9"), "max_connections = 9: want --workers beside it"),
        (("--workers", "2", "--resize", "9"), "resize = 9: want no --workers beside"),
        (
            ("--workers", "64", "--clients", "50000", "--max-connections", "10000"),
            "clients = 50000: want fewer: ",
        ),
    ],
)
def test_wrong_workers_are_refused(
    words: tuple[str, ...], complaint: str, capsys: Capture
) -> None:
    assert main(["subset", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_table_compares_all_algorithms_that_choose(capsys: Capture) -> None:
    found = facts(capsys, *SMALL, "--compare")["algorithms"]
    assert [*found] == CHOOSERS == [name for name in ALGORITHMS if name != "whole"]
    output = text(capsys, *SMALL, "--compare")
    for name, each in found.items():
        (row,) = re.findall(rf"^{name} +(.*)$", output, re.MULTILINE)
        assert row.split()[:2] == [
            f"{each['connections'][key]:.2f}"
            for key in ("max_over_mean", "min_over_mean")
        ]


def test_a_table_says_what_all_backends_for_all_clients_would_cost(
    capsys: Capture,
) -> None:
    lines = text(capsys, *SMALL, "--compare").splitlines()
    assert lines[0].endswith(f": {50 * 9} connections")
    assert lines[-1].endswith(f"for each client: {50 * 73:,} connections")


def test_advice_has_the_connections_of_every_size(capsys: Capture) -> None:
    rows = re.findall(r"^ +(\d+) +([\d,]+) ", text(capsys, "--advise", *SMALL), re.M)
    assert rows
    assert [total for _, total in rows] == [f"{50 * int(size):,}" for size, _ in rows]


def test_whole_is_all_backends_whatever_the_size(capsys: Capture) -> None:
    found = facts(capsys, *SMALL, "--algorithm", "whole", "--resize", "80")
    assert found["size"] == 73
    assert found["connections"]["least"] == found["connections"]["most"] == 50
    assert found["churn"] == {"mean": 7.0, "most": 7, "ideal": 7.0}
    one = facts(capsys, *SMALL, "--algorithm", "whole", "--client", "7")
    assert one["subset"] == [*range(7, 73), *range(7)]
    assert one["replacements"] == []
    assert one["opened"] == [73]


def test_auto_is_what_a_channel_takes_where_all_have_numbers(capsys: Capture) -> None:
    assert facts(capsys, "--algorithm", "auto") == facts(capsys)
    assert facts(capsys)["algorithm"] == ROCKSTEADIER


@pytest.mark.parametrize(
    "arguments",
    [
        "--clients 1 --backends 1 --size 1",
        "--clients 1 --backends 2 --size 1 --advise",
        "--clients 1 --backends 1 --client 0 --resize 1",
        "--clients 1 --backends 2 --size 1 --compare",
    ],
)
def test_one_of_anything_is_not_many(arguments: str, capsys: Capture) -> None:
    words = text(capsys, *arguments.split())
    nouns = "clients|connections|backends|subsets|neighbours|distinct subsets"
    assert re.findall(rf"(?<![\d,.])1 (?:{nouns})\b", words) == []


def test_one_client_is_told_its_subset_and_the_next(capsys: Capture) -> None:
    found = facts(capsys, "--backends", "1000", "--client", "7", "--resize", "900")
    preferred = subset("rocksteadier", 7, 1000, 25)
    assert found["subset"] == preferred[:20]
    assert found["replacements"] == preferred[20:]
    after = subset("rocksteadier", 7, 900, 20)
    assert set(found["opened"]) == set(after) - set(found["subset"]) != set()
    assert set(found["dropped"]) == set(found["subset"]) - set(after)


def test_another_job_has_other_subsets(capsys: Capture) -> None:
    moved = facts(capsys, "--client", "7", "--offset", "3")
    assert moved["subset"] == subset("rocksteadier", 7, 300, 20, offset=3)
    assert moved["subset"] != facts(capsys, "--client", "7")["subset"]


def test_a_job_has_the_subsets_of_its_name(capsys: Capture) -> None:
    named = facts(capsys, "--client", "7", "--client-job", "web")
    assert named["offset"] == job_offset("web")
    assert named["subset"] == subset(ROCKSTEADIER, 7, 300, 20, offset=job_offset("web"))


def test_advice_is_the_adviser_s(capsys: Capture) -> None:
    arguments = ("--advise", *SMALL, "--hot-share", "0.1", "--hot-traffic", "0.4")
    found = facts(capsys, *arguments)
    adviser = Adviser(
        ALGORITHMS["rocksteadier"], 50, 73, rng=Random(1), bursts=Bursts(0.1, 0.4)
    )
    even, bursty = adviser.even(1.25, 9), adviser.bursty(1.25, 9)
    assert found["even"]["size"] == even.size
    assert found["bursty"]["bursty"] == bursty.bursty
    assert {even.size, bursty.size} <= {each["size"] for each in found["sizes"]}
    words = " ".join(text(capsys, *arguments).split())
    assert f"If clients send alike, {even.size} backends" in words
    assert f"Through such bursts, {bursty.size} backends" in words


def test_without_bursts_only_even_clients_are_advised(capsys: Capture) -> None:
    assert facts(capsys, "--advise", *SMALL)["bursty"] is None
    output = text(capsys, "--advise", *SMALL)
    assert "bursts" not in output
    assert "worst" not in output


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--clients 3 --backends 123456",
        "--clients 40 --backends 60 --size 30 --compare",
        "--clients 3 --backends 500 --size 1 --compare",
        "--client 123456789 --backends 1000000",
        "--advise --clients 20 --backends 1000 --hot-share 0.1 --hot-traffic 0.2",
        "--clients 1 --backends 1 --size 1",
    ],
)
def test_every_line_fits_into_80_columns(arguments: str, capsys: Capture) -> None:
    lines = text(capsys, *arguments.split()).splitlines()
    assert max(map(len, lines)) <= 80


def test_the_help_fits_too(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["subset", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_histogram_of_many_values_counts_all_of_them() -> None:
    rows = list(histogram({57: 1, 90: 200, 109: 3}))
    assert len(rows) <= 13
    counts = [int(found[1]) for row in rows if (found := re.search(r"(\d+)  #", row))]
    assert counts == [1, 200, 3]


def test_numbers_have_as_many_digits_as_are_worth_reading() -> None:
    assert [ratio(value) for value in (0.0, 1.049, 12.34, 166.67)] == [
        *("0.00", "1.05", "12.3", "167"),
    ]
    assert [short(value) for value in (0.0, 0.019802, 15.257, 1234.5)] == [
        *("0", "0.0198", "15.3", "1,234"),
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--size 0", "size = 0: want a whole number, at least 1"),
        ("--size few", "size = 'few': want a whole number, at least 1"),
        ("--clients -1", "clients = -1: want a whole number, at least 1"),
        ("--backends 0", "backends = 0: want a whole number, at least 1"),
        ("--resize 0", "resize = 0: want a whole number, at least 1"),
        ("--client -3", "client = -3: want a whole number, at least 0"),
        ("--offset -1", "offset = -1: want a whole number, at least 0"),
        ("--algorithm best", "algorithm = 'best': want one of random, "),
        ("--advise --excess 0.9", "excess = 0.9: want a number, at least 1"),
        ("--advise --excess nan", "excess = nan: want a number, at least 1"),
        ("--advise --hot-share 0.1", "hot_traffic = None: want a number above 0"),
        ("--advise --hot-share 2 --hot-traffic 1", "hot_share = 2.0: want a number"),
        ("--clients 1000000", "clients = 1000000: want at most 250000"),
        ("--backends 9000000", "backends = 9000000: want at most 5000000"),
        ("--figure ring", "figure = 'ring': want --plot beside it"),
        ("--plot x.png --compare", "plot = 'x.png': want no --compare beside it"),
        ("--plot x.png --advise", "plot = 'x.png': want no --advise beside it"),
        ("--advise --resize 9", "resize = 9: want no --advise beside it"),
        ("--compare --algorithm random", "algorithm = 'random': want no --compare "),
        ("--hot-share 0.1", "hot_share = 0.1: want --advise beside it"),
        ("--hot-traffic 0.1", "hot_traffic = 0.1: want --advise beside it"),
        ("--excess 2", "excess = 2.0: want --advise beside it"),
        ("--offset 0 --client-job web", "offset = 0: want no --client-job beside it"),
        ("--clients 5 --client 5", "client = 5: want a number below --clients, 5"),
        ("--plot x.png --client 0", "client = 0: want another figure than distrib"),
        ("--plot x.png --resize 9", "resize = 9: want another figure than distrib"),
        ("--plot x.png --figure ring --algorithm random", "another figure than ring"),
        (
            "--algorithm whole --advise",
            "algorithm = 'whole': want an algorithm that chooses",
        ),
        ("--plot x.gif", "plot = 'x.gif': want a name that ends in .png"),
        (
            "--plot /no/such/folder/x.png",
            "plot = '/no/such/folder/x.png': want a file that can be written: No such",
        ),
        ("--figure ring --plot x.png --client 4", "client = 4: want a number below 4"),
        ("--figure ring --plot x.png --backends 5", "clients = 300: want --clients of"),
        (
            "--figure ring --plot x.png --backends 25 --clients 4",
            "backends = 25: want --backends of at most 24",
        ),
        ("--figure churn --plot x.png --size 21 --backends 30", "size = 21: want at"),
        ("--figure utilization --plot x.png --size 301", "size = 301: want at most"),
        ("--figure utilization --plot x.png --clients 1", "clients = 1: want at least"),
    ],
)
def test_bad_arguments_end_with_one_line_and_status_two(
    arguments: str,
    complaint: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["subset", *arguments.split()]) == 2
    output, complaints = capsys.readouterr()
    assert output == ""
    assert complaints.startswith("lbclient subset: ")
    assert complaint in complaints
    assert complaints.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_a_picture_needs_matplotlib() -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from lbclient.cli import main
assert main(["subset", "--clients", "3", "--backends", "4", "--size", "2"]) == 0
sys.exit(main(["subset", "--plot", "x.png"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    want = "matplotlib, which is not installed: pip install 'lbclient[plot]'"
    assert want in done.stderr
    assert done.stderr.count("\n") == 1
    assert "mean 1.5" in done.stdout


def scene(algorithm: str, clients: int, backends: int, size: int) -> Scene:
    fleet = Fleet(algorithm, clients, backends, size)
    return Scene(fleet, fleet.resized(backends + 1), 1)


def points(line: Line2D) -> list[tuple[float, float]]:
    drawn: Any = line.get_xydata()
    return [(x, y) for x, y in drawn.tolist()]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_figure_is_written_and_named(
    suffix: str, capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / f"ring{suffix}"
    output = text(capsys, "--figure", "ring", "--plot", str(file))
    assert output == (
        f"ring: {file}\n4 clients with 2 of 6 backends each, the sizes of CACM 2023, "
        "figure 4\n"
    )
    start = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert file.read_bytes().startswith(start)


@pytest.mark.slow
def test_a_figure_is_of_the_article_s_sizes_only_if_none_is_given(
    capsys: Capture, tmp_path: Path
) -> None:
    file = str(tmp_path / "figure.svg")
    drawn = text(capsys, "--plot", file)
    assert "300 clients with 30 of 300 backends each, the sizes of SRE book" in drawn
    assert facts(capsys, "--plot", file, "--clients", "300")["size"] == 20
    assert "sizes of" not in text(capsys, "--plot", file, "--algorithm", "whole")
    churned = text(capsys, "--figure", "churn", "--plot", file, "--backends", "90")
    assert "300 clients with 20 of 90 backends each; the first 12 are" in churned


def test_a_picture_of_churn_tells_that_it_has_not_all_clients() -> None:
    few, many = (
        PICTURES["churn"].draw(scene("rocksteadier", clients, 10, 4))
        for clients in (12, 13)
    )
    assert few.get_supxlabel() == ""
    assert many.get_supxlabel().startswith("13 clients with 4 of 10 backends each; ")


def test_the_distribution_has_a_step_of_its_height_for_each_backend() -> None:
    figure = PICTURES["distribution"].draw(scene("random", 30, 40, 10))
    (axes,) = figure.axes
    expected = balance(choose(ALGORITHMS["random"], 30, 40, 10), 40).connections
    (steps,) = axes.patches
    assert isinstance(steps, StepPatch)
    heights, *_ = steps.get_data()
    assert tuple(heights) == expected
    assert f"most {max(expected)} " in axes.get_title()


def test_utilization_has_a_dot_for_each_scenario_and_the_algorithms_of_figure_2() -> (
    None
):
    figure = PICTURES["utilization"].draw(scene("rocksteadier", 30, 30, 10))
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.partition(",")[0] for title in titles] == [
        "random",
        "deterministic_leftover",
        "ringsteady_unscaled",
        "ringsteady",
        "rocksteadier",
        "the means",
    ]
    found = list(scenarios(ALGORITHMS["random"], 30, range(10, 31), 10))
    assert sorted(points(figure.axes[0].lines[0])) == sorted(
        (clients / backends, utilization) for clients, backends, utilization in found
    )


def test_churn_marks_what_is_gone_and_what_is_new() -> None:
    figure = PICTURES["churn"].draw(scene("rocksteadier", 6, 10, 4))
    algorithm = ALGORITHMS["rocksteadier"]
    found = churn(choose(algorithm, 6, 10, 4), choose(algorithm, 6, 11, 4))
    before, after = figure.axes[2:]
    for axes, changes in ((before, found.dropped), (after, found.opened)):
        marked = [
            label
            for label in axes.texts
            if (box := label.get_bbox_patch()) and to_hex(box.get_facecolor()) == MARKED
        ]
        assert len(marked) == sum(changes) > 0
        assert len(axes.texts) == 6 * 4


def test_no_number_in_a_picture_of_churn_hides_another() -> None:
    figure = PICTURES["churn"].draw(scene("rocksteadier", 1, 2000, 20))
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.texts]
        assert len(boxes) == 20
        for left, right in pairwise(boxes):
            assert left.x1 < right.x0


@pytest.mark.parametrize("name", RINGS)
def test_a_ring_shows_everybody_where_the_algorithm_has_them(name: str) -> None:
    figure = PICTURES["ring"].draw(scene(name, 5, 7, 7))
    axes = figure.axes[RINGS.index(name)]
    marks = [line for line in axes.lines if len(points(line)) == 1]
    angles = [points(line)[0][0] / (2 * pi) for line in marks]
    backends, clients = angles[:7], angles[7:]
    assert {line.get_color() for line in marks[7:]} == {CLIENT}
    for client, here in enumerate(clients):
        clockwise = sorted(range(7), key=lambda n: (backends[n] - here) % 1.0)
        assert clockwise == list(islice(ALGORITHMS[name](client, 7, 7), 7))


PAGE = ROOT / "docs" / "subsetting.md"
DRAWN = re.compile(r"^    (?:\$ )?.* --plot docs/(images/.+)$", re.MULTILINE)
COMMAND = re.compile(
    r"^    (\$ )?lbclient subset(.*)\n((?:(?:    .*)?\n)*)", re.MULTILINE
)


def commands() -> list[tuple[str, str, str]]:
    """What the docs have you type, and what they say that you will see."""
    return COMMAND.findall(PAGE.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [c[1] for c in commands() if c[0]])
def test_the_docs_show_what_the_command_prints(arguments: str, capsys: Capture) -> None:
    (shown,) = [output for _, given, output in commands() if given == arguments]
    assert text(capsys, *arguments.split()).strip() == dedent(shown).strip()


def test_the_docs_have_the_diversity_and_spread_of_few_and_many_backends() -> None:
    names = ("random", "ringsteady", ROCKSTEADIER)
    (table,) = re.findall(r"alike \| down \|\n.*\n((?:\|.*\n)+)", PAGE.read_text())
    for row in table.splitlines():
        backends, *shown = (
            float(cell) for cell in re.findall(r"[\d.]+", row.replace(",", ""))
        )
        computed = []
        for name in names:
            subsets = choose(ALGORITHMS[name], 200, int(backends), 20)
            lost = 20 * spread(subsets, int(backends) // 10).max_share
            computed += [round(diversity(subsets).mean_overlap, 1), round(lost)]
        assert shown == computed


@pytest.mark.parametrize("backends", [66, 82, 99, 100, 160, 326, 327, 400])
def test_one_restart_takes_from_a_client_what_the_docs_say(backends: int) -> None:
    found = re.search(
        r"(\d) of 20 at once below (\d+) backends, (\d) up to (\d+), (\d) above",
        " ".join(PAGE.read_text().split()),
    )
    assert found is not None
    few, low, some, high, many = map(int, found.groups())
    most = few if backends < low else some if backends <= high else many
    subsets = choose(ALGORITHMS[ROCKSTEADIER], 200, backends, 20)
    lost = 20 * spread(subsets, -(-backends // 10)).max_share
    assert round(lost) <= most
    if backends in (66, 160, 326):  # where it comes to that
        assert round(lost) == most


def test_the_docs_show_pictures_that_are_small_and_say_how_they_are_drawn() -> None:
    shown = re.findall(r"!\[.+\]\((.+)\)", PAGE.read_text())
    assert sorted(shown) == sorted(DRAWN.findall(PAGE.read_text()))
    for image in shown:
        assert (PAGE.parent / image).stat().st_size < 60_000


@pytest.mark.slow
@pytest.mark.parametrize("resize", ["100 -> 101", "100 -> 110", "100 -> 200"])
def test_the_docs_table_of_churn_is_what_properties_says(resize: str) -> None:
    """Its first rows; the other ones take 10 s."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines()]
    [head] = [row for row in rows if row[0] == "| from -> to"]
    [row] = [row for row in rows if row[0] == f"| {resize}"]
    before, after = map(int, resize.split(" -> "))
    names = [name.strip("`| ") for name in head[2:]]
    for name, cell in zip(names, row[2:], strict=True):
        found = churn(
            choose(ALGORITHMS[name], 1000, before, 20),
            choose(ALGORITHMS[name], 1000, after, 20),
        )
        assert cell.strip("| ") == f"{found.mean:.2f}, {found.most}"
