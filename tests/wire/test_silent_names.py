"""Commands where the system's resolver hangs: they end in time, and so do processes.

Each waited for the lookup's thread, long after it had said that there is no answer.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Names of this machine are always the system's to look up.
TARGET = "dns:///localhost:50051"

PROGRAM = """
import socket, sys, time
from lbclient.cli import main

def hang(*arguments, **options):
    print("asked", file=sys.stderr, flush=True)
    time.sleep(120)

socket.getaddrinfo = hang
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def command(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (("doctor", TARGET), 1, f"to resolve {TARGET} takes more than 0.5 s"),
        (
            ("probe", "--udp", "localhost:50051"),
            3,
            "to look up localhost takes more than 0.5 s",
        ),
    ],
)
def test_it_ends_in_time_and_says_what_took_too_long(
    words: tuple[str, ...], status: int, what: str
) -> None:
    with command(*words, "--timeout", "0.5") as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert what in out


@pytest.mark.parametrize("options", [(), ("--watch",)])
def test_an_interrupt_ends_it_at_once(options: tuple[str, ...]) -> None:
    with command("resolve", *options, TARGET) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
