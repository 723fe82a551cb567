"""The processes of the large fleet, and the file in which its clients find backends."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child import Child
from large_ends import Ends, gather

PROCESSES = 4  # of backends, and of clients
WITHIN = 60.0  # seconds; for processes and connections, on a machine that is busy
WEB, REPORTS = "web", "reports"  # customers
GREEDY = 8  # one client in so many is the customer `reports`

# What a customer may use: CPU seconds a second of the fleet. A call takes 0.001, so
# `reports` may make about 40 calls a second, and `web` more than it ever does here.
QUOTAS = {WEB: 4.0, REPORTS: 0.04}
# Seconds that a call holds one of a backend's eight places, in the last part.
HOLDS = 1.0


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

    async def load(self, rate: dict[str, float], cost: float) -> dict[str, Ends]:
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
