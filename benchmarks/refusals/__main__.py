"""What it takes a server to end a request, by how it ends it.

    python -m benchmarks.refusals              about 4 minutes

Bare frames come at a fixed rate to one server after the other, each in a process of its
own, of which each ends all requests in one way, round after round. CPU is that of the
loop's thread, and that of the whole process, in which threads of gRPC's core do the
rest; each less what the process takes when nothing comes. Of each server the best slice
counts: what others do on the machine only makes it worse.

In a flood, here 256 requests at any time, each takes less, as the loop wakes up once
for many. So many as then go into a second of the loop's thread fill it: where more come
refusing does not help, and what is beyond that waits in gRPC's core until that ends it.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from benchmarks.frames import CRITICALITIES, Call, saturated, send
from benchmarks.harness.figures import say_machine
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.refusals.costs import Cost, Slices, Used, costs, for_each
from benchmarks.refusals.ends import KINDS, PATH, Kind, Server, spawned

RATE, SECONDS, ROUNDS = 1000.0, 2.0, 5
MANY = 256  # requests at any time, which is a flood
WARMUP = 0.5  # seconds of each slice that do not count


class Slice(NamedTuple):
    server: Server
    kind: Kind
    seconds: float
    idle: Used  # by the second

    async def used(self, ends: Counter[str]) -> Used:
        """For a request that ends as those of its kind do, while others count these."""
        await asyncio.sleep(WARMUP)
        before, counted = self.server.used(), self._count(ends)
        began_at = time.monotonic()
        await asyncio.sleep(self.seconds)
        used, number = self.server.used().since(before), self._count(ends) - counted
        took = time.monotonic() - began_at
        return for_each(used, Used(*(part * took for part in self.idle)), number)

    def _count(self, ends: Counter[str]) -> int:
        return sum(ends[end] for end in self.kind.ends)

    async def at(self, rate: float) -> Used:
        ends: Counter[str] = Counter()

        def ended(call: Call) -> None:
            ends[call.refusal or call.code] += 1

        phases = [(rate, WARMUP + self.seconds + WARMUP)]
        sending = asyncio.create_task(
            send(self.server.port, PATH, phases, 1, ended, lambda _: CRITICALITIES[0])
        )
        used = await self.used(ends)
        await sending
        return used

    async def flooded(self) -> Used:
        async with saturated(self.server.port, PATH, MANY) as ends:
            return await self.used(ends)


async def measure(given: argparse.Namespace) -> list[Cost]:
    calm: Slices = {name: [] for name in KINDS}
    flooded: Slices = {name: [] for name in KINDS}
    async with AsyncExitStack() as stack:
        servers = [
            (name, await stack.enter_async_context(spawned(name))) for name in KINDS
        ]
        await asyncio.sleep(WARMUP)
        before = [server.used() for _, server in servers]
        await asyncio.sleep(given.seconds)
        slices = {}
        for (name, server), used in zip(servers, before, strict=True):
            idle = for_each(server.used(), used, given.seconds)
            slices[name] = Slice(server, KINDS[name], given.seconds, idle)
        for _ in range(given.rounds):
            for name, one in slices.items():
                calm[name].append(await one.at(given.rate))
                flooded[name].append(await one.flooded())
    return costs(calm, flooded)


def say(found: Sequence[Cost]) -> None:
    heads = ("loop, us", "process, us", "of grpcio", "flood: loop, us", "full at")
    print(f"{'':26}" + "".join(f"{head:>{len(head) + 2}}" for head in heads))
    for one in found:
        full_at = "-" if one.full_at is None else f"{one.full_at:,.0f}/s"
        print(
            f"{one.end:26}{one.loop:10.0f}{one.process:13.0f}{one.of_grpcio:11.2f}"
            f"{one.flooded:17.0f}{full_at:>9}"
        )


def main() -> int:
    parser = parser_of("refusals", __doc__)
    add = parser.add_argument
    add("--rate", type=float, default=RATE, help=f"requests a second ({RATE:g})")
    add("--seconds", type=float, default=SECONDS, help=f"of a slice ({SECONDS:g})")
    add("--rounds", type=int, default=ROUNDS, help=f"slices of each ({ROUNDS})")
    given = parser.parse_args()
    of = say_machine()
    found = asyncio.run(measure(given))
    say(found)
    told = [
        Measured(name=f"{one.end}: loop, over grpcio's own", value=one.of_grpcio)
        for one in found
    ]
    return conclude(given, {**of, "costs": found}, None, measured=told)


if __name__ == "__main__":
    exit_with(main)
