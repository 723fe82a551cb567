"""`lbclient serve`: starts workers, replaces what dies, and leaves in order."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from lbclient import wire
from lbclient.core.errors import ConfigError
from lbclient.server import serve
from lbclient.server.os_signals import ECHO
from lbclient.v1.compat_pb2 import ServingReply
from tests import needs
from tests.ports import free_ports
from tests.waiting import eventually, let_pass
from tests.wire.workers_program import LONG, WHO, make_server
from tests.wire.workers_task import ROOT, Task, is_alive, serving


async def asked(address: str) -> int:
    """The process that answers a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call: Any = channel.unary_unary(WHO)
        return int(await call(b"", timeout=20, wait_for_ready=True))


def status(reply: bytes) -> int:
    return int(ServingReply.FromString(reply).status)


@asynccontextmanager
async def long_call(task: Task, seconds: str) -> AsyncIterator[Awaitable[bytes]]:
    """A call whose handler has begun."""
    async with grpc.aio.insecure_channel(await task.address()) as channel:
        call: Any = channel.unary_unary(LONG)
        running = call(seconds.encode(), timeout=120, wait_for_ready=True)
        await eventually(lambda: task.found("a long call begins"))
        yield running


async def test_all_workers_serve_one_port_and_leave_together_at_sigterm() -> None:
    async with serving("make_server", "--port=0") as task:
        address = await task.address()
        answered: set[int] = set()

        async def ask() -> None:
            answered.add(await asked(address))

        await eventually(lambda: len(answered) == 2, meanwhile=ask)
        assert answered == {*task.pids()}
        assert len(task.said) == 1  # ready once
        async with long_call(task, "1.0") as in_flight:
            task.send(signal.SIGTERM)
            assert int(await in_flight) in answered
        assert await task.ended() == 0
        assert not any(map(is_alive, answered))


async def test_a_second_signal_does_not_wait_for_calls() -> None:
    async with (
        serving("make_server", "--port=0", workers=1) as task,
        long_call(task, "100") as in_flight,
    ):
        task.send(signal.SIGINT)
        await eventually(lambda: task.found("is leaving"))
        await let_pass(ECHO)
        task.send(signal.SIGINT)
        assert await task.ended() == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await in_flight


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_all_processes_is_one_drain(sent: signal.Signals) -> None:
    """SIGINT is Ctrl-C at a terminal, of which a worker would then see two; SIGTERM is
    what systemd sends."""
    async with serving("make_server", "--port=0") as task:
        async with long_call(task, "1.0") as in_flight:
            os.killpg(task.process.pid, sent)
            assert int(await in_flight) in task.pids()
        assert await task.ended() == 0


async def test_a_worker_that_is_killed_comes_back_and_the_other_serves_on() -> None:
    async with serving("make_server", "--port=0") as task:
        address = await task.address()
        first = task.pids()
        os.kill(first[0], signal.SIGKILL)
        await eventually(lambda: len(task.pids()) == 3, lambda: task.log)
        assert task.found(f"process {first[0]} .*was killed by SIGKILL")
        assert not is_alive(first[0])
        assert is_alive(first[1])
        assert await asked(address) in task.pids()[1:]
        assert len(task.said) == 1


async def test_a_killed_worker_comes_back_though_its_children_live_on() -> None:
    async with serving("forks_a_child", "--port=0", workers=1) as task:
        await task.address()
        [first] = task.pids()
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: len(task.pids()) == 2, lambda: task.log)
        assert task.found(f"process {first} .*was killed by SIGKILL")


async def test_a_worker_that_somebody_ends_comes_back() -> None:
    async with serving("make_server", "--port=0", workers=1) as task:
        await task.address()
        [first] = task.pids()
        os.kill(first, signal.SIGTERM)
        await eventually(lambda: len(task.pids()) == 2, lambda: task.log)
        assert task.found(f"process {first} .*exited with status 0")


