"""Shows a fleet coming into balance, and what a restart, a kill and a freeze cost.

One run, real processes, sockets and signals: every policy on the same load, then the
faults under the last of them. `lbclient demo` runs this.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import report
from child import run_or_exit
from figures import (
    Balance,
    Call,
    Phase,
    balance,
    failed_on,
    in_flight,
    last_sent,
    percentile,
)
from fleet import Backend, Fleet
from options import BLACKOUT, CORES, HEALTH_INTERVAL, Options, parse
from view import Row, Scene, View, choose_view

FAULT_POLICY = "weighted_least_loaded"  # the library's default
SLICE = 0.25  # seconds between two readings of what backends have used
PRECISE = 0.03  # standard error of max/mean with which a measurement may end
PAUSE = 0.05  # seconds between two looks at how late timers are
SEEN_WITHIN = 5.0  # seconds; for all clients to notice that a backend is back


class Demo:
    """Plays the phases, one after the other, on a fleet that has been started."""

    def __init__(self, options: Options, fleet: Fleet, view: View) -> None:
        self.options = options
        self.phases: list[Phase] = []
        self.late: list[float] = []  # seconds, of timers
        self._fleet = fleet
        self._view = view
        self._clock = asyncio.get_running_loop().time
        self._title = ""
        self._ends_at = 0.0

    async def play(self) -> None:
        for policy in self.options.policies:
            await self._policy(policy)
        await self._restart()
        await self._kill()
        await self._freeze()

    async def keep_showing(self) -> None:
        while True:
            self._view.show(self._scene())
            await asyncio.sleep(0.25)

    async def _policy(self, policy: str) -> None:
        timing = self.options.timing
        phase = Phase(policy, policy.replace("_", " "))
        async with self._load(phase, policy, timing.settle + timing.measure) as calls:
            await asyncio.sleep(timing.settle)
            since = self._clock()
            phase.balance = await self._measure(since)
        phase.count(calls, since)
        self._say(phase, f"max/mean utilization {report.ratio(phase.balance)}")

    async def _measure(self, since: float) -> Balance:
        """For as long as it takes to know max/mean, within bounds."""
        timing = self.options.timing
        readings = [await self._fleet.usages()]
        while True:
            await asyncio.sleep(SLICE)
            readings.append(await self._fleet.usages())
            found, took = balance(readings), self._clock() - since
            is_known = found.error is not None and found.error <= PRECISE
            enough = timing.measure if is_known else timing.measure_most
            if took + SLICE / 2 >= enough:
                return found
            self._ends_at = max(self._ends_at, self._clock() + SLICE)

    async def keep_lateness(self) -> None:
        """How late this process wakes up, which has little to do: others are busy."""
        while True:
            due = self._clock() + PAUSE
            await asyncio.sleep(PAUSE)
            self.late.append(self._clock() - due)

    async def _restart(self) -> None:
        phase = Phase("restart", "rolling restart")
        backends = self._fleet.backends
        slot = self.options.timing.restart / len(backends)
        async with self._load(phase, FAULT_POLICY, slot * len(backends)) as calls:
            for number, backend in enumerate(backends, start=1):
                started_at = self._clock()
                backend.note = "SIGTERM"
                await self._fleet.stop_backend(backend, signal.SIGTERM)
                backend.note = "starting"
                await self._come_back(backend)
                await asyncio.sleep(max(0.0, started_at + slot - self._clock()))
                took = self._clock() - started_at
                self._ends_at = self._clock() + took * (len(backends) - number)
        phase.count(calls)
        phase.facts["backends"] = len(backends)
        self._say(phase, "each backend in turn")

    async def _kill(self) -> None:
        phase = Phase("kill", "one killed (SIGKILL)")
        timing = self.options.timing
        victim = self._fleet.backends[1]  # a fast one: more is in flight on it
        async with self._load(
            phase, FAULT_POLICY, 2 * timing.around + timing.down + 1.0
        ) as calls:
            await asyncio.sleep(timing.around)
            victim.note = "SIGKILL"
            killed_at = self._clock()
            await self._fleet.stop_backend(victim, signal.SIGKILL)
            dead_at = self._clock()
            await asyncio.sleep(timing.down)
            await self._come_back(victim)
            await asyncio.sleep(timing.around)
        phase.count(calls)
        phase.facts |= {
            "backend": victim.name,
            "in_flight": in_flight(calls, victim.address, killed_at, dead_at),
            "failed_on_it": failed_on(calls, victim.address),
        }
        self._say(phase, f"{phase.facts['in_flight']} in flight on {victim.name}")

    async def _freeze(self) -> None:
        phase = Phase("freeze", "one frozen (SIGSTOP)")
        timing = self.options.timing
        victim = self._fleet.backends[-1]
        assert victim.child is not None
        async with self._load(
            phase, FAULT_POLICY, 2 * timing.around + timing.frozen + 0.5
        ) as calls:
            await asyncio.sleep(timing.around)
            victim.note = "SIGSTOP"
            stopped_at = self._clock()
            victim.child.signal(signal.SIGSTOP)
            await asyncio.sleep(timing.frozen)
            resumed_at = self._clock()
            victim.child.signal(signal.SIGCONT)
            victim.note = ""
            await self._fleet.seen_ready(victim, SEEN_WITHIN)
            await asyncio.sleep(timing.around)
        phase.count(calls)
        last = last_sent(calls, victim.address, resumed_at) or stopped_at
        phase.facts |= {
            "backend": victim.name,
            "frozen": resumed_at - stopped_at,
            "last_sent_after": max(0.0, last - stopped_at),
        }
        self._say(
            phase,
            f"{victim.name} left after {phase.facts['last_sent_after']:.2f} s",
        )

    async def _come_back(self, backend: Backend) -> None:
        await self._fleet.start_backend(backend)
        backend.note = ""
        await self._fleet.seen_ready(backend, SEEN_WITHIN)

    @asynccontextmanager
    async def _load(
        self, phase: Phase, policy: str, seconds: float
    ) -> AsyncIterator[list[Call]]:
        """The clients' load; the list is filled when it is over."""
        number = len(self.phases) + 1
        count = len(self.options.policies) + 3
        self._title = f"{number}/{count} {phase.title}"
        self._ends_at = self._clock() + seconds
        self.phases.append(phase)
        calls: list[Call] = []
        self._fleet.begin([self._order(policy, n) for n in range(self.options.clients)])
        yield calls
        calls += await self._fleet.end()
        phase.failures = dict(self._fleet.failures.most_common())
        phase.skipped = self._fleet.skipped

    def _order(self, policy: str, client: int) -> dict[str, Any]:
        options = self.options
        return {
            "target": self._fleet.target,
            "picker": policy,
            "blackout": BLACKOUT,
            "health_interval": HEALTH_INTERVAL,
            "subset_size": options.backends,
            "customer": self._fleet.clients[client].name,
            "rate": options.rate / options.clients,
            "mean_cost": options.mean_cost,
            "heavy_tail": options.heavy_tail,
            "seed": f"{options.seed}/{client}",  # not of the policy: the same load
        }

    def _say(self, phase: Phase, what: str) -> None:
        self._view.say(
            f"{phase.title:22} {phase.calls:6,} calls, {phase.failed} failed: {what}"
        )

    def _scene(self) -> Scene:
        return Scene(
            self._title,
            max(0.0, self._ends_at - self._clock()),
            tuple(self._row(backend) for backend in self._fleet.backends),
        )

    def _row(self, backend: Backend) -> Row:
        views = [
            client.view[backend.address]
            for client in self._fleet.clients
            if backend.address in client.view
        ]

        def mean(key: str) -> float:
            return sum(view[key] or 0.0 for view in views) / max(1, len(views))

        states = self._fleet.states(backend).most_common()
        state = " ".join(
            name if len(states) == 1 else f"{name} {count}" for name, count in states
        )
        return Row(
            backend.name,
            backend.speed,
            mean("utilization"),
            state,
            sum(view["rate"] for view in views),
            mean("weight"),
            sum(view["in_flight"] for view in views),
            backend.note,
        )


