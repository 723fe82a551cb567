"""What holds of every command: help with an example, JSON, statuses, plain text.

A command that comes later is in `COMMANDS`, and so is tested with the others.
"""

import os
import re
import subprocess
import sys

import pytest

from lbclient.cli import COMMANDS, main, module_of
from tests.terminal import on_a_terminal

ALL = [*COMMANDS, "sim book"]  # which is a command within one

SERVES = {"proxy"}  # and so leaves in order at Ctrl-C
SCRIPTS = {"completion"}  # writes for a shell

ESCAPE = "\x1b"


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ALL)
def test_help_has_an_example_that_begins_with_the_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(command, capsys)
    assert re.search(rf"^examples?:\n  lbclient {command} ", text, re.MULTILINE)


@pytest.mark.parametrize("command", ALL)
def test_help_names_the_exit_statuses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(help_of(command, capsys).split())
    _, found, statuses = text.partition("xit status: ")
    assert found
    assert statuses.startswith("0")
    assert re.search(r"\b2\b.{0,4} for bad arguments", statuses)
    if command not in SERVES:
        assert re.search(r"\b130\b.{0,4} after Ctrl-C", statuses)


@pytest.mark.parametrize("command", [one for one in ALL if one not in SCRIPTS])
def test_every_command_speaks_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(r"^  --json\b", help_of(command, capsys), re.MULTILINE)


@pytest.mark.parametrize("command", ALL)
def test_bad_arguments_are_status_2_and_said_on_stderr(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--no-such-option"])
    out, complaint = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert f"lbclient {command}" in complaint


def test_completion_without_its_extra_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)  # as if it were not installed
    assert main(["completion", "bash"]) == 2
    out, complaint = capsys.readouterr()
    want = "want shtab to be installed: pip install 'lbclient[completion]'"
    assert (out, want in complaint) == ("", True)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(rf"^  {command} +\w", help_of("", capsys), re.MULTILINE)
    assert callable(module_of(command).main)


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "probe --timeout 0.2 127.0.0.1:1",
        "resolve ipv4:127.0.0.1:1",
        "doctor --timeout 0.5 ipv4:127.0.0.1:1",
        "inspect 127.0.0.1:1",
        "sim --list",
        "subset --size 5",
        "subset --no-such-option",
    ],
)
def test_without_colour_nothing_is_coloured(words: str) -> None:
    """As Python's own argparse does from 3.14 on, but for NO_COLOR."""
    shown = on_a_terminal("-m", "lbclient", *words.split())
    assert shown.strip()
    assert ESCAPE not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("probe --timeout 0.2 127.0.0.1:1", "127.0.0.1:1 \x1b[31mno answer\x1b[0m, c"),
        ("doctor --timeout 0.5 ipv4:127.0.0.1:1", "\x1b[31mfail\x1b[0m  answer"),
        ("doctor --timeout 0.5 ipv4:127.0.0.1:1", "\x1b[33mwarn\x1b[0m  target"),
        ("doctor --timeout 0.5 ipv4:127.0.0.1:1", "\x1b[32mok  \x1b[0m  proxy"),
    ],
)
def test_a_terminal_gets_colours(words: str, said: str) -> None:
    shown = on_a_terminal("-m", "lbclient", *words.split(), no_color="")
    assert said in shown
    shown = on_a_terminal("-m", "lbclient", *words.split(), no_color="", term="dumb")
    assert shown.strip()
    assert ESCAPE not in shown


@pytest.mark.parametrize("command", ["probe 127.0.0.1:1", "doctor ipv4:127.0.0.1:1"])
@pytest.mark.parametrize("json", ["", "--json"])
def test_what_is_piped_or_json_has_none(command: str, json: str) -> None:
    words = [*command.split(), "--timeout", "0.2", *json.split()]
    env = {name: os.environ[name] for name in os.environ if name != "NO_COLOR"}
    done = subprocess.run(
        [sys.executable, "-m", "lbclient", *words],
        capture_output=True, text=True, timeout=60, env=env,
    )  # fmt: skip
    assert done.stdout.strip()
    assert ESCAPE not in done.stdout
    if json:
        shown = on_a_terminal("-m", "lbclient", *words, no_color="")
        assert shown.strip()
        assert ESCAPE not in shown


# What the demo, the one command that draws, shows its scenes by.
DRAWING = """
from examples.fleet.view import Row, Scene, choose_view
with choose_view() as view:
    view.say("starting")
    view.show(Scene("calm", 1.0, (Row("a", 1.0, 0.5, "ready", 9.0, 1.0, 1, ""),)))
"""


def test_the_demo_draws_in_colour_but_for_no_color() -> None:
    assert ESCAPE in on_a_terminal("-c", DRAWING, no_color="")
    shown = on_a_terminal("-c", DRAWING)
    assert "starting" in shown
    assert ESCAPE not in shown
