"""A script by which a shell completes the commands and options of this program.

shtab, an extra, writes it from the parsers of all commands.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from lbclient.core.errors import ConfigError

EPILOG = """\
Needs the extra completion: pip install 'lbclient[completion]'. The script has the
commands and options of this version: write it again after an update.

examples:
  lbclient completion bash > ~/.local/share/bash-completion/completions/lbclient
  lbclient completion zsh > ~/.zfunc/_lbclient      with ~/.zfunc in fpath

Exit status: 0; 1 if the output cannot be written; 2 for bad arguments, also without
shtab; 130 after Ctrl-C; 141 if the reader of the output has gone.
"""


def main(argv: list[str]) -> int:
    given = make_parser().parse_args(argv)
    try:
        print(script(given.shell))
    except ConfigError as error:
        print(f"lbclient completion: {error}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient completion",
        description="Prints a script by which a shell completes lbclient's commands.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "shell", metavar="SHELL", help="bash or zsh, or another of shtab's"
    )
    return parser


def script(shell: str) -> str:
    """Raises ConfigError for a shell that shtab does not know, or without shtab."""
    try:
        shtab = import_module("shtab")  # untyped where it is not installed
    except ModuleNotFoundError:
        want = "shtab to be installed: pip install 'lbclient[completion]'"
        raise ConfigError("completion", shell, want) from None
    if shell not in shtab.SUPPORTED_SHELLS:
        raise ConfigError("shell", shell, f"one of {', '.join(shtab.SUPPORTED_SHELLS)}")
    text: str = shtab.complete(whole(shtab), shell=shell)
    return text


def whole(shtab: Any) -> argparse.ArgumentParser:
    """Builds one parser of all commands, for shtab to read."""
    from lbclient import cli

    parser = cli.make_parser()
    commands = parser.add_subparsers(dest="command")
    scenarios = (*cli.module_of("sim").SCENARIOS, "book")
    for name, summary in cli.COMMANDS.items():
        parents = [cli.module_of(name).make_parser()]
        own = commands.add_parser(name, parents=parents, add_help=False, help=summary)
        for action in own._actions:
            complete(action, shtab, scenarios)
    return parser


def complete(action: Any, shtab: Any, scenarios: Sequence[str]) -> None:
    """Says what an argument can be, where its parser does not."""
    if action.metavar == "FILE":
        action.complete = shtab.FILE
    elif action.metavar == "SCENARIO":
        action.choices = scenarios
    elif action.metavar == "SHELL":
        action.choices = shtab.SUPPORTED_SHELLS
    elif action.choices:
        action.choices = list(action.choices)  # a dict: shtab 1.7 wants a sequence
