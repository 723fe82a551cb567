"""What a call costs through lbclient and through plain grpcio, side by side.

    python -m benchmarks.overhead            about 140 s
    python -m benchmarks.overhead --quick    about 45 s
    python -m benchmarks.overhead --only servers --json FILE --plot FILE.png

Clients: our channel against grpcio's native policies, over the same 20 backends.
Servers: `lbclient.server` against a bare `grpc.aio.server`, five processes each. On a
shared machine absolute times drift by more than what is looked for, so contenders
take turns in slices of some 50 ms, forwards and backwards, and only the ratios of
neighbouring slices count: their median, and the quartiles as spread. A contender
against itself showed 0.99 to 1.02. CPU time is that of the whole process, its C
threads included. Exit status 1 if a target is missed.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.wrappers_pb2 import DoubleValue, StringValue

import lbclient
from benchmarks.harness.figures import BLUE, blank, say_machine
from benchmarks.harness.options import conclude, parser_of
from benchmarks.harness.processes import orders, running, say
from benchmarks.harness.servers import listen, target_of
from lbclient import wire
from lbclient.v1 import load_pb2

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BACKENDS = 20  # the subset that a channel has by default
PROCESSES = 2
SERVER_PROCESSES = 5
CLIENT_TARGET = 1.12
SERVER_TARGET = 1.15
FEATURES_TARGET = 1.2
TARGET_CONCURRENCY = 64
FEWEST_ROUNDS = 8
DEFAULT = "weighted_least_loaded"

ECHO = "/benchmark.Echo/Echo"
CPU = "/benchmark.Echo/Cpu"

Echo = Callable[[], Awaitable[Any]]


@dataclass
class Contender:
    """One way to make the same call, and what its slices cost."""

    name: str
    echo: Echo
    cpu: Callable[[], Awaitable[float]]  # of the process in question, in seconds
    cpu_per_call: list[float] = field(default_factory=list)
    calls_per_second: list[float] = field(default_factory=list)

    async def run_slice(self, calls: int, concurrency: int) -> None:
        left = calls

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.echo()

        gc.collect()  # what the others left is not to be paid here
        cpu, began_at = await self.cpu(), time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        elapsed = time.perf_counter() - began_at
        self.cpu_per_call.append((await self.cpu() - cpu) / calls)
        self.calls_per_second.append(calls / elapsed)


async def compare(
    contenders: list[Contender], concurrency: int, calls: int, seconds: float
) -> None:
    """Fills the contenders' lists, so that equal indices are neighbours in time."""
    for contender in contenders:
        await contender.run_slice(2 * calls, concurrency)  # to warm up
        contender.cpu_per_call, contender.calls_per_second = [], []
    until = time.monotonic() + seconds
    for turn in itertools.count():
        if turn >= FEWEST_ROUNDS and time.monotonic() >= until:
            break
        # Turned and reversed: nobody always follows the same one.
        k = turn // 2 % len(contenders)
        order = contenders[k:] + contenders[:k]
        for contender in order if turn % 2 else reversed(order):
            await contender.run_slice(calls, concurrency)


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs, slice by slice."""

    what: str
    ours: str
    theirs: str
    concurrency: int
    pairs: int
    cpu: tuple[float, float, float]  # first quartile, median, third quartile
    throughput: tuple[float, float, float]
    target: float | None = None

    @property
    def holds(self) -> bool | None:
        return None if self.target is None else self.cpu[1] <= self.target


def ratio(
    what: str,
    ours: Contender,
    theirs: Contender,
    concurrency: int,
    target: float | None = None,
) -> Ratio:
    return Ratio(
        what,
        ours.name,
        theirs.name,
        concurrency,
        len(ours.cpu_per_call),
        spread(ours.cpu_per_call, theirs.cpu_per_call),
        spread(ours.calls_per_second, theirs.calls_per_second),
        target,
    )


def spread(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    pairs = zip(ours, theirs, strict=True)
    first, middle, third = quantiles([a / b for a, b in pairs], n=4)
    return first, middle, third


# --- servers, in processes of their own ---------------------------------------


async def echo(request: StringValue, context: Any) -> StringValue:
    return request


async def echo_with_trailers(request: StringValue, context: Any) -> StringValue:
    """What reporting costs at the least: the same trailers, never changing."""
    context.set_trailing_metadata(
        ((wire.LOAD_KEY, REPORT), (wire.ORCA_KEY, REPORT)),
    )
    return request


async def cpu(request: Empty, context: Any) -> DoubleValue:
    return DoubleValue(value=time.process_time())


REPORT = load_pb2.LoadReport(
    cpu_utilization=0.3,
    rps_fractional=100.0,
    application_utilization=0.4,
    state=load_pb2.SERVING,
    active_requests=7,
).SerializeToString()

# Nobody is refused, but all there is to ask is asked, and CPU is billed by request.
EVERYTHING = lbclient.ServerConfig(
    default_quota=1000.0, max_cpu=1.0, max_memory=0.99, signals={"own": lambda: 0.5}
)

COSTS = lbclient.ServerConfig(request_cost=True)

SERVERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "lbclient": (lambda: lbclient.server(), echo),
    "lbclient, request costs": (lambda: lbclient.server(config=COSTS), echo),
    "lbclient, quotas and signals": (lambda: lbclient.server(config=EVERYTHING), echo),
    "grpcio": (lambda: grpc.aio.server(), echo),
    "grpcio + trailers": (lambda: grpc.aio.server(), echo_with_trailers),
}


async def serve(kind: str, count: int) -> None:
    """Serves until this process ends; says the ports first."""
    await serve_echo(*SERVERS[kind], count)


async def serve_echo(make: Callable[[], Any], handler: Any, count: int) -> None:
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        ECHO: grpc.unary_unary_rpc_method_handler(
            handler, StringValue.FromString, StringValue.SerializeToString
        ),
        CPU: grpc.unary_unary_rpc_method_handler(
            cpu, Empty.FromString, DoubleValue.SerializeToString
        ),
    }
    servers = [make() for _ in range(count)]
    say([await listen(server, methods) for server in servers])
    async for _ in orders():
        pass


@contextlib.asynccontextmanager
async def spawned(kind: str, count: int) -> AsyncIterator[list[int]]:
    async with running(serve, kind, count) as process:
        yield await process.hear()


@contextlib.asynccontextmanager
async def many_spawned(count: int) -> AsyncIterator[list[int]]:
    """Servers of ours, in a few processes."""
    each = [spawned("lbclient", count // PROCESSES) for _ in range(PROCESSES)]
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(servers) for servers in each]
        yield list(itertools.chain.from_iterable(ports))


# --- the two comparisons ------------------------------------------------------


def echo_on(channel: grpc.aio.Channel) -> Echo:
    method = channel.unary_unary(
        ECHO,
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    request = StringValue(value="hello")
    return lambda: method(request, timeout=10.0)


def native(target: str, policy: str) -> grpc.aio.Channel:
    # Without the blackout of 10 s it is at work from the start.
    settings = {"blackoutPeriod": "0.1s"} if policy.startswith("weighted") else {}
    config = json.dumps({"loadBalancingConfig": [{policy: settings}]})
    options = [
        ("grpc.service_config", config),
        ("grpc.use_local_subchannel_pool", 1),  # connections of its own, as ours has
    ]
    return grpc.aio.insecure_channel(target, options)


async def own_cpu() -> float:
    return time.process_time()


async def compare_clients(effort: float) -> list[Ratio]:
    async with contextlib.AsyncExitStack() as stack:
        target = target_of(await stack.enter_async_context(many_spawned(BACKENDS)))
        contenders = {}
        for policy in ("round_robin", "weighted_round_robin"):
            channel = await stack.enter_async_context(native(target, policy))
            contenders["grpcio", policy] = Contender(
                f"grpcio {policy}", echo_on(channel), own_cpu
            )
        for policy in ("round_robin", DEFAULT):
            config = lbclient.ChannelConfig(picker=policy, subset_size=BACKENDS)
            channel = await stack.enter_async_context(
                lbclient.insecure_channel(target, config=config)
            )
            contenders["lbclient", policy] = Contender(
                f"lbclient {policy}", echo_on(channel), own_cpu
            )
        ratios = []
        for concurrency, calls, seconds in ((1, 60, 10), (16, 128, 12), (64, 192, 36)):
            everyone = list(contenders.values())
            await compare(everyone, concurrency, calls, seconds * effort)
            say_absolute("client", everyone, concurrency)
            for ours in ("round_robin", DEFAULT):
                for theirs in ("round_robin", "weighted_round_robin"):
                    is_target = ours == DEFAULT and concurrency == TARGET_CONCURRENCY
                    ratios.append(
                        ratio(
                            "client",
                            contenders["lbclient", ours],
                            contenders["grpcio", theirs],
                            concurrency,
                            CLIENT_TARGET if is_target else None,
                        )
                    )
        return ratios


async def compare_servers(effort: float) -> list[Ratio]:
    """Each kind in several processes: where one lands in memory is worth 3 %."""
    concurrency = TARGET_CONCURRENCY
    async with contextlib.AsyncExitStack() as stack:
        contenders = []
        for kind in [*SERVERS] * SERVER_PROCESSES:
            [port] = await stack.enter_async_context(spawned(kind, 1))
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            )
            contenders.append(
                Contender(f"{kind} server", echo_on(channel), cpu_of(channel))
            )
        await compare(contenders, concurrency, 200, 75 * effort)
    kinds = len(SERVERS)
    for i, contender in enumerate(contenders[kinds:]):
        contenders[i % kinds].cpu_per_call += contender.cpu_per_call
        contenders[i % kinds].calls_per_second += contender.calls_per_second
    ours, costs, everything, bare, by_hand = contenders[:kinds]
    say_absolute("server", contenders[:kinds], concurrency)
    return [
        ratio("server", ours, bare, concurrency, SERVER_TARGET),
        ratio("server", costs, ours, concurrency),
        ratio("server", everything, bare, concurrency, FEATURES_TARGET),
        ratio("server", ours, by_hand, concurrency),
        ratio("server", by_hand, bare, concurrency),
    ]


async def compare_all(effort: float, only: str | None) -> list[Ratio]:
    clients = [] if only == "servers" else await compare_clients(effort)
    servers = [] if only == "clients" else await compare_servers(effort)
    return clients + servers


def cpu_of(channel: grpc.aio.Channel) -> Callable[[], Awaitable[float]]:
    """Asks the server's process for its own CPU time."""
    method = channel.unary_unary(
        CPU,
        request_serializer=Empty.SerializeToString,
        response_deserializer=DoubleValue.FromString,
    )

    async def read() -> float:
        answer = await method(Empty(), timeout=10.0)
        return float(answer.value)

    return read


