"""What exported metrics cost: the CPU time of a call with an exporter and without.

    python -m benchmarks.exporting            about 220 s
    python -m benchmarks.exporting --quick    about 60 s
    python -m benchmarks.exporting --only clients

Clients: channels in one process, to the same servers. Servers: processes of each kind.
Of each kind there are several, as where one lands in memory is worth some percent; one
kind is there twice, which shows the noise. They take turns in slices of some 50 ms, as
in `benchmarks.overhead`: a figure is the median of the ratios of neighbouring slices.
What a scrape takes, and what counting a call does, is timed apart. Exit status 1 if a
target is missed.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import lbclient
from benchmarks.harness.echo import cpu_of, echo, echo_on, many_spawned, serve_echo
from benchmarks.harness.figures import say_machine
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.harness.processes import running
from benchmarks.harness.servers import target_of
from benchmarks.harness.turns import (
    Contender,
    Ratio,
    compare,
    measured_of,
    own_cpu,
    ratio,
    say_absolute,
    say_ratios,
)
from lbclient import metrics
from lbclient.client.observers import CallObserver, Observers, expecting
from lbclient.core.model import Verdict
from lbclient.metrics import opentelemetry
from lbclient.metrics.durations import find_trace

TARGET = 1.03
CONCURRENCY = 64
BACKENDS = 4  # few: what their health streams send falls into any slice
CHANNELS = 2  # of each kind
PROCESSES = 3  # of each kind
SCRAPES = 20  # of which the quickest counts
COUNTED = 10_000  # calls in each of as many runs
SECONDS = 100.0  # for each side

EXPECTING = expecting(None)
METHOD = "unary_unary", "/benchmark.Echo/Echo"
PLAIN, AGAIN = "no exporter", "no exporter, again"
PROMETHEUS, OPENTELEMETRY = "Prometheus", "OpenTelemetry"
KINDS = (PLAIN, AGAIN, PROMETHEUS, OPENTELEMETRY)

Scrape = Callable[[], object]


def export(kind: str, source: Any) -> Scrape | None:
    """Exports a channel or a server; returns what collects all."""
    if kind == PROMETHEUS:
        registry = CollectorRegistry()
        metrics.export(source, registry, backends=BACKENDS)
        return lambda: generate_latest(registry)
    if kind == OPENTELEMETRY:
        reader = InMemoryMetricReader()
        opentelemetry.export(source, MeterProvider([reader]), backends=BACKENDS)
        return reader.get_metrics_data
    return None


async def serve(kind: str) -> None:
    """One server until this process ends, exported."""

    def make() -> Any:
        server = lbclient.server()
        kept.append(export(kind, server))
        return server

    kept: list[Any] = []  # an exporter lives as long as its registry
    await serve_echo(make, echo, 1)


async def compare_clients(seconds: float) -> tuple[list[Ratio], dict[str, float]]:
    contenders, scrapes = list[Contender](), dict[str, float]()
    async with contextlib.AsyncExitStack() as stack:
        target = target_of(await stack.enter_async_context(many_spawned(BACKENDS)))
        config = lbclient.ChannelConfig(subset_size=BACKENDS)
        for kind in KINDS * CHANNELS:
            channel = await stack.enter_async_context(
                lbclient.insecure_channel(target, config=config)
            )
            scrape = export(kind, channel)
            contenders.append(Contender(kind, echo_on(channel), own_cpu))
            await contenders[-1].run_slice(10 * BACKENDS, CONCURRENCY)
            if scrape is not None:
                scrapes[kind] = min(timed(scrape) for _ in range(SCRAPES))
        await compare(contenders, CONCURRENCY, 192, seconds)
    return ratios_of("client", contenders), scrapes


async def compare_servers(seconds: float) -> list[Ratio]:
    contenders = []
    async with contextlib.AsyncExitStack() as stack:
        for kind in KINDS * PROCESSES:
            process = await stack.enter_async_context(running(serve, kind))
            [port] = await process.hear()
            channel = await stack.enter_async_context(
                lbclient.insecure_channel(f"127.0.0.1:{port}")
            )
            cpu: Callable[[], Awaitable[float]] = cpu_of(channel)
            contenders.append(Contender(kind, echo_on(channel), cpu))
        await compare(contenders, CONCURRENCY, 200, seconds)
    return ratios_of("server", contenders)


def ratios_of(what: str, contenders: list[Contender]) -> list[Ratio]:
    """Of each kind against the first; its channels or processes are taken together."""
    kinds = len(KINDS)
    for number, contender in enumerate(contenders[kinds:]):
        contenders[number % kinds].cpu_per_call += contender.cpu_per_call
        contenders[number % kinds].calls_per_second += contender.calls_per_second
    plain, again, *exported = contenders[:kinds]
    say_absolute(what, contenders[:kinds], CONCURRENCY)
    compared = [ratio(what, one, plain, CONCURRENCY, TARGET) for one in exported]
    return [ratio(what, again, plain, CONCURRENCY), *compared]


def count_one(observer: CallObserver) -> None:
    """What a call of one attempt adds, where it is counted."""
    decode, awaited = EXPECTING
    address, size = "127.0.0.1:1", len(b"request")
    call, _ = observer.begin_sent(METHOD, 1.0, address, None, size, awaited)
    call.attempt_over(0, 0.01, Verdict.SERVED, None, 1.01)  # which ends the call, too
    if call.measures:
        decode(b"response")


def same(message: bytes) -> bytes:
    return message


def counting(measures: bool) -> float:
    """CPU seconds a call, the least of several runs."""
    observers = Observers()
    observers.keep_times(find_trace, measures)
    observer = observers.current
    assert observer is not None

    def count_all() -> None:
        for _ in range(COUNTED):
            count_one(observer)

    return min(timed(count_all) for _ in range(SCRAPES)) / COUNTED


def timed(scrape: Scrape) -> float:
    began_at = time.process_time()
    scrape()
    return time.process_time() - began_at


async def compare_all(
    seconds: float, only: str | None
) -> tuple[list[Ratio], dict[str, float]]:
    if only == "servers":
        return await compare_servers(seconds), {}
    clients, scrapes = await compare_clients(seconds)
    if only == "clients":
        return clients, scrapes
    return clients + await compare_servers(seconds), scrapes


def main() -> int:
    parser = parser_of("exporting", __doc__, quick="a quarter of the time")
    parser.add_argument("--only", choices=("clients", "servers"), help="one part")
    given = parser.parse_args()
    found: dict[str, Any] = say_machine()
    seconds = SECONDS / 4 if given.quick else SECONDS
    ratios, scrapes = asyncio.run(compare_all(seconds, given.only))
    say_ratios(ratios)
    for kind, seconds in scrapes.items():
        print(f"{kind}: a scrape of a channel takes {seconds * 1e3:.1f} ms of CPU time")
    counted, sized = counting(False), counting(True)
    print(f"counting a call takes {counted * 1e6:.1f} us of CPU time")
    print(f"with the sizes of its messages {sized * 1e6:.1f} us")
    found |= {"counting": counted, "measuring": sized}
    found |= {"backends": BACKENDS, "ratios": ratios, "scrapes": scrapes}
    return conclude(given, found, None, measured=measured_of(ratios))


if __name__ == "__main__":
    exit_with(main)
