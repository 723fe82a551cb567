"""Adds up what channels and servers tell, for as long as anybody asks.

They are held weakly and read in whichever thread asks. Counts never go down: what a
source had counted when it was last read outlives it. Only what is told of a single
backend ends when the last channel has left that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import ReferenceType, ref

import grpc

from lbclient.client.kinds import is_channel
from lbclient.core.errors import ConfigError
from lbclient.core.statistics.call_times import CallTimes
from lbclient.log import Log
from lbclient.metrics import samples
from lbclient.metrics.durations import MAX_TIMED, Durations, find_trace
from lbclient.metrics.families import HIGHEST
from lbclient.metrics.samples import MAX_LABEL, OTHER, Sample
from lbclient.pickers.scheduler_updates import SchedulerUpdates
from lbclient.resolvers.target import SCHEMES
from lbclient.server.kinds import is_server
from lbclient.server.statistics import ServerStatistics

if TYPE_CHECKING:
    from lbclient.client.channel import Channel
    from lbclient.server import Server, SyncServer

    Source = Channel | Server | SyncServer

logger = Log("lbclient.metrics")

# Bounds on what one process shows: a target has about 90 time series.
MAX_TARGETS = 100
MAX_METHODS = 500  # of all targets together; as many as one channel counts
MAX_CUSTOMERS = 200  # by cost: as many listed as unlisted ones of one server


SHUTDOWN = grpc.ChannelConnectivity.SHUTDOWN

Numbers = dict[Sample, float]

T = TypeVar("T")


class _Known(NamedTuple):
    """What is known of one source. `counts` and `of_backends` are as last read."""

    counts: Numbers
    of_backends: Numbers
    most: int  # backends that are shown
    times: CallTimes
    updates: tuple[SchedulerUpdates, ...] = ()
    target: str | None = None  # as it was last shown; empty on a server


class Sums:
    """What one registry shows. Its lock is for those who ask, which come in threads."""

    def __init__(self, measures: bool = False) -> None:
        """`measures`: of calls and requests also how large messages are."""
        self._measures = measures
        self._lock = Lock()
        self._is_disabled = False
        self._sources: dict[ReferenceType[Source], _Known] = {}
        self._kept: Numbers = {}  # of sources that are gone
        self._left: Numbers = {}  # of backends that some have left, and others have not
        self._targets: dict[str, None] = {}
        self._methods: dict[tuple[str, str, str], None] = {}
        self._timed: dict[tuple[str, str, str], None] = {}
        self.grpc_targets: dict[str, str] = {}  # by label, as OpenTelemetry's are told
        self._durations = Durations()  # of sources that are gone
        self._customers: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<sums of {len(self._sources)} sources, {len(self._targets)} targets>"

    def enter(self, source: Source | None, backends: int) -> None:
        """None: one that is grpc.aio's own, by the kill switch."""
        if source is None:
            self._is_disabled = True
        else:
            self.add(source, backends)

    def has(self, source: object) -> bool:
        return any(reference() is source for reference in self._sources.copy())

    def after_fork(self) -> Sums:
        """A copy for a child process, without what its parent counted.

        Its parent's lock may be held by a thread that is not there.
        """
        sums = Sums(self._measures)
        sums._is_disabled = self._is_disabled
        for reference, known in self._sources.items():
            source = reference()
            if source is None or (is_channel(source) and source._balancer is not None):
                continue
            sums.add(source, known.most)
        return sums

    def add(self, source: Source, backends: int = 0) -> None:
        """Once more is never too much; then `backends` is what was said last.

        Raises ConfigError for a number of backends that is none.
        """
        if type(backends) is not int or backends < 0:
            raise ConfigError("backends", backends, "a whole number, at least 0")
        with self._lock:
            self._bury()
            known = self._sources.get(ref(source))
            if known is None:
                target = None if is_channel(source) else ""
                times = source._keep_times(find_trace, self._measures)
                known = _Known({}, {}, 0, times, target=target)
            self._sources[ref(source)] = known._replace(most=backends)

    def collect(self) -> Numbers:
        with self._lock:
            self._bury()
            sums = self._kept.copy()
            of_backends: Numbers = {}
            for reference in self._sources:
                source = reference()
                if source is not None:
                    self._collect_source(reference, source, sums)
                known = self._sources[reference]
                _merge(sums, known.counts)
                _merge(of_backends, known.of_backends)
            self._left = {k: v for k, v in self._left.items() if k in of_backends}
            _merge(sums, of_backends)
            _merge(sums, self._left)
            sums["lbclient_disabled",] = float(self._is_disabled)
            return sums

    def durations(self) -> Durations:
        """As `collect` has last found the sources; to be called after it."""
        with self._lock:
            found = Durations()
            found.add_all(self._durations)
            for known in self._sources.values():
                self._add_durations(found, known)
            return found

    def _add_durations(self, found: Durations, known: _Known) -> None:
        if known.target is not None:
            found.add(known.times, known.target, self._timed_method)
            for updates in known.updates:
                found.add_updates(updates, known.target)

    def _timed_method(self, method: tuple[str, str, str]) -> tuple[str, str, str]:
        kind, service, name = method
        method = (kind, service[:MAX_LABEL], name[:MAX_LABEL])
        return self._bounded(self._timed, method, MAX_TIMED, samples.UNKNOWN)

    def _collect_source(
        self, reference: ReferenceType[Source], source: Source, sums: Numbers
    ) -> None:
        """Never fails: one source that is broken must not cost all the others."""
        try:
            if is_channel(source):
                self._collect_channel(reference, source, sums)
            elif is_server(source):
                self._collect_server(reference, source, sums)
        except Exception as error:
            logger.exception("metrics of %r could not be read", source, reason=error)

    def _collect_server(
        self,
        reference: ReferenceType[Source],
        source: Server | SyncServer,
        sums: Numbers,
    ) -> None:
        server = source.statistics()
        counts = dict(samples.server_counts(server))
        self._count_methods(counts, "server", server.methods)
        self._count_costs(counts, server)
        self._note(reference, counts, {})
        _merge(sums, dict(samples.server_gauges(server)))

    def _collect_channel(
        self, reference: ReferenceType[Source], source: Channel, sums: Numbers
    ) -> None:
        channel, most = source.statistics(), self._sources[reference].most
        target = channel.label[:MAX_LABEL]
        target = self._bounded(self._targets, target, MAX_TARGETS, OTHER)
        self._sources[reference] = self._sources[reference]._replace(
            target=target, updates=source._scheduler_updates()
        )
        if target not in self.grpc_targets:
            known = channel.name or canonical(channel.target)[:MAX_LABEL]
            self.grpc_targets[target] = OTHER if target == OTHER else known
        counts = dict(samples.channel_counts(channel, target))
        self._count_methods(counts, "client", channel.methods)
        if source.get_state() is SHUTDOWN:
            self._note(reference, counts, {})
            return
        self._note(
            reference, counts, dict(samples.backend_counts(channel, target, most))
        )
        _merge(sums, dict(samples.channel_gauges(channel, target)))
        _merge(sums, dict(samples.backend_gauges(channel, target, most)))

    def _count_methods(
        self, counts: Numbers, side: str, methods: samples.Methods
    ) -> None:
        name = f"grpc_{side}_handled_total"
        for method, code, count in samples.call_counts(methods):
            _merge(counts, {(name, *self._method(method), code): count})

    def _count_costs(self, counts: Numbers, server: ServerStatistics) -> None:
        name = "lbclient_server_method_cost_seconds_total"
        for method, cost in samples.method_costs(server.method_costs):
            _, service, path = self._method(method)
            _merge(counts, {(name, service, path): cost})
        name = "lbclient_server_customer_cost_seconds_total"
        for customer, cost in server.customer_costs.items():
            label = customer[:MAX_LABEL] or OTHER
            label = self._bounded(self._customers, label, MAX_CUSTOMERS, OTHER)
            _merge(counts, {(name, label): cost})

    def _method(self, method: tuple[str, str, str]) -> tuple[str, str, str]:
        kind, service, path = method
        method = (kind, service[:MAX_LABEL], path[:MAX_LABEL])
        return self._bounded(self._methods, method, MAX_METHODS, samples.UNKNOWN)

    def _bounded(self, shown: dict[T, None], label: T, most: int, other: T) -> T:
        if label not in shown and len(shown) >= most:
            return other
        shown[label] = None
        return label

    def _note(
        self,
        reference: ReferenceType[Source],
        counts: Numbers,
        of_backends: Numbers,
    ) -> None:
        before = self._sources[reference]
        for sample, count in before.counts.items():
            # Read while it changes, a sum of two counts can be one too few.
            counts[sample] = max(count, counts.get(sample, 0.0))
        self._leave(before.of_backends, of_backends)
        self._sources[reference] = before._replace(
            counts=counts, of_backends=of_backends
        )

    def _leave(self, before: Numbers, now: Numbers) -> None:
        """What was told of backends that are gone, or came back as new ones."""
        for sample, count in before.items():
            if now.get(sample, -1.0) < count:
                _merge(self._left, {sample: count})

    def _bury(self) -> None:
        for reference in [gone for gone in self._sources if gone() is None]:
            known = self._sources.pop(reference)
            _merge(self._kept, known.counts)
            self._leave(known.of_backends, {})
            self._add_durations(self._durations, known)


def _merge(sums: Numbers, more: Numbers) -> None:
    for sample, number in more.items():
        before = sums.get(sample, 0.0)
        sums[sample] = max(before, number) if sample[0] in HIGHEST else before + number


def canonical(target: str) -> str:
    """The target with its scheme, as in gRFC A66.

    >>> canonical("search:50051"), canonical("ipv4:10.0.0.3:50051")
    ('dns:///search:50051', 'ipv4:10.0.0.3:50051')
    """
    scheme, colon, rest = target.partition(":")
    is_known = bool(colon and rest) and scheme.lower() in SCHEMES
    if is_known or "://" in target or target.startswith("<"):
        return target
    return f"dns:///{target}"


def labelled(names: Iterable[str], sample: Sample) -> dict[str, str]:
    return dict(zip(names, sample[1:], strict=True))
