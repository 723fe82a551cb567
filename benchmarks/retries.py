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

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from benchmarks.harness.figures import BLUE, RED, blank
from benchmarks.harness.load import end_of, steady
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, result_of, running, say
from benchmarks.harness.servers import listen, target_of
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import RATIO
from lbclient.wire import REFUSAL_KEY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = "/benchmark.Retries/Call"
BACKENDS = 8
WIDE = 2  # tasks of each layer, where there are layers
LAYERS = 3  # that call the next one; the first of them is the client
DEADLINE = 5.0
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
    if kind == "lbclient":
        config = lbclient.ChannelConfig(throttle=throttle)
        return lbclient.insecure_channel(target_of(ports), config=config)
    service: dict[str, Any] = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [{"name": [{}], "retryPolicy": POLICY}],
    }
    if kind.endswith("throttling"):
        service["retryThrottling"] = THROTTLING
    options = [("grpc.service_config", json.dumps(service))]
    return grpc.aio.insecure_channel(target_of(ports), options)


# --- a task, in a process of its own ---------------------------------------------


async def serve(kind: str, word: str, below: list[int]) -> None:
    """Refuses all, or calls those below. Says its port; an order asks how many came."""
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
    say(await listen(server, {METHOD: call_below if below else refuse}))
    async for _ in orders():
        if word == GATE:
            refused = server.statistics().refused.values()
            came = sum(sum(counts.values()) for counts in refused)
        say(came)


# --- the client, in another --------------------------------------------------------


async def load(
    kind: str, throttle: float, ports: list[int], rate: float, seconds: float
) -> dict[str, Any]:
    ends: Counter[str] = Counter()
    async with open_channel(kind, ports, throttle) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        await asyncio.sleep(0.5)  # for the rest of the connections
        method, begun_at = channel.unary_unary(METHOD), time.monotonic()
        await steady(rate, seconds, lambda: end_of(method, DEADLINE, ends))
        took = time.monotonic() - begun_at
    return {"wanted": ends.total(), "rate": ends.total() / took, "ends": ends}


# --- what comes of it ----------------------------------------------------------------


async def run(case: Case, rate: float, seconds: float) -> dict[str, Any]:
    layers, ports = [], list[int]()
    async with AsyncExitStack() as stack:
        for number in range(case.layers):
            word = "" if number else case.word  # the lowest layer refuses
            layer = [
                await stack.enter_async_context(running(serve, case.kind, word, ports))
                for _ in range(BACKENDS if case.layers == 1 else WIDE)
            ]
            layers.append(layer)
            ports = [await task.hear() for task in layer]
        result = await result_of(load, case.kind, case.throttle, ports, rate, seconds)
        arrived = [sum([await task.ask() for task in layer]) for layer in layers]
    calls = result["wanted"]
    made = calls - result["ends"].get("throttled", 0)
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


def tell(result: dict[str, Any]) -> None:
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
    colors = [RED if "grpcio" in n or "Thr" in n else BLUE for n in names]
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
        tell(results[-1])
    return results


def main() -> int:
    parser = parser_of("retries", __doc__, quick="shorter runs", plot=True)
    parser.add_argument("--only", nargs="+", default=[], help="words of some cases")
    given = parser.parse_args()
    cases = chosen(given.only)
    if not cases:
        said = "; ".join(case.name for case in CASES)
        parser.error(f"--only: want words of these: {said}")
    results = asyncio.run(compare(cases, 1.0 if given.quick else 5.0))
    missed = [result["case"] for result in results if not result["is_sound"]]
    told = [
        Measured(name=f"{one['case']}: arrivals for each call", value=one["ratio"])
        for one in results
    ]
    return conclude(given, results, missed, lambda: draw(results), measured=told)


if __name__ == "__main__":
    exit_with(main)
