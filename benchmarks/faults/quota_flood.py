"""A customer sends thirty times what a server can do, and another one half of that.

The server has a limit for each. The flood is of first attempts that name a criticality,
as bare frames. A call of the other customer is well off if it is answered, be it with
a refusal that says why: so its client may try elsewhere. Beside it the same requests to
a stock server, which has no limits.
"""

import asyncio
from collections import Counter
from functools import partial
from random import Random

import grpc
import grpc.aio

import lbclient
from benchmarks import frames
from benchmarks.faults.row import Result, Row
from benchmarks.frames import Call
from benchmarks.harness import servers
from benchmarks.harness.processes import running, say
from benchmarks.overload.handlers import burn
from lbclient.core.refusal import Refusal

PATH = "/benchmark.Quota/Work"
COST = 0.01  # CPU seconds of a request
CALM, FLOOD = 50.0, 3000.0  # requests a second
LIMITS = {"calm": 50.0, "flood": 0.1}  # CPU seconds a second
CRITICALITIES = {"calm": 0.5, "flood": 1.0}  # share of CRITICAL; others are SHEDDABLE
LOAD_REFUSALS = (Refusal.OVERLOADED.value, Refusal.DONT_RETRY.value)
# Seconds: until a request's cost is known some are let in, and have to be worked off.
WARMUP = 2.5
WORST = 0.2  # of the calm customer's calls, on a machine that others use, too


async def work(request: bytes, _context: object) -> bytes:
    burn(COST)
    return request


async def serve(kind: str) -> None:
    config = lbclient.ServerConfig(quotas=LIMITS)
    server = grpc.aio.server() if kind == "stock" else lbclient.server(config=config)
    await servers.serve(server, {PATH: work})


def choose(critical: float, rng: Random) -> str:
    return "CRITICAL" if rng.random() < critical else "SHEDDABLE"


async def send(port: int, customer: str, rate: float, seconds: float) -> None:
    """Says how its calls ended, by refusal or status, without those of the start."""
    ends: Counter[str] = Counter()

    def take(call: Call) -> None:
        if call.at >= WARMUP:
            ends[call.refusal or call.code] += 1

    phases = [(rate, WARMUP + seconds)]
    chosen = partial(choose, CRITICALITIES[customer])
    await frames.send(port, PATH, phases, 1, take, chosen, customer=customer)
    say(ends)


async def flooded(kind: str, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """How the calls of both ended, the calm one's first."""
    async with running(serve, kind) as server:
        port = await server.hear()
        async with (
            running(send, port, "calm", CALM, seconds) as calm,
            running(send, port, "flood", FLOOD, seconds) as flood,
        ):
            told = await asyncio.gather(calm.hear(), flood.hear())
    return Counter(told[0]), Counter(told[1])


def result_of(calm: Counter[str], flood: Counter[str]) -> Result:
    """Who is not answered has failed."""
    answered = sum(calm[end] for end in ("OK", *LOAD_REFUSALS))
    said = f"of the other's calls: {dict(calm)}; of the flood: {dict(flood)}"
    return Result(calm.total(), calm.total() - answered, said=said)


def holds(calm: Counter[str], flood: Counter[str]) -> bool:
    result = result_of(calm, flood)
    is_told = flood["quota"] > 0  # the flood's own client learns why
    return is_told and result.failed <= WORST * result.calls


async def run(seconds: float) -> list[Row]:
    calm, flood = await flooded("ours", seconds)
    ours = result_of(calm, flood)
    theirs = result_of(*await flooded("stock", seconds))
    return [
        Row(
            f"a customer sends {FLOOD:,.0f} requests/s, far beyond its limit",
            "calls of another one, which is within its limit, are answered",
            ours,
            theirs,
            holds(calm, flood),
        )
    ]
