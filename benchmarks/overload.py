"""One task in more demand than it can meet, beside the same task without lbclient.

    python -m benchmarks.overload                  about 10 minutes
    python -m benchmarks.overload --quick          about 5
    python -m benchmarks.overload --work burn --kind grpcio --json FILE    a piece of it
    python -m benchmarks.overload --read FILE FILE --plot FILE             the pieces
    python -m benchmarks.overload --handler-ms 1 0.2     handlers of less, 5 minutes

Requests take 10 ms of one processor: of an emulated one, so that two cores suffice for
any load, or of a real one (`burn`), where each refusal takes something from it. Load is
open: Poisson arrivals from a process of its own, deadline 1 s, no retries and no
throttling. Goodput is what was answered in time, of the capacity. How late that process
was in sending is told, too: where it cannot keep up, nothing else means much.

Exit status 1 if a target is missed, all of them of the emulated processor: of the real
one refusals take a part. Goodput at twice the capacity is 0.95, and 0.90 at ten times;
p99 is twice that at 0.8 at most; 5 s after the flood all is served; of CRITICAL beside
the spike 99.4 % are. With `--handler-ms` nothing is judged.

With `--handler-ms` half of the requests are SHEDDABLE, and come as bare frames. Beside
each other are servers of ours, ours that leave requests in gRPC's core until they are
served (`in core`), and grpcio's.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any, TypeVar

import grpc

import lbclient
from benchmarks import frames
from benchmarks.command import add_output, parser_of, verdict, write_json
from benchmarks.frames import Call, quantile
from benchmarks.overload_picture import picture
from lbclient import wire
from lbclient.cli import pictures
from lbclient.server import grpc_server

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fleet"))

from cpu import Cpu  # type: ignore[import-not-found]

T = TypeVar("T")

COST = 0.01  # seconds of processor a request
DEADLINE = 1.0
WORK = "/benchmark.Overload/Work"
CHANNELS = 4
LOADS = (0.8, 1.0, 2.0, 5.0, 10.0)
WARMUP = 2.0  # seconds at the beginning of each phase that are not counted
CALM, CALM_AFTER = 0.5, 6.0  # of the capacity, and seconds of it, after the flood
FLOOD, STEADY = 12.0, 0.5  # of the capacity: SHEDDABLE, CRITICAL

GOODPUT = {2.0: 0.95, 10.0: 0.90}  # targets, by what is offered
P99_TIMES = 2.0  # of that at `USUAL`
USUAL = 0.8  # of the capacity
NORMAL_AFTER = 5.0
CRITICAL_SERVED = 0.994

WORKS = ("emulated", "burn")
KINDS = ("lbclient", "grpcio")
SMALL_KINDS = ("lbclient", "in core", "grpcio")
SMALL_LOADS = (1.0, 2.0, 5.0, 10.0)


def leave_in_core() -> None:
    """Servers of this process take requests one by one, as grpcio does."""

    def make_as_it_is(make: Callable[[], T], _queue: object) -> T:
        return make()

    vars(grpc_server)["with_queue"] = make_as_it_is


# --- the task, in a process of its own ----------------------------------------


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def serve(work: str, kind: str, cost: float) -> None:
    """Until standard input ends; says its port first."""
    cpu = Cpu(cores=1, speed=1.0)

    async def emulated(request: bytes, context: Any) -> bytes:
        await cpu.run(cost)
        return request

    async def burning(request: bytes, context: Any) -> bytes:
        burn(cost)
        return request

    method: Any = grpc.unary_unary_rpc_method_handler(
        emulated if work == "emulated" else burning
    )
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
        if kind == "in core":
            leave_in_core()
        server = lbclient.server(config=config if work == "emulated" else None)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("benchmark.Overload", {"Work": method}),)
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


async def load(port: int, phases: list[Phase], seed: int) -> list[Call]:
    rng, calls = Random(seed), []
    began_at = 0.0

    async def call(method: Any, at: float, criticality: str) -> None:
        metadata = ((wire.CRITICALITY_KEY, criticality),)
        sent_at, code, refusal = time.monotonic(), "OK", ""
        try:
            await method(b"", timeout=DEADLINE, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            trailers = dict(error.trailing_metadata())
            refusal = str(trailers.get(wire.REFUSAL_KEY, ""))
        took = time.monotonic() - sent_at
        calls.append(
            Call(at, criticality, code, refusal, took, sent_at - began_at - at)
        )

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
        running = await stack.enter_async_context(asyncio.TaskGroup())
        began_at = time.monotonic()
        at = end = 0.0
        for phase in phases:
            at, end = end, end + phase.seconds
            names, rates = list(phase.rates), list(phase.rates.values())
            while (at := at + rng.expovariate(sum(rates))) < end:
                if (pause := began_at + at - time.monotonic()) > 0:
                    await asyncio.sleep(pause)
                criticality = rng.choices(names, rates)[0]
                running.create_task(call(rng.choice(methods), at, criticality))
    return calls


# --- what comes of it ----------------------------------------------------------


@dataclass
class Figures:
    work: str
    kind: str
    offered: float  # of the capacity
    goodput: float
    p50: float | None  # seconds, of what is admitted
    p99: float | None
    admitted: float
    refused: float
    late: float
    normal_after: float  # seconds after the flood until all is served in time
    variation: float  # of goodput by the second: deviation over mean
    lateness: float | None  # of the load, p99
    memory_growth: float  # MB, of the most in the flood over what it began with
    by_second: list[float]  # goodput, from the beginning of the flood on


def figures(
    work: str,
    kind: str,
    offered: float,
    calls: list[Call],
    flood: float,
    rate: float,
    memory: list[int],
) -> Figures:
    seen = [call for call in calls if WARMUP <= call.at < flood]
    served = [call.latency for call in seen if call.code == "OK"]
    ended = Counter(int(c.at + c.lateness + c.latency) for c in calls if c.code == "OK")
    by_second = [ended[second] / rate for second in range(int(flood + CALM_AFTER))]
    counted = by_second[int(WARMUP) : int(flood)]
    after = [call.at for call in calls if call.at >= flood and call.code != "OK"]
    return Figures(
        work=work,
        kind=kind,
        offered=offered,
        goodput=fmean(counted),
        p50=quantile(served, 0.5),
        p99=quantile(served, 0.99),
        admitted=len(served) / len(seen),
        refused=sum(bool(call.refusal) for call in seen) / len(seen),
        late=sum(call.code == "DEADLINE_EXCEEDED" for call in seen) / len(seen),
        normal_after=max(after, default=flood) - flood,
        variation=pstdev(counted) / fmean(counted) if any(counted) else 0.0,
        lateness=quantile([call.lateness for call in seen], 0.99),
        memory_growth=(max(memory) - memory[0]) / 1e6,
        by_second=by_second,
    )


@contextlib.asynccontextmanager
async def task(
    work: str, kind: str, cost: float = COST
) -> AsyncIterator[tuple[int, int]]:
    """Its port and its process."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.overload"),
        *("--serve", work, kind, str(cost)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield int(await child.stdout.readline()), child.pid
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


@contextlib.asynccontextmanager
async def watched(pid: int) -> AsyncIterator[list[int]]:
    """Bytes that the process has in memory: now, and every half a second."""
    statm = Path(f"/proc/{pid}/statm")

    def resident() -> int:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    seen = [resident()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.5)
            seen.append(resident())

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()


async def capacity(work: str, cost: float = COST) -> float:
    """Requests a second: known if emulated, else what a plain server gets done."""
    if work == "emulated":
        return 1.0 / cost
    async with (
        task(work, "grpcio", cost) as (port, _),
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
        Phase(CALM_AFTER, {"CRITICAL": CALM * rate}),
    ]
    async with task(work, kind) as (port, pid):
        await run_load(port, [Phase(0.5, {"CRITICAL": CALM * rate})], 1)
        async with watched(pid) as memory:
            calls = await run_load(port, phases, 2)
    return figures(work, kind, times, calls, flood, rate, memory)


@dataclass
class Flood:
    work: str
    critical: float  # share that was answered in time
    sheddable: float
    p99: float | None  # of CRITICAL
    goodput: float  # of the capacity
    lost: dict[str, int]  # of CRITICAL, and why
    lost_at_once: int  # of these, in the first half second
    requests: int  # of CRITICAL
    lateness: float | None  # of the load, p99


async def spike(work: str, rate: float, seconds: float) -> Flood:
    """All of the flood counts: its beginning is when CRITICAL requests suffer."""
    calm = Phase(3.0, {"CRITICAL": STEADY * rate, "SHEDDABLE": 0.1 * rate})
    both = {"CRITICAL": STEADY * rate, "SHEDDABLE": FLOOD * rate}
    async with task(work, "lbclient") as (port, _):
        phases = [calm, Phase(3 * seconds, both)]
        calls = await run_load(port, phases, 3)
    seen = [call for call in calls if call.at >= calm.seconds]

    def success(criticality: str) -> float:
        codes = [call.code for call in seen if call.criticality == criticality]
        return codes.count("OK") / len(codes)

    served = [call for call in seen if call.code == "OK"]
    critical = [call for call in seen if call.criticality == "CRITICAL"]
    lost = [call for call in critical if call.code != "OK"]
    times = [call.latency for call in critical if call.code == "OK"]
    return Flood(
        work=work,
        critical=success("CRITICAL"),
        sheddable=success("SHEDDABLE"),
        p99=quantile(times, 0.99),
        goodput=len(served) / (3 * seconds) / rate,
        lost=dict(Counter(call.refusal or call.code for call in lost)),
        lost_at_once=sum(call.at < calm.seconds + 0.5 for call in lost),
        requests=len(critical),
        lateness=quantile([call.lateness for call in seen], 0.99),
    )


def in_ms(seconds: float | None) -> str:
    return "   - ms" if seconds is None else f"{seconds * 1e3:4.0f} ms"


def say(one: Figures) -> None:
    print(
        f"{one.work:9}{one.kind:9}{one.offered:5.1f} x  goodput {one.goodput:5.2f} "
        f"+- {one.variation:4.0%}  p50 {in_ms(one.p50)}  p99 {in_ms(one.p99)}  "
        f"refused {one.refused:4.0%}  late {one.late:4.0%}  "
        f"normal after {one.normal_after:3.1f} s  "
        f"memory {one.memory_growth:+5.1f} MB  sent late {in_ms(one.lateness)}",
        flush=True,
    )


def say_flood(one: Flood) -> None:
    print(
        f"{one.work:9}{FLOOD:g} x SHEDDABLE over {STEADY:g} x CRITICAL: "
        f"{one.critical:.2%} of {one.requests} CRITICAL, p99 {in_ms(one.p99)}, lost "
        f"{one.lost or 'none'}, {one.lost_at_once} of them in the first 0.5 s; "
        f"{one.sheddable:.1%} of SHEDDABLE; goodput {one.goodput:.2f}; "
        f"sent late {in_ms(one.lateness)}",
        flush=True,
    )


def surroundings() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "load average": os.getloadavg()[0],
    }