# --- what is said -------------------------------------------------------------


def say_absolute(what: str, contenders: list[Contender], concurrency: int) -> None:
    for contender in contenders:
        print(
            f"{what} {concurrency:3d}  {contender.name:32}"
            f"{median(contender.cpu_per_call) * 1e6:7.0f} us CPU/call"
            f"{median(contender.calls_per_second):7.0f} calls/s",
            flush=True,
        )


def say_ratios(ratios: list[Ratio]) -> None:
    def figures(ratios: tuple[float, float, float]) -> str:
        first, middle, third = ratios
        return f"{middle:.3f} ({first:.3f} to {third:.3f})"

    print(f"\n{'':75}{'CPU per call':26}{'calls per second':26}pairs")
    for one in ratios:
        verdict = ""
        if one.holds is not None:
            verdict = f"target {one.target}: " + ("holds" if one.holds else "MISSED")
        print(
            f"{one.what} {one.concurrency:3d}  {one.ours:30} / {one.theirs:28}"
            f"{figures(one.cpu):26}{figures(one.throughput):26}"
            f"{one.pairs:5d}  {verdict}"
        )


def draw(ratios: list[Ratio]) -> "Figure":
    figure = blank(11, 1 + 0.3 * len(ratios))
    draw_ratios(figure.subplots(1, 2, sharey=True), ratios)
    return figure


