"""Prometheus metrics, pulled: a scrape reads `statistics()` and adds up.

Channels and servers are held weakly and read in whichever thread scrapes. Counts
never go down: what a source had counted when it was last read outlives it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import grpc
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.registry import Collector

from lbclient.channel import Channel
from lbclient.model import State, TaskState, Verdict
from lbclient.server import Server, ServerStatistics
from lbclient.statistics import ChannelStatistics

logger = logging.getLogger(__name__)

# Bounds on what one process shows: a target has 56 time series.
MAX_TARGETS = 100
OTHER = "other"  # the label of all targets after those
MAX_LABEL = 200  # characters; a target may be a list of ten thousand addresses

SHUTDOWN = grpc.ChannelConnectivity.SHUTDOWN

Source = Channel | Server
Samples = Iterator[tuple[tuple[str, ...], float]]
Sums = dict[tuple[str, ...], float]
"""By a sample's name and the values of its labels."""


class Family(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


FAMILIES = tuple(
    Family(f"lbclient_{name}", kind, tuple(labels.split()), help)
    for name, kind, labels, help in (
        ("calls", "counter", "target code", "Calls that are over."),
        (
            "attempts",
            "counter",
            "target verdict",
            "Calls that were sent, and are over.",
        ),
        ("resends", "counter", "target", "Attempts after one that nobody took."),
        ("retries", "counter", "target", "Attempts after one that may have been run."),
        ("throttled", "counter", "target", "Attempts refused by this client itself."),
        ("attempt_latency_seconds", "histogram", "target", "How long those took."),
        ("in_flight", "gauge", "target", "Calls that were sent, and are not over."),
        ("waiting", "gauge", "target", "Calls that wait for a backend."),
        ("waited", "counter", "target", "Calls that got a backend after a wait."),
        ("wait_seconds", "counter", "target", "How long those waited."),
        ("task_failures", "counter", "target", "Background jobs started again."),
        ("channels", "gauge", "target", "Channels that are open."),
        ("backends", "gauge", "target state", "Backends of the subset."),
        ("replacements", "gauge", "target", "Backends beyond the subset."),
        ("draining_backends", "gauge", "target", "Backends leaving the subset."),
        ("resolver_updates", "counter", "target", "Answers of the resolver."),
        ("resolver_age_seconds", "gauge", "target", "Since its last answer."),
        ("resolver_endpoints", "gauge", "target", "Endpoints in that."),
        ("resolver_failing", "gauge", "target", "Channels whose resolver fails."),
        ("server_requests", "counter", "code", "Requests that are over."),
        ("server_latency_seconds", "histogram", "", "How long requests took."),
        ("server_active_requests", "gauge", "", "Requests that are not over."),
        ("server_utilization", "gauge", "", "As told to clients; 1 is full."),
        ("server_load", "gauge", "", "Requests that run or want to, a processor."),
        (
            "server_refused",
            "counter",
            "reason criticality",
            "Requests that were not begun.",
        ),
        ("server_misread", "counter", "key", "Requests with unsound metadata."),
        ("server_state", "gauge", "state", "Servers in that state."),
        ("server_watchers", "gauge", "", "Open streams of health and load."),
        ("server_udp_probes", "counter", "outcome", "UDP health checks that came."),
        ("server_udp_pushes", "counter", "", "Clients told by UDP of a lame duck."),
        ("server_signal_failures", "counter", "", "Unsound ServerConfig signals."),
    )
)

# Of several sources the highest says more than the sum.
HIGHEST = frozenset(
    {
        "lbclient_resolver_age_seconds",
        "lbclient_resolver_endpoints",
        "lbclient_server_load",
        "lbclient_server_utilization",
    }
)

SUFFIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "counter": {"_total": ()},
    "gauge": {"": ()},
    "histogram": {"_bucket": ("le",), "_sum": (), "_count": ()},
}

SAMPLES = {
    family.name + suffix: (family.name, family.labels + more)
    for family in FAMILIES
    for suffix, more in SUFFIXES[family.kind].items()
}


def export(
    source: grpc.aio.Channel | grpc.aio.Server, registry: CollectorRegistry = REGISTRY
) -> None:
    """Shows a channel or a server of ours in `registry` for as long as it lives.

    Does nothing for grpc.aio's own, which `LBCLIENT_DISABLE=1` hands out, and
    nothing when repeated. Raises TypeError for anything else.
    """
    if isinstance(source, Channel | Server):
        collector = _collectors.get(registry)
        if collector is None:
            collector = _Collector()
            registry.register(collector)
            _collectors[registry] = collector
        collector.add(source)
    elif not isinstance(source, grpc.aio.Channel | grpc.aio.Server):
        raise TypeError(f"neither a channel nor a server: {source!r}")


