"""Real histograms for OpenTelemetry's SDK, as gRPC defines them: gRFCs A66, A96, A78.

OpenTelemetry's API can only record one value at a time, which takes the SDK some 7 us:
with two for each call, 6 to 8 % of a client's CPU. So values are counted in buckets
where calls end, and the buckets handed over when a reader collects. The SDK has no
public door for that (its specification calls it a MetricProducer): `attach` takes the
private one, and where an SDK has none the log says so, and the caller goes another way.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from lbclient.core.protocols import Clock
from lbclient.core.statistics.call_times import Times
from lbclient.log import Log
from lbclient.metrics.durations import Durations, Key
from lbclient.metrics.families import Family
from lbclient.metrics.samples import UNKNOWN, Sample
from lbclient.metrics.sums import labelled
from lbclient.wire.codes import STATUS_OF_NUMBER

logger = Log("lbclient.metrics")

SCOPE = "lbclient"  # of our meter

# What is timed, in gRPC's words: name, unit, description.
NAMES = {
    "call": (
        "grpc.client.call.duration",
        "s",
        "End-to-end time of a call, with waiting for a backend and all its attempts.",
    ),
    "attempt": (
        "grpc.client.attempt.duration",
        "s",
        "End-to-end time of an attempt, with waiting for a backend.",
    ),
    "retries": (
        "grpc.client.call.retries",
        "{retry}",
        "Number of retries during a call; calls without retries are left out.",
    ),
    "resends": (
        "grpc.client.call.transparent_retries",
        "{transparent_retry}",
        "Number of attempts of a call that no server took, and that were sent again; "
        "calls without any are left out.",
    ),
    "delays": (
        "grpc.client.call.retry_delay",
        "s",
        "Total time during a call with no attempt active; calls that were not sent "
        "again are left out.",
    ),
    "request": (
        "grpc.server.call.duration",
        "s",
        "End-to-end time of a request, from its acceptance to its end.",
    ),
    "sent": (
        "grpc.client.attempt.sent_total_compressed_message_size",
        "By",
        "Total size of the request messages of an attempt, before compression.",
    ),
    "received": (
        "grpc.client.attempt.rcvd_total_compressed_message_size",
        "By",
        "Total size of the response messages of an attempt, after decompression.",
    ),
    "request_sent": (
        "grpc.server.call.sent_total_compressed_message_size",
        "By",
        "Total size of the response messages of a request, before compression.",
    ),
    "request_received": (
        "grpc.server.call.rcvd_total_compressed_message_size",
        "By",
        "Total size of the request messages of a request, after decompression.",
    ),
    "weights": (
        "grpc.lb.wrr.endpoint_weights",
        "{weight}",
        "Weight of each endpoint at each update of weighted_round_robin's scheduler; "
        "0 is an endpoint without a usable weight.",
    ),
}


class Point(NamedTuple):
    """One series of a histogram: what it counts, by its attributes."""

    name: str
    unit: str
    description: str
    attributes: tuple[tuple[str, str], ...]
    times: Times


def points_of(durations: Durations, targets: dict[str, str]) -> Iterator[Point]:
    """gRPC's histograms. `targets` has grpc.target by the label of a channel."""
    for key, times in durations.times.items():
        if any(times.counts):
            yield Point(*NAMES[key.what], _attributes(key, targets), times)


def _attributes(key: Key, targets: dict[str, str]) -> tuple[tuple[str, str], ...]:
    attributes = []
    if key.method:
        attributes.append(("grpc.method", method_of(key.method)))
    if key.target:
        attributes.append(("grpc.target", targets.get(key.target, key.target)))
    if key.code >= 0:
        attributes.append(("grpc.status", STATUS_OF_NUMBER[key.code].name))
    return tuple(attributes)


def method_of(method: tuple[str, str, str]) -> str:
    """As in gRFC A66: without the leading slash, "other" where it is unknown."""
    return "other" if method == UNKNOWN else f"{method[1]}/{method[2]}"


