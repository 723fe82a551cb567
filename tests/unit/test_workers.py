"""The parts of a task of several workers, one by one."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lbclient.core.errors import ConfigError
from lbclient.server.workers import count, shared_port
from lbclient.server.workers.membership import Membership
from lbclient.server.workers.messages import UsageHeard, UsageTold
from lbclient.server.workers.orphans import reap
from lbclient.server.workers.pipe import Pipe, pair
from lbclient.server.workers.shared_port import SharedPort
from lbclient.server.workers.supervisor import ports_of
from lbclient.server.workers.usage import MOST_HEARD, TaskUsage

GROUP = 7


@pytest.mark.parametrize(
    ("cpus", "workers"), [(0.5, 1), (1.0, 1), (1.5, 2), (8.0, 8), (1000.0, count.MOST)]
)
def test_auto_is_a_worker_for_each_cpu(
    cpus: float, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count, "available_cpus", lambda: cpus)
    assert count.worker_count("auto") == workers


@pytest.mark.parametrize("workers", [True, 0, count.MOST + 1, 2.0, "2", None])
def test_what_is_no_number_of_workers_is_refused(workers: object) -> None:
    with pytest.raises(ConfigError, match=r"^workers = "):
        count.worker_count(workers)


def test_a_worker_listens_alone_beside_what_it_shares() -> None:
    member = Membership(2, GROUP, slot=1)
    assert member.own_address("[::]:50051", 50051, "any") == "[::]:0"
    assert member.own_address("10.0.0.3:50051", 50051, "next") == "10.0.0.3:50053"
    assert member.own_address("[::]:50051", 50051, "off") is None
    assert member.own_address("unix:/tmp/socket", 0, "any") is None


def test_what_workers_cannot_share_is_refused() -> None:
    member = Membership(2, GROUP, slot=1)
    with pytest.raises(ConfigError, match="a port that all workers share"):
        member.own_address("[::]:0", 34567, "any")
    with pytest.raises(ConfigError, match=r"^worker_ports = 'next'"):
        member.own_address("[::]:65535", 65535, "next")


@pytest.mark.parametrize("host", ["::", "[::]"])
def test_all_addresses_are_those_of_ipv4_where_there_is_no_other(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_port, "has_ipv6", lambda: False)
    with closing(SharedPort(host, 0)) as shared, socket.socket() as other:
        assert shared.address == f"[::]:{shared.port}"
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", shared.port))
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::1", shared.port))


def test_an_address_of_ipv6_needs_no_brackets() -> None:
    with closing(SharedPort("::1", 0)) as shared:
        assert shared.address == f"[::1]:{shared.port}"


def test_goaway_waits_for_all_that_leave_together() -> None:
    member, said = Membership(1, GROUP, slot=0), []
    member.say_quiet = lambda: said.append("quiet")
    assert [member.agrees_to_goaway(), member.agrees_to_goaway()] == [False, False]
    assert said == ["quiet"]
    member.is_all_quiet = True
    assert member.agrees_to_goaway()


def test_siblings_are_told_now_and_at_each_change() -> None:
    member = Membership(1, GROUP, slot=0)
    told: list[object] = []
    member.follow(lambda *now: told.append(now))
    for _ in range(2):
        member.learn(((50051, (40000, 40001)),), 2)
    assert told == [(GROUP, (), 0), (GROUP, ((50051, (40000, 40001)),), 2)]


def test_the_ports_are_those_of_places() -> None:
    each = [((1, 12), (2, 22)), (), ((1, 11), (2, 21))]
    assert ports_of(each) == ((1, (12, 0, 11)), (2, (22, 0, 21)))


async def test_an_answer_has_the_asker_s_customers_and_those_who_used_most() -> None:
    usage, heard = TaskUsage(lambda: 0.0), list[UsageHeard]()
    many = {f"other {n}": 1.0 + n for n in range(2 * MOST_HEARD)}
    await usage.answer(1, UsageTold("limits", "one", many), heard.append)
    await usage.answer(2, UsageTold("limits", "two", {"own": 0.1}), heard.append)
    total = heard[-1].total
    assert total["own"] == 0.1
    assert total[f"other {2 * MOST_HEARD - 1}"] == 2 * MOST_HEARD
    assert len(total) == 1 + MOST_HEARD


async def test_what_a_worker_that_ended_used_is_the_others_at_once() -> None:
    usage, heard = TaskUsage(lambda: 0.0), list[UsageHeard]()
    for pid in (1, 11):
        told = UsageTold("limits", "server", {"customer": 10.0 * pid})
        await usage.answer(pid, told, heard.append)
    assert (heard[-1].tasks, heard[-1].total) == (2, {"customer": 120.0})
    usage.ended(1)
    await usage.answer(11, told, heard.append)
    assert (heard[-1].tasks, heard[-1].total) == (1, {"customer": 110.0})


async def test_a_process_that_reads_nothing_holds_up_nobody() -> None:
    ours, theirs = pair()
    with theirs:
        pipe = Pipe(ours)
        while pipe.send(b"x" * 1000):
            pass
        assert pipe.dropped == 1
        pipe.close()


def test_a_worker_that_is_stuck_ends_after_its_supervisor() -> None:
    """Its loop does not run, so nothing there can see that the supervisor is gone."""
    program = (
        "import socket, sys\n"
        "from lbclient.server.workers import worker\n"
        "from lbclient.server.workers.messages import Assignment\n"
        "worker.LATE = 0.0\n"
        "end = socket.socket(fileno=int(sys.argv[1]))\n"
        "worker.main(Assignment('signal:pause', None, 1, 7, 0, 1), end)"
    )
    ours, theirs = pair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "LBCLIENT_LAME_DUCK_PERIOD": "0"},
            cwd=Path(__file__).parents[2],
        )
    ours.close()
    try:
        assert child.wait(60) == 1
    finally:
        child.kill()
        child.wait()


def test_what_nobody_waits_for_is_reaped() -> None:
    """In a process of its own, whose children are its own."""
    program = (
        "import os, time\n"
        "from lbclient.server.workers.orphans import reap\n"
        "pids = [os.fork() for _ in range(3)]\n"
        "0 in pids and os._exit(0)\n"
        "own = {pids[0]}\n"
        "os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)\n"
        "os.waitpid(pids[0], 0)\n"
        "reaped = 0\n"
        "while reaped < 2: reaped += reap(lambda: own)\n"
        "print(reaped, reap(lambda: own))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout.split(), done.returncode) == (["2", "0"], 0), done.stderr


def test_own_processes_are_left_to_who_waits_for_them() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert reap(lambda: {child}) == 0
    assert os.waitpid(child, 0) == (child, 0)
