"""What a list of 10,000 endpoints costs the event loop of a channel.

    python -m benchmarks.discovery            about 70 s
    python -m benchmarks.discovery --json FILE
    python -m benchmarks.discovery --thaw

For each source, in a process of its own, a channel takes the whole list, then five
updates, each with 1 % of the endpoints replaced. Name server and Kubernetes' API have
another process.

    ipv4     a target that is a list: read by the loop, once, and never changed
    own      a resolver of one's own that has its endpoints ready
    lookup   a name of which a function tells the addresses, as the system's resolver
    file     JSON; yaml: the same in YAML
    dns      A records; srv: SRV records; k8s: EndpointSlices, all of them sent anew

    loop ms      CPU time of the loop's thread: the resolver's and that of the channel,
                 until the list is applied; bound: 100
    longest ms   the longest piece of that without a pause
    gc ms        the longest garbage collection, in whatever thread; all wait for it
    late ms      how late a timer of 1 ms was at worst, as a call would have been
    own ms       of that at most, what this process was at work, in whatever thread; the
                 rest others on the machine were. Bound: 50
    news s       from the change at the source to its being applied
    full         full garbage collections, of all lists
    MB           by which the process has grown with the list

What there is before the channel is frozen (gc.freeze): modules, and what the source
will tell. A full collection takes 30 ms and more for these, which says nothing of the
channel, and a first list can bring one on; `--thaw` leaves them as they are.

DNS cannot carry 10,000: an answer has at most 64 kB, some 4,000 addresses.
"""

import asyncio
import gc
import json
import os
import tempfile
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic, process_time, thread_time
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
from aiohttp import web
from dns.resolver import Resolver as DnsPython

import lbclient
from benchmarks.harness import linux
from benchmarks.harness.figures import table
from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import orders, result_of, running, say
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.protocols import Resolver
from lbclient.resolvers import Dns, File, Srv, parse_target
from lbclient.resolvers.kubernetes import Api, Kubernetes
from lbclient.resolvers.lookups import Addresses
from lbclient.resolvers.name_servers import NameServers

MANY = 10_000
IN_DNS, IN_SRV = 4_000, 1_000  # what an answer of 64 kB can carry
PER_SLICE = 100  # as Kubernetes fills them
UPDATES = 5
SHARE = 100  # one of so many is replaced by an update

TICK = 0.001  # seconds

Change = Callable[[int], Awaitable[None]]
"""Makes the source tell its list of that generation."""


def hosts(generation: int, size: int) -> list[str]:
    """Nobody listens there: connections are refused at once."""
    moved = generation * size // SHARE
    return [
        f"127.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(moved, moved + size)
    ]


@dataclass(frozen=True)
class Result:
    """Of the first list, and of updates the median and the worst."""

    source: str
    endpoints: int
    first_loop_ms: float
    first_longest_ms: float
    first_gc_ms: float
    first_late_ms: float
    first_own_ms: float
    loop_ms: float
    worst_loop_ms: float
    longest_ms: float
    worst_longest_ms: float
    gc_ms: float
    worst_gc_ms: float
    late_ms: float
    worst_late_ms: float
    own_ms: float
    worst_own_ms: float
    full_collections: int
    news_s: float
    grown_mb: float


class Timed:
    """A resolver that is measured: each of its steps, and what follows each answer."""

    def __init__(self, inner: Resolver) -> None:
        self.inner = inner
        self.applied = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        self.last: Endpoints = ()
        self.total = self.longest = 0.0  # seconds of CPU time
        self.pause()

    def add(self, started: float) -> None:
        spent = thread_time() - started
        self.total += spent
        self._piece += spent
        self.longest = max(self.longest, self._piece)

    def pause(self) -> None:
        """The loop gets its turn. To yield a list is none: it is applied at once."""
        self._piece = 0.0

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        inner = self.inner.watch()
        while True:
            endpoints = await Steps(anext(inner), self)
            started = thread_time()
            yield endpoints  # until the next is wanted, it is being applied
            self.add(started)
            self.last = endpoints
            self.applied.set()


class Steps:
    """Awaits something and measures each of its steps."""

    def __init__(self, inner: Awaitable[Endpoints], timed: Timed) -> None:
        self._inner = inner
        self._timed = timed

    def __await__(self) -> Generator[Any, Any, Endpoints]:
        steps = self._inner.__await__()
        resume: Callable[[], Any] = partial(next, steps)
        while True:
            started = thread_time()
            try:
                waits_for = resume()
            except StopIteration as done:
                endpoints: Endpoints = done.value
                return endpoints
            finally:
                self._timed.add(started)
            self._timed.pause()
            try:
                yield waits_for
                resume = partial(next, steps)
            except BaseException as error:  # cancelled, as a rule
                assert isinstance(steps, Generator)
                resume = partial(steps.throw, error)


