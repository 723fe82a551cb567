"""OpenTelemetry: the same numbers as metrics by `export`, and spans by `trace`.

Which SDK and exporter they go to is the program's choice; without one nothing is read.
OpenTelemetry has no histogram that is read on demand: with its own SDK histograms go
in by another door, `sdk_histograms`; with any other one, those of `families` become
three instruments each, as Prometheus shows them, and gRPC's are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from weakref import WeakKeyDictionary, ref

import grpc
from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)
from opentelemetry.trace import TracerProvider, get_tracer

from lbclient.client.kinds import is_channel
from lbclient.config import is_disabled
from lbclient.core.protocols import Clock
from lbclient.metrics import own
from lbclient.metrics.durations import FAMILY_OF
from lbclient.metrics.families import FAMILIES, HANDLED, HIGHEST, SAMPLES, Family
from lbclient.metrics.samples import Sample
from lbclient.metrics.sdk_histograms import (
    SCOPE,
    Point,
    SdkHistograms,
    method_of,
    points_of,
    points_of_family,
)
from lbclient.metrics.spans import Tracing
from lbclient.metrics.sums import Sums, canonical, labelled
from lbclient.server.kinds import is_server

__all__ = ["export", "trace"]


# Seconds. An export asks instrument by instrument, and shall add up once.
FRESH = 0.1

BY_METHOD = frozenset(FAMILY_OF.values())

# gRFC A78, in the order of `Durations.updates`.
UPDATES = (
    (
        "grpc.lb.wrr.rr_fallback",
        "{update}",
        "Number of updates of weighted_round_robin's scheduler that had fewer than two "
        "usable weights, so that backends take equal turns.",
    ),
    (
        "grpc.lb.wrr.endpoint_weight_not_yet_usable",
        "{endpoint}",
        "Number of endpoints, at each update of the scheduler, without a load report, "
        "or within the blackout period.",
    ),
    (
        "grpc.lb.wrr.endpoint_weight_stale",
        "{endpoint}",
        "Number of endpoints, at each update of the scheduler, whose last load report "
        "is older than the expiration period.",
    ),
)

# gRFC A66. Counters are read on demand, so they need no other door.
STARTED = (
    (
        "grpc.client.attempt.started",
        "{attempt}",
        "Number of attempts started, including those that have not ended.",
        False,
    ),
    (
        "grpc.server.call.started",
        "{call}",
        "Number of requests started; those in progress are counted when they end.",
        True,
    ),
)


def export(
    source: grpc.aio.Channel | grpc.aio.Server | grpc.Server,
    provider: MeterProvider | None = None,
    *,
    backends: int = 0,
) -> None:
    """Shows a channel or a server of ours for as long as it lives.

    To `provider`, or else to the global one. All else is as in `metrics.export`.
    """
    ours = own(source)
    if ours is not None or is_disabled():
        provider = get_meter_provider() if provider is None else provider
        instruments = _instruments.get(provider)
        if instruments is None:
            instruments = _Instruments(provider, time.monotonic)
            _instruments[provider] = instruments
        instruments.sums.enter(ours, backends)


def trace(channel: grpc.aio.Channel, provider: TracerProvider | None = None) -> None:
    """Makes spans of a channel's calls, and of each attempt, from now on.

    They go to `provider`, or else to the global one, and the context of each attempt's
    span to the server, by the global propagator. Repeated, and of grpc.aio's own
    channel, which `LBCLIENT_DISABLE=1` hands out, it does nothing. Raises TypeError for
    what is no channel.
    """
    ours = own(channel)
    if is_server(ours):
        raise TypeError(f"not a channel: {channel!r}")
    if is_channel(ours) and not ours._observers.has(Tracing):
        tracer = get_tracer("lbclient", tracer_provider=provider)
        known = ours.statistics()
        tracing = Tracing(tracer, known.name or canonical(known.target))
        ours._observers.add(tracing, measures=True)


class _Instruments:
    """The instruments of one provider, one for each name of a sample."""

    def __init__(self, provider: MeterProvider, clock: Clock) -> None:
        self.sums = Sums(measures=True)
        self._clock = clock
        self._provider = ref(provider)
        self._is_global = provider is get_meter_provider()
        self._histograms = SdkHistograms(self._points, clock)
        self._attach()
        meter = provider.get_meter(SCOPE)
        self._read_at: float | None = None
        self._numbers: dict[str, list[tuple[Sample, float]]] = {}
        for name, (family, labels) in SAMPLES.items():
            if family not in HANDLED:
                self._make(meter, name, family, labels)
        for name, unit, text, of_servers in STARTED:
            observe = partial(self._started, of_servers)
            meter.create_observable_counter(name, [observe], unit, text)

        for number, (name, unit, text) in enumerate(UPDATES):
            observe = partial(self._updates, number)
            meter.create_observable_counter(name, [observe], unit, text)

    def _updates(self, number: int, _: CallbackOptions) -> Iterator[Observation]:
        self._fresh()
        for target, counts in self.sums.durations().updates.items():
            attributes = {"grpc.target": self.sums.grpc_targets.get(target, target)}
            yield Observation(counts[number], attributes)

    def _attach(self) -> bool:
        """Later, too: the global provider stands for one that is set after `export`."""
        if self._histograms.attach(self._provider()):
            return True
        return self._is_global and self._histograms.attach(get_meter_provider())

    def _started(self, is_server: bool, _: CallbackOptions) -> Iterator[Observation]:
        self._fresh()
        for (target, method), count in self.sums.durations().started.items():
            if is_server is not bool(target) and count:
                attributes = {"grpc.method": method_of(method)}
                if target:
                    attributes["grpc.target"] = self.sums.grpc_targets.get(
                        target, target
                    )
                yield Observation(count, attributes)

    def _points(self) -> Iterator[Point]:
        numbers = self._fresh()
        for family in FAMILIES:
            if family.kind == "histogram" and family.name not in BY_METHOD:
                of_it = [
                    pair
                    for part in ("_bucket", "_sum")
                    for pair in numbers.get(family.name + part, ())
                ]
                name = dotted(family.name, family)
                yield from points_of_family(name, family, of_it)
        yield from points_of(self.sums.durations(), self.sums.grpc_targets)

    def _make(
        self, meter: Meter, name: str, family: Family, labels: tuple[str, ...]
    ) -> None:
        is_histogram = family.kind == "histogram"

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            if is_histogram and self._attach():
                return
            for sample, number in self._fresh().get(name, ()):
                yield Observation(number, labelled(labels, sample))

        create: Callable[..., object]
        if family.kind in ("counter", "histogram"):
            create = meter.create_observable_counter
        elif family.name in HIGHEST:
            create = meter.create_observable_gauge
        else:
            create = meter.create_observable_up_down_counter
        create(dotted(name, family), [observe], unit(name, family), family.help)

    def _fresh(self) -> dict[str, list[tuple[Sample, float]]]:
        now = self._clock()
        if self._read_at is None or now >= self._read_at + FRESH:
            numbers: dict[str, list[tuple[Sample, float]]] = {}
            for sample, number in self.sums.collect().items():
                numbers.setdefault(sample[0], []).append((sample, number))
            self._numbers, self._read_at = numbers, now
        return self._numbers


_instruments: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()


def dotted(name: str, family: Family) -> str:
    """Without the unit, which OpenTelemetry says apart.

    >>> latency = SAMPLES["lbclient_attempt_latency_seconds_bucket"][0]
    >>> dotted("lbclient_attempt_latency_seconds_bucket", latency)
    'lbclient.attempt_latency.bucket'
    """
    stem = family.name.removeprefix("lbclient_").removesuffix("_seconds")
    last = name.removeprefix(family.name).lstrip("_")
    part = "" if last in ("", "total") else f".{last.removeprefix('g')}"
    return f"lbclient.{stem}{part}"


def unit(name: str, family: Family) -> str:
    counts = name.endswith(("_bucket", "count"))
    return "s" if family.name.endswith("_seconds") and not counts else "1"
