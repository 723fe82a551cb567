"""What stock clients make of our servers: whom they call, and what a restart costs.

    python -m benchmarks.stock_clients      two minutes for each kind of client
    python -m benchmarks.stock_clients --only "go, restart" --go-client PROGRAM

Clients of grpc.aio, of grpc-js if `make node` has installed it, and of grpc-go if
PROGRAM is a build of stock_retries.go, call three servers of lbclient, with nothing but
a service config. Each server and each client is a process of its own.

- *shares*: the servers' capacities are as 4 to 2 to 1. Whom the calls of the second
  half reach: by round robin a third each; by weights 57, 29 and 14 %.
- *failing*: one of three servers fails each call. How many calls of the second half
  fail: a third, or few if the client ejects it.
- *restart*: each server is restarted by SIGTERM, one after the other. How many calls
  fail; and how many reach a server later than 0.3 s after its SIGTERM: none of a
  client that watches health.
"""

import asyncio
import json
import math
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc

import lbclient
from benchmarks.harness.load import until
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say
from benchmarks.harness.servers import handlers, target_of
from benchmarks.overload.load import missing
from benchmarks.stock_retries import METHOD, loaded
from lbclient.core.model import TaskState
from tests.ports import free_ports

CAPACITIES = (400.0, 200.0, 100.0)  # calls a second
RATE = 150.0  # calls a second
SECONDS = {"shares": 8.0, "failing": 8.0, "restart": 12.0}  # of load
CONNECTING = 0.7  # seconds until a client's first call, some of them its own pause
LATE = 0.3  # seconds after SIGTERM
PAUSE = 1.0  # seconds before each restart

SHARES, FAILING, RESTART = "shares", "failing", "restart"
PICK_FIRST: dict[str, Any] = {"pick_first": {}}
ROUND_ROBIN: dict[str, Any] = {"round_robin": {}}
WEIGHTS = {"blackoutPeriod": "1s", "weightUpdatePeriod": "0.5s"}
OUT_OF_BAND = WEIGHTS | {"enableOobLoadReport": True, "oobReportingPeriod": "1s"}
NAMED = WEIGHTS | {"metricNamesForComputingUtilization": ["named_metrics.pool"]}
EJECTION = {
    "interval": "1s",
    "baseEjectionTime": "30s",
    "maxEjectionPercent": 50,
    "failurePercentageEjection": {
        "enforcementPercentage": 100,  # by default grpc-go ejects nobody
        "minimumHosts": 3,
        "requestVolume": 10,
    },
    "childPolicy": [ROUND_ROBIN],
}


@dataclass(frozen=True)
class Case:
    kind: str
    name: str
    policies: Sequence[dict[str, Any]]
    watches_health: bool = False

    def service_config(self) -> str:
        config: dict[str, Any] = {"loadBalancingConfig": list(self.policies)}
        if self.watches_health:
            config["healthCheckConfig"] = {"serviceName": ""}
        return json.dumps(config)


def weighted(policy: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"weighted_round_robin": policy}]


CASES = [
    Case(SHARES, "round_robin", [ROUND_ROBIN]),
    Case(SHARES, "weighted_round_robin, per call", weighted(WEIGHTS)),
    Case(SHARES, "weighted_round_robin, out of band", weighted(OUT_OF_BAND)),
    Case(SHARES, "weighted_round_robin, named metric", weighted(NAMED)),
    Case(FAILING, "round_robin", [ROUND_ROBIN]),
    Case(
        FAILING,
        "outlier_detection",
        [{"outlier_detection_experimental": EJECTION}, ROUND_ROBIN],
    ),
    Case(RESTART, "pick_first", [PICK_FIRST]),
    Case(RESTART, "pick_first, healthCheckConfig", [PICK_FIRST], True),
    Case(RESTART, "round_robin", [ROUND_ROBIN]),
    Case(RESTART, "round_robin, healthCheckConfig", [ROUND_ROBIN], True),
    Case(
        RESTART,
        "weighted_round_robin, healthCheckConfig",
        weighted(OUT_OF_BAND),
        True,
    ),
]


# --- a server, in a process of its own ---------------------------------------------


