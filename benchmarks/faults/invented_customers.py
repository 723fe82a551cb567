"""Somebody sends requests under customers' names that are invented.

A server with a limit for each customer, listed or not. Five new customers and a listed
one want 40 % of their limit, another new one five times the limit, while an attacker
takes all places for accounts and goes on. Beside it the same requests to a stock
server, which has no limits: so many can be served.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from benchmarks.faults.fleet import Tally, Task, drive, ours, theirs
from benchmarks.faults.row import Result, Row
from benchmarks.faults.task import METHOD
from lbclient import wire
from tests.ports import free_ports

BURN = 0.002  # CPU seconds of a request
LIMIT = 0.05  # CPU seconds a second of each customer
CALM = 0.4 * LIMIT / BURN  # requests a second
GREEDY = 5.0 * LIMIT / BURN
NAMES = 1000  # as many as there are places
RATE = 17.0  # requests a second, so that each name comes again within a minute
NEW = [f"new {i}" for i in range(5)]
LISTED = "mail"
PATIENT = 30.0  # seconds; what is looked for is refusals, on however busy a machine

CONFIG = f"""
[server]
default_quota = {LIMIT}
quotas = {{ {LISTED} = {LIMIT} }}
"""


async def send(
    channel: grpc.aio.Channel, names: Iterator[str], rate: float, seconds: float
) -> Tally:
    def metadata() -> tuple[tuple[str, str]]:
        return ((wire.CUSTOMER_KEY, next(names)),)

    return await drive(channel, rate, seconds, PATIENT, metadata=metadata)


def always(name: str) -> Iterator[str]:
    while True:
        yield name


def invented() -> Iterator[str]:
    """One after the other, and again."""
    for number in count():
        yield f"invented {number % NAMES}"


async def take_places(channel: grpc.aio.Channel, names: Iterator[str]) -> None:
    """Each of them once; so few at a time that none is refused for the load."""
    call: Any = channel.unary_unary(METHOD)

    async def work() -> None:
        for _ in range(NAMES // 4):
            await call(b"", metadata=((wire.CUSTOMER_KEY, next(names)),))

    await asyncio.gather(*(work() for _ in range(4)))


def refused(*tallies: Tally) -> int:
    return sum(one.by_status()["RESOURCE_EXHAUSTED"] for one in tallies)


async def attacked(kind: str, seconds: float) -> tuple[list[Tally], Tally, str]:
    """What became of the calm customers' calls, the listed one's the last, and of the
    greedy one's."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = folder / "lb.toml"
        config.write_text(CONFIG)
        task = Task(kind, *free_ports(1), LBCLIENT_CONFIG=str(config))
        await task.start(burn=BURN)
        stack.push_async_callback(task.close)
        attacker = await stack.enter_async_context(theirs([task]))
        names = invented()
        await take_places(attacker, names)
        channel = await stack.enter_async_context(ours([task]))
        greedy = await stack.enter_async_context(theirs([task]))
        attack, wild, *calm = await asyncio.gather(
            send(attacker, names, RATE, seconds),
            send(greedy, always("greedy"), GREEDY, seconds),
            *(send(channel, always(n), CALM, seconds) for n in (*NEW, LISTED)),
        )
        [backend] = channel.statistics().backends
        said = f"utilization {backend.utilization or 0.0:.2f}"
        return calm, wild, f"{said}; {len(attack)} invented, {refused(attack)} refused"
    raise AssertionError


async def run(seconds: float) -> list[Row]:
    calm, wild, said = await attacked("ours", seconds)
    calm_there, wild_there, _ = await attacked("stock", seconds)
    served = len(wild) - len(wild.failed())
    # What a flood gets in before it is taken for one, and what smoothing lets through.
    most = 1.5 * LIMIT / BURN * (seconds + 1.0) + 24
    return [
        Row(
            f"{NAMES:,} invented customers, then {RATE:g} requests/s of theirs",
            "none is refused of five new customers and a listed one at 40 % of a limit",
            Result(sum(map(len, calm)), refused(*calm), said=said),
            Result(sum(map(len, calm_there)), refused(*calm_there)),
            refused(*calm) == 0,
        ),
        Row(
            "one customer beside them at five times the limit",
            "gets its limit only, which shows that limits were enforced",
            Result(len(wild), refused(wild), said=f"{served} served"),
            Result(len(wild_there), refused(wild_there)),
            served < most and refused(wild) > 0,
        ),
    ]
