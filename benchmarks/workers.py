"""What two workers on two cores serve: through lbclient, and by SO_REUSEPORT alone.

    python -m benchmarks.workers               about 140 s, on two idle cores
    python -m benchmarks.workers --quick       about 60 s: fewer calls

Each call costs 50 ms of CPU. First a task of one worker and a task of two, each with 6
calls in flight from one channel: calls a second, and how evenly the workers served.
Then the task of two at 70 % of what it served, with calls that come by chance, through
an lbclient channel and after that through four channels of grpc.aio with round_robin,
made anew twelve times, as the kernel gives each of their connections to one worker.
Both kinds of client make the same calls at the same times. A call that fails counts as
one of 20 s.

    goodput            calls served a second
    max/mean           calls of the busiest worker, over the mean
    p50, p99           ms from the planned time of a call to its answer

Other programs on the two cores make these figures worthless: two processes that compute
for a second tell beforehand how much of two cores there is.

Exit status 2 if that is less than 1.9. Exit status 1 if two workers serve less than 1.9
times what one does, if max/mean is above 1.05, or if p99 is above 0.6 times that of
SO_REUSEPORT alone.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of

METHOD = "/benchmark.Workers/Burn"
COST = 0.05  # CPU seconds of a call
IN_FLIGHT = 6
LOAD = 0.7  # of what two workers serve
STOCK_CHANNELS = 4
LEAST_CORES, TRIES = 1.9, 8
LEAST_GAIN, MOST_UNEVEN, MOST_P99 = 1.9, 1.05, 0.6
PATIENCE = 20.0  # seconds for a call

Call = Callable[[], Awaitable[bytes]]
Process = asyncio.subprocess.Process


class Plan(NamedTuple):
    full: float  # seconds of calls in flight all the time
    turns: int
    turn: float  # seconds


FULL = Plan(6.0, 12, 4.5)
QUICK = Plan(5.0, 4, 4.5)


async def burn(_request: bytes, _context: Any) -> bytes:
    end = time.process_time() + COST
    while time.process_time() < end:
        pass
    return str(os.getpid()).encode()


async def wait(_request: bytes, _context: Any) -> bytes:
    await asyncio.sleep(COST)
    return str(os.getpid()).encode()


def make_server() -> lbclient.Server:
    server = lbclient.server()
    handlers: Any = {
        "Burn": grpc.unary_unary_rpc_method_handler(burn),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
    }
    generic = grpc.method_handlers_generic_handler("benchmark.Workers", handlers)
    server.add_generic_rpc_handlers((generic,))
    return server


@asynccontextmanager
async def task(workers: int) -> AsyncIterator[str]:
    """The address of a task, which ends with the block."""
    async with process(workers) as (_, address):
        yield address


@asynccontextmanager
async def process(workers: int) -> AsyncIterator[tuple[Process, str]]:
    """The supervisor and the address of a task, which ends with the block."""
    supervisor = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "lbclient", "serve", "benchmarks.workers:make_server"],
        *[f"--workers={workers}", "--port=0", "--host=127.0.0.1", "--json"],
        "--log-level=warning",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert supervisor.stdout is not None
        yield supervisor, json.loads(await supervisor.stdout.readline())["listening"]
    finally:
        with suppress(ProcessLookupError):
            supervisor.send_signal(signal.SIGTERM)
        await supervisor.wait()


class Seen(NamedTuple):
    """What a series of calls gave. `latencies` in seconds, sorted."""

    by_worker: Counter[str]
    latencies: list[float]
    failed: int
    seconds: float

    @property
    def goodput(self) -> float:
        return self.by_worker.total() / self.seconds

    def uneven(self, workers: int) -> float:
        return max(self.by_worker.values()) * workers / self.by_worker.total()

    def latency(self, share: float) -> float:
        return self.latencies[
            min(len(self.latencies) - 1, int(share * len(self.latencies)))
        ]


class Calls:
    def __init__(self) -> None:
        self.by_worker: Counter[str] = Counter()
        self.latencies: list[float] = []
        self.failed = 0

    async def one(self, call: Call, since: float) -> None:
        try:
            worker = await call()
        except grpc.aio.AioRpcError:
            self.failed += 1
            self.latencies.append(PATIENCE)
        else:
            self.by_worker[worker.decode()] += 1
            self.latencies.append(asyncio.get_running_loop().time() - since)

    def seen(self, seconds: float) -> Seen:
        return Seen(self.by_worker, sorted(self.latencies), self.failed, seconds)


async def full(call: Call, seconds: float) -> Seen:
    """As many calls in flight as there are, all the time."""
    loop, calls = asyncio.get_running_loop(), Calls()
    began_at = loop.time()

    async def repeat() -> None:
        while (now := loop.time()) < began_at + seconds:
            await calls.one(call, now)

    await asyncio.gather(*(repeat() for _ in range(IN_FLIGHT)))
    return calls.seen(loop.time() - began_at)


async def by_chance(call: Call, rate: float, seconds: float, seed: int) -> Calls:
    """Calls at random times; the same ones for the same seed."""
    loop, calls, rng = asyncio.get_running_loop(), Calls(), Random(seed)
    at = began_at = loop.time()
    running = []
    while (at := at + rng.expovariate(rate)) < began_at + seconds:
        await asyncio.sleep(max(0.0, at - loop.time()))
        running.append(asyncio.create_task(calls.one(call, at)))
    await asyncio.gather(*running)
    return calls


async def ours(stack: AsyncExitStack, address: str, workers: int) -> Call:
    """A channel that knows each worker."""
    channel = await stack.enter_async_context(lbclient.insecure_channel(address))
    method: Any = channel.unary_unary(METHOD)
    await method(b"", timeout=PATIENCE)

    def ready() -> int:
        return sum(one.state == "ready" for one in channel.statistics().backends)

    while ready() < workers:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.05)
    return lambda: method(b"", timeout=PATIENCE)


async def stock(stack: AsyncExitStack, address: str) -> Call:
    """Channels of grpc.aio, each with a connection of its own, by turns."""
    policy = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config", policy),
    ]
    methods: list[Any] = []
    for _ in range(STOCK_CHANNELS):
        channel = grpc.aio.insecure_channel(address, options=options)
        await stack.enter_async_context(channel)
        await channel.channel_ready()
        methods.append(channel.unary_unary(METHOD))
    count = 0

    def call() -> Awaitable[bytes]:
        nonlocal count
        count += 1
        answer: Awaitable[bytes] = methods[count % STOCK_CHANNELS](
            b"", timeout=PATIENCE
        )
        return answer

    return call


async def measure(plan: Plan) -> dict[str, Any]:
    async with task(1) as address, AsyncExitStack() as stack:
        one = await full(await ours(stack, address, 1), plan.full)
    async with task(2) as address, AsyncExitStack() as stack:
        call = await ours(stack, address, 2)
        two = await full(call, plan.full)
        print(f"{'':28} {'goodput':>8} {'max/mean':>9} {'p50':>6} {'p99':>6}  failed")
        show("one worker, full", one, 1)
        show("two workers, full", two, 2)
        rate = LOAD * two.goodput
        through, alone = Calls(), Calls()
        # One after the other: a worker that stock clients have overloaded reports it
        # for some seconds, and lbclient would go by that.
        for turn in range(plan.turns):
            add(through, await by_chance(call, rate, plan.turn, turn))
        for turn in range(plan.turns):
            async with AsyncExitStack() as channels:
                other = await stock(channels, address)
                add(alone, await by_chance(other, rate, plan.turn, turn))
    seconds = plan.turns * plan.turn
    lb, kernel = through.seen(seconds), alone.seen(seconds)
    show(f"lbclient, {rate:.0f} calls/s", lb, 2)
    show("SO_REUSEPORT alone", kernel, 2)
    return {
        "gain": two.goodput / one.goodput,
        "max_over_mean": two.uneven(2),
        "p99": lb.latency(0.99) / kernel.latency(0.99),
        "failed": one.failed + two.failed + lb.failed,
    }


COMPUTE = """
import time
began, end = time.process_time(), time.monotonic() + 1.0
while time.monotonic() < end: pass
print(time.process_time() - began)
"""


async def free_cores() -> float:
    """CPU seconds a second that two processes get."""

    async def compute() -> float:
        command = [sys.executable, "-c", COMPUTE]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return float(said)

    return sum(await asyncio.gather(compute(), compute()))


def add(calls: Calls, more: Calls) -> None:
    calls.by_worker.update(more.by_worker)
    calls.latencies += more.latencies
    calls.failed += more.failed


def show(what: str, seen: Seen, workers: int) -> None:
    p50, p99 = 1e3 * seen.latency(0.5), 1e3 * seen.latency(0.99)
    print(
        f"{what:28} {seen.goodput:>8.1f} {seen.uneven(workers):>9.2f}"
        f" {p50:>6.0f} {p99:>6.0f}  {seen.failed}",
        flush=True,
    )


def main() -> int:
    given = parser_of("workers", __doc__, quick="fewer calls").parse_args()
    cores, tries = asyncio.run(free_cores()), 1
    while cores < LEAST_CORES and tries < TRIES:  # something ends just now, perhaps
        cores, tries = asyncio.run(free_cores()), tries + 1
    print(f"{cores:.2f} of 2 cores are free", flush=True)
    if cores < LEAST_CORES:
        print("too few to measure", file=sys.stderr)
        return 2
    found = asyncio.run(measure(QUICK if given.quick else FULL))
    print(", ".join(f"{name} {value:.2f}" for name, value in found.items()))
    return conclude(given, found, None, measured=told(found))


def told(found: dict[str, Any]) -> list[Measured]:
    return [
        Measured(
            name="calls a second, two workers / one",
            value=found["gain"],
            better="more",
            goal=LEAST_GAIN,
        ),
        Measured(
            name="calls, busiest worker / mean",
            value=found["max_over_mean"],
            better="less",
            goal=MOST_UNEVEN,
        ),
        Measured(
            name="p99, lbclient / SO_REUSEPORT alone",
            value=found["p99"],
            better="less",
            goal=MOST_P99,
        ),
    ]


if __name__ == "__main__":
    exit_with(main)