class Rate:
    """Calls a second of the last second."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def observe(self) -> None:
        self._times.append(time.monotonic())

    def read(self) -> float:
        while self._times and self._times[0] < time.monotonic() - 1.0:
            self._times.popleft()
        return float(len(self._times))


async def serve(port: int, capacity: float, case: str, fails: bool) -> None:
    """Says "ready"; at each order how many calls came; and after SIGTERM how many came
    late."""
    served = late = 0
    late_since = math.inf
    rate = Rate()

    async def answer(request: bytes, context: Any) -> bytes:
        nonlocal served, late
        served += 1
        late += time.monotonic() > late_since
        rate.observe()
        if fails:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "fails every call")
        await asyncio.sleep(0.02)
        return request

    def used() -> float:
        return rate.read() / capacity

    by_name = "named metric" in case
    server = lbclient.server(
        config=lbclient.ServerConfig(
            max_load=0.0,
            utilization=(lambda: 0.5) if by_name else used,
            utilization_replaces=True,
            signals={"pool": used} if by_name else {},
        ),
        options=[("grpc.so_reuseport", 0)],
    )
    server.add_generic_rpc_handlers(handlers({METHOD: answer}))
    server.add_insecure_port(f"127.0.0.1:{port}")

    async def obey() -> None:
        async for _ in orders():
            say(served)

    async def notice() -> None:
        nonlocal late_since
        await until(lambda: server.state is TaskState.LAME_DUCK)
        late_since = time.monotonic() + LATE

    tasks = [asyncio.create_task(part()) for part in (obey, notice)]
    say("ready")
    await lbclient.serve(server)
    for task in tasks:
        task.cancel()
    say(late)
    os._exit(0)  # a thread waits for standard input


# --- what comes of it ----------------------------------------------------------------


@dataclass
class Fleet:
    """Three servers, on ports that stay theirs over a restart."""

    case: Case
    ports: list[int]
    stack: AsyncExitStack
    processes: list[Process] = field(default_factory=list)

    async def started(self, number: int) -> Process:
        fails = self.case.kind == FAILING and number == 0
        words = self.ports[number], CAPACITIES[number], self.case.name, fails
        process = await self.stack.enter_async_context(running(serve, *words))
        await process.hear()
        return process

    async def start(self) -> None:
        for number in range(len(self.ports)):
            self.processes.append(await self.started(number))

    async def counts(self) -> list[int]:
        return [await process.ask() for process in self.processes]

    async def restart(self) -> int:
        """Each in turn; returns how many calls were late."""
        late = 0
        for number, process in enumerate(self.processes):
            await asyncio.sleep(PAUSE)
            process.process.send_signal(signal.SIGTERM)
            late += await process.hear()
            await process.process.wait()
            self.processes[number] = await self.started(number)
        return late


async def run(client: str, case: Case, go_client: str) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(case, free_ports(len(CAPACITIES)), stack)
        await fleet.start()
        await asyncio.sleep(0.5)  # until they listen
        words = (
            target_of(fleet.ports),
            case.service_config(),
            RATE,
            round(RATE * SECONDS[case.kind]),
        )
        loading = asyncio.create_task(loaded(client, *words, go_client=go_client))
        await asyncio.sleep(CONNECTING)
        if case.kind == RESTART:
            found = {"shares": [], "late": await fleet.restart()}
            was_long_enough = not loading.done()
            first, second = await loading
            ended = Counter(first) + Counter(second)
        else:
            await asyncio.sleep(SECONDS[case.kind] / 2)
            was_long_enough = True
            before = await fleet.counts()
            _, second = await loading
            ended = Counter(second)
            after = await fleet.counts()
            came = [now - then for now, then in zip(after, before, strict=True)]
            found = {"shares": [n / sum(came) for n in came], "late": 0}
    return {
        "case": f"{client}, {case.kind}, {case.name}",
        "calls": ended.total(),
        "lost": {status: n for status, n in ended.items() if status != "OK"},
        "was_long_enough": was_long_enough,
        **found,
    }


def tell(found: dict[str, Any]) -> None:
    lost = ", ".join(f"{count} {status}" for status, count in found["lost"].items())
    shares = " ".join(f"{share:4.0%}" for share in found["shares"])
    print(
        f"{found['case']:60}{found['calls']:6,}{found['late']:6,}"
        f"  {shares:16}{lost or 'none'}",
        flush=True,
    )


async def compare(chosen: list[tuple[str, Case]], go_client: str) -> list[Any]:
    print(f"{'':60}{'calls':>6}{'late':>6}  {'shares':16}failed")
    results = []
    for client, case in chosen:
        results.append(await run(client, case, go_client))
        tell(results[-1])
    return results


def main() -> int:
    parser = parser_of("stock_clients", __doc__)
    parser.add_argument("--only", nargs="+", default=[], help="words of some cases")
    parser.add_argument(
        "--go-client", default="", metavar="PROGRAM", help="a build of stock_retries.go"
    )
    given = parser.parse_args()
    clients = ["python"]
    if not missing("node"):
        clients.append("node")
    if given.go_client:
        clients.append("go")
    chosen = [
        (client, case)
        for client in clients
        for case in CASES
        if not given.only
        or any(word in f"{client}, {case.kind}, {case.name}" for word in given.only)
    ]
    if not chosen:
        said = "; ".join(f"{case.kind}, {case.name}" for case in CASES)
        parser.error(f"--only: want words of {' or '.join(clients)}, and of: {said}")
    results = asyncio.run(compare(chosen, given.go_client))
    too_short = [r["case"] for r in results if not r["was_long_enough"]]
    if too_short:
        print("ended before the restarts did:", "; ".join(too_short))
    told = [
        Measured(
            name=f"{one['case']}: failed calls",
            value=100.0 * sum(one["lost"].values()) / max(1, one["calls"]),
            unit="%",
        )
        for one in results
    ]
    return conclude(given, results, None, measured=told)


if __name__ == "__main__":
    exit_with(main)
