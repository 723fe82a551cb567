"""What house tests share: the checkout's root, and a way to run a program in it."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., str]


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run(root: Path) -> Run:
    """Runs a program to its end and returns its output; fails with it otherwise."""

    def run(
        *command: str | Path, cwd: Path = root, env: Mapping[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            pytest.fail(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    return run


@pytest.fixture(scope="session")
def module(run: Run) -> Run:
    """Runs a module of this environment: `module("ruff", "check", ".")`."""

    def module(name: str, *arguments: str | Path, **options: Any) -> str:
        return run(sys.executable, "-m", name, *arguments, **options)

    return module
