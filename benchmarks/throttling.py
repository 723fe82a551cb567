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

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

import lbclient
from benchmarks.harness.figures import BLUE, RED, blank
from benchmarks.harness.load import end_of, steady
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, running, say
from benchmarks.harness.servers import listen, target_of
from lbclient.core.refusal import Refusal
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
DEADLINE = 5.0


# --- the backend -------------------------------------------------------------------


async def serve(capacity: float) -> None:
    """Says its port, and for each order how many have come; "well" makes it well."""
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
    say(await listen(server, {METHOD: respond}))
    async for words in orders():
        is_well = is_well or words == ["well"]
        say(came)


# --- the client --------------------------------------------------------------------


async def load(port: int, k: float, rate: float, seconds: float) -> None:
    """Says each second what became of its calls."""
    ends: Counter[str] = Counter()

    async def say_ends() -> None:
        begun_at = time.monotonic()
        for second in range(1, int(seconds)):
            await asyncio.sleep(begun_at + second - time.monotonic())
            say(ends)
            ends.clear()

    config = lbclient.ChannelConfig(throttle=k)
    async with lbclient.insecure_channel(target_of([port]), config=config) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        method = channel.unary_unary(METHOD)
        calls = steady(rate, seconds, lambda: end_of(method, DEADLINE, ends))
        await asyncio.gather(calls, say_ends())


# --- what comes of it ----------------------------------------------------------------


async def run(k: float, plan: Plan) -> dict[str, Any]:
    each: list[dict[str, Any]] = []
    before, seconds, rate = 0, sum(plan), TIMES * CAPACITY
    async with running(serve, CAPACITY) as backend:
        port = await backend.hear()
        async with running(load, port, k, rate, seconds + 2) as client:
            while len(each) < seconds:
                ends = await client.hear()
                is_well = len(each) + 1 == round(plan.fill + plan.watch)
                came = await backend.ask("well" if is_well else "")
                each.append({"arrived": came - before, "ends": ends})
                before = came
    return figures(k, plan, each)


def figures(k: float, plan: Plan, each: list[dict[str, Any]]) -> dict[str, Any]:
    well_at = round(plan.fill + plan.watch)
    watched, well = each[round(plan.fill) : well_at], each[well_at:]
    arrived = sum(second["arrived"] for second in watched) / len(watched)
    accepted = sum(second["ends"].get("OK", 0) for second in watched) / len(watched)
    few = [one["ends"].get("throttled", 0) <= FEW * wanted(one) for one in well]
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
    return sum(second["ends"].values()) or 1.0


def tell(result: dict[str, Any]) -> None:
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
    for result, color in zip(results, (RED, BLUE), strict=True):
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
        tell(result)
    return results


def main() -> int:
    given = parser_of("throttling", __doc__, "shorter phases", plot=True).parse_args()
    results = asyncio.run(compare(QUICK if given.quick else LONG))
    missed = [f"K = {result['k']:g}" for result in results if not result["is_sound"]]
    told = []
    for one in results:
        name, ratio = f"K = {one['k']:g}", one["of_k_times_capacity"]
        after = one["recovered_after"]
        told += [
            Measured(name=f"{name}: arrivals, of K times the capacity", value=ratio),
            Measured(name=f"{name}: recovered after", value=after, unit="s"),
        ]
    return conclude(given, results, missed, lambda: draw(results), measured=told)


if __name__ == "__main__":
    exit_with(main)
