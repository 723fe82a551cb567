"""Retries that avoid the backends already tried, and retries that go anywhere.

    python -m benchmarks.retries_elsewhere            a minute
    python -m benchmarks.retries_elsewhere --json FILE

The SRE book's retries go to any backend ("no explicit logic", ch. 21); a channel's go
to one that the call was not sent to. Of ten backends 1, 5 or all refuse everything.
Clients do not throttle, and have three attempts within a budget of a tenth. Played in
the simulator, with the picker `random` and with the default one; and with `random`
and ten servers and a client as processes of their own. Of their calls the second 2,000
count, when servers know their histogram.

For both rules: calls that fail, requests that arrive for each call, and how many of
those that a refusing task receives are retries, by which it judges whether others
refuse, too, and says "don't retry".

Exit status 1 if avoiding fails more calls than not, or more than 1.15 requests arrive
for each call.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import lbclient
from benchmarks.harness.load import end_of, until
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, running, say
from benchmarks.harness.servers import listen, target_of
from lbclient.client import balancer
from lbclient.core.refusal import Refusal
from lbclient.pickers import picker_factory
from lbclient.sim import Scenario
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

METHOD = "/benchmark.RetriesElsewhere/Call"
BACKENDS = 10
REFUSING = (1, 5, 10)
AT_ONCE = 8  # calls
DEADLINE = 20.0
# Requests that arrive for each call: 1.1, and what budgets have saved until they count.
MOST = 1.15
CHANCE = 0.01  # of the calls: what two runs may differ by
SECONDS = 100.0  # simulated
CALLS = 2000  # of a client's process, before it is measured and then


class Found(NamedTuple):
    failed: float
    arrivals: float
    retries: float  # share of what refusing tasks received
    told: float  # share of what they refused that was not to be retried


# --- in the simulator ---------------------------------------------------------------


def played(picker: str, refusing: int, avoids: bool) -> Found:
    scenario = Scenario(
        clients=BACKENDS, backends=BACKENDS, subset_size=BACKENDS, attempts=3,
        admission=True, refusing=refusing, avoid_tried=avoids,
        warm_up=60.0, window=SECONDS,
    )  # fmt: skip
    requests = draw(scenario, 0.1, seed=1)
    simulation = Simulation(scenario, picker_factory(picker), requests, seed=1)
    result = simulation.run()
    told, seen = Counter[Refusal](), Counter[int]()
    for one in simulation.backends:
        if one.admission is not None and one.admission.refuses_all:
            told.update(one.refusals)
            seen.update(dict(enumerate(one.admission.attempts)))
    return Found(
        result.errors,
        result.attempts,
        1.0 - seen[0] / seen.total(),
        told[Refusal.DONT_RETRY] / told.total(),
    )


# --- with processes -----------------------------------------------------------------


async def serve(kinds: list[bool]) -> None:
    """A server for each case, which refuses everything where `kinds` has True."""

    async def answer(request: bytes, context: Any) -> bytes:
        return request

    refuses = lbclient.ServerConfig(signals={"all": lambda: 1000.0})
    serves = lbclient.ServerConfig(max_load=0.0)
    servers = [lbclient.server(config=refuses if kind else serves) for kind in kinds]
    say([await listen(server, {METHOD: answer}) for server in servers])
    async for (case,) in orders():
        seen = servers[case].statistics()
        told = {word: sum(by.values()) for word, by in seen.refused.items()}
        say([told, seen.attempts.requests])


def nobody(tried: Collection[Any], allowed: Any, rng: Any) -> list[Any]:
    """In the place of `two_others`: a retry goes where the picker says."""
    return []


async def load(target: str, avoids: bool) -> None:
    """As many calls as it is told, each time; says how they ended."""
    if not avoids:
        vars(balancer)["two_others"] = nobody
    config = lbclient.ChannelConfig(picker="random", throttle=0.0)
    async with lbclient.insecure_channel(target, config=config) as channel:
        await channel.channel_ready()

        def states() -> list[str]:
            return [one.state for one in channel.statistics().backends]

        await until(lambda: states() == ["ready"] * BACKENDS, states)
        method: Any = channel.unary_unary(METHOD)
        say("ready")
        async for (calls,) in orders():
            ends, left = Counter[str](), iter(range(calls))

            async def some(ends: Counter[str] = ends, left: Any = left) -> None:
                for _ in left:
                    await end_of(method, DEADLINE, ends)

            await asyncio.gather(*(some() for _ in range(AT_ONCE)))
            say(ends)


async def measured(tasks: list[Any], ports: list[list[int]], case: int) -> Found:
    refusing, avoids = CASES[case]
    target = target_of(own[case] for own in ports)
    async with running(load, target, avoids) as client:
        await client.hear()
        await client.ask(CALLS)
        before = [await task.ask(case) for task in tasks]
        ends = await client.ask(CALLS)
        after = [await task.ask(case) for task in tasks]
    told, numbers, arrived = Counter[str](), Counter[str](), 0
    for number, (was, now) in enumerate(zip(before, after, strict=True)):
        attempts = Counter(now[1]) - Counter(was[1])
        arrived += attempts.total()
        if number < refusing:
            numbers += attempts
            told += Counter(now[0]) - Counter(was[0])
    return Found(
        1.0 - ends.get("OK", 0) / CALLS,
        arrived / CALLS,
        1.0 - numbers["0"] / numbers.total(),
        told[Refusal.DONT_RETRY.value] / told.total(),
    )


DEFAULT = str(lbclient.ChannelConfig().picker)
PROCESSES = "processes, random"
CASES = [(refusing, avoids) for refusing in REFUSING for avoids in (False, True)]


async def run() -> list[Found]:
    async with AsyncExitStack() as stack:
        kinds = [[n < refusing for refusing, _ in CASES] for n in range(BACKENDS)]
        tasks = [await stack.enter_async_context(running(serve, k)) for k in kinds]
        ports = [await task.hear() for task in tasks]
        found = []
        for case in range(len(CASES)):
            found.append(await measured(tasks, ports, case))
            tell(PROCESSES, case, found[-1])
        return found


# --- what comes of it ---------------------------------------------------------------


def tell(where: str, case: int, found: Found) -> None:
    refusing, avoids = CASES[case]
    rule = "avoids those tried" if avoids else "anywhere"
    print(
        f"{where:34}{refusing:2} of {BACKENDS}  {rule:19}{found.failed:8.1%}"
        f"{found.arrivals:10.3f}{found.retries:9.1%}{found.told:9.0%}",
        flush=True,
    )


def missed(where: str, found: list[Found]) -> list[str]:
    said = []
    for case in range(0, len(CASES), 2):
        anywhere, avoiding = found[case : case + 2]
        is_sound = avoiding.failed <= anywhere.failed + CHANCE
        if not is_sound or max(anywhere.arrivals, avoiding.arrivals) > MOST:
            said.append(f"{where}, {CASES[case][0]} refuse")
    return said


def main() -> int:
    given = parser_of("retries_elsewhere", __doc__).parse_args()
    print(
        f"{'':34}{'refuse':9}{'a retry goes':19}{'failed':>8}{'arrivals':>10}"
        f"{'retries':>9}{'told not':>9}"
    )
    found: dict[str, list[Found]] = {}
    for picker in ("random", DEFAULT):
        where = f"simulated, {picker}"
        found[where] = []
        for case, (refusing, avoids) in enumerate(CASES):
            found[where].append(played(picker, refusing, avoids))
            tell(where, case, found[where][-1])
    found[PROCESSES] = asyncio.run(run())
    everything = [
        {"where": where, "refusing": refusing, "avoids": avoids, **one._asdict()}
        for where, each in found.items()
        for (refusing, avoids), one in zip(CASES, each, strict=True)
    ]
    lost = [case for where, each in found.items() for case in missed(where, each)]
    told = []
    for one in everything:
        rule = "avoids those tried" if one["avoids"] else "anywhere"
        name = f"{one['where']}, {one['refusing']} refuse, {rule}"
        share = 100.0 * one["failed"]
        told += [
            Measured(name=f"{name}: failed calls", value=share, unit="%"),
            Measured(name=f"{name}: arrivals for each call", value=one["arrivals"]),
        ]
    return conclude(given, everything, lost, measured=told)


if __name__ == "__main__":
    exit_with(main)