async def test_a_health_check_answers_for_the_task_and_a_watch_for_its_worker() -> None:
    async with serving(
        "make_server",
        *("--port=0", "--host=127.0.0.1"),
        LBCLIENT_LAME_DUCK_QUIET="30",
        LBCLIENT_LAME_DUCK_PERIOD="60",
    ) as task:
        await task.address()
        port, leaving = task.own_ports()[0], task.pids()[0]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
            watching: Any = channel.unary_stream(wire.SERVING_WATCH_METHOD)
            watch = watching(b"")
            assert status(await watch.read()) == ServingReply.SERVING
            os.kill(leaving, signal.SIGTERM)
            assert status(await watch.read()) == ServingReply.NOT_SERVING
            assert status(await ask(b"", timeout=20)) == ServingReply.SERVING
            task.send(signal.SIGTERM)
            seen: list[int] = []

            async def check() -> None:
                seen.append(status(await ask(b"", timeout=20)))

            await eventually(lambda: ServingReply.NOT_SERVING in seen, meanwhile=check)


async def test_sighup_replaces_each_worker_after_the_new_one_is_ready() -> None:
    async with serving("make_server", "--port=0") as task:
        await task.address()
        starts = task.found(r"<worker \d, process (\d+)> starts")
        old = [int(pid) for pid in starts]  # by number
        task.send(signal.SIGHUP)
        await eventually(lambda: task.found("reloaded 2 workers"), lambda: task.log)
        new = task.pids()[2:]
        assert len(new) == 2
        assert not any(map(is_alive, old))
        log = "\n".join(task.log)
        for one, other in zip(old, new, strict=True):
            is_ready = log.index(f"process {other} on port")
            assert is_ready < log.index(f"[{one}] INFO lbclient.server.workers.worker")
        assert len(task.said) == 1


async def test_a_reload_that_fails_leaves_the_old_workers(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    async with serving("fails_once_reloaded", "--port=0", BROKEN=str(broken)) as task:
        address = await task.address()
        old = task.pids()
        broken.touch()
        task.send(signal.SIGHUP)
        await eventually(lambda: task.found("reload stopped"), lambda: task.log)
        assert task.found("LookupError: no such model")
        assert all(map(is_alive, old))
        assert await asked(address) in old


async def test_workers_leave_when_their_supervisor_is_killed() -> None:
    async with serving("make_server", "--port=0") as task:
        await task.address()
        pids = task.pids()
        task.send(signal.SIGKILL)
        await eventually(lambda: not any(map(is_alive, pids)))


async def test_workers_share_the_port_that_the_program_adds() -> None:
    [port] = free_ports(1)
    async with serving("with_own_port", SHARED_PORT=str(port)) as task:
        assert await task.address() == f"127.0.0.1:{port}"
        assert await asked(f"127.0.0.1:{port}") in task.pids()


async def test_own_ports_are_the_next_ones_if_wanted() -> None:
    # One more than workers: on a reload there are three.
    [port] = free_ports(1)
    async with serving(
        "make_server", f"--port={port}", LBCLIENT_WORKER_PORTS="next"
    ) as task:
        await task.address()
        task.send(signal.SIGHUP)
        await eventually(lambda: task.found("reloaded 2 workers"), lambda: task.log)
        assert {*task.own_ports()} == {port + 1, port + 2, port + 3}
        # UDP health checks are answered at the same number, for one rule of a firewall.
        own = task.own_ports()[-1]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{own}") as channel:
            check: Any = channel.unary_unary(wire.CHECK_METHOD)
            told = wire.parse_health(await check(b"", timeout=20))
        assert told is not None
        assert told.udp_port == own


async def test_an_own_port_that_another_program_shares_is_refused() -> None:
    [port] = free_ports(1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        async with serving(
            "make_server", f"--port={port}", workers=1, LBCLIENT_WORKER_PORTS="next"
        ) as task:
            assert await task.ended() == 2
            assert f"port = {port + 1}: want a port that is free" in task.log[-1]


def children(pid: int) -> dict[int, str]:
    """The names of its children, also of those that have ended."""
    names = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError):  # it was reaped meanwhile
            names[int(child)] = Path(f"/proc/{child}/comm").read_text()
    return names


async def test_the_first_process_of_a_container_reaps_orphans() -> None:
    """In a process namespace of its own; it leaves at SIGTERM, too."""
    words = [needs.program("unshare"), "--pid", "--fork", "--mount-proc"]
    async with serving("leaves_an_orphan", "--port=0", workers=1, within=words) as task:
        await eventually(lambda: task.said or task.process.returncode is not None)
        if any("Operation not permitted" in line for line in task.log):
            needs.skip("no process namespace for this user")
        [supervisor] = children(task.process.pid)
        await eventually(lambda: "sleep\n" not in children(supervisor).values())
        assert task.found(r"\[1\] INFO lbclient.server.workers.supervisor: 1 workers")
        os.kill(supervisor, signal.SIGTERM)
        assert await task.ended() == 0


async def test_what_a_worker_opened_is_closed_after_its_server() -> None:
    async with serving("with_end", "--port=0", workers=1) as task:
        await task.address()
        task.send(signal.SIGTERM)
        assert await task.ended() == 0
        assert task.said[-1] == "closed after the server"


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("fails_once_reloaded", 3, "cannot start: LookupError('no such model')"),
        ("raises_its_own", 3, "cannot start: OwnError('no model, no cache')"),
        ("no_such", 2, "tests.wire.workers_program has no 'no_such'"),
        ("no_such.module:make", 2, "there is no module 'no_such'"),
        ("number", 2, "want a function that returns a server"),
        ("returns_none", 2, "make_server = None: want a function that returns a"),
        ("with_own_port", 3, "KeyError"),
    ],
)
async def test_a_task_that_cannot_start_says_why(
    function: str, status: int, words: str
) -> None:
    async with serving(function, "--port=0", BROKEN="/") as task:
        assert await task.ended() == status, task.log
        assert task.said == []
        assert words in task.log[-1]


