"""What the large fleet shows: four parts, each with a table and a verdict."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from large_ends import STOCK, Ends, gather
from large_fleet import HOLDS, QUOTAS, REPORTS, WEB, Fleet, Worker
from report import Finding, aligned, as_text

from lbclient.subsets import ALGORITHMS
from lbclient.subsets.properties import balance, choose, churn, ideal_churn

ALGORITHM = "rocksteadier"  # what channels take where both sides have numbers
EVEN = 1.25  # the busiest backend after a resize, over the mean
LEAST_SERVED = 0.9  # of the interactive calls, beside the batch job behind the proxy
WANTS = 160.0  # calls a second of `reports`

# `python -m lbclient`, which ends with whoever started it, as the other programs do.
LBCLIENT = """
import os, sys, threading
from lbclient.cli import main
ends = lambda: (sys.stdin.read(), os._exit(0))
threading.Thread(target=ends, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


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
