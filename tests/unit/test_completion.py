"""`lbclient completion`: a shell that has read its script completes our commands."""

import re
import subprocess
from pathlib import Path

import pytest

from lbclient.cli import COMMANDS, main, module_of
from tests import needs

shtab = needs.module("shtab")


@pytest.fixture
def bash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "lbclient"
    script.write_text(capsys.readouterr().out)
    return script


def completed(script: Path, words: str) -> set[str]:
    """What a real bash offers for the last of the words, which may be empty."""
    typed = words.split(" ")
    line = " ".join(f"'{word}'" for word in typed)
    program = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(typed) - 1}\n"
        "name=$(complete -p lbclient | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
        '$name; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        capture_output=True, text=True, timeout=60, check=True, cwd=script.parent,
    )  # fmt: skip
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_what_options_take(bash: Path) -> None:
    assert completed(bash, "lbclient pro") == {"probe", "proxy"}
    assert completed(bash, "lbclient doctor --tls-n") == {"--tls-name"}
    assert completed(bash, "lbclient doctor --cac") == {"--cacert"}
    assert bash.name in completed(bash, "lbclient probe --tls-ca lb")
    assert completed(bash, "lbclient sim bo") == {"book"}
    assert "S2_diverse" in completed(bash, "lbclient sim S2")
    assert "zsh" in completed(bash, "lbclient completion zs")
    assert "ring" in completed(bash, "lbclient subset --figure ri")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_script_has_every_command_and_option(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert set(COMMANDS) <= words
    for command in COMMANDS:
        options = module_of(command).make_parser()._option_string_actions
        assert set(options) <= words, command


def test_zsh_is_told_for_what_the_script_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef lbclient\n")


def test_a_shell_that_shtab_does_not_know_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "cmd"]) == 2
    want = "lbclient completion: shell = 'cmd': want one of bash, zsh"
    assert capsys.readouterr().err.startswith(want)