async def test_a_server_without_a_port_is_a_mistake() -> None:
    async with serving("make_server") as task:
        assert await task.ended() == 2
        assert "port = None: want a port" in task.log[-1]


async def test_a_port_that_another_program_shares_is_refused() -> None:
    """SO_REUSEPORT would let both have it, and each get some of the connections."""
    async with serving("make_server", "--port=0", workers=1) as one:
        port = (await one.address()).rpartition(":")[2]
        async with serving("make_server", f"--port={port}", workers=1) as other:
            assert await other.ended() == 2
            assert f"port = {port}: want a port that is free" in other.log[-1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers = 0: want a whole number, 1 to 64"),
        ({"workers": "many"}, "workers = 'many': want a whole number, 1 to 64"),
        ({"workers": 2, "port": 70000}, "port = 70000: want a port"),
        ({"workers": 2, "port": 1, "host": "no such"}, "host = 'no such': want an"),
    ],
)
async def test_errors_name_the_field(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        await serve(make_server, **settings)
    assert str(raised.value).startswith(words)


async def test_a_function_that_workers_cannot_import_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"make_server = .*at the top of a module"):
        await serve(lambda: make_server(), workers=2)
    with pytest.raises(ConfigError, match=r"make_server = .*a function that returns"):
        await serve(make_server(), workers=2)
    with pytest.raises(ConfigError, match="port = 1: want None without workers"):
        await serve(make_server(), port=1)


def test_a_program_serves_by_workers_of_its_own_function() -> None:
    """The function is in `__main__`, which each worker imports under another name."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "wire" / "workers_main.py")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stopped"]


async def test_workers_are_grpcs_own_servers_where_lbclient_is_disabled() -> None:
    async with serving("make_server", "--port=0", LBCLIENT_DISABLE="1") as task:
        address = await task.address()
        assert await asked(address) > 0
        task.send(signal.SIGTERM)
        assert await task.ended() == 0
