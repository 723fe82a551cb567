"""How even connections are where neither side has task numbers, without any setting.

    python -m benchmarks.crowding              about 5 minutes
    python -m benchmarks.crowding --quick      about 2 minutes: a smaller fleet

A fleet of clients starts at the same moment, each with a channel to the addresses of
all backends, in some processes. A resolver of the benchmark's own yields them: the
backends differ by port only, and addresses in DNS have none. Once a second the
connections of each backend are counted, in the kernel's table. Then backends are
added, as a rollout to more replicas does. Beside it, the same with
`subset="rendezvous"`, which chooses by chance alone.

    busiest, idlest    connections of a backend, over the mean
    opened             connections that were opened until then, over those there are

Exit status 1 if the busiest has more than 1.25 times the mean a minute after the start,
or after the resize, or if the resize opened more than 1.5 times as many as by chance.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import lbclient
from benchmarks.harness.linux import tcp_sockets
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import Process, orders, running, say

PROCESSES = 4  # of servers, and of clients
SIZE = 20
MOST, MOST_OPENED = 1.25, 1.5
MINUTE = 60.0


class Plan(NamedTuple):
    clients: int
    backends: int
    more: int  # backends that come later
    seconds: float  # until it is even, at most


FULL = Plan(60, 40, 4, MINUTE)
QUICK = Plan(40, 30, 3, 20.0)


async def serve() -> None:
    """Starts as many servers as it is told to, and says their ports."""
    servers = []
    async for (count,) in orders():
        ports = []
        for _ in range(count):
            servers.append(server := lbclient.server())
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
        say(ports)


async def connect(subset: str, first: int, clients: int) -> None:
    """Channels to the ports that it is told; later they hear of others."""
    endpoints: tuple[lbclient.Endpoint, ...] = ()
    news = asyncio.Event()

    class Told:
        async def watch(self) -> Any:
            while True:
                current = news
                yield endpoints
                await current.wait()

    channels: list[lbclient.Channel] = []
    async for ports in orders():
        endpoints = tuple(lbclient.Endpoint(f"127.0.0.1:{port}") for port in ports)
        news.set()
        news = asyncio.Event()
        if not channels:
            channels = [
                lbclient.insecure_channel(
                    Told(),
                    config=lbclient.ChannelConfig(
                        subset=subset, subset_size=SIZE, client_id=f"client-{number}"
                    ),
                )
                for number in range(first, first + clients)
            ]
        for channel in channels:
            channel.get_state(try_to_connect=True)
        say("told")


class Seen(NamedTuple):
    second: int
    busiest: float
    idlest: float
    opened: float


class Fleet:
    def __init__(self, servers: list[Process], clients: list[Process]) -> None:
        self.ports: list[int] = []
        self.opened: set[tuple[int, int]] = set()
        self._servers, self._clients = servers, clients

    async def add(self, backends: int) -> None:
        share = [backends // PROCESSES] * PROCESSES
        share[0] += backends % PROCESSES
        for server, count in zip(self._servers, share, strict=True):
            self.ports += await server.ask(count)
        await asyncio.gather(*(client.ask(*self.ports) for client in self._clients))

    def look(self, second: int) -> Seen:
        ports = set(self.ports)
        open_now = {
            (one.local, one.remote)
            for one in tcp_sockets()
            if one.is_established and one.local in ports
        }
        self.opened |= open_now
        counts = Counter(port for port, _ in open_now)
        mean = max(1.0, len(open_now)) / len(ports)
        of_all = [counts[port] / mean for port in ports]
        opened = len(self.opened) / max(1, len(open_now))
        return Seen(second, max(of_all), min(of_all), opened)

    async def watch(self, seconds: float) -> Seen:
        seen = self.look(0)
        for second in range(1, round(seconds) + 1):
            await asyncio.sleep(1.0)
            seen = self.look(second)
            if second % 10 == 0 or second == 3:
                print(
                    f"{second:>10} s {seen.busiest:>8.2f} {seen.idlest:>8.2f}"
                    f" {seen.opened:>8.2f}",
                    flush=True,
                )
        return seen


async def measure(subset: str, plan: Plan) -> dict[str, Any]:
    print(f"{subset}:      busiest   idlest   opened", flush=True)
    async with AsyncExitStack() as stack:

        async def started(*what: Any) -> Process:
            return await stack.enter_async_context(running(*what))

        servers = [await started(serve) for _ in range(PROCESSES)]
        each = plan.clients // PROCESSES
        clients = [
            await started(connect, subset, number * each, each)
            for number in range(PROCESSES)
        ]
        fleet = Fleet(servers, clients)
        await fleet.add(plan.backends)
        start = await fleet.watch(plan.seconds)
        before = len(fleet.opened)
        await fleet.add(plan.more)
        print(f"  {plan.more} backends more", flush=True)
        resized = await fleet.watch(plan.seconds)
        opened = len(fleet.opened) - before
    print(f"  opened for the resize: {opened}", flush=True)
    return {"start": start._asdict(), "resized": resized._asdict(), "opened": opened}


def main() -> int:
    given = parser_of("crowding", __doc__, quick="a smaller fleet").parse_args()
    plan = QUICK if given.quick else FULL
    found = {
        subset: asyncio.run(measure(subset, plan)) for subset in ("rendezvous", "auto")
    }
    ours, chance = found["auto"], found["rendezvous"]
    missed = [
        f"{when}: the busiest has {ours[when]['busiest']:.2f} times the mean"
        for when in ("start", "resized")
        if ours[when]["busiest"] > MOST
    ]
    if ours["opened"] > MOST_OPENED * chance["opened"]:
        missed.append(
            f"the resize opened {ours['opened']}, by chance {chance['opened']}"
        )
    told = [
        Measured(name=f"{when}, {subset}: busiest over the mean", value=value)
        for subset, of in found.items()
        for when, value in (
            ("start", of["start"]["busiest"]),
            ("resized", of["resized"]["busiest"]),
        )
    ]
    return conclude(given, found, missed, measured=told)


if __name__ == "__main__":
    exit_with(main)
