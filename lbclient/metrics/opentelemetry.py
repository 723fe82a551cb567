"""The same numbers as OpenTelemetry metrics, through its API package alone.

Which SDK and exporter they go to is the program's choice; without one nothing is read.
OpenTelemetry has no histogram that is read on demand, so those of `families` become
three instruments each, as Prometheus shows them.
"""

import time
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import grpc
from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from lbclient.config import is_disabled
from lbclient.core.protocols import Clock
from lbclient.metrics import own
from lbclient.metrics.families import HANDLED, HIGHEST, SAMPLES, Family
from lbclient.metrics.samples import Sample
from lbclient.metrics.sums import Sums, labelled

__all__ = ["export"]

Observations = Callable[[CallbackOptions], Iterator[Observation]]

# Seconds. An export asks instrument by instrument, and shall add up once.
FRESH = 0.1


def export(
    source: grpc.aio.Channel | grpc.aio.Server,
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
            instruments = _Instruments(provider.get_meter("lbclient"), time.monotonic)
            _instruments[provider] = instruments
        instruments.sums.enter(ours, backends)


class _Instruments:
    """One for a provider: an instrument for each name of a sample."""

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self.sums = Sums()
        self._clock = clock
        self._read_at: float | None = None
        self._numbers: dict[str, list[tuple[Sample, float]]] = {}
        for name, (family, labels) in SAMPLES.items():
            if family not in HANDLED:
                self._make(meter, name, family, labels)

    def _make(
        self, meter: Meter, name: str, family: Family, labels: tuple[str, ...]
    ) -> None:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
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