class Timer:
    """How late a timer is at worst, in seconds, since `begin`.

    `own` is the share of this process: what it was late though others took no time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begin()
        self._start()

    def begin(self) -> None:
        self.worst = self.own = 0.0

    def _start(self) -> None:
        due = monotonic() + TICK
        self._handle = self._loop.call_later(TICK, self._tick, due, process_time())

    def _tick(self, due: float, at_work: float) -> None:
        late = monotonic() - due
        self.worst = max(self.worst, late)
        self.own = max(self.own, min(late, process_time() - at_work))
        self._start()

    def stop(self) -> None:
        self._handle.cancel()


class Collections:
    """The longest garbage collection in seconds since `begin`, and all full ones."""

    FULL = 2  # the oldest generation

    def __init__(self) -> None:
        self.longest = self._started = 0.0
        self.full = 0
        gc.callbacks.append(self._note)

    def begin(self) -> None:
        self.longest = 0.0

    def _note(self, phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            self._started = thread_time()
            return
        self.longest = max(self.longest, thread_time() - self._started)
        self.full += told["generation"] == self.FULL

    def stop(self) -> None:
        gc.callbacks.remove(self._note)


async def measure(name: str, resolver: Resolver, change: Change, size: int) -> Result:
    updates = 0 if name in FIXED else UPDATES
    await change(0)
    timed, timer = Timed(resolver), Timer()
    before = resident_mb()
    collections = Collections()
    costs, grown = [], []
    async with lbclient.insecure_channel(timed) as channel:
        for generation in range(1 + updates):
            timed.begin()
            timer.begin()
            collections.begin()
            began = monotonic()
            if generation:
                await change(generation)
            else:
                channel.get_state(try_to_connect=True)
            # While slices come one by one, some endpoints are in two: fewer in all.
            while len(timed.last) != size:
                timed.applied.clear()
                await timed.applied.wait()
            news = monotonic() - began
            await asyncio.sleep(2 * TICK)  # the timer has not had its turn yet
            spent = timed.total, timed.longest, collections.longest
            waited = timer.worst, timer.own
            costs.append((*(1000 * each for each in (*spent, *waited)), news))
            grown.append(resident_mb() - before)
            await asyncio.sleep(1.0)
    timer.stop()
    collections.stop()
    # Of what never changes the first list is all there is.
    later = zip(*(costs[1:] or costs), strict=True)
    loop, longest, collecting, late, own, told = later
    figures = (
        *costs[0][:5],
        median(loop), max(loop),
        median(longest), max(longest),
        median(collecting), max(collecting),
        median(late), max(late),
        median(own), max(own),
        collections.full, max(told), grown[0],
    )  # fmt: skip
    return Result(name, size, *(round(figure, 2) for figure in figures))


def resident_mb() -> float:
    return linux.resident(os.getpid()) / 2**20


# --- sources -------------------------------------------------------------------


class Fixed:
    """A target that lists its addresses, read when it is first asked.

    A channel reads its target when it is made, and follows it from the next turn on.
    """

    def __init__(self) -> None:
        self.target = "ipv4:" + ",".join(f"{host}:1" for host in hosts(0, MANY))

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        found = parse_target(self.target, resolve_interval=10.0, rng=Random(7))
        resolver = found.resolver
        await asyncio.sleep(0)
        async for endpoints in resolver.watch():
            yield endpoints


@asynccontextmanager
async def a_target(folder: Path) -> AsyncIterator[tuple[Resolver, Change, int]]:
    async def change(generation: int) -> None:
        pass

    yield Fixed(), change, MANY


class Own:
    """As one would write it: it has a list, and yields it when it is another one."""

    def __init__(self) -> None:
        self.lists = [
            tuple(Endpoint(f"{host}:1", zone="a") for host in hosts(n, MANY))
            for n in range(1 + UPDATES)
        ]
        self.news: asyncio.Queue[int] = asyncio.Queue()

    async def watch(self) -> AsyncGenerator[Endpoints, None]:
        while True:
            yield self.lists[await self.news.get()]


@asynccontextmanager
async def our_own(folder: Path) -> AsyncIterator[tuple[Resolver, Change, int]]:
    own = Own()
    yield own, own.news.put, MANY


@asynccontextmanager
async def a_file(
    folder: Path, suffix: str = ".json"
) -> AsyncIterator[tuple[Resolver, Change, int]]:
    path = folder / f"backends{suffix}"
    for generation in range(1 + UPDATES):  # beforehand: to write is no part of it
        groups = [
            {"targets": [f"{host}:1"], "labels": {"zone": "a"}}
            for host in hosts(generation, MANY)
        ]
        text = "\n".join(f"- {json.dumps(group)}" for group in groups)
        text = json.dumps(groups) if suffix == ".json" else text
        path.with_suffix(f".{generation}").write_text(text)

    async def change(generation: int) -> None:
        path.with_suffix(f".{generation}").rename(path)

    yield File(str(path)), change, MANY


@asynccontextmanager
async def a_lookup(folder: Path) -> AsyncIterator[tuple[Resolver, Change, int]]:
    answers = [Addresses(hosts(n, MANY)) for n in range(1 + UPDATES)]
    answer = Addresses([])

    async def lookup(host: str, port: int) -> Addresses:
        return answer

    resolver = Dns("search.test", 1, 3600.0, Random(7), lookup)

    async def change(generation: int) -> None:
        nonlocal answer
        answer = answers[generation]
        resolver.refresh()

    yield resolver, change, MANY


@asynccontextmanager
async def server(kind: str) -> AsyncIterator[tuple[int, Change]]:
    """A process that serves on the port, and changes when it is told to."""
    async with running(serve, kind) as process:
        yield await process.hear(), process.ask


def asking(port: int) -> NameServers:
    def make() -> DnsPython:
        resolver = DnsPython(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], port
        return resolver

    return NameServers(make)


@asynccontextmanager
async def a_name_server(folder: Path) -> AsyncIterator[tuple[Resolver, Change, int]]:
    async with server("dns") as (port, change):
        lookup = asking(port).addresses
        yield Dns("search.test", 1, 3600.0, Random(7), lookup), change, IN_DNS


@asynccontextmanager
async def srv_records(folder: Path) -> AsyncIterator[tuple[Resolver, Change, int]]:
    async with server("dns") as (port, change):
        yield (
            Srv("search.test", 3600.0, Random(7), asking(port).services),
            change,
            IN_SRV,
        )


@asynccontextmanager
async def kubernetes(folder: Path) -> AsyncIterator[tuple[Resolver, Change, int]]:
    (folder / "token").write_text("token")
    async with server("k8s") as (port, change):
        api = Api(f"http://127.0.0.1:{port}", folder)
        yield Kubernetes("search", "prod", "1", Random(7), api), change, MANY


Source = Callable[[Path], AbstractAsyncContextManager[tuple[Resolver, Change, int]]]

SOURCES: dict[str, Source] = {
    "ipv4": a_target,
    "own": our_own,
    "lookup": a_lookup,
    "file": a_file,
    "yaml": partial(a_file, suffix=".yaml"),
    "dns": a_name_server,
    "srv": srv_records,
    "k8s": kubernetes,
}

FIXED = {"ipv4"}

# --- servers -------------------------------------------------------------------


class Wire(asyncio.DatagramProtocol):
    """Answers of a generation, each made once. Over UDP it says that it is too long."""

    def __init__(self) -> None:
        self._transport: Any = None
        self.tell(0)

    def tell(self, generation: int) -> None:
        self._made: dict[tuple[int, bool], bytes] = {}
        self._texts = {
            "A": hosts(generation, IN_DNS),
            "SRV": [f"0 1 1 {host}." for host in hosts(generation, IN_SRV)],
        }

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(self._answer(data, is_whole=False), addr)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        size = int.from_bytes(await reader.readexactly(2))
        answer = self._answer(await reader.readexactly(size), is_whole=True)
        writer.write(len(answer).to_bytes(2) + answer)
        await writer.drain()
        writer.close()

    def _answer(self, data: bytes, *, is_whole: bool) -> bytes:
        query = dns.message.from_wire(data)
        kind = query.question[0].rdtype
        key = kind, is_whole
        if key not in self._made:
            self._made[key] = self._make(query, is_whole=is_whole)
        return data[:2] + self._made[key][2:]  # the number of the question

    def _make(self, query: dns.message.Message, *, is_whole: bool) -> bytes:
        name, kind = query.question[0].name, query.question[0].rdtype
        answer = dns.message.make_response(query)
        texts = self._texts.get(dns.rdatatype.to_text(kind))
        if texts and is_whole:
            # For a second, so that the client asks again soon.
            answer.answer.append(dns.rrset.from_text(name, 1, "IN", kind, *texts))
        elif texts:
            answer.flags |= dns.flags.TC
        return answer.to_wire(max_size=65535)


async def serve_dns() -> tuple[int, Callable[[int], None]]:
    wire = Wire()
    tcp = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port: int = tcp.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: wire, local_addr=("127.0.0.1", port))
    return port, wire.tell


def slices(generation: int) -> list[dict[str, object]]:
    """Those of a real Service, 350 bytes an endpoint."""
    all_hosts = hosts(generation, MANY)
    return [
        {
            "metadata": {"name": f"search-{n}", "resourceVersion": str(1 + generation)},
            "addressType": "IPv4",
            "ports": [{"name": "grpc", "port": 1, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [host],
                    "conditions": {
                        "ready": True,
                        "serving": True,
                        "terminating": False,
                    },
                    "nodeName": "ip-10-0-0-7.eu-west-1.compute.internal",
                    "targetRef": {
                        "kind": "Pod",
                        "namespace": "prod",
                        "name": "search-7d9f8b6c5d-x2x4z",
                        "uid": "3f8c1e5a-8a4e-4f0e-9d39-9d3c0c0a0f4b",
                    },
                    "zone": "eu-west-1a",
                }
                for host in all_hosts[n : n + PER_SLICE]
            ],
        }
        for n in range(0, MANY, PER_SLICE)
    ]


async def serve_k8s() -> tuple[int, Callable[[int], None]]:
    watches: dict[asyncio.Queue[bytes], None] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            metadata = {"resourceVersion": "1"}
            return web.json_response({"metadata": metadata, "items": slices(0)})
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        watches[queue] = None
        while True:
            await response.write(await queue.get())

    def tell(generation: int) -> None:
        """All slices, as after a restart of the whole fleet: the worst case."""
        lines = [
            json.dumps({"type": "MODIFIED", "object": each}).encode() + b"\n"
            for each in slices(generation)
        ]
        for queue in watches:
            queue.put_nowait(b"".join(lines))

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner.addresses[0][1], tell


async def serve(kind: str) -> None:
    port, tell = await {"dns": serve_dns, "k8s": serve_k8s}[kind]()
    say(port)
    async for [generation] in orders():
        tell(generation)
        say(generation)


# --- the table -----------------------------------------------------------------


async def run(name: str, is_frozen: bool) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        async with SOURCES[name](Path(folder)) as (resolver, change, size):
            if is_frozen:
                gc.collect()
                gc.freeze()
            return await measure(name, resolver, change, size)


async def run_all(names: list[str], is_frozen: bool) -> list[Result]:
    """Each in a process of its own, so that none has to do with what another left."""
    return [Result(**await result_of(run, name, is_frozen)) for name in names]


def pair(usual: float, worst: float) -> str:
    return f"{usual:.0f} ({worst:.0f})"


HEAD = ["source", "endpoints", "loop", "longest", "gc", "late", "own"]


def row(r: Result) -> list[str]:
    first = (
        r.first_loop_ms, r.first_longest_ms, r.first_gc_ms, r.first_late_ms,
        r.first_own_ms,
    )  # fmt: skip
    return [
        *(r.source, f"{r.endpoints:,}", *(f"{ms:.0f}" for ms in first)),
        pair(r.loop_ms, r.worst_loop_ms),
        pair(r.longest_ms, r.worst_longest_ms),
        pair(r.gc_ms, r.worst_gc_ms),
        pair(r.late_ms, r.worst_late_ms),
        pair(r.own_ms, r.worst_own_ms),
        *(f"{r.full_collections}", f"{r.news_s:.2f}", f"{r.grown_mb:.0f}"),
    ]


def main() -> int:
    parser = parser_of("discovery", __doc__)
    parser.add_argument("--thaw", action="store_true", help="without gc.freeze")
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=", ".join(SOURCES))
    given = parser.parse_args()
    names = given.sources or list(SOURCES)
    results = asyncio.run(run_all(names, not given.thaw))
    print("In ms: of the first list; then of updates the median (worst).")
    head = [*HEAD, *HEAD[2:], "full", "news s", "MB"]
    print(table([head, *map(row, results)]))
    told = []
    for r in results:
        name = f"{r.source}, {r.endpoints:,} endpoints"
        told += [
            Measured(
                name=f"{name}: loop, first list", value=r.first_loop_ms, unit="ms"
            ),
            Measured(name=f"{name}: loop, an update", value=r.loop_ms, unit="ms"),
            Measured(name=f"{name}: late by itself", value=r.worst_own_ms, unit="ms"),
        ]
    return conclude(given, results, None, measured=told)


if __name__ == "__main__":
    exit_with(main)
