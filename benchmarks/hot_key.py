"""A key that is called at three times the capacity of its backend, on real processes.

    python -m benchmarks.hot_key            about a minute and a half

6 backends, each a process that serves 4 requests at once of 50 ms each, so 80 a second.
2 client processes call one key at 240 requests a second in all, and 60 other keys at
120, with deadlines of a second: 75 % of what the fleet can do. `consistent_hashing`
with its bound of 1.25, and beside it with one of 10, which is next to none.

    others      share of the calls of other keys that were answered in time
    hot         the same of the hot key
    first       share of picks that went to the first choice of the key
    backends    how many answered calls of the hot key

The target is 0.98 of the other keys' calls. Exit status 1 if it is missed.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from random import Random
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness.figures import table
from benchmarks.harness.load import steady
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, running, say
from benchmarks.harness.servers import serve, target_of
from lbclient import ChannelConfig, ServerConfig

WORK = "/benchmark.HotKey/Work"
BACKENDS, SLOTS, TAKES = 6, 4, 0.05
CAPACITY = SLOTS / TAKES
CLIENTS, OTHERS = 2, 60
HOT_RATE, OTHER_RATE = 3 * CAPACITY, 120.0  # a second, of all clients
DEADLINE, SETTLE, SECONDS = 1.0, 10.0, 20.0
GOODPUT = 0.98  # target
BOUNDED, PLAIN = 1.25, 10.0


async def be_backend() -> None:
    slots = asyncio.Semaphore(SLOTS)
    present = 0

    async def work(request: bytes, _: Any) -> bytes:
        nonlocal present
        present += 1
        try:
            async with slots:
                await asyncio.sleep(TAKES)
            return b""
        finally:
            present -= 1

    config = ServerConfig(
        utilization=lambda: present / SLOTS, utilization_replaces=True
    )
    await serve(lbclient.server(config=config), {WORK: work})


async def be_client(ports: list[int], factor: float, seed: int) -> None:
    """Says how calls of the hot key and of others ended, and who answered the hot."""
    rng = Random(seed)
    ends: dict[str, Counter[str]] = {"hot": Counter(), "others": Counter()}
    answered: Counter[str] = Counter()
    config = ChannelConfig(picker="consistent_hashing", hash_balance_factor=factor)
    channel = lbclient.insecure_channel(target_of(ports), config=config)
    method: Any = channel.unary_unary(WORK)
    await channel.channel_ready()
    loop = asyncio.get_running_loop()
    counts_from = loop.time() + SETTLE

    async def call(kind: str, key: str) -> None:
        counts = loop.time() >= counts_from
        with lbclient.key(key):
            one = method(b"", timeout=DEADLINE)
        code = "OK"
        try:
            await one
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        if counts:
            ends[kind][code] += 1
            if kind == "hot" and code == "OK":
                answered[lbclient.info(one).backend or ""] += 1

    await asyncio.gather(
        steady(HOT_RATE / CLIENTS, SETTLE + SECONDS, lambda: call("hot", "hot")),
        steady(
            OTHER_RATE / CLIENTS,
            SETTLE + SECONDS,
            lambda: call("others", f"key-{rng.randrange(OTHERS)}"),
        ),
    )
    seen = channel.statistics()
    say([ends, answered, seen.keyed_picks, seen.first_choices])
    async for _ in orders():
        pass


class Found(NamedTuple):
    bound: float
    others: float
    hot: float
    first: float
    backends: int
    ends: dict[str, dict[str, int]]


async def measure(factor: float) -> Found:
    async with AsyncExitStack() as stack:
        backends = [
            await stack.enter_async_context(running(be_backend))
            for _ in range(BACKENDS)
        ]
        ports = [await backend.hear() for backend in backends]
        clients = [
            await stack.enter_async_context(running(be_client, ports, factor, seed))
            for seed in range(CLIENTS)
        ]
        ends: dict[str, Counter[str]] = {"hot": Counter(), "others": Counter()}
        answered: Counter[str] = Counter()
        picks = first = 0
        for client in clients:
            told, who, picked, firsts = await client.hear()
            for kind in ends:
                ends[kind].update(told[kind])
            answered.update(who)
            picks, first = picks + picked, first + firsts
    good = {kind: each["OK"] / max(1, each.total()) for kind, each in ends.items()}
    of = {kind: dict(each) for kind, each in ends.items()}
    share = first / max(1, picks)
    return Found(factor, good["others"], good["hot"], share, len(answered), of)


def row(one: Found) -> list[str]:
    figures = (one.others, one.hot, one.first)
    return [f"{one.bound:g}", *(f"{each:.3f}" for each in figures), f"{one.backends}"]


def main() -> int:
    given = parser_of("hot_key", __doc__).parse_args()
    found = [asyncio.run(measure(factor)) for factor in (BOUNDED, PLAIN)]
    print(table([["bound", "others", "hot", "first", "backends"], *map(row, found)]))
    for one in found:
        print(f"{one.bound:g}: {one.ends}")
    name = "goodput of other keys beside a hot one"
    figure = Measured(
        name=name, value=found[0].others, unit="", better="more", goal=GOODPUT
    )
    return conclude(given, found, None, measured=[figure])


if __name__ == "__main__":
    exit_with(main)
