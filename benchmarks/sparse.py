"""Many clients that send little each, to a fleet that can serve a tenth of it.

    python -m benchmarks.sparse              about 9 minutes
    python -m benchmarks.sparse --quick      about 6 minutes: lbclient alone, shorter
    python -m benchmarks.sparse --json FILE

Two servers of lbclient's in processes of their own: each serves `PLACES` requests at a
time, and waits in the handler for so long that the fleet's capacity is a tenth of what
all clients want together. Clients are channels, each with its own connections, in four
more processes; which client a call is of is chance. Then the handlers are quick: the
fleet is well.

Kinds of clients: lbclient's; the same with the plain equation of the SRE book, which
throttles by a client's own outcomes however few they are; and grpc.aio's. They run
beside each other, each with servers of its own.

Promised are arrivals of at most 2.2 times the capacity, and less than 2 % of local
refusals 30 s after recovery. Exit status 1 if one does not hold for lbclient's clients.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness.figures import say_machine, table
from benchmarks.harness.load import end_of, steady
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say
from benchmarks.harness.servers import listen, target_of
from lbclient.core.throttles import throttle

METHOD = "/benchmark.Sparse/Call"
FLEETS = ((300, 1.0), (100, 2.9), (1000, 0.2))  # clients, requests a second of each
KINDS = ("lbclient", "plain equation", "grpc.aio")
BACKENDS, PLACES, PROCESSES = 2, 10, 4
TIMES = 10.0  # what is wanted, of the capacity
DEADLINE = 20.0  # seconds; longer than a request takes
QUICKLY = 0.001  # seconds that a request takes once the fleet is well
MOST, FEW = 2.2, 0.02  # as promised
LAST = 10  # seconds in which FEW must hold


class Plan(NamedTuple):
    """Seconds: until it is watched, while it is, and after the fleet is well."""

    fill: int
    watch: int
    well: int


LONG, QUICK = Plan(60, 60, 40), Plan(40, 20, 40)


# --- a server ----------------------------------------------------------------------


async def serve(takes: float) -> None:
    """Says its port, and for each order how many have come; "well" makes it quick."""
    served = 0

    async def respond(request: bytes, context: Any) -> bytes:
        nonlocal served
        served += 1
        await asyncio.sleep(takes)
        return b""

    server = lbclient.server(maximum_concurrent_rpcs=PLACES)
    say(await listen(server, {METHOD: respond}))
    async for words in orders():
        if words == ["well"]:
            takes = QUICKLY
        refused = server.statistics().refused.values()
        say([served, sum(sum(counts.values()) for counts in refused)])


# --- clients -----------------------------------------------------------------------


def open_channel(kind: str, ports: list[int]) -> Any:
    if kind == "grpc.aio":
        policy = '{"loadBalancingConfig": [{"round_robin": {}}]}'
        options = [
            ("grpc.service_config", policy),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return grpc.aio.insecure_channel(target_of(ports), options)
    return lbclient.insecure_channel(target_of(ports))


async def load(
    kind: str, ports: list[int], clients: int, rate: float, seconds: int
) -> None:
    """Says when all are connected; once told to begin, each second how calls ended."""
    if kind == "plain equation":
        throttle.COLD = throttle.PROBED = throttle.TOLD = 0.0
    ends: Counter[str] = Counter()
    rng = Random(ports[0])
    async with AsyncExitStack() as stack:
        methods = []
        for _ in range(clients):
            channel = await stack.enter_async_context(open_channel(kind, ports))
            await asyncio.wait_for(channel.channel_ready(), 60)
            methods.append(channel.unary_unary(METHOD))
        say("ready")

        async def say_ends() -> None:
            for _ in range(seconds):
                await asyncio.sleep(1.0)
                say(ends)
                ends.clear()

        def call() -> Any:
            return end_of(rng.choice(methods), DEADLINE, ends)

        async for _ in orders():
            await asyncio.gather(steady(clients * rate, seconds, call), say_ends())


# --- what comes of it ----------------------------------------------------------------


async def run(kind: str, clients: int, rate: float, plan: Plan) -> dict[str, Any]:
    capacity = clients * rate / TIMES
    takes = BACKENDS * PLACES / capacity
    seconds = sum(plan)
    each: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        backends = [await enter(running(serve, takes)) for _ in range(BACKENDS)]
        ports = [await backend.hear() for backend in backends]
        share = clients // PROCESSES
        given = (kind, ports, share, rate, seconds + 2)
        loads = [await enter(running(load, *given)) for _ in range(PROCESSES)]
        await asyncio.gather(*(one.hear() for one in loads))
        for one in loads:
            one.tell("begin")
        before = await counts_of(backends, "")
        while len(each) < seconds:
            said = await asyncio.gather(*(one.hear() for one in loads))
            ends: Counter[str] = sum(map(Counter, said), Counter())
            is_well = len(each) + 1 == plan.fill + plan.watch
            counts = await counts_of(backends, "well" if is_well else "")
            served, refused = (
                new - old for new, old in zip(counts, before, strict=True)
            )
            before = counts
            each.append({"served": served, "refused": refused, "ends": dict(ends)})
    return figures(kind, clients, rate, plan, each)


async def counts_of(backends: Sequence[Process], word: str) -> list[int]:
    said = await asyncio.gather(*(backend.ask(word) for backend in backends))
    return [sum(counts) for counts in zip(*said, strict=True)]


def figures(
    kind: str, clients: int, rate: float, plan: Plan, each: list[dict[str, Any]]
) -> dict[str, Any]:
    capacity = clients * rate / TIMES
    well_at = plan.fill + plan.watch
    watched = each[plan.fill : well_at]
    served = sum(one["served"] for one in watched) / len(watched) / capacity
    refused = sum(one["refused"] for one in watched) / len(watched) / capacity
    soon = well_at + plan.well - LAST
    after = share_here(each[soon:])
    is_ours = kind == KINDS[0]
    return {
        "kind": kind,
        "clients": clients,
        "rate": rate,
        "arrivals": served + refused,
        "served": served,
        "refused here at the end": after,
        "recovery": [
            share_here(each[at : at + 5]) for at in range(well_at, len(each) - 4, 5)
        ],
        "is_sound": not is_ours or (served + refused <= MOST and after < FEW),
        "each": each,
    }


def share_here(seconds: list[dict[str, Any]]) -> float:
    ends: Counter[str] = sum((Counter(one["ends"]) for one in seconds), Counter())
    return ends["throttled"] / (ends.total() or 1)


async def compare(kinds: Sequence[str], plan: Plan) -> list[dict[str, Any]]:
    results = []
    for clients, rate in FLEETS:
        runs = (run(kind, clients, rate, plan) for kind in kinds)
        for result in await asyncio.gather(*runs):
            results.append(result)
            shares = ", ".join(f"{share:.1%}" for share in result["recovery"])
            name = f"{clients} x {rate:g}/s, {result['kind']}"
            print(f"{name}: after it is well {shares}", flush=True)
    return results


def tell(results: list[dict[str, Any]]) -> None:
    soon = LONG.well - LAST
    head = ("clients", "arrivals", "served", f"refused here {soon} s after recovery")
    rows = [
        (
            f"{one['clients']} x {one['rate']:g}/s, {one['kind']}",
            f"{one['arrivals']:.2f}",
            f"{one['served']:.2f}",
            f"{one['refused here at the end']:.1%}",
        )
        for one in results
    ]
    print(table([head, *rows]))


def main() -> int:
    parser = parser_of("sparse", __doc__, "lbclient alone, and shorter phases")
    given = parser.parse_args()
    say_machine()
    kinds, plan = (KINDS[:1], QUICK) if given.quick else (KINDS, LONG)
    results = asyncio.run(compare(kinds, plan))
    tell(results)
    missed = [
        f"{one['clients']} x {one['rate']:g}/s"
        for one in results
        if not one["is_sound"]
    ]
    told = [
        Measured(
            name=f"{one['clients']} x {one['rate']:g}/s, {one['kind']}: arrivals",
            value=one["arrivals"],
        )
        for one in results
    ]
    return conclude(given, results, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
