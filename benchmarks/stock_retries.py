"""What stock clients' own retries cost servers of ours: arrivals for each call.

    python -m benchmarks.stock_retries              three minutes
    python -m benchmarks.stock_retries --quick      half a minute
    python -m benchmarks.stock_retries --only node --json FILE
    python -m benchmarks.stock_retries --only go --go-client PROGRAM

Clients of grpc.aio, of grpc-js if `make node` has installed it, and of grpc-go if
PROGRAM is a build of stock_retries.go, call eight servers of lbclient by round robin,
with nothing but gRPC's own `retryPolicy`. All eight refuse everything, or one of them
does and the others serve. Each server and each client is a process of its own. A
*gust* is all calls at once, and *in turn* each call after the end of the one before.

Exit status 1 if more than 1.2 requests arrive for each call where all refuse; or where
one refuses, if it has not learned in the first half of the calls to let its clients
retry elsewhere: fewer than 99 % of the second half are served.
"""

import asyncio
import json
import math
import os
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

import lbclient
from benchmarks.harness.load import end_of, open_loop
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, program, result_of, running, say
from benchmarks.harness.servers import listen, target_of
from benchmarks.overload.load import missing, node_modules

METHOD, HOLD = "/benchmark.StockRetries/Call", "/benchmark.StockRetries/Hold"
BACKENDS = 8
DEADLINE = 20.0
MOST = 1.2  # arrivals for each call, where all refuse
LEAST = 0.99  # of the second half of the calls are served, where one of eight refuses
NODE_CLIENT = Path(__file__).with_suffix(".cjs")

# Why a server refuses everything.
LOAD, LIMIT, QUOTA, NOT = "load", "limit", "quota", "not"


@dataclass(frozen=True)
class Case:
    name: str
    client: str = "python"
    refusal: str = LOAD
    refusing: int = BACKENDS
    attempts: int = 3
    rate: float = 200.0  # 0.0: each after the end of the one before; inf: all at once
    calls: int = 4000
    backoff: str = "0.01s"


SHORT = 600  # calls
CASES = [
    Case("python", calls=SHORT),
    Case("python, five attempts", attempts=5, calls=SHORT),
    Case("python, a gust", rate=math.inf, calls=SHORT),
    Case("python, in turn", rate=0.0, calls=SHORT),
    Case("python, longer backoff", backoff="0.5s", calls=SHORT),
    Case("python, for longer"),
    Case("python, in turn, for longer", rate=0.0),
    Case("python, no place", refusal=LIMIT, calls=SHORT),
    Case("python, out of quota", refusal=QUOTA, calls=SHORT),
    Case("python, one of eight", refusing=1),
    Case("node", "node", calls=SHORT),
    Case("node, five attempts", "node", attempts=5, calls=SHORT),
    Case("node, for longer", "node"),
    Case("node, out of quota", "node", QUOTA, calls=SHORT),
    Case("node, one of eight", "node", refusing=1),
    Case("go", "go", calls=SHORT),
    Case("go, five attempts", "go", attempts=5, calls=SHORT),
    Case("go, for longer", "go"),
    Case("go, in turn, for longer", "go", rate=0.0),
    Case("go, out of quota", "go", QUOTA, calls=SHORT),
    Case("go, one of eight", "go", refusing=1),
]


def service_config(case: Case) -> str:
    policy = {
        "maxAttempts": case.attempts,
        "initialBackoff": case.backoff,
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    }
    return json.dumps(
        {
            "loadBalancingConfig": [{"round_robin": {}}],
            "methodConfig": [{"name": [{}], "retryPolicy": policy}],
        }
    )


# --- a server, in a process of its own ---------------------------------------------


def server_of(refusal: str) -> lbclient.Server:
    if refusal == LIMIT:
        return lbclient.server(maximum_concurrent_rpcs=1)
    configs = {
        LOAD: lbclient.ServerConfig(signals={"all": lambda: 1000.0}),
        QUOTA: lbclient.ServerConfig(default_quota=0.0),
        NOT: lbclient.ServerConfig(max_load=0.0),
    }
    return lbclient.server(config=configs[refusal])


async def serve(refusal: str) -> None:
    """Says its port; an order asks how many came, and what they were told."""
    served, held = 0, asyncio.Event()

    async def answer(request: bytes, context: Any) -> bytes:
        nonlocal served
        served += 1
        return request

    async def hold(request: bytes, context: Any) -> bytes:
        held.set()
        await asyncio.Event().wait()
        return request

    server = server_of(refusal)
    port = await listen(server, {METHOD: answer, HOLD: hold})
    if refusal == LIMIT:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        method: Any = channel.unary_unary(HOLD)
        _holding = method(b"")  # grpc.aio cancels a call that nobody refers to
        await held.wait()
    say(port)
    async for _ in orders():
        seen = server.statistics()
        told = {word: sum(by.values()) for word, by in seen.refused.items()}
        say([served, told, seen.attempts])


