"""A client that wants ten times what its backend accepts, and how soon it recovers.

    python -m benchmarks.throttling              about 4 minutes
    python -m benchmarks.throttling --quick      about 70 s: watched from 20 s on
    python -m benchmarks.throttling --json FILE --plot FILE.png

For each K, all at once, a backend and a client in processes of their own. The backend
accepts `CAPACITY` requests a second, by a token bucket, and refuses the others; it
counts what arrives. The client wants ten times as much, evenly. Once the two minutes
that a throttle remembers have passed it is watched for a minute; then the backend is
well and accepts everything.

Promised are arrivals of at most 1.05 times K times the capacity, and less than 1 % of
local refusals within 30 s. Exit status 1 if one does not hold.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

import lbclient
from benchmarks.command import add_output, parser_of, verdict, write_json
from lbclient.cli.lab.pictures import blank, write
from lbclient.core.retry import Refusal
from lbclient.wire import REFUSAL_KEY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = "/benchmark.Throttling/Call"
CAPACITY, TIMES = 50.0, 10.0  # requests a second; what is wanted, of that
KS = (1.1, 2.0)


class Plan(NamedTuple):
    """Seconds: until it is watched, while it is, and after the backend is well."""

    fill: float
    watch: float
    well: float


LONG, QUICK = Plan(125.0, 60.0, 40.0), Plan(20.0, 15.0, 35.0)
MOST, FEW, SOON = 1.05, 0.01, 30.0  # as promised
TICK = 0.02  # seconds
DEADLINE = 5.0


# --- the backend -------------------------------------------------------------------


async def serve(capacity: float) -> None:
    """Says its port, and for each line how many have come; "well" makes it well."""
    came, tokens, filled_at, is_well = 0, 1.0, time.monotonic(), False

    async def respond(request: bytes, context: Any) -> bytes:
        nonlocal came, tokens, filled_at
        came += 1
        now = time.monotonic()
        tokens, filled_at = min(5.0, tokens + capacity * (now - filled_at)), now
        if tokens < 1.0 and not is_well:
            trailers = ((REFUSAL_KEY, Refusal.OVERLOADED.value),)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too much", trailers)
        tokens -= 1.0
        return b""

    server = grpc.aio.server()
    _, service, method = METHOD.split("/")
    handler: Any = grpc.unary_unary_rpc_method_handler(respond)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        is_well = is_well or line == "well\n"
        print(came, flush=True)
    os._exit(0)


# --- the client --------------------------------------------------------------------


async def load(port: int, k: float, rate: float, seconds: float) -> None:
    """Says each second what became of its calls."""
    ends: Counter[str] = Counter()

    async def one(method: Any) -> None:
        try:
            await method(b"", timeout=DEADLINE)
            ends["OK"] += 1
        except lbclient.Throttled:
            ends["here"] += 1
        except grpc.aio.AioRpcError as error:
            ends["there" if error.code().name == "UNAVAILABLE" else "other"] += 1

    config = lbclient.ChannelConfig(throttle=k)
    target = f"127.0.0.1:{port}"
    async with (
        lbclient.insecure_channel(target, config=config) as channel,
        asyncio.TaskGroup() as running,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        method: Any = channel.unary_unary(METHOD)
        begun, made, said = time.monotonic(), 0, 1
        while (elapsed := time.monotonic() - begun) < seconds:
            if elapsed >= said:
                print(json.dumps(dict(ends)), flush=True)
                ends.clear()
                said += 1
            due = round(elapsed * rate)
            for _ in range(due - made):
                running.create_task(one(method))
            made = due
            await asyncio.sleep(TICK)


# --- what comes of it ----------------------------------------------------------------


async def child(*told: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.throttling", "--child", json.dumps(told)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def line_of(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await asyncio.wait_for(process.stdout.readline(), 30))


async def tell(process: asyncio.subprocess.Process, word: bytes) -> int:
    assert process.stdin is not None
    process.stdin.write(word + b"\n")
    return int(await line_of(process))


async def run(k: float, plan: Plan) -> dict[str, Any]:
    backend = await child("serve", CAPACITY)
    port = await line_of(backend)
    seconds = sum(plan)
    rate = TIMES * CAPACITY
    client = await child("load", port, k, rate, seconds + 2)
    each: list[dict[str, Any]] = []
    before = 0
    try:
        while len(each) < seconds:
            ends = await line_of(client)
            is_well = len(each) + 1 == round(plan.fill + plan.watch)
            came = await tell(backend, b"well" if is_well else b"")
            each.append({"arrived": came - before, **ends})
            before = came
    finally:
        for process in (client, backend):
            process.terminate()
            await process.wait()
    return figures(k, plan, each)


def figures(k: float, plan: Plan, each: list[dict[str, Any]]) -> dict[str, Any]:
    well_at = round(plan.fill + plan.watch)
    watched, well = each[round(plan.fill) : well_at], each[well_at:]
    arrived = sum(second["arrived"] for second in watched) / len(watched)
    accepted = sum(second.get("OK", 0) for second in watched) / len(watched)
    few = [one.get("here", 0) <= FEW * wanted(one) for one in well]
    recovered = max((i for i, is_few in enumerate(few, 1) if not is_few), default=0)
    return {
        "k": k,
        "capacity": CAPACITY,
        "well_at": well_at,
        "wanted": sum(map(wanted, watched)) / len(watched),
        "arrived": arrived,
        "accepted": accepted,
        "of_k_times_capacity": arrived / (k * CAPACITY),
        "recovered_after": recovered,
        "is_sound": arrived <= MOST * k * CAPACITY and recovered <= SOON,
        "each": each,
    }


def wanted(second: dict[str, Any]) -> float:
    ends = ("OK", "here", "there", "other")
    return sum(second.get(end, 0) for end in ends) or 1.0


def say(result: dict[str, Any]) -> None:
    print(
        f"K = {result['k']:g}: {result['wanted']:.0f}/s wanted, "
        f"{result['accepted']:.1f}/s accepted of {CAPACITY:g}, "
        f"{result['arrived']:.1f}/s arrived: "
        f"{result['of_k_times_capacity']:.3f} of K times the capacity; under "
        f"{FEW:.0%} held back {result['recovered_after']} s after it is well",
        flush=True,
    )


def draw(results: list[dict[str, Any]]) -> "Figure":
    figure = blank(8, 4)
    axes = figure.subplots()
    for result, color in zip(results, ("#d1495b", "#3d6fb4"), strict=False):
        arrived = [second["arrived"] for second in result["each"]]
        axes.plot(arrived, color=color, linewidth=1, label=f"K = {result['k']:g}")
        axes.axhline(result["k"] * CAPACITY, color=color, linewidth=0.8, linestyle=":")
    well_at = results[0]["well_at"]
    axes.axvline(well_at, color="black", linewidth=0.8)
    axes.annotate("well", (well_at + 1, 0.02), xycoords=("data", "axes fraction"))
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("requests that arrive in a second")
    axes.legend()
    return figure


async def compare(plan: Plan) -> list[dict[str, Any]]:
    results = list(await asyncio.gather(*(run(k, plan) for k in KS)))
    for result in results:
        say(result)
    return results


def main() -> None:
    parser = parser_of("throttling", __doc__)
    parser.add_argument("--quick", action="store_true", help="shorter phases")
    add_output(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        role, *told = json.loads(arguments.child)
        asyncio.run(serve(*told) if role == "serve" else load(*told))
        return
    results = asyncio.run(compare(QUICK if arguments.quick else LONG))
    if arguments.json:
        write_json(arguments.json, results)
    if arguments.plot:
        write(arguments.plot, lambda: draw(results))
    missed = [f"K = {result['k']:g}" for result in results if not result["is_sound"]]
    sys.exit(verdict(missed))


if __name__ == "__main__":
    main()
