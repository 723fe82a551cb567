"""The examples run as a newcomer runs them: two servers, one client, a SIGTERM."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = sorted(EXAMPLES.glob("*_server.py"))


@contextmanager
def serving(program: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A server that has said that it serves, and is gone afterwards."""
    command = [sys.executable, str(program), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert str(port) in server.stdout.readline()
            yield server
        finally:
            server.kill()


def test_every_program_belongs_to_a_pair() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py") if "_pb2" not in path.name}
    pairs = {path.name for path in SERVERS}
    pairs |= {name.replace("_server", "_client") for name in pairs}
    # Of docs/testing.md; run by tests/wire/test_testing_docs.py.
    assert programs - {"finder.py", "test_finder.py"} == pairs


@pytest.mark.parametrize("program", SERVERS, ids=lambda path: path.stem)
def test_the_pair_talks_and_leaves_in_order(
    program: Path, run: Callable[..., str], free_port: Callable[[], int]
) -> None:
    client = program.with_name(program.name.replace("_server", "_client"))
    ports = [free_port(), free_port()]
    with serving(program, ports[0]) as first, serving(program, ports[1]) as second:
        output = run(sys.executable, client, *map(str, ports))
        backends = re.findall(r"^127\.0\.0\.1:(\d+): \S", output, re.MULTILINE)
        assert backends, output
        assert {int(backend) for backend in backends} <= set(ports), output
        shares = [int(n) for n in re.findall(r": (\d+) of 100 calls", output)]
        assert sum(shares) == 100, output
        for server in (first, second):
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait(timeout=60) == 0


def test_the_programs_of_the_containers_find_what_they_import(
    run: Callable[..., str],
) -> None:
    programs = sorted((EXAMPLES / "compose").glob("*.py"))
    each = "import runpy, sys; [*map(runpy.run_path, sys.argv[1:])]"
    run(sys.executable, "-c", each, *programs)


def test_the_containers_client_ends_when_it_is_told_to(
    free_port: Callable[[], int],
) -> None:
    port = free_port()
    client = EXAMPLES / "compose" / "client.py"
    # 9464, where all is counted, may be another program's.
    lines = (
        "import prometheus_client, runpy, sys",
        "prometheus_client.start_http_server = print",
        "runpy.run_path(sys.argv[1], run_name='__main__')",
    )
    command = [sys.executable, "-u", "-c", "\n".join(lines), str(client)]
    needs = {"TARGET": f"ipv4:127.0.0.1:{port}", "RATE": "40"}
    with (
        serving(EXAMPLES / "hello_server.py", port),
        subprocess.Popen(
            command, env={**os.environ, **needs}, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "9464\n"
            # It calls: what a server of search says to that.
            assert "UNIMPLEMENTED" in process.stdout.readline()
            process.terminate()
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()
