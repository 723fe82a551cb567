"""A fleet that is larger than a subset: 40 backends x 40 clients on one machine.

    make fleet                        about a minute
    make fleet ARGS=--quick           20 x 20, about half of it
    python examples/fleet/large.py --json FILE

Real servers, channels and connections: each backend has a port of its own, ten share a
process, and so do ten clients. Each client has a task number and a subset of the
backends, which it finds in a file. Four things are shown, each as a table:

1. Connections are even: every backend has as many clients as the others.
2. The file gets some backends more, and loses them again: few connections move.
3. One customer wants more than its quota and is refused; nobody else is.
4. A batch job wants more than is left: behind `lbclient proxy`, and then directly.

Exit status: 0; 1 if a verdict is MISSED, or the fleet cannot go on; 2 for bad
arguments; 130 after Ctrl-C. Needs Linux, whose table of connections it reads.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from child import Child, run_or_exit
from report import Finding, aligned, as_text

from lbclient.subsets import ALGORITHMS
from lbclient.subsets.properties import balance, choose, churn, ideal_churn

PROCESSES = 4  # of backends, and of clients
WITHIN = 60.0  # seconds; for processes and connections, on a machine that is busy
ALGORITHM = "rocksteadier"  # what channels take where both sides have numbers
WEB, REPORTS = "web", "reports"  # customers
STOCK = "stock"  # the clients of the batch job, which have no customer
GREEDY = 8  # one client in so many is the customer `reports`
EVEN = 1.25  # the busiest backend after a resize, over the mean
LEAST_SERVED = 0.9  # of the interactive calls, beside the batch job behind the proxy

# What a customer may use: CPU seconds a second of the fleet. A call takes 0.001, so
# `reports` may make about 40 calls a second, and `web` more than it ever does here.
QUOTAS = {WEB: 4.0, REPORTS: 0.04}
WANTS = 160.0  # calls a second of `reports`
# Seconds that a call holds one of a backend's eight places, in the last part.
HOLDS = 1.0


# `python -m lbclient`, which ends with whoever started it, as the other programs do.
LBCLIENT = """
import os, sys, threading
from lbclient.cli import main
ends = lambda: (sys.stdin.read(), os._exit(0))
threading.Thread(target=ends, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Plan:
    clients: int
    backends: int
    subset_size: int
    more: int  # backends that come, and go again
    stock: int  # clients of the batch job
    web: float  # calls a second of all web clients together
    seconds: float  # of each part under load

    @property
    def batch(self) -> float:
        """Calls a second of the batch job: what the backends can do in all."""
        return 8.0 * self.backends / HOLDS


FULL = Plan(40, 40, 12, 4, stock=20, web=100.0, seconds=8.0)
QUICK = Plan(20, 20, 6, 2, stock=10, web=50.0, seconds=3.0)


# --- its processes ---------------------------------------------------------------


class Worker:
    """A process that answers each order, a line of JSON, with another."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._answers = asyncio.Queue[Any]()

    def hear(self, line: str) -> None:
        self._answers.put_nowait(json.loads(line))

    async def answer(self) -> Any:
        return await self._answers.get()

    async def ask(self, order: dict[str, Any]) -> Any:
        self.child.tell(order)
        return await self.answer()


class Fleet:
    """Backends, clients, and the file in which clients find the backends."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        # By task number; only the first ones are in the file.
        self.ports: list[int] = []
        self.listed = 0
        self.backends: list[Worker] = []
        self.clients: list[Worker] = []
        self._file = folder / "backends.json"
        self._children: list[Child] = []
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> "Fleet":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for child in self._children:
            self.kill(child)
        await asyncio.gather(*(child.wait() for child in self._children))
        await self._group.__aexit__(*error)

    @staticmethod
    def kill(child: Child) -> None:
        child.may_end = True
        child.signal(signal.SIGKILL)

    async def run(self, name: str, *arguments: str) -> Worker:
        child = await Child.run(name, *arguments)
        self._children.append(child)
        worker = Worker(child)
        self._group.create_task(child.follow(worker.hear))
        return worker

    async def start(self) -> None:
        """All processes at once; backends are listed before clients look."""
        here = Path(__file__).parent
        quotas = {name: limit / PROCESSES for name, limit in QUOTAS.items()}
        for number in range(PROCESSES):
            self.backends.append(
                await self.run(
                    f"backends {number}",
                    str(here / "large_backends.py"),
                    json.dumps(quotas),
                )
            )
        await self.add(self.plan.backends + self.plan.more)
        self.publish(self.plan.backends)
        everybody = [self._client(number) for number in range(self.plan.clients)]
        for number in range(PROCESSES):
            self.clients.append(
                await self.run(
                    f"clients {number}",
                    str(here / "large_clients.py"),
                    json.dumps(everybody[number::PROCESSES]),
                )
            )
        for worker in self.clients:
            await worker.answer()

    def _client(self, number: int) -> dict[str, Any]:
        return {
            "target": f"file:{self._file}",
            "number": number,
            "customer": WEB if number % GREEDY else REPORTS,
            "subset_size": self.plan.subset_size,
        }

    async def add(self, count: int) -> None:
        shares = [len(range(number, count, PROCESSES)) for number in range(PROCESSES)]
        asked = [
            worker.ask({"backends": share})
            for worker, share in zip(self.backends, shares, strict=True)
        ]
        for ports in await asyncio.gather(*asked):
            self.ports += ports

    def publish(self, count: int) -> None:
        """Writes the file, as a rollout would: clients see it within a second."""
        groups = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"task": str(task)}}
            for task, port in enumerate(self.ports[:count])
        ]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.rename(self._file)
        self.listed = count

    def connections(self) -> set[tuple[int, int]]:
        """Those of the backends, as (backend's port, client's port), by the kernel."""
        return connections_of(self.ports)

    def counts(self) -> list[int]:
        """Connections of each listed backend."""
        counts = Counter(port for port, _ in self.connections())
        return [counts[port] for port in self.ports[: self.listed]]

    async def settle(self) -> set[tuple[int, int]]:
        """Returns when each client is connected to its subset only, or time is up."""
        wanted = self.plan.clients * self.plan.subset_size
        seen: set[tuple[int, int]] = set()
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                while True:
                    listed = set(self.ports[: self.listed])
                    before, seen = seen, self.connections()
                    is_at_rest = before == seen and len(seen) == wanted
                    if is_at_rest and {port for port, _ in seen} <= listed:
                        break
                    await asyncio.sleep(0.5)
        return seen

    async def load(self, rate: dict[str, float], cost: float) -> dict[str, "Ends"]:
        """How the calls of each customer ended; `rate` is that of all its clients."""
        of = Counter(
            self._client(number)["customer"] for number in range(self.plan.clients)
        )
        order = {
            "rate": {name: all_ / of[name] for name, all_ in rate.items()},
            "cost": cost,
            "seconds": self.plan.seconds,
        }
        said = await asyncio.gather(*(worker.ask(order) for worker in self.clients))
        return gather(said)