def missed(runs: Sequence[Figures], floods: Sequence[Flood]) -> list[str] | None:
    """Which targets are; None if nothing was run that has any."""
    runs = [run for run in runs if (run.work, run.kind) == ("emulated", "lbclient")]
    floods = [flood for flood in floods if flood.work == "emulated"]
    if not runs and not floods:
        return None
    usual = [run.p99 for run in runs if run.offered == USUAL and run.p99 is not None]
    most = P99_TIMES * min(usual, default=inf)
    found = []
    for run in runs:
        at = f"at {run.offered:g} x"
        least = GOODPUT.get(run.offered, 0.0)
        if run.goodput < least:
            found.append(f"{at} goodput is {run.goodput:.3f}, target {least:.2f}")
        if run.p99 is not None and run.p99 > most:
            found.append(f"{at} p99 is {in_ms(run.p99)}, target {in_ms(most)}")
        if run.normal_after > NORMAL_AFTER:
            found.append(f"{at} normal after {run.normal_after:.1f} s")
    for flood in floods:
        if flood.critical < CRITICAL_SERVED:
            share = f"{flood.critical:.2%}, target {CRITICAL_SERVED:.1%}"
            found.append(f"in the spike CRITICAL is {share}")
    return found


async def compare(
    works: list[str],
    kinds: Sequence[str],
    loads: Sequence[float],
    seconds: float,
    with_spike: bool,
) -> dict[str, Any]:
    results, floods, rates = [], [], {}
    for work in works:
        rate = rates[work] = await capacity(work)
        print(f"{work}: capacity {rate:.0f} requests a second", flush=True)
        for kind in kinds:
            for times in loads:
                results.append(await one(work, kind, times, rate, seconds))
                say(results[-1])
        if "lbclient" in kinds and with_spike:
            floods.append(await spike(work, rate, seconds))
            say_flood(floods[-1])
    return {
        **surroundings(),
        "capacity": rates,
        "runs": [asdict(result) for result in results],
        "floods": [asdict(flood) for flood in floods],
    }