# --- the client, in another ---------------------------------------------------------


async def load(target: str, config: str, rate: float, calls: int) -> list[Any]:
    """How the calls ended: those of the first half, and of the second."""
    halves: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    options = [("grpc.service_config", config), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        await asyncio.sleep(0.5)  # for the rest of the connections
        method: Any = channel.unary_unary(METHOD)

        async def call(number: int) -> None:
            await end_of(method, DEADLINE, halves[2 * number >= calls])

        if rate:
            await open_loop(range(calls), call, lambda number: number / rate)
        else:
            for number in range(calls):
                await call(number)
    return list(halves)


async def loaded(client: str, *words: Any, go_client: str) -> list[dict[str, int]]:
    """What `load` returns for the words, by a client in this language."""
    halves: list[dict[str, int]]
    if client == "python":
        halves = await result_of(load, *words)
        return halves
    environment = {**os.environ, "NODE_PATH": str(node_modules())}
    command = ["node", str(NODE_CLIENT)] if client == "node" else [go_client]
    async with program(*command, json.dumps(words), env=environment) as process:
        halves = (await process.rest())[-1]
    return halves


# --- what comes of it ----------------------------------------------------------------


async def run(case: Case, go_client: str) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        kinds = [case.refusal] * case.refusing + [NOT] * (BACKENDS - case.refusing)
        tasks = [await stack.enter_async_context(running(serve, k)) for k in kinds]
        ports = [await task.hear() for task in tasks]
        words = target_of(ports), service_config(case), case.rate, case.calls
        halves = await loaded(case.client, *words, go_client=go_client)
        seen = [await task.ask() for task in tasks]
    served = sum(served for served, _, _ in seen)
    told = sum((Counter(told) for _, told, _ in seen), Counter[str]())
    ratio = (served + told.total()) / case.calls
    second = halves[1].get("OK", 0) / sum(halves[1].values())
    is_sound = ratio <= MOST and (case.refusing == BACKENDS or second >= LEAST)
    return {
        "case": case.name,
        "calls": case.calls,
        "ratio": ratio,
        "served": halves[0].get("OK", 0) / sum(halves[0].values()),
        "served, second half": second,
        "told": dict(told),
        "withheld": sum(attempts["withheld"] for _, _, attempts in seen),
        "is_sound": is_sound,
    }


def tell(found: dict[str, Any]) -> None:
    served, second = found["served"], found["served, second half"]
    told = ", ".join(f"{count:,} {word}" for word, count in found["told"].items())
    print(
        f"{found['case']:30}{found['calls']:6,}{found['ratio']:8.3f}{served:8.1%}"
        f"{second:8.1%}{found['withheld']:7,}  {told}",
        flush=True,
    )


async def compare(cases: list[Case], go_client: str) -> list[dict[str, Any]]:
    print(
        f"{'':30}{'calls':>6}{'ratio':>8}{'served in halves':>16}{'kept':>7}  refused"
    )
    results = []
    for case in cases:
        results.append(await run(case, go_client))
        tell(results[-1])
    return results


def chosen(words: list[str], is_quick: bool, without: set[str]) -> list[Case]:
    """Those whose names have one of the words, or all, and whose client is here."""
    return [
        case
        for case in CASES
        if (not words or any(word in case.name for word in words))
        and not (is_quick and case.calls > SHORT)
        and case.client not in without
    ]


def main() -> int:
    parser = parser_of("stock_retries", __doc__, quick="600 calls at most")
    parser.add_argument("--only", nargs="+", default=[], help="words of some cases")
    parser.add_argument(
        "--go-client", default="", metavar="PROGRAM", help="a build of stock_retries.go"
    )
    given = parser.parse_args()
    without = set()
    if why := missing("node"):
        print(f"no clients in Node: {why}")
        without.add("node")
    if not given.go_client:
        print("no clients in Go: --go-client names none")
        without.add("go")
    cases = chosen(given.only, given.quick, without)
    if not cases:
        said = "; ".join(case.name for case in CASES)
        parser.error(f"--only: want words of these: {said}")
    results = asyncio.run(compare(cases, given.go_client))
    told = [
        Measured(name=f"{one['case']}: arrivals for each call", value=one["ratio"])
        for one in results
    ]
    missed = [one["case"] for one in results if not one["is_sound"]]
    return conclude(given, results, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