def points_of_family(
    name: str, family: Family, numbers: Iterable[tuple[Sample, float]]
) -> Iterator[Point]:
    """A histogram of ours in seconds. The samples are what Prometheus gets: they
    accumulate."""
    found: dict[tuple[str, ...], Times] = {}
    bounds: dict[tuple[str, ...], dict[float, float]] = {}
    for sample, number in numbers:
        labels = sample[1:]
        if sample[0].endswith("_bucket"):
            bounds.setdefault(labels[:-1], {})[float(labels[-1])] = number
        elif sample[0].endswith("_sum"):
            found.setdefault(labels, Times(())).sum = number
    for labels, at_most in bounds.items():
        ordered = sorted(at_most)
        times = found.setdefault(labels, Times(()))
        times.bounds = tuple(ordered[:-1])
        below = [0.0, *(at_most[bound] for bound in ordered)]
        times.counts = [round(b - a) for a, b in pairwise(below)]
        attributes = tuple(labelled(family.labels, (name, *labels)).items())
        yield Point(name, "s", family.help, attributes, times)


Seen = dict[tuple[str, tuple[tuple[str, str], ...]], tuple[list[int], float]]


class SdkHistograms:
    """The histograms of one provider. `read` returns all of them, as of now."""

    def __init__(self, read: Callable[[], Iterator[Point]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._began_at = time.time_ns()
        self._told: WeakKeyDictionary[Any, tuple[Seen, int]] = WeakKeyDictionary()
        self._views: Sequence[Any] = ()
        self._dropped: dict[str, bool] = {}  # by the name of a histogram
        self.is_attached = False
        self._has_complained = False

    def attach(self, provider: Any) -> bool:
        """To what each of the provider's readers collects; False if it cannot.

        The log says so once if it is OpenTelemetry's SDK; others have no such door.
        """
        if not self.is_attached:
            self.is_attached = self._attach(provider)
        if not self.is_attached and not self._has_complained and _is_sdk(provider):
            self._has_complained = True
            logger.warning(
                "this OpenTelemetry SDK takes no histograms: lbclient's are three"
                " counters each, and gRPC's are left out"
            )
        return self.is_attached

    def _attach(self, provider: Any) -> bool:
        consumer: Any = getattr(provider, "_measurement_consumer", None)
        readers = getattr(provider, "_metric_readers", None)
        if readers is None:  # of an SDK before 1.40
            readers = getattr(
                getattr(provider, "_sdk_config", None), "metric_readers", None
            )
        collect = getattr(consumer, "collect", None)
        config = getattr(provider, "_sdk_config", None)
        self._views = getattr(config, "views", ())
        if collect is None or readers is None:
            return False
        if not all(hasattr(reader, "_set_collect_callback") for reader in readers):
            return False

        def with_ours(reader: Any, timeout_millis: float = 10_000) -> Any:
            data = collect(reader, timeout_millis)
            try:
                return self._with_ours(reader, data, config)
            except Exception:  # of an SDK that has changed
                logger.exception("lbclient's histograms could not be exported")
                return data

        consumer.collect = with_ours  # of readers that come later
        for reader in readers:
            reader._set_collect_callback(with_ours)
        return True

    def _with_ours(self, reader: Any, data: Any, config: Any) -> Any:
        """What was collected, and our histograms in the scope of our instruments.

        There is no such scope where views drop all of these, and no data at all where
        there are no other instruments.
        """
        from opentelemetry.sdk.metrics.export import (
            MetricsData,
            ResourceMetrics,
            ScopeMetrics,
        )
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        ours = self._metrics(reader)
        if not ours:
            return data
        if data is None or not data.resource_metrics:
            resource = config.resource
            data = MetricsData([ResourceMetrics(resource, [], resource.schema_url)])
        first, *others = data.resource_metrics
        names = [one.scope.name for one in first.scope_metrics]
        scopes = list(first.scope_metrics)
        if SCOPE in names:
            place = names.index(SCOPE)
            before = scopes[place]
            scopes[place] = replace(before, metrics=[*before.metrics, *ours])
        else:
            scopes.append(ScopeMetrics(InstrumentationScope(SCOPE, ""), ours, ""))
        return MetricsData([replace(first, scope_metrics=scopes), *others])

    def _metrics(self, reader: Any) -> list[Any]:
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Histogram,
            Metric,
        )

        wanted = getattr(reader, "_instrument_class_temporality", {})
        cumulative = AggregationTemporality.CUMULATIVE
        of_kind = {kind.__name__.lstrip("_"): it for kind, it in wanted.items()}
        temporality = of_kind.get("Histogram", cumulative)
        seen, since = self._told.get(reader, ({}, self._began_at))
        is_delta = temporality is not cumulative
        now, told, by_name = time.time_ns(), Seen(), dict[str, list[Any]]()
        described: dict[str, Point] = {}
        for point in self._read():
            if self._is_dropped(point):
                continue
            key = (point.name, point.attributes)
            counts, total = list(point.times.counts), point.times.sum
            told[key] = counts, total
            began_at = self._began_at
            if is_delta:
                began_at = since
                counts, total = _since(counts, total, seen.get(key))
            if any(counts):
                described[point.name] = point
                by_name.setdefault(point.name, []).append(
                    self._point(point, counts, total, began_at, now)
                )
        self._told[reader] = told, now
        return [
            Metric(
                name,
                described[name].description,
                described[name].unit,
                Histogram(points, temporality),
            )
            for name, points in by_name.items()
        ]

    def _is_dropped(self, point: Point) -> bool:
        """Whether the program's views drop it; all else that they say has no effect."""
        known = self._dropped.get(point.name)
        if known is None:
            try:
                known = bool(self._views) and _is_dropped(self._views, point)
            except (AttributeError, ImportError, TypeError) as error:
                # An SDK that has changed.
                words = "the views of this OpenTelemetry SDK are not understood: %s"
                logger.warning(words, error, reason=error)
                known = False
            self._dropped[point.name] = known
        return known

    def _point(
        self, point: Point, counts: list[int], total: float, began_at: int, now: int
    ) -> Any:
        from opentelemetry.sdk.metrics.export import HistogramDataPoint

        times = point.times
        return HistogramDataPoint(
            attributes=dict(point.attributes),
            start_time_unix_nano=began_at,
            time_unix_nano=now,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=times.bounds,
            min=times.lowest,
            max=times.highest,
            exemplars=self._exemplars(times, began_at, now),
        )

    def _exemplars(self, times: Times, since: int, now: int) -> Sequence[Any]:
        from opentelemetry.sdk.metrics import Exemplar

        found = []
        for one in list(times.exemplars.values()):
            at = now - int((self._clock() - one.at) * 1e9)
            if at >= since:
                found.append(
                    Exemplar({}, one.value, at, one.trace.span_id, one.trace.trace_id)
                )
        return found

    def __repr__(self) -> str:
        return f"<histograms for {len(self._told)} readers>"


def _is_dropped(views: Sequence[Any], point: Point) -> bool:
    """'If an Instrument matches several Views, each is a stream of its own': the SDK's
    specification. So it is dropped where each of these views drops it."""
    from opentelemetry.sdk.metrics import Histogram
    from opentelemetry.sdk.metrics.view import DropAggregation
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    class Shown(Histogram):
        """What views look at; it is not of a meter, and records nothing."""

        def __init__(self) -> None:
            self.name, self.unit = point.name.lower(), point.unit
            self.instrumentation_scope = InstrumentationScope(SCOPE, "")

    matching = [view for view in views if view._match(Shown())]
    drops = [isinstance(view._aggregation, DropAggregation) for view in matching]
    return bool(drops) and all(drops)


def _is_sdk(provider: object) -> bool:
    kinds = type(provider).__mro__
    return any(kind.__module__.startswith("opentelemetry.sdk.") for kind in kinds)


def _since(
    counts: list[int], total: float, before: tuple[list[int], float] | None
) -> tuple[list[int], float]:
    if before is None:
        return counts, total
    return [a - b for a, b in zip(counts, before[0], strict=True)], total - before[1]
