"""What a batch job takes from interactive clients, through a proxy and without.

    python -m benchmarks.batch               a minute and a half
    python -m benchmarks.batch --json FILE

Two backends have 30 places each and take 0.6 s for a call, so they serve 100 calls a
second. An interactive client of lbclient's makes 50 calls a second to them, and names
no criticality. A batch job of stock clients makes 150 calls a second: directly;
through `lbclient proxy --criticality CRITICAL`; and through `lbclient proxy` as it is,
which sends SHEDDABLE_PLUS. Clients, proxy and backends are processes of their own.

Exit status 1 if the interactive client has less than 90 % of its calls served beside
the proxy as it is.
"""

import asyncio
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import grpc

import lbclient
from benchmarks.harness.load import end_of, steady
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import program, result_of, running
from benchmarks.harness.servers import serve as serve_methods
from benchmarks.harness.servers import target_of

METHOD = "/benchmark.Batch/Call"
BACKENDS, PLACES, SERVICE = 2, 30, 0.6  # seconds
INTERACTIVE, BATCH = 50.0, 150.0  # calls a second
WARM_UP, SECONDS = 5.0, 15.0
DEADLINE = 2.0
LEAST = 0.9  # of the interactive calls are served
DIRECT, CRITICAL, AS_IT_IS = "no proxy", "--criticality CRITICAL", "lbclient proxy"
CASES: dict[str, list[str] | None] = {
    DIRECT: None,
    CRITICAL: CRITICAL.split(),
    AS_IT_IS: [],
}


async def serve() -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(SERVICE)
        return request

    await serve_methods(
        lbclient.server(maximum_concurrent_rpcs=PLACES), {METHOD: answer}
    )


async def load(target: str, rate: float, is_ours: bool) -> Counter[str]:
    """How the calls ended."""
    if is_ours:
        channel: Any = lbclient.insecure_channel(target)
    else:
        options = [
            ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}')
        ]
        channel = grpc.aio.insecure_channel(target, options)
    ends = Counter[str]()
    async with channel:
        await channel.channel_ready()
        method = channel.unary_unary(METHOD)
        for seconds in (WARM_UP, SECONDS):
            ends.clear()
            await steady(rate, seconds, lambda: end_of(method, DEADLINE, ends))
    return ends


async def run(name: str) -> dict[str, Any]:
    words = CASES[name]
    async with AsyncExitStack() as stack:
        tasks = [
            await stack.enter_async_context(running(serve)) for _ in range(BACKENDS)
        ]
        target = batch = target_of([await task.hear() for task in tasks])
        if words is not None:
            command = ["proxy", "--json", "--listen", "127.0.0.1:0", *words, "--target"]
            proxy = await stack.enter_async_context(
                program(sys.executable, "-m", "lbclient", *command, target)
            )
            batch = "ipv4:" + (await proxy.hear())["listening"]
        ends = await asyncio.gather(
            result_of(load, target, INTERACTIVE, True),
            result_of(load, batch, BATCH, False),
        )
    served = [one.get("OK", 0) / sum(one.values()) for one in ends]
    return {"case": name, "interactive": served[0], "batch": served[1], "ends": ends}


async def compare() -> list[dict[str, Any]]:
    print(f"{'':26}{'interactive':>13}{'batch':>8}  served")
    found = []
    for name in CASES:
        found.append(await run(name))
        one = found[-1]
        print(f"{name:26}{one['interactive']:13.1%}{one['batch']:8.1%}", flush=True)
    return found


def main() -> int:
    given = parser_of("batch", __doc__).parse_args()
    found = asyncio.run(compare())
    served = {one["case"]: one["interactive"] for one in found}
    missed = [AS_IT_IS] if served[AS_IT_IS] < LEAST else []
    told = [
        Measured(name=f"{case}: served of interactive calls", value=share)
        for case, share in served.items()
    ]
    return conclude(given, found, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
