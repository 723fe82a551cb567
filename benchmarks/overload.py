"""One task in more demand than it can meet, beside the same task without lbclient.

    python -m benchmarks.overload                  about 5 minutes
    python -m benchmarks.overload --quick          about 2
    python -m benchmarks.overload --json FILE      all figures

Requests take 10 ms of one processor: of an emulated one, so that two cores suffice for
any load, or of a real one (`burn`), where each refusal takes something from it. Load is
open: Poisson arrivals from a process of its own, deadline 1 s, no retries and no
throttling. Goodput is what was answered in time, of the capacity.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc

import lbclient
from lbclient import wire

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fleet"))

from cpu import Cpu  # type: ignore[import-not-found]

COST = 0.01  # seconds of processor a request
DEADLINE = 1.0
WORK, MEMORY = "/benchmark.Overload/Work", "/benchmark.Overload/Memory"
CHANNELS = 4
LOADS = (0.8, 1.0, 2.0, 5.0, 10.0)
WARMUP = 2.0  # seconds at the beginning of each phase that are not counted
CALM = 0.5  # of the capacity, after the flood
FLOOD, STEADY = 12.0, 0.5  # of the capacity: SHEDDABLE, CRITICAL

WORKS = ("emulated", "burn")
KINDS = ("lbclient", "grpcio")


# --- the task, in a process of its own ----------------------------------------


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def serve(work: str, kind: str) -> None:
    """Until standard input ends; says its port first."""
    cpu = Cpu(cores=1, speed=1.0)

    async def emulated(request: bytes, context: Any) -> bytes:
        await cpu.run(COST)
        return request

    async def burning(request: bytes, context: Any) -> bytes:
        burn(COST)
        return request

    async def memory(request: bytes, context: Any) -> bytes:
        return str(resident()).encode()

    methods: dict[str, Any] = {
        "Work": grpc.unary_unary_rpc_method_handler(
            emulated if work == "emulated" else burning
        ),
        "Memory": grpc.unary_unary_rpc_method_handler(memory),
    }
    # The emulated processor is one, however many the machine has; a real one that is
    # busy needs no configuration.
    processors = len(os.sched_getaffinity(0))
    config = lbclient.ServerConfig(
        runnable=lambda: cpu.runnable, max_load=8.0 / processors
    )
    server: Any
    if kind == "grpcio":
        server = grpc.aio.server()
    else:
        server = lbclient.server(config=config if work == "emulated" else None)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("benchmark.Overload", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


# --- the load, in another ------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    seconds: float
    rates: dict[str, float]  # requests a second, by criticality


@dataclass
class Call:
    at: float  # seconds since the beginning
    criticality: str
    code: str
    refusal: str
    latency: float


async def load(port: int, phases: list[Phase], seed: int) -> list[Call]:
    rng, calls, tasks = Random(seed), [], set()

    async def call(method: Any, at: float, criticality: str) -> None:
        metadata = ((wire.CRITICALITY_KEY, criticality),)
        began_at, code, refusal = time.monotonic(), "OK", ""
        try:
            await method(b"", timeout=DEADLINE, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            trailers = dict(error.trailing_metadata())
            refusal = str(trailers.get(wire.REFUSAL_KEY, ""))
        took = time.monotonic() - began_at
        calls.append(Call(at, criticality, code, refusal, took))

    async with contextlib.AsyncExitStack() as stack:
        methods: list[Any] = []
        for _ in range(CHANNELS):
            channel = grpc.aio.insecure_channel(
                f"127.0.0.1:{port}",
                [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)],
            )
            await stack.enter_async_context(channel)
            await channel.channel_ready()
            methods.append(channel.unary_unary(WORK))
        began_at = time.monotonic()
        at = end = 0.0
        for phase in phases:
            at, end = end, end + phase.seconds
            names, rates = list(phase.rates), list(phase.rates.values())
            while (at := at + rng.expovariate(sum(rates))) < end:
                if (pause := began_at + at - time.monotonic()) > 0:
                    await asyncio.sleep(pause)
                criticality = rng.choices(names, rates)[0]
                task = asyncio.create_task(call(rng.choice(methods), at, criticality))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return calls


# --- what comes of it ----------------------------------------------------------


@dataclass
class Figures:
    work: str
    kind: str
    offered: float  # of the capacity
    goodput: float
    p50: float
    p99: float
    admitted: float
    refused: float
    late: float
    normal_after: float  # seconds after the flood until all is served in time
    memory_growth: float  # MB


def figures(
    work: str, kind: str, offered: float, calls: list[Call], flood: float, rate: float
) -> Figures:
    seen = [call for call in calls if WARMUP <= call.at < flood]
    served = sorted(call.latency for call in seen if call.code == "OK")
    ended = [c for c in calls if c.code == "OK" and WARMUP <= c.at + c.latency < flood]
    after = [call.at for call in calls if call.at >= flood and call.code != "OK"]
    return Figures(
        work,
        kind,
        offered,
        len(ended) / (flood - WARMUP) / rate,
        served[len(served) // 2] if served else float("inf"),
        served[int(0.99 * len(served))] if served else float("inf"),
        len(served) / len(seen),
        sum(bool(call.refusal) for call in seen) / len(seen),
        sum(call.code == "DEADLINE_EXCEEDED" for call in seen) / len(seen),
        max(after, default=flood) - flood,
        0.0,
    )


@contextlib.asynccontextmanager
async def task(work: str, kind: str) -> AsyncIterator[int]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.overload", "--serve", work, kind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield int(await child.stdout.readline())
    finally:
        child.stdin.close()
        await child.wait()


async def run_load(port: int, phases: list[Phase], seed: int) -> list[Call]:
    said = json.dumps([asdict(phase) for phase in phases])
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.overload"),
        *("--load", str(port), said, str(seed)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await child.communicate()
    return [Call(*fields) for fields in json.loads(out)]


async def read_memory(port: int) -> float:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        read: Any = channel.unary_unary(MEMORY)
        for _ in range(50):  # a task in trouble refuses this, too
            try:
                return int(await read(b"")) / 1e6
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
    return float("nan")


async def capacity(work: str) -> float:
    """Requests a second: known if emulated, else what a plain server gets done."""
    if work == "emulated":
        return 1.0 / COST
    async with (
        task(work, "grpcio") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        method: Any = channel.unary_unary(WORK)
        done, began_at = 0, time.monotonic()

        async def ask() -> None:
            nonlocal done
            while time.monotonic() < began_at + 4.0:
                await method(b"")
                done += 1

        await asyncio.gather(*(ask() for _ in range(4)))
        return done / (time.monotonic() - began_at)


async def one(
    work: str, kind: str, times: float, rate: float, seconds: float
) -> Figures:
    flood = WARMUP + seconds
    phases = [
        Phase(flood, {"CRITICAL": times * rate}),
        Phase(6.0, {"CRITICAL": CALM * rate}),
    ]
    async with task(work, kind) as port:
        await run_load(port, [Phase(0.5, {"CRITICAL": CALM * rate})], 1)
        before = await read_memory(port)
        calls = await run_load(port, phases, 2)
        result = figures(work, kind, times, calls, flood, rate)
        result.memory_growth = await read_memory(port) - before
    return result


@dataclass
class Flood:
    work: str
    critical: float  # share that was answered in time
    sheddable: float
    p99: float  # of CRITICAL


async def spike(work: str, rate: float, seconds: float) -> Flood:
    """All of the flood counts: its beginning is when CRITICAL requests suffer."""
    calm = Phase(3.0, {"CRITICAL": STEADY * rate, "SHEDDABLE": 0.1 * rate})
    both = {"CRITICAL": STEADY * rate, "SHEDDABLE": FLOOD * rate}
    async with task(work, "lbclient") as port:
        phases = [calm, Phase(3 * seconds, both)]
        calls = await run_load(port, phases, 3)
    seen = [call for call in calls if call.at >= calm.seconds]

    def success(criticality: str) -> float:
        codes = [call.code for call in seen if call.criticality == criticality]
        return codes.count("OK") / len(codes)

    times = sorted(
        c.latency for c in seen if c.code == "OK" and c.criticality == "CRITICAL"
    )
    p99 = times[int(0.99 * len(times))]
    return Flood(work, success("CRITICAL"), success("SHEDDABLE"), p99)


def say(one: Figures) -> None:
    print(
        f"{one.work:9}{one.kind:9}{one.offered:5.1f} x  goodput {one.goodput:5.2f}  "
        f"p50 {one.p50 * 1e3:5.0f} ms  p99 {one.p99 * 1e3:5.0f} ms  "
        f"refused {one.refused:4.0%}  late {one.late:4.0%}  "
        f"normal after {one.normal_after:3.1f} s  "
        f"memory {one.memory_growth:+5.1f} MB",
        flush=True,
    )


def surroundings() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "load average": os.getloadavg()[0],
    }


async def compare(
    works: list[str], kinds: list[str], loads: list[float], seconds: float
) -> dict[str, Any]:
    results, floods, rates = [], [], {}
    for work in works:
        rate = rates[work] = await capacity(work)
        print(f"{work}: capacity {rate:.0f} requests a second", flush=True)
        for kind in kinds:
            for times in loads:
                results.append(await one(work, kind, times, rate, seconds))
                say(results[-1])
        if "lbclient" in kinds:
            flood = await spike(work, rate, seconds)
            floods.append(flood)
            print(
                f"{work:9}{FLOOD:g} x SHEDDABLE over {STEADY:g} x CRITICAL: "
                f"{flood.critical:.2%} of CRITICAL, p99 {flood.p99 * 1e3:.0f} ms, "
                f"{flood.sheddable:.1%} of SHEDDABLE",
                flush=True,
            )
    return {
        **surroundings(),
        "seconds": seconds,
        "capacity": rates,
        "runs": [asdict(result) for result in results],
        "floods": [asdict(flood) for flood in floods],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--times", nargs="+", type=float, default=list(LOADS))
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(*arguments.serve))
        return
    if arguments.load:
        port, said, seed = arguments.load
        phases = [Phase(**fields) for fields in json.loads(said)]
        calls = asyncio.run(load(int(port), phases, int(seed)))
        print(json.dumps([list(asdict(call).values()) for call in calls]))
        return
    seconds = 5.0 if arguments.quick else 15.0
    print(", ".join(f"{key} {value}" for key, value in surroundings().items()))
    result = asyncio.run(
        compare(arguments.work, arguments.kind, arguments.times, seconds)
    )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
