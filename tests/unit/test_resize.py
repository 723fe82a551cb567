"""What the resize benchmark says of its steps, and when it complains."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.resize import JOBS, Plan, Step, as_json, draw, main, say_step

GONE = "UNAVAILABLE: gone"
SOUND = Step(
    *("20 -> 21", "rocksteadier", True),
    *(3, 2),
    opened=3,
    closed=2,
    calls=1500,
    p99=1.25,
)
LOST = replace(SOUND, failures={GONE: 2})


@pytest.mark.parametrize(
    ("step", "is_sound"),
    [
        (SOUND, True),
        (LOST, False),
        (replace(SOUND, opened=4), False),
        (replace(SOUND, closed=3), False),
        (replace(LOST, is_resize=False, opened=4), True),
    ],
    ids=["as computed", "a failure", "one opened more", "one closed more", "restart"],
)
def test_a_resize_is_sound_that_failed_no_call_and_moved_what_was_computed(
    step: Step, is_sound: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step.is_sound is is_sound
    say_step(step)
    assert ("WRONG" not in capsys.readouterr().out) is is_sound


def test_a_row_tells_every_figure_and_each_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_step(LOST)
    row, failure = capsys.readouterr().out.splitlines()
    told = "20 -> 21 rocksteadier 3 3 2 2 1,500 2 1.25 x WRONG"
    assert row.split() == told.split()
    assert failure.strip() == f"2 x {GONE}"


def test_the_plan_and_the_failures_are_in_the_json() -> None:
    plan = Plan(2, 1, (20, 21), 1, 0.1, 0.2)
    told = as_json(plan, [LOST])
    assert told["plan"]["sizes"] == plan.sizes
    [step] = told["steps"]
    assert (step["failed"], step["failures"], step["p99"]) == (2, {GONE: 2}, LOST.p99)


def test_the_plot_is_a_picture_of_both_jobs(tmp_path: Path) -> None:
    steps = [
        replace(SOUND, job=job, name=name, is_resize=name != "restart", p99=p99)
        for name, p99 in (("20 -> 21", 1.0), ("restart", None))
        for job in JOBS
    ]
    file = tmp_path / "resize.png"
    draw(steps, str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


def complaint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """What is said at once, where the experiment would otherwise begin."""
    monkeypatch.setattr(sys, "argv", ["resize", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("--plot resize.txt", "want a name that ends in .png, .svg, .pdf"),
        ("--plot /no/such/folder/resize.png", "No such file or directory"),
        ("--json /no/such/folder/resize.json", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    words: str,
    want: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert want in complaint(monkeypatch, capsys, *words.split())


def test_without_matplotlib_a_plot_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = complaint(monkeypatch, capsys, "--plot", "resize.png")
    assert "needs matplotlib: pip install 'lbclient[plot]'" in said
