"""Lint, layout and types: one command, pytest, runs them all."""

from collections.abc import Callable

Run = Callable[..., str]


def test_the_linter_has_nothing_to_say(module: Run) -> None:
    module("ruff", "check", ".")


def test_every_file_is_formatted(module: Run) -> None:
    module("ruff", "format", "--check", ".")


def test_every_type_is_right(module: Run) -> None:
    module("mypy")


def test_every_type_of_the_programs_is_right(module: Run) -> None:
    # Programs import their neighbours by bare names, so they get a run of their own.
    module("mypy", "examples", env={"MYPYPATH": "examples/fleet"})
