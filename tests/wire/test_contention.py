"""A backend whose CPU others want, too: real processes on CPUs of their own."""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pytest

import lbclient
from tests import needs
from tests.waiting import let_pass

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("pinned.py")
BURNERS = 5  # for one of two CPUs; whatever else the machine does is on both
PACE = 0.02  # seconds between two calls: 8 % of a CPU for each backend
CALLS = 100  # in a round
ROUNDS = 60  # at most; an idle machine needs four
SEEN = 4  # rounds that are looked at together: of one the counts vary too much

# Of one loop on two CPUs, and of another on one of them: before the loop was measured
# they reported 1 to 2.
EQUAL = 1.3
LOOP_PACE = 0.0075  # seconds between two calls: 40 % of a loop
TURNS = 600  # looks, each of 0.1 s
KEPT = 500  # reports whose mean is taken: 4 s, twice the smoothing

Run = Callable[[str, int | str], Awaitable[Process]]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:

        async def end(process: Process) -> None:
            process.kill()
            await process.wait()

        async def run(verb: str, cpu: int | str) -> Process:
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


async def address_of(process: Process) -> str:
    assert process.stdout is not None
    return f"127.0.0.1:{int(await process.stdout.readline())}"


Reports = AsyncGenerator[float, None]


async def reports(process: Process, search: Any) -> Reports:
    """Calls a server at a pace; what it reports of its utilization meanwhile."""
    loop = asyncio.get_running_loop()
    calls: set[Any] = set()
    address = await address_of(process)
    async with lbclient.insecure_channel(address) as channel:
        stub = search.SearchStub(channel)
        due_at = loop.time()
        while True:
            due_at = max(due_at + LOOP_PACE, loop.time() - 0.1)
            await asyncio.sleep(due_at - loop.time())
            calls.add(call := stub.Search(search.Query(), timeout=60))
            call.add_done_callback(calls.discard)
            for seen in channel.statistics().backends:
                yield seen.utilization or 0.0


def show(told: list[float], used: list[float]) -> None:
    """With `--log-cli-level=INFO`: of one CPU, and of two."""
    for cpus, (now, seconds) in enumerate(zip(told, used, strict=True), start=1):
        words = "%d CPUs: used %.2f of them, reported %.2f"
        logger.info(words, cpus, seconds / cpus, now)


async def test_a_loop_is_as_full_on_two_cpus_as_on_one(run: Run, search: Any) -> None:
    """A second CPU does not help a loop, so both can take as many calls."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        needs.skip("one CPU only")
    seen: list[deque[float]] = [deque(maxlen=KEPT), deque(maxlen=KEPT)]
    used = [0.0, 0.0]  # CPU seconds a second, of each process

    async def follow(which: int, pinned: str) -> None:
        process = await run("serve", pinned)
        async with aclosing(reports(process, search)) as told:
            loop = asyncio.get_running_loop()
            begun_at, before = loop.time(), cpu_seconds(process.pid)
            async for utilization in told:
                seen[which].append(utilization)
                if loop.time() > begun_at + 1.0:
                    spent = cpu_seconds(process.pid) - before
                    used[which] = spent / (loop.time() - begun_at)

    def ratio() -> float:
        """Once all that counts is of full load."""
        one, two = (mean(found) if len(found) == KEPT else 0.0 for found in seen)
        return one / two if min(one, two) > 0.2 else 0.0

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(follow(0, str(cpus[0]))),
            group.create_task(follow(1, f"{cpus[0]},{cpus[1]}")),
        ]
        for _ in range(TURNS):
            await let_pass(0.1)
            if is_equal := 1 / EQUAL < ratio() < EQUAL:
                break
        for task in tasks:
            task.cancel()
    told = [*map(mean, seen)]
    show(told, used)
    # Waiting for a CPU counts as well, and whoever has two waits less.
    if (
        not is_equal
        and any(told[i] > 1.3 * used[i] for i in (0, 1))
        and all(told[i] > 0.85 * used[i] for i in (0, 1))
    ):
        needs.skip("others use the CPUs")
    assert is_equal, (told, used)


async def test_clients_move_away_from_a_task_whose_cpu_others_use(
    run: Run, search: Any
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        needs.skip("one CPU only")
    if not does_kernel_count():
        needs.skip("a kernel that does not count waiting for a CPU")
    crowded, other = [await run("serve", cpu) for cpu in cpus[:2]]
    addresses = [await address_of(process) for process in (crowded, other)]
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