def main() -> None:
    parser = parser_of("overload", __doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--kind", nargs="+", choices=SMALL_KINDS)
    parser.add_argument("--times", nargs="*", type=float)
    parser.add_argument("--handler-ms", nargs="+", type=float, metavar="MS")
    parser.add_argument("--no-spike", action="store_true", help="one criticality only")
    parser.add_argument("--read", metavar="FILE", nargs="+", help="run nothing")
    add_output(parser)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        work, kind, cost = arguments.serve
        asyncio.run(serve(work, kind, float(cost)))
        return
    if arguments.load:
        port, said, seed = arguments.load
        phases = [Phase(**fields) for fields in json.loads(said)]
        calls = asyncio.run(load(int(port), phases, int(seed)))
        print(json.dumps([list(asdict(call).values()) for call in calls]))
        return
    if arguments.handler_ms:
        found = asyncio.run(small(arguments))
        if arguments.json:
            write_json(arguments.json, found)
        return
    if arguments.plot:
        pictures.check(arguments.plot)
    result = read(arguments.read) if arguments.read else measure(arguments)
    if arguments.json:
        write_json(arguments.json, result)
    if arguments.plot:
        pictures.write(arguments.plot, lambda: picture(result["runs"]))
    targets = missed(
        [Figures(**run) for run in result["runs"]],
        [Flood(**flood) for flood in result["floods"]],
    )
    if targets is not None:
        sys.exit(verdict(targets))


async def small(arguments: argparse.Namespace) -> dict[str, Any]:
    """Handlers so short that to refuse takes about as long as to serve."""
    runs = []
    seconds = 3.0 if arguments.quick else 8.0
    kinds = SMALL_KINDS if arguments.kind is None else arguments.kind
    print(", ".join(f"{key} {value}" for key, value in surroundings().items()))
    for ms in arguments.handler_ms:
        rate = await capacity("burn", ms / 1e3)
        print(f"{ms:g} ms: capacity {rate:.0f} requests a second", flush=True)
        for times in arguments.times or SMALL_LOADS:
            for kind in kinds:
                async with task("burn", kind, ms / 1e3) as (port, _):
                    found = await frames.flood(port, WORK, times * rate, seconds)
                frames.say(f"{ms:g} ms, {times:g} x, {kind}", rate, found)
                of = {"handler_ms": ms, "kind": kind, "times": times, "capacity": rate}
                runs.append(of | found)
    return {**surroundings(), "small": runs}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    seconds = 5.0 if arguments.quick else 15.0
    print(", ".join(f"{key} {value}" for key, value in surroundings().items()))
    return asyncio.run(
        compare(
            arguments.work,
            arguments.kind or KINDS,
            LOADS if arguments.times is None else arguments.times,
            seconds,
            not arguments.no_spike,
        )
    )


def read(files: list[str]) -> dict[str, Any]:
    """What pieces that were run one by one come to; says it again."""
    pieces = [json.loads(Path(file).read_text()) for file in files]
    runs = [run for piece in pieces for run in piece["runs"]]
    floods = [flood for piece in pieces for flood in piece["floods"]]
    for run in runs:
        say(Figures(**run))
    for flood in floods:
        say_flood(Flood(**flood))
    return {**pieces[0], "runs": runs, "floods": floods}


if __name__ == "__main__":
    main()