class _Collector(Collector):
    """One for a registry. Its lock is for scrapes, which come in threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[ReferenceType[Source], Sums] = {}  # as last read
        self._kept: Sums = {}  # of sources that are gone
        self._targets: dict[str, None] = {}

    def add(self, source: Source) -> None:
        with self._lock:
            self._bury()
            self._counts.setdefault(ref(source), {})

    def describe(self) -> Iterable[Metric]:
        return [Metric(family.name, family.help, family.kind) for family in FAMILIES]

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            sums = self._read()
        metrics = {metric.name: metric for metric in self.describe()}
        for (sample, *values), number in sums.items():
            name, labels = SAMPLES[sample]
            labelled = dict(zip(labels, values, strict=True))
            metrics[name].add_sample(sample, labelled, number)
        return [metric for metric in metrics.values() if metric.samples]

    def _read(self) -> Sums:
        self._bury()
        sums = self._kept.copy()
        for reference in self._counts:
            source = reference()
            if source is not None:
                self._read_source(reference, source, sums)
            _merge(sums, self._counts[reference])
        return sums

    def _read_source(
        self, reference: ReferenceType[Source], source: Source, sums: Sums
    ) -> None:
        """Never fails: one source that is broken must not cost the whole scrape."""
        try:
            if isinstance(source, Server):
                server = source.statistics()
                self._counts[reference] = dict(_server_counts(server))
                _merge(sums, dict(_server_gauges(server)))
            else:
                channel = source.statistics()
                target = self._label(channel.target)
                self._counts[reference] = dict(_channel_counts(channel, target))
                if source.get_state() is not SHUTDOWN:
                    _merge(sums, dict(_channel_gauges(channel, target)))
        except Exception:
            logger.exception("no metrics of %r", source)

    def _bury(self) -> None:
        for reference in [gone for gone in self._counts if gone() is None]:
            _merge(self._kept, self._counts.pop(reference))

    def _label(self, target: str) -> str:
        target = target[:MAX_LABEL]
        if target not in self._targets and len(self._targets) >= MAX_TARGETS:
            return OTHER
        self._targets[target] = None
        return target


_collectors: WeakKeyDictionary[CollectorRegistry, _Collector] = WeakKeyDictionary()


def _merge(sums: Sums, more: Sums) -> None:
    for sample, number in more.items():
        before = sums.get(sample, 0.0)
        sums[sample] = max(before, number) if sample[0] in HIGHEST else before + number


# Every code, verdict and state is shown, also at 0: a counter that appears with its
# first error hides that error from `rate`.


def _channel_counts(channel: ChannelStatistics, target: str) -> Samples:
    for code in grpc.StatusCode:
        calls = channel.calls.get(code.name, 0)
        yield ("lbclient_calls_total", target, code.name), calls
    for verdict in Verdict:
        attempts = channel.attempts.get(verdict.value, 0)
        yield ("lbclient_attempts_total", target, verdict.value), attempts
    yield ("lbclient_resends_total", target), channel.resends
    yield ("lbclient_retries_total", target), channel.retries
    yield ("lbclient_throttled_total", target), channel.throttled
    seconds = channel.latency
    yield from _histogram(
        ("lbclient_attempt_latency_seconds", target),
        seconds.bounds,
        seconds.counts,
        seconds.total,
    )
    yield ("lbclient_waited_total", target), channel.waited
    yield ("lbclient_wait_seconds_total", target), channel.waited_seconds
    yield ("lbclient_task_failures_total", target), channel.task_failures
    yield ("lbclient_resolver_updates_total", target), channel.resolver.updates


def _channel_gauges(channel: ChannelStatistics, target: str) -> Samples:
    yield ("lbclient_channels", target), 1
    yield ("lbclient_in_flight", target), channel.in_flight
    yield ("lbclient_waiting", target), channel.waiting
    states = [backend.state for backend in channel.backends]
    for state in State:
        count = states.count(state.value)
        yield ("lbclient_backends", target, state.name.lower()), count
    yield ("lbclient_replacements", target), channel.replacements
    yield ("lbclient_draining_backends", target), channel.draining
    resolver = channel.resolver
    yield ("lbclient_resolver_endpoints", target), resolver.endpoints
    yield ("lbclient_resolver_failing", target), bool(resolver.error)
    if resolver.age is not None:
        yield ("lbclient_resolver_age_seconds", target), resolver.age


def _server_counts(server: ServerStatistics) -> Samples:
    for code in grpc.StatusCode:
        requests = server.requests.get(code.name, 0)
        yield ("lbclient_server_requests_total", code.name), requests
    yield from _histogram(
        ("lbclient_server_latency_seconds",),
        server.latency_bounds,
        server.latency_counts,
        server.latency_sum,
    )
    for reason, by_criticality in server.refused.items():
        for criticality, refused in by_criticality.items():
            labels = (reason, criticality.lower())
            yield ("lbclient_server_refused_total", *labels), refused
    for key, misread in server.misread.items():
        yield ("lbclient_server_misread_total", key), misread
    for outcome in ("answered", "malformed", "forged", "limited"):
        probes = getattr(server.udp, outcome)
        yield ("lbclient_server_udp_probes_total", outcome), probes
    yield ("lbclient_server_udp_pushes_total",), server.udp.pushed
    yield ("lbclient_server_signal_failures_total",), server.signal_failures


def _server_gauges(server: ServerStatistics) -> Samples:
    yield ("lbclient_server_active_requests",), server.active
    yield ("lbclient_server_utilization",), server.utilization
    yield ("lbclient_server_load",), server.load
    yield ("lbclient_server_watchers",), server.watchers
    for state in TaskState:
        yield ("lbclient_server_state", state.name.lower()), state is server.state


def _histogram(
    labelled: tuple[str, ...],
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float,
) -> Samples:
    """Prometheus's buckets accumulate, ours do not."""
    name, *labels = labelled
    at_most = list(accumulate(counts))
    for bound, count in zip((*map(str, bounds), "+Inf"), at_most, strict=True):
        yield (f"{name}_bucket", *labels, bound), count
    yield (f"{name}_sum", *labels), total
    yield (f"{name}_count", *labels), at_most[-1]