@dataclass(slots=True)
class Ends:
    """How the calls of a customer ended."""

    codes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.codes.total()

    @property
    def served(self) -> float:
        return self.codes["OK"] / max(1, self.calls)

    @property
    def refused(self) -> int:
        """Out of quota: by a backend, or by the channel, which knows by then."""
        return self.codes["RESOURCE_EXHAUSTED"]

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0


def gather(said: Iterable[dict[str, Any]]) -> dict[str, Ends]:
    ends: dict[str, Ends] = {}
    for by_customer in said:
        for customer, one in by_customer.items():
            end = ends.setdefault(customer, Ends())
            end.codes.update(one["codes"])
            end.latencies += one["latencies"]
    return ends


def connections_of(ports: Iterable[int]) -> set[tuple[int, int]]:
    """Established connections to these ports of this machine."""
    wanted, found = set(ports), set()
    for table in filter(Path.exists, map(Path, ("/proc/net/tcp", "/proc/net/tcp6"))):
        for line in table.read_text().splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            port = int(local.rpartition(":")[2], 16)
            if state == "01" and port in wanted:
                found.add((port, int(remote.rpartition(":")[2], 16)))
    return found


# --- what it shows -----------------------------------------------------------------


class Show:
    """Plays the four parts, says what to look at, and keeps what it found."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.plan = fleet.plan
        self.found: dict[str, Any] = {"plan": asdict(fleet.plan)}
        self.verdict: list[Finding] = []

    async def play(self) -> None:
        await self._even()
        await self._resize()
        await self._quota()
        await self._batch()

    async def _even(self) -> None:
        plan = self.plan
        title(f"1. Connections: {plan.clients} clients with {plan.subset_size} of "
              f"{plan.backends} backends each")  # fmt: skip
        await self.fleet.settle()
        counts = self.fleet.counts()
        rows = [("subsets", "least", "mean", "most"),
                row("this fleet, counted by the kernel", counts)]  # fmt: skip
        for name in ("rendezvous", "random"):
            subsets = choose(
                ALGORITHMS[name], plan.clients, plan.backends, plan.subset_size
            )
            connections = balance(subsets, plan.backends).connections
            rows.append(row(f"{name}, computed", connections))
        say(rows, "Each backend has as many clients as the others, without any talk "
            "between clients: they have task numbers.")  # fmt: skip
        self.found["connections"] = counts
        self._judge(f"Connections of a backend: {min(counts)} to {max(counts)}.",
                    min(counts) == max(counts))  # fmt: skip

    async def _resize(self) -> None:
        plan = self.plan
        more = plan.backends + plan.more
        title(f"2. A resize: {plan.backends} backends, {more}, and {plan.backends}")
        rows = [("step", "opened", "needed", "computed", "deterministic", "busiest")]
        self.found["resizes"] = []
        for old, new in ((plan.backends, more), (more, plan.backends)):
            before = self.fleet.connections()
            self.fleet.publish(new)
            opened = len(await self.fleet.settle() - before)
            counts = self.fleet.counts()
            computed = self._opened(ALGORITHM, old, new)
            needed = plan.clients * ideal_churn(old, new, plan.subset_size)
            busiest = max(counts) / fmean(counts)
            rows.append((f"{old} -> {new}", str(opened), f"{needed:.1f}", str(computed),
                         str(self._opened("deterministic", old, new)),
                         f"{busiest:.2f} x mean"))  # fmt: skip
            self.found["resizes"].append(
                {"from": old, "to": new, "opened": opened, "computed": computed,
                 "needed": needed, "counts": counts}
            )  # fmt: skip
            self._judge(f"{old} to {new} backends: {opened} connections opened, where "
                        f"{needed:.1f} are needed on average; the busiest has "
                        f"{busiest:.2f} times the mean.",
                        opened == computed and busiest <= EVEN)  # fmt: skip
        total = plan.clients * plan.subset_size
        say(rows, f"Of {total} connections few move: about as many as any algorithm "
            "must open. `computed` is what `lbclient subset` says beforehand; "
            "`deterministic` is the SRE book's algorithm.")  # fmt: skip

    def _opened(self, algorithm: str, old: int, new: int) -> int:
        before, after = (
            choose(
                ALGORITHMS[algorithm], self.plan.clients, size, self.plan.subset_size
            )
            for size in (old, new)
        )
        return sum(churn(before, after).opened)

    async def _quota(self) -> None:
        title(f"3. Quotas: {WEB!r} may use {QUOTAS[WEB]:g} CPU seconds a second, "
              f"{REPORTS!r} {QUOTAS[REPORTS]:g}; a call takes 0.001")  # fmt: skip
        ends = await self.fleet.load({WEB: self.plan.web, REPORTS: WANTS}, 0.02)
        rows = [("customer", "calls", "served", "refused", "other errors")]
        for name, end in ends.items():
            others = end.calls - end.codes["OK"] - end.refused
            rows.append((name, f"{end.calls:,}", f"{end.codes['OK']:,}",
                         f"{end.refused:,}", f"{others:,}"))  # fmt: skip
        say(rows, f"{REPORTS!r} wants {WANTS:g} calls a second and gets the first ones "
            "above its limit, then its limit. Its channels throttle what would be "
            f"refused. {WEB!r} does not notice.")  # fmt: skip
        self.found["quotas"] = {name: dict(end.codes) for name, end in ends.items()}
        self._judge(f"Refused for the quota: {ends[REPORTS].refused} calls of "
                    f"{REPORTS!r}, {ends[WEB].refused} of {WEB!r}.",
                    ends[REPORTS].refused > 0 and not ends[WEB].refused)  # fmt: skip

    async def _batch(self) -> None:
        plan = self.plan
        title(f"4. A batch job: {plan.stock} stock clients want {plan.batch:g} calls a "
              f"second, all that {plan.backends} backends can do; {WEB!r} wants "
              f"{plan.web:g}")  # fmt: skip
        backends = [f"127.0.0.1:{port}" for port in self.fleet.ports[: plan.backends]]
        target = "ipv4:" + ",".join(backends)
        rows = [("the batch job", "connections", "web served", "p50 s", "p99 s",
                 "batch served")]  # fmt: skip
        cases = {}
        for name, is_behind in (("not yet", None), ("behind a proxy", True),
                                ("without", False)):  # fmt: skip
            cases[name] = case = await self._beside(target, is_behind)
            web, job = case["web"], case["job"]
            rows.append((name, str(case["connections"]), f"{web.served:.1%}",
                         f"{web.quantile(0.5):.2f}", f"{web.quantile(0.99):.2f}",
                         f"{job.served:.1%}" if job.calls else "-"))  # fmt: skip
        say(rows, "`connections` are those that the job adds to the backends'. The "
            "proxy sends a job's calls as SHEDDABLE_PLUS, so backends refuse them "
            "first. Without it, the job's calls look like anybody's.")  # fmt: skip
        self.found["batch"] = {
            name: {"connections": case["connections"],
                   "web": dict(case["web"].codes), "job": dict(case["job"].codes)}
            for name, case in cases.items()
        }  # fmt: skip
        served = cases["behind a proxy"]["web"].served
        self._judge(f"Beside the batch job behind a proxy {served:.1%} of the calls of "
                    f"{WEB!r} are served; without it "
                    f"{cases['without']['web'].served:.1%}.",
                    served >= LEAST_SERVED)  # fmt: skip

    async def _beside(self, target: str, is_behind: bool | None) -> dict[str, Any]:
        """Interactive calls, and beside them those of the job, if there is one."""
        before = self.fleet.connections()
        workers = []
        if is_behind is not None:
            workers = await self._start_job(target, is_behind)
        counted: set[tuple[int, int]] = set()

        async def count() -> None:
            while True:
                counted.update(self.fleet.connections() - before)
                await asyncio.sleep(0.5)

        counting = asyncio.create_task(count())
        order = {
            "rate": {STOCK: self.plan.batch / self.plan.stock},
            "cost": HOLDS,
            "seconds": self.plan.seconds,
        }
        ends, *said = await asyncio.gather(
            self.fleet.load({WEB: self.plan.web}, HOLDS),
            *(job.ask(order) for job in workers[:1]),
        )
        counting.cancel()
        for worker in workers:
            self.fleet.kill(worker.child)
        return {"web": ends[WEB], "job": gather(said).get(STOCK, Ends()),
                "connections": len(counted)}  # fmt: skip

    async def _start_job(self, target: str, is_behind: bool) -> list[Worker]:
        """The process of the job, and that of its proxy if it is behind one."""
        proxies = []
        if is_behind:
            words = f"proxy --json --listen 127.0.0.1:0 --target {target}"
            proxy = await self.fleet.run("proxy", "-c", LBCLIENT, *words.split())
            target = "ipv4:" + (await proxy.answer())["listening"]
            proxies.append(proxy)
        job = await self.fleet.run(
            "batch job",
            str(Path(__file__).parent / "large_clients.py"),
            json.dumps([{"target": target}] * self.plan.stock),
        )
        await job.answer()
        return [job, *proxies]

    def _judge(self, text: str, kept: bool) -> None:
        self.verdict.append(Finding(text, kept))


def title(text: str) -> None:
    print(f"\n{text}\n", flush=True)


def row(name: str, counts: Sequence[int]) -> tuple[str, ...]:
    return name, str(min(counts)), f"{fmean(counts):.1f}", str(max(counts))


def say(rows: Sequence[Sequence[str]], what: str) -> None:
    print(aligned(rows))
    print()
    print(as_text([Finding(what, None)]), flush=True)


# --- the command -------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="20 x 20, in half of the time"
    )
    parser.add_argument("--json", metavar="FILE", help="write all counts")
    return parser


async def run(plan: Plan) -> Show:
    """Plays everything; no process is left behind, however it ends."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    print(f"starting {plan.backends} backends and {plan.clients} clients in "
          f"{2 * PROCESSES} processes ...", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        async with Fleet(plan, Path(folder)) as fleet:
            await fleet.start()
            show = Show(fleet)
            await show.play()
            return show


def main(argv: Sequence[str] | None = None) -> int:
    given = make_parser().parse_args(argv)
    show = run_or_exit("large fleet", run(QUICK if given.quick else FULL))
    print(f"\n{as_text(show.verdict)}")
    if given.json is not None:
        found = {**show.found, "verdict": [asdict(one) for one in show.verdict]}
        Path(given.json).write_text(json.dumps(found, indent=1))
    return int(any(finding.kept is False for finding in show.verdict))


if __name__ == "__main__":
    sys.exit(main())
