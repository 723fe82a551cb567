"""A backend whose CPU others want, too: real processes on CPUs of their own."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lbclient
from tests import needs

PROGRAM = Path(__file__).with_name("pinned.py")
BURNERS = 5  # for one of two CPUs; whatever else the machine does is on both
PACE = 0.02  # seconds between two calls: 8 % of a CPU for each backend
CALLS = 100  # in a round
ROUNDS = 60  # at most; an idle machine needs four
SEEN = 4  # rounds that are looked at together: of one the counts vary too much

Run = Callable[[str, int], Awaitable[Process]]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:

        async def end(process: Process) -> None:
            process.kill()
            await process.wait()

        async def run(verb: str, cpu: int) -> Process:
            words = [sys.executable, str(PROGRAM), verb, str(cpu)]
            process = await asyncio.create_subprocess_exec(
                *words, stdout=PIPE, stderr=DEVNULL
            )
            stack.push_async_callback(end, process)
            return process

        yield run


class Round(NamedTuple):
    """Calls of both backends; the utilization of the crowded one, and its CPU use."""

    crowded: int
    other: int
    told: float
    plain: float


def does_kernel_count() -> bool:
    return Path("/proc/thread-self/schedstat").exists()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_clients_move_away_from_a_task_whose_cpu_others_use(
    run: Run, search: Any
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        needs.skip("one CPU only")
    if not does_kernel_count():
        needs.skip("a kernel that does not count waiting for a CPU")
    crowded, other = [await run("serve", cpu) for cpu in cpus[:2]]
    addresses = []
    for process in (crowded, other):
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        addresses.append(f"127.0.0.1:{port}")
    for _ in range(BURNERS):
        await run("burn", cpus[0])

    loop = asyncio.get_running_loop()
    rounds: list[Round] = []
    async with lbclient.insecure_channel(f"ipv4:{','.join(addresses)}") as channel:
        stub = search.SearchStub(channel)
        for _ in range(ROUNDS):
            begun_at, used = loop.time(), cpu_seconds(crowded.pid)
            calls, told = [], 0.0
            for _ in range(CALLS):
                calls.append(stub.Search(search.Query(), timeout=60))
                await asyncio.sleep(PACE)
                found = {one.address: one for one in channel.statistics().backends}
                told += (found[addresses[0]].utilization or 0.0) / CALLS
            plain = (cpu_seconds(crowded.pid) - used) / (loop.time() - begun_at)
            answers = Counter([(await call).text for call in calls])
            got = answers[str(crowded.pid)], answers[str(other.pid)]
            rounds.append(Round(*got, told, plain))
            last = Round(*map(sum, zip(*rounds[-SEEN:], strict=True)))
            is_less = last.crowded < 0.7 * last.other
            if len(rounds) >= SEEN and is_less and last.told > 1.5 * last.plain > 0.0:
                return
    pytest.fail("\n".join(map(str, rounds)))
