"""What retries cost backends that refuse: calls that arrive for each one wanted.

    python -m benchmarks.retries              about a minute and a half
    python -m benchmarks.retries --quick      a third of that
    python -m benchmarks.retries --only layers --json FILE --plot FILE.png

A client wants calls at a steady rate from eight backends that refuse them all; then
fewer, through three layers of which the one below refuses. Every task is a process of
its own, and counts what arrives. Beside lbclient, against the same backends, stands
grpcio's own `retryPolicy` of three attempts, with and without its `retryThrottling`.

Except where it says so lbclient's throttle is off, so that only budgets and refusals
hold back. Exit status 1 if more arrives than that and a tenth, rounded up by each
client.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from benchmarks.command import add_output, parser_of, verdict, write_json
from lbclient.cli.lab.pictures import blank, write
from lbclient.core.retry import RATIO, Refusal
from lbclient.wire import REFUSAL_KEY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = "/benchmark.Retries/Call"
BACKENDS = 8
WIDE = 2  # tasks of each layer, where there are layers
LAYERS = 3  # that call the next one; the first of them is the client
DEADLINE = 5.0
TICK = 0.01  # seconds; so often a client begins the calls that are due
GATE = "gate"  # refused by lbclient.server itself, with the word that it finds right

POLICY: dict[str, Any] = {
    "maxAttempts": 3,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
# What gRFC A6 gives as an example.
THROTTLING = {"maxTokens": 10, "tokenRatio": 0.1}


@dataclass(frozen=True)
class Case:
    name: str
    kind: str  # lbclient, grpcio or grpcio+throttling
    word: str  # of those that refuse
    layers: int = 1
    throttle: float = 0.0
    most: float | None = None  # that may arrive for each call


CASES = [
    Case("lbclient, overloaded", "lbclient", "overloaded", most=1 + RATIO),
    Case("the same, with its throttle", "lbclient", "overloaded", 1, 2.0, 1 + RATIO),
    Case("lbclient's own servers", "lbclient", GATE, most=1 + RATIO),
    Case("lbclient, don't retry", "lbclient", Refusal.DONT_RETRY.value, most=1.0),
    Case("grpcio, retryPolicy", "grpcio", "overloaded"),
    Case("the same, retryThrottling", "grpcio+throttling", "overloaded"),
    Case("three layers, lbclient", "lbclient", "overloaded", LAYERS, most=1 + RATIO),
    Case("three layers, grpcio", "grpcio", "overloaded", LAYERS),
]


def open_channel(kind: str, ports: list[int], throttle: float) -> Any:
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    if kind == "lbclient":
        config = lbclient.ChannelConfig(throttle=throttle)
        return lbclient.insecure_channel(target, config=config)
    service: dict[str, Any] = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [{"name": [{}], "retryPolicy": POLICY}],
    }
    if kind.endswith("throttling"):
        service["retryThrottling"] = THROTTLING
    options = [("grpc.service_config", json.dumps(service))]
    return grpc.aio.insecure_channel(target, options)


# --- a task, in a process of its own ---------------------------------------------


async def serve(kind: str, word: str, below: list[int]) -> None:
    """Refuses all, or calls those below. Says its port; a line asks how many came."""
    came = 0
    channel: Any = open_channel(kind, below, 0.0) if below else None

    async def refuse(request: bytes, context: Any) -> bytes:
        nonlocal came
        came += 1
        code = grpc.StatusCode.UNAVAILABLE
        await context.abort(code, "overloaded", ((REFUSAL_KEY, word),))
        raise AssertionError("abort raises")

    async def call_below(request: bytes, context: Any) -> Any:
        nonlocal came
        came += 1
        try:
            return await channel.unary_unary(METHOD)(request, timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())

    server: Any = grpc.aio.server()
    if word == GATE:
        full = lbclient.ServerConfig(signals={"all": lambda: 1000.0})
        server = lbclient.server(config=full)
    elif below and kind == "lbclient":
        server = lbclient.server()
    _, service, method = METHOD.split("/")
    handler: Any = grpc.unary_unary_rpc_method_handler(call_below if below else refuse)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        if word == GATE:
            refused = server.statistics().refused.values()
            came = sum(sum(counts.values()) for counts in refused)
        print(came, flush=True)
    os._exit(0)


class Task:
    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.port = 0

    async def line(self) -> int:
        assert self._child.stdout is not None
        return int(await asyncio.wait_for(self._child.stdout.readline(), 30))

    async def came(self) -> int:
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        return await self.line()


@asynccontextmanager
async def tasks(count: int, *told: Any) -> AsyncIterator[list[Task]]:
    """So many tasks, until the end of the context."""
    children = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.retries", "--serve", json.dumps(told)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(count)
    ]
    try:
        found = [Task(child) for child in children]
        for task in found:
            task.port = await task.line()
        yield found
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
            await child.wait()


# --- the client, in another --------------------------------------------------------


async def load(case: Case, ports: list[int], rate: float, calls: int) -> dict[str, Any]:
    ends: Counter[str] = Counter()

    async def one(method: Any) -> None:
        try:
            await method(b"", timeout=DEADLINE)
            ends["OK"] += 1
        except lbclient.Throttled:
            ends["throttled"] += 1
        except grpc.aio.AioRpcError as error:
            ends[error.code().name] += 1

    async with (
        open_channel(case.kind, ports, case.throttle) as channel,
        asyncio.TaskGroup() as running,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        await asyncio.sleep(0.5)  # for the rest of the connections
        method, begun, made = channel.unary_unary(METHOD), time.monotonic(), 0
        while made < calls:
            due = min(calls, round((time.monotonic() - begun) * rate) + 1)
            for _ in range(due - made):
                running.create_task(one(method))
            made = due
            await asyncio.sleep(TICK)
        seconds = time.monotonic() - begun
    return {"wanted": calls, "rate": calls / seconds, "ends": dict(ends)}


async def run_load(*told: Any) -> dict[str, Any]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.retries", "--load", json.dumps(told)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(child.communicate(), 120)
    result: dict[str, Any] = json.loads(out)
    return result


# --- what comes of it ----------------------------------------------------------------


async def run(case: Case, rate: float, seconds: float) -> dict[str, Any]:
    calls = round(rate * seconds)
    async with AsyncExitStack() as stack:
        count = BACKENDS if case.layers == 1 else WIDE
        lowest = await stack.enter_async_context(tasks(count, "", case.word, []))
        above, layers = lowest, [lowest]
        for _ in range(case.layers - 1):
            ports = [task.port for task in above]
            above = await stack.enter_async_context(tasks(WIDE, case.kind, "", ports))
            layers.append(above)
        ports = [task.port for task in above]
        result = await run_load(asdict(case), ports, rate, calls)
        arrived = [sum([await task.came() for task in layer]) for layer in layers]
    made = result["wanted"] - result["ends"].get("throttled", 0)
    clients = 1 if case.layers == 1 else WIDE  # the tasks of the layer right above
    slack = clients if case.most and case.most > 1.0 else 0
    is_sound = case.most is None or arrived[0] <= case.most * calls + slack
    return {
        "case": case.name,
        **result,
        "sent": made,
        "arrived": arrived[::-1],  # by layer, from the client's side
        "ratio": arrived[0] / calls,
        "is_sound": is_sound,
    }


def say(result: dict[str, Any]) -> None:
    arrived = " ".join(f"{count:7,}" for count in result["arrived"])
    print(
        f"{result['case']:28}{result['wanted']:7,}{result['rate']:8.0f}/s"
        f"{result['ratio']:8.3f}   {arrived}",
        flush=True,
    )


def draw(results: list[dict[str, Any]]) -> "Figure":
    figure = blank(8, 4)
    axes = figure.subplots()
    names = [result["case"] for result in results][::-1]
    ratios = [result["ratio"] for result in results][::-1]
    colors = ["#d1495b" if "grpcio" in n or "Thr" in n else "#3d6fb4" for n in names]
    bars = axes.barh(names, ratios, color=colors)
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3)
    axes.axvline(1 + RATIO, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(0.05, 60)
    axes.set_xlabel("calls that arrive at the backends that refuse, for each wanted")
    return figure


def chosen(words: list[str]) -> list[Case]:
    return [c for c in CASES if not words or any(word in c.name for word in words)]


async def compare(cases: list[Case], seconds: float) -> list[dict[str, Any]]:
    print(f"{'':28}{'wanted':>7}{'rate':>10}{'ratio':>8}   arrived, layer by layer")
    results = []
    for case in cases:
        # Of three layers, where 27 times as many can arrive, fewer and for longer.
        wide = case.layers == 1
        rate, factor = (1000.0, 1) if wide else (50.0, 4)
        results.append(await run(case, rate, factor * seconds))
        say(results[-1])
    return results


def main() -> None:
    parser = parser_of("retries", __doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--only", nargs="+", default=[], help="words of some cases")
    add_output(parser)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(*json.loads(arguments.serve)))
        return
    if arguments.load:
        case, *told = json.loads(arguments.load)
        print(json.dumps(asyncio.run(load(Case(**case), *told))))
        return
    cases = chosen(arguments.only)
    if not cases:
        said = "; ".join(case.name for case in CASES)
        parser.error(f"--only: want words of these: {said}")
    results = asyncio.run(compare(cases, 1.0 if arguments.quick else 5.0))
    if arguments.json:
        write_json(arguments.json, results)
    if arguments.plot:
        write(arguments.plot, lambda: draw(results))
    missed = [result["case"] for result in results if not result["is_sound"]]
    sys.exit(verdict(missed))


if __name__ == "__main__":
    main()