def draw_ratios(both: Sequence["Axes"], ratios: list[Ratio]) -> None:
    """CPU and throughput; a line is from quartile to quartile, a mark is a target."""
    names = [f"{one.ours} / {one.theirs}, {one.concurrency}" for one in ratios]
    places = range(len(ratios), 0, -1)
    titles = ("CPU of a call, ratio", "calls a second, ratio")
    for axes, title, what in zip(both, titles, ("cpu", "throughput"), strict=True):
        for place, one in zip(places, ratios, strict=True):
            first, middle, third = getattr(one, what)
            axes.plot((first, third), (place, place), color=BLUE)
            axes.plot(middle, place, "o", color=BLUE)
            if one.target is not None and what == "cpu":
                axes.plot(one.target, place, "k|", markersize=12)
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel(title)
    both[0].set_yticks(places, names, fontsize=8)


def main() -> int:
    parser = parser_of("overhead", __doc__, quick="a quarter of the time", plot=True)
    parser.add_argument("--only", choices=("clients", "servers"), help="one part")
    given = parser.parse_args()
    found: dict[str, Any] = say_machine()
    ratios = asyncio.run(compare_all(0.25 if given.quick else 1.0, given.only))
    say_ratios(ratios)
    found |= {"backends": BACKENDS, "ratios": ratios}
    missed = [f"{one.ours} / {one.theirs}" for one in ratios if one.holds is False]
    return conclude(given, found, missed, lambda: draw(ratios))


if __name__ == "__main__":
    sys.exit(main())
