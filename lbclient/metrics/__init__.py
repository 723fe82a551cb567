"""Prometheus metrics, pulled: a scrape reads `statistics()` and adds up.

Nothing is registered before `export`. From then on durations are
counted where calls end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import grpc
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client import samples as exposition
from prometheus_client.registry import Collector

from lbclient.client.kinds import is_channel
from lbclient.config import is_disabled
from lbclient.core.statistics.call_times import Exemplar
from lbclient.log import Log
from lbclient.metrics import multiprocess
from lbclient.metrics.durations import samples_of
from lbclient.metrics.families import FAMILIES, HANDLED, SAMPLES, Family
from lbclient.metrics.sums import Sums, labelled
from lbclient.server.kinds import is_server

if TYPE_CHECKING:
    from lbclient.client.channel import Channel
    from lbclient.server import Server, SyncServer

__all__ = ["export"]

logger = Log(__name__)


def export(
    source: grpc.aio.Channel | grpc.aio.Server | grpc.Server,
    registry: CollectorRegistry = REGISTRY,
    *,
    backends: int = 0,
) -> None:
    """Shows a channel or a server of ours in `registry` for as long as it lives.

    `backends` is how many of a channel's backends get metrics of their own, each with
    its address as a label. Of grpc.aio's own, which `LBCLIENT_DISABLE=1` hands out, it
    shows that: `lbclient_disabled` is 1. Repeated, it changes `backends` only. Raises
    TypeError for anything else, and ConfigError for `backends` that are no number of
    them.
    """
    ours = own(source)
    if ours is not None or is_disabled():
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = _register(registry)
        collector.sums.enter(ours, backends)
        if multiprocess.is_on():
            multiprocess.mirror().sums.enter(ours, backends)


def own(source: object) -> Channel | Server | SyncServer | None:
    """None for grpcio's own, raises TypeError for what is neither."""
    if is_channel(source) or is_server(source):
        return source
    if isinstance(source, grpc.aio.Channel | grpc.aio.Server | grpc.Server):
        return None
    raise TypeError(f"neither a channel nor a server: {source!r}")


class _Collector(Collector):
    """Collects samples for one registry."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.families: Sequence[Family] = FAMILIES

    def describe(self) -> Iterable[Metric]:
        return [
            Metric(family.name, family.help, family.kind) for family in self.families
        ]

    def collect(self) -> Iterable[Metric]:
        metrics = {metric.name: metric for metric in self.describe()}
        for sample, number in self.sums.collect().items():
            family, labels = SAMPLES[sample[0]]
            if family.name in metrics:
                metrics[family.name].add_sample(
                    sample[0], labelled(labels, sample), number
                )
        for name, values, number, exemplar in samples_of(self.sums.durations()):
            family, labels = SAMPLES[name]
            shown = dict(zip(labels, values, strict=True))
            of_trace = None if exemplar is None else _shown(exemplar)
            metrics[family.name].add_sample(name, shown, number, exemplar=of_trace)
        return [metric for metric in metrics.values() if metric.samples]


def _shown(exemplar: Exemplar) -> exposition.Exemplar:
    """As OpenMetrics has it; the format of old leaves exemplars out."""
    trace = exemplar.trace
    ids = {"trace_id": f"{trace.trace_id:032x}", "span_id": f"{trace.span_id:016x}"}
    return exposition.Exemplar(ids, exemplar.value)


_collectors: WeakKeyDictionary[CollectorRegistry, _Collector] = WeakKeyDictionary()


def _register(registry: CollectorRegistry) -> _Collector:
    if multiprocess.is_late():
        logger.warning(
            "prometheus_client's multiprocess mode is off: set PROMETHEUS_MULTIPROC_DIR"
            " before prometheus_client is imported"
        )
    collector = _Collector()
    try:
        registry.register(collector)
    except ValueError as error:  # instrumentation that has the same names for the same
        words = "without grpc_client_handled and grpc_server_handled: %s"
        logger.warning(words, error, reason=error)
        collector.families = [one for one in FAMILIES if one not in HANDLED]
        registry.register(collector)
    return collector
