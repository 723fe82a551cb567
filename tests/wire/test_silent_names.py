"""Commands and programs where lookups hang: they go on, and end in time.

Each waited for the lookups' threads, long after it had said that there is no answer;
and a program with a few channels had no threads left for its own work.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from random import Random
from threading import Thread

import pytest

from lbclient.core.errors import ResolveError
from lbclient.resolvers import Dns

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


CHANNELS = """
import asyncio, socket, sys, time
import dns.resolver, grpc, lbclient

def hang(*arguments, **options):
    time.sleep(120)

dns.resolver.Resolver.resolve = socket.getaddrinfo = hang

async def call(target):
    async with lbclient.insecure_channel(target) as channel:
        try:
            await channel.unary_unary("/test.Service/Method")(b"", timeout=1)
        except grpc.RpcError as error:
            return error.code()

async def main():
    # More than the event loop has threads.
    calls = [asyncio.create_task(call(sys.argv[1])) for _ in range(40)]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(print, "a thread is free", flush=True)
    print({code.name for code in await asyncio.gather(*calls)}, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("target", [TARGET, "dns:///search.test", "srv:///search.test"])
def test_lookups_that_hang_leave_a_program_its_threads_and_its_end(target: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHANNELS, target],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "a thread is free\n{'DEADLINE_EXCEEDED'}\n", done.stderr


async def test_a_system_without_threads_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a name server that does not answer: a resolver tells it in one line."""

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = Dns("localhost", 50051, 10.0, Random(7))
    monkeypatch.setattr(Thread, "start", refuse)
    why = "DNS lookup of 'localhost' failed: .*can't start new thread"
    async with aclosing(resolver.watch()) as answers:
        with pytest.raises(ResolveError, match=why):
            await anext(answers)