async def run(options: Options) -> tuple[list[Phase], float]:
    """Plays the whole demo; no process is left behind, however it ends.

    Returns the phases, and by how many seconds a tenth of the timers were late.
    """
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    assert this is not None
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    rng = Random()  # for ports alone
    with choose_view() as view:
        view.say(str(options))
        view.say("starting the processes ...")
        async with Fleet(options.speeds, options.clients, CORES, rng) as fleet:
            await fleet.start()
            view.say(f"look into {fleet.clients[0].name} at {fleet.clients[0].page}")
            demo = Demo(options, fleet, view)
            beside = (demo.keep_showing(), demo.keep_lateness())
            tasks = [asyncio.create_task(one) for one in beside]
            try:
                await demo.play()
            finally:
                for task in tasks:
                    task.cancel()
            return demo.phases, percentile(sorted(demo.late), 0.9) or 0.0


def conclude(options: Options, phases: Sequence[Phase], late: float = 0.0) -> int:
    findings = report.verdict(phases, HEALTH_INTERVAL, options.judges_balance)
    findings += report.on_certainty(phases, late)
    print(f"\n{report.table(phases)}\n\n{report.as_text(findings)}")
    if failures := report.failures(phases):
        print(f"\nfailures:\n{failures}")
    if options.json is not None:
        everything = report.as_json(options.configuration(), phases, findings)
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=2)
    return int(any(phase.name == "restart" and phase.failed for phase in phases))


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    phases, late = run_or_exit("lbclient demo", run(options))
    return conclude(options, phases, late)


if __name__ == "__main__":
    sys.exit(main())
