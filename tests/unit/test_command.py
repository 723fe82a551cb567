"""A command whose output goes nowhere ends as other programs do."""

import os
import subprocess
import sys
from signal import SIGPIPE

import pytest

# Writes in pieces, each at once, or all at the end.
UNBUFFERED = ["1", ""]
SMALL = "--clients 10 --backends 20 --size 5"


def run(words: str, output: int, unbuffered: str) -> tuple[int, str]:
    """The exit status and what is said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "lbclient", *words.split()],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", UNBUFFERED)
@pytest.mark.parametrize("words", ["subset --json", f"subset --compare {SMALL}"])
def test_a_command_whose_reader_has_gone_ends_quietly(
    words: str, unbuffered: str
) -> None:
    here, there = os.pipe()
    os.close(here)
    try:
        assert run(words, there, unbuffered) == (128 + SIGPIPE, "")
    finally:
        os.close(there)


@pytest.mark.parametrize("words", ["--help", "--version", "subset --help"])
def test_help_whose_reader_has_gone_ends_quietly(words: str) -> None:
    here, there = os.pipe()
    os.close(here)
    try:
        assert run(words, there, unbuffered="") == (128 + SIGPIPE, "")
    finally:
        os.close(there)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", UNBUFFERED)
def test_a_command_says_that_the_disk_is_full(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        status, complaints = run("subset --json", full.fileno(), unbuffered)
    assert (status, complaints) == (1, "lbclient: No space left on device\n")
