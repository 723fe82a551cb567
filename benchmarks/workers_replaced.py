"""What calls lose while workers of a task are killed, replaced and stopped.

    python -m benchmarks.workers_replaced      about 30 s; needs no idle cores

Two tasks of two workers each, whose calls wait for 50 ms, and 6 calls in flight through
an lbclient channel, and as many through four channels of grpc.aio with round_robin. A
channel of lbclient makes one attempt for each call, so that no retry hides anything.
One worker is killed; then its task is reloaded; then the task gets SIGTERM.

    lost       calls that failed, of how many
    balance    seconds from the signal until the new worker has half of its task's calls

Exit status 1 if more calls of lbclient's fail than were in flight on the killed worker,
if any fails at the reload or at SIGTERM, or if it takes more than 5 s to be in balance.
"""

import asyncio
import os
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

import lbclient
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.workers import PATIENCE, STOCK_CHANNELS, process
from lbclient.config import ChannelConfig

METHOD = "/benchmark.Workers/Wait"
IN_FLIGHT = 6
RECENT = 60  # calls by which balance is judged
BALANCED = 0.4  # of the calls of a task of two workers
MOST = 5.0  # seconds until the new worker has so many
PAUSE = 3.0  # seconds between two events


class Load:
    """Calls all the time. `recent` are the last workers that answered."""

    def __init__(self, call: Callable[[], Awaitable[bytes]]) -> None:
        self._call = call
        self.served = self.failed = 0
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.errors: Counter[str] = Counter()
        self.is_over = False

    async def repeat(self) -> None:
        while not self.is_over:
            try:
                self.recent.append(int(await self._call()))
                self.served += 1
            except grpc.aio.AioRpcError as error:
                self.failed += 1
                self.errors[f"{error.code().name}: {error.details()}"] += 1
                await asyncio.sleep(0.05)


@asynccontextmanager
async def loaded(call: Callable[[], Awaitable[bytes]]) -> AsyncIterator[Load]:
    load = Load(call)
    running = [asyncio.create_task(load.repeat()) for _ in range(IN_FLIGHT)]
    try:
        yield load
    finally:
        load.is_over = True
        await asyncio.gather(*running)


def ours(stack: AsyncExitStack, target: str) -> Callable[[], Awaitable[bytes]]:
    config = ChannelConfig(max_attempts=1)
    channel = lbclient.insecure_channel(target, config=config)
    stack.push_async_callback(channel.close)
    method: Any = channel.unary_unary(METHOD)
    return lambda: method(b"", timeout=PATIENCE, wait_for_ready=True)


def stock(stack: AsyncExitStack, target: str) -> Callable[[], Awaitable[bytes]]:
    policy = '{"loadBalancingConfig": [{"round_robin": {}}]}'
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config", policy),
    ]
    methods: list[Any] = []
    for _ in range(STOCK_CHANNELS):
        channel = grpc.aio.insecure_channel(target, options=options)
        stack.push_async_callback(channel.close)
        methods.append(channel.unary_unary(METHOD))
    count = 0

    def call() -> Awaitable[bytes]:
        nonlocal count
        count += 1
        method = methods[count % STOCK_CHANNELS]
        answer: Awaitable[bytes] = method(b"", timeout=PATIENCE, wait_for_ready=True)
        return answer

    return call


def children(pid: int) -> list[int]:
    """The workers of a supervisor; it has another child, which tracks resources."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        found = [int(word) for word in file.read().split()]
    return [one for one in found if b"spawn_main" in _command(one)]


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


async def in_balance(load: Load, task: Callable[[], list[int]], new: set[int]) -> float:
    """Seconds until the new workers have their part of the calls."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    while loop.time() < began_at + 4 * MOST:
        pids = {*task()}
        of_task = [pid for pid in load.recent if pid in pids]
        of_new = sum(pid not in new for pid in of_task)
        if len(pids) == 2 and of_new >= BALANCED * max(10, len(of_task)):
            return loop.time() - began_at
        await asyncio.sleep(0.02)
    return 4 * MOST


async def measure() -> dict[str, Any]:
    found: dict[str, Any] = {}
    print(f"{'':10} {'lbclient lost':>15} {'stock lost':>15}  balance")
    async with AsyncExitStack() as stack:
        one, first = await stack.enter_async_context(process(2))
        _, second = await stack.enter_async_context(process(2))
        target = f"ipv4:{first},{second}"
        lb = await stack.enter_async_context(loaded(ours(stack, target)))
        other = await stack.enter_async_context(loaded(stock(stack, target)))
        await asyncio.sleep(PAUSE)

        def task() -> list[int]:
            return children(one.pid)

        def kill() -> None:
            os.kill(task()[0], signal.SIGKILL)

        events: dict[str, Callable[[], None]] = {
            "SIGKILL": kill,
            "reload": lambda: one.send_signal(signal.SIGHUP),
            "SIGTERM": lambda: one.send_signal(signal.SIGTERM),
        }
        for name, event in events.items():
            before = [(load.served, load.failed) for load in (lb, other)]
            old = {*task()}
            event()
            balance = 0.0
            if name == "SIGTERM":
                await one.wait()
            else:
                balance = await in_balance(lb, task, old)
            await asyncio.sleep(PAUSE)
            lost = [
                (load.failed - failed, load.served + load.failed - served - failed)
                for load, (served, failed) in zip((lb, other), before, strict=True)
            ]
            told = [f"{failed} of {calls}" for failed, calls in lost]
            print(f"{name:10} {told[0]:>15} {told[1]:>15}  {balance:.1f} s", flush=True)
            found[name] = {
                "lost": lost[0][0],
                "lost_by_stock_clients": lost[1][0],
                "balance": balance,
            }
    for who, load in (("lbclient", lb), ("stock", other)):
        for words, times in load.errors.most_common(3):
            print(f"{who}: {times} times {words[:100]}")
    return found


def main() -> int:
    given = parser_of("workers_replaced", __doc__).parse_args()
    found = asyncio.run(measure())
    return conclude(given, found, None, measured=told(found))


def told(found: dict[str, Any]) -> list[Measured]:
    lost = [
        Measured(
            name=f"calls lost at {name}",
            value=found[name]["lost"],
            better="less",
            goal=IN_FLIGHT if name == "SIGKILL" else 0,
        )
        for name in found
    ]
    return [
        *lost,
        Measured(
            name="seconds until a killed worker is back in balance",
            value=found["SIGKILL"]["balance"],
            better="less",
            goal=MOST,
        ),
    ]


if __name__ == "__main__":
    exit_with(main)
