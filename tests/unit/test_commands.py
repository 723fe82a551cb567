"""What holds of every command: help with an example, JSON, statuses, plain text.

A command that comes later is in `COMMANDS`, and so is tested with the others.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lbclient.cli import COMMANDS, main, module_of

ALL = [*COMMANDS, "sim book"]  # which is a command within one

SERVES = {"proxy"}  # and so leaves in order at Ctrl-C

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


@pytest.mark.parametrize("command", ALL)
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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(rf"^  {command} +\w", help_of("", capsys), re.MULTILINE)
    assert callable(module_of(command).main)


def on_a_terminal(*words: str, no_color: str = "1") -> str:
    """What is shown, by a Python that may use colour but for NO_COLOR."""
    terminal, there = pty.openpty()
    env = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm-256color"}
    command = [sys.executable, *words]
    process = subprocess.Popen(
        command, stdout=there, stderr=there, env=env, cwd=Path(__file__).parents[2]
    )
    os.close(there)
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # the process has closed its end
        pass
    finally:
        os.close(terminal)
        process.wait(timeout=60)
    return shown.decode()


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
