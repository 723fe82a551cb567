"""The servers of one contender's fleet, and what is done to them."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.faults.link import Link
from benchmarks.harness.processes import orders, say
from benchmarks.harness.servers import listen

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "fleet"))
emulated: Any = import_module("cpu")

WORK = "/benchmark.Peers/Work"
BACKENDS, CORES, SPEEDS = 8, 2, (1.0, 2.5)
CAPACITY = CORES * BACKENDS * sum(SPEEDS) / len(SPEEDS)
# Which server it happens to. All but the one that fails are fast ones.
FAILING, STEPPED, RESTARTED, KILLED, LINKED = 0, 1, 3, 5, 7
AWAY = 1.0  # seconds, of who is restarted or killed
SLOW = 0.5  # speed after the step
BESIDE, SPELL = 1.0, 4.0  # speed beside the antagonist, which comes and goes, seconds


class Place(NamedTuple):
    """Where a server listens."""

    address: str


async def be_servers(numbers: Sequence[int], ports: Sequence[int] = ()) -> None:
    """Some of a fleet's servers, on these ports if told. Says their ports, and for
    each order how busy each has been."""
    servers = Servers(numbers)
    await servers.start(ports)
    say([*servers.ports.values()])
    async for what, number, value in orders():
        if number in numbers:
            servers.play(what, number, value)
        say([servers.cpus[number].usage() for number in numbers])


class Servers:
    """`ports` are what clients know: of one server, those of a link before it."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.ports: dict[int, int] = {}
        self.cpus = {n: emulated.Cpu(CORES, SPEEDS[n % len(SPEEDS)]) for n in numbers}
        self._failing: set[int] = set()
        self._servers: dict[int, Any] = {}
        self._links: dict[int, Link] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, ports: Sequence[int]) -> None:
        for n, port in zip(self.numbers, ports or [0] * len(self.numbers), strict=True):
            self.ports[n] = await self._serve(n, port)
            if n == LINKED:
                self._links[n] = link = Link(Place(f"127.0.0.1:{self.ports[n]}"))
                await link.start()
                self.ports[n] = int(link.address.rpartition(":")[2])

    def play(self, what: str, number: int, value: float) -> None:
        if what == "speed":
            self._set_speed(number, value)
        elif what == "fails":
            (self._failing.add if value else self._failing.discard)(number)
        elif what == "restart":
            self._run(what, self._restart(number, value))
        elif what == "antagonist" and value:
            self._run(what, self._beside_another(number, value))
        elif what == "antagonist":
            self._running.pop(what).cancel()
            self._set_speed(number, SPEEDS[number % len(SPEEDS)])
        elif what == "stall" and value:
            self._links[number].stall()
        elif what == "stall":
            self._links[number].resume()

    def _run(self, what: str, running: Coroutine[Any, Any, None]) -> None:
        self._running[what] = asyncio.create_task(running)

    async def _serve(self, number: int, port: int) -> int:
        self._servers[number] = server = server_of(self.cpus[number])
        return await listen(server, {WORK: self._handler(number)}, port)

    def _handler(self, number: int) -> Callable[..., Any]:
        async def work(request: bytes, context: Any) -> bytes:
            if number in self._failing:
                await context.abort(grpc.StatusCode.INTERNAL, "a sinkhole")
            await self.cpus[number].run(float(request))
            return b""

        return work

    async def _restart(self, number: int, away: float) -> None:
        await self._servers[number].stop(None)
        await asyncio.sleep(away)
        await self._serve(number, self.ports[number])

    async def _beside_another(self, number: int, speed: float) -> None:
        """Whose CPU something else uses every other spell."""
        while True:
            for each in (speed, SPEEDS[number % len(SPEEDS)]):
                self._set_speed(number, each)
                await asyncio.sleep(SPELL)

    def _set_speed(self, number: int, speed: float) -> None:
        cpu = self.cpus[number]
        cpu.usage()  # at the speed that it had until now
        cpu._processor.speed = speed
        cpu._set_timer()


def server_of(cpu: Any) -> Any:
    config = lbclient.ServerConfig(
        utilization=cpu.utilization,
        utilization_replaces=True,
        runnable=lambda: cpu.runnable,
        smoothing=1.0,
        max_load=0,  # it shows who balances better, not what a task sheds
    )
    return lbclient.server(config=config)
