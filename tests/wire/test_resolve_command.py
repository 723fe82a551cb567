"""`lbclient resolve` as people and scripts run it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbclient.cli import main
from lbclient.cli.operate import resolve
from lbclient.core.model import Endpoint
from lbclient.resolvers import Static

COMMAND = [sys.executable, "-u", "-m", "lbclient", "resolve"]

GROUPS = [
    {"targets": ["10.0.0.2:50051"], "labels": {"task": "1", "zone": "b"}},
    {"targets": ["10.0.0.1:50051"], "labels": {"task": "0", "weight": "2.5"}},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "backends.json"
    path.write_text(json.dumps(GROUPS))
    return path


def test_a_table_tells_what_is_known_of_each(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resolve", f"file://{path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["endpoints", "2"] for line in lines)
    assert any("2 numbered backends" in line for line in lines)
    assert lines[-2].split() == ["10.0.0.1:50051", "0", "-", "2.5"]
    assert lines[-1].split() == ["10.0.0.2:50051", "1", "b", "1"]


def test_json_has_the_same(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "--json", f"file://{path}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert str(path) in told["resolver"]
    assert told["numbers"] == "2 numbered backends"
    assert told["endpoints"] == [
        {
            "address": "10.0.0.1:50051",
            "task": 0,
            "zone": "",
            "priority": 0,
            "weight": 2.5,
            "lame_duck": False,
        },
        {
            "address": "10.0.0.2:50051",
            "task": 1,
            "zone": "b",
            "priority": 0,
            "weight": 1.0,
            "lame_duck": False,
        },
    ]


def test_it_asks_with_the_settings_of_the_target_s_table(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "lb.toml"  # what is wrong together is found where it is used
    file.write_text(f"[channel.'file://{path}']\nconnect_backoff = 9\n")
    monkeypatch.setenv("LBCLIENT_CONFIG", str(file))
    assert main(["resolve", f"file://{path}"]) == 2
    assert "max_connect_backoff = 5.0" in capsys.readouterr().err
    assert main(["resolve", "ipv4:127.0.0.1:1"]) == 0


def test_a_lame_duck_is_marked_and_no_member(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leaves = {"targets": ["10.0.0.3:50051"], "labels": {"lame_duck": "true"}}
    path.write_text(json.dumps([*GROUPS, leaves]))
    assert main(["resolve", f"file://{path}"]) == 0
    out = capsys.readouterr().out
    assert "2 numbered backends" in out
    ends = [line.split()[-1] for line in out.splitlines()[-3:]]
    assert ends == ["-", "-", "yes"]


@pytest.mark.parametrize(
    ("jobs", "tasks"), [(("b", "b"), [3, 4]), (("b", "c"), [None, None])]
)
def test_numbers_in_names_are_shown_if_subsets_go_by_them(
    path: Path,
    jobs: tuple[str, str],
    tasks: list[int | None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As those of SRV records: each had "-" beside "2 numbered backends"."""
    targets = [f"{job}-{task}.test:1" for task, job in enumerate(jobs, 3)]
    path.write_text(json.dumps([{"targets": targets}]))
    assert main(["resolve", "--json", f"file://{path}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["task"] for each in told["endpoints"]] == tasks
    assert ("numbered backends" in told["numbers"]) is (None not in tasks)
    assert main(["resolve", f"file://{path}"]) == 0
    lines = capsys.readouterr().out.splitlines()[-2:]
    words = ["-" if task is None else str(task) for task in tasks]
    assert [line.split()[1] for line in lines] == words


def test_half_an_answer_is_shown_with_what_is_amiss() -> None:
    class Half(Static):
        trouble = "addresses may be missing"

    resolver = Half([Endpoint("a:1")])
    assert resolve.facts(resolver, resolver.endpoints)["trouble"] == Half.trouble
    assert Half.trouble in resolve.text(resolver, resolver.endpoints)


def test_no_endpoints_are_no_table(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("[]")
    assert main(["resolve", f"file://{path}"]) == 1
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert told[-2:] == [["endpoints", "0"], ["trouble", "no", "endpoints"]]
    assert main(["resolve", "--json", f"file://{path}"]) == 1
    assert json.loads(capsys.readouterr().out)["trouble"] == "no endpoints"


def test_what_cannot_be_resolved_is_status_1(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("[")
    assert main(["resolve", f"file://{path}"]) == 1
    out, complaint = capsys.readouterr()
    assert (out, complaint[:37]) == (
        "",
        "lbclient resolve: cannot use " + str(path)[:8],
    )


def test_a_bad_target_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "xds:///search"]) == 2
    assert "a scheme of dns" in capsys.readouterr().err


@contextmanager
def watching(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs until it is interrupted, which it takes for what it is."""
    with subprocess.Popen(
        [*COMMAND, "--watch", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()


def test_changes_and_errors_are_lines(path: Path) -> None:
    with watching(f"file://{path}") as process:
        assert process.stdout is not None
        while "10.0.0.2" not in (line := process.stdout.readline()):
            assert line
        path.write_text(
            json.dumps(
                [
                    {"targets": ["10.0.0.2:50051"], "labels": {"task": "7"}},
                    {"targets": ["10.0.0.3:50051"]},
                ]
            )
        )
        told = [process.stdout.readline().split()[1:] for _ in range(3)]
        assert told == [
            ["-", "10.0.0.1:50051"],
            ["~", "10.0.0.2:50051", "task", "7"],
            ["+", "10.0.0.3:50051"],
        ]
        path.write_text(json.dumps([{"targets": ["b-1.test:1", "b-2.test:1"]}]))
        told = [process.stdout.readline().split()[1:] for _ in range(4)]
        assert told[2:] == [["+", f"b-{n}.test:1", "task", f"{n}"] for n in (1, 2)]
        path.write_text("[")
        assert process.stdout.readline().split()[1:4] == ["!", "cannot", "use"]
        path.write_text(json.dumps(GROUPS[:1]))
        told = [process.stdout.readline().split()[1:] for _ in range(3)]
        assert told == [
            ["+", "10.0.0.2:50051", "task", "1", "zone", "b"],
            ["-", "b-1.test:1"],
            ["-", "b-2.test:1"],
        ]


def test_a_watch_in_json_is_a_line_for_each_answer_and_error(path: Path) -> None:
    with watching("--json", f"file://{path}") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert [each["task"] for each in first["endpoints"]] == [0, 1]
        path.write_text("[")
        second = json.loads(process.stdout.readline())
        assert "cannot use" in second["error"]
        assert first["at"] <= second["at"]


def test_nothing_of_what_is_told_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "backends.json"
    group = {"targets": ["unix:/\x1b[2J"], "labels": {"zone": "b\r\n"}}
    path.write_text(json.dumps([group]))
    assert main(["resolve", f"file://{path}"]) == 1
    (complaint,) = capsys.readouterr().err.splitlines()
    assert "group 0: targets: address = 'unix:/\\x1b[2J': want" in complaint
