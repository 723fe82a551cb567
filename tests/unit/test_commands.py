"""What holds of every command: help with an example, JSON, statuses.

A command that comes later is in `COMMANDS`, and so is tested with the others.
"""

import re
import sys

import pytest

from lbclient.cli import COMMANDS, main, module_of

ALL = [*COMMANDS, "sim book"]  # which is a command within one

SERVES = {"proxy", "serve"}  # and so leaves in order at Ctrl-C
SCRIPTS = {"completion"}  # writes for a shell


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


def test_ctrl_c_ends_every_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    for command in COMMANDS:
        monkeypatch.setattr(module_of(command), "main", interrupted)
        assert main([command]) == 130
