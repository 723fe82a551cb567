"""From statistics to samples: a name, the values of its labels, and a number.

Every code, verdict and state is shown, also at 0: a counter that appears with its
first error hides that error from `rate`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import grpc

from lbclient.core.counting.histogram import Histogram
from lbclient.core.model import State, TaskState, Verdict
from lbclient.core.retries.hedging import REASONS as WITHHELD
from lbclient.core.retries.retry import ATTEMPTS
from lbclient.core.statistics.records import MOST_ZONES, ChannelStatistics
from lbclient.pickers import PICKERS
from lbclient.server.statistics import ServerStatistics
from lbclient.wire.local_errors import REASONS

Sample = tuple[str, ...]
"""Its name, and the values of its labels."""

Samples = Iterator[tuple[Sample, float]]

Methods = Mapping[tuple[str, str], Mapping[str, int]]
"""Calls that are over, by the kind and the path of the method, and code."""

POLICIES = {picker.__name__: name for name, picker in PICKERS.items()}

TYPES = {
    "unary_unary": "unary",
    "stream_unary": "client_stream",
    "unary_stream": "server_stream",
    "stream_stream": "bidi_stream",
}

# Bounds on what one process shows.
MAX_CUSTOMERS = 100
MAX_LABEL = 200  # characters; a target may be a list of ten thousand addresses
OTHER = "other"  # the label of all that are beyond a bound

UNKNOWN = ("unknown", "unknown", "unknown")

# As Go writes them, and with it go-grpc-prometheus: "NotFound".
GO_CODES = {
    code.name: "OK" if code.name == "OK" else code.name.title().replace("_", "")
    for code in grpc.StatusCode
}

# A weight of 2 is twice the mean: the same distance as 0.5.
WEIGHTS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
# Seconds: answers of a busy backend tell its load all the time, health reports do so
# at intervals.
AGES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def channel_counts(channel: ChannelStatistics, target: str) -> Samples:
    for code in grpc.StatusCode:
        calls = channel.calls.get(code.name, 0)
        yield ("lbclient_calls_total", target, code.name), calls
    for verdict in Verdict:
        attempts = channel.attempts.get(verdict.value, 0)
        yield ("lbclient_attempts_total", target, verdict.value), attempts
    if channel.picker:
        policy = POLICIES.get(channel.picker, channel.picker)
        picks = sum(channel.attempts.values()) + channel.in_flight
        yield ("lbclient_picks_total", target, policy), picks
    yield ("lbclient_resends_total", target), channel.resends
    yield ("lbclient_retries_total", target), channel.retries
    yield ("lbclient_hedges_total", target), channel.hedges
    yield ("lbclient_hedges_won_total", target), channel.hedges_won
    for reason in WITHHELD:
        withheld = channel.hedges_withheld.get(reason, 0)
        yield ("lbclient_hedges_withheld_total", target, reason), withheld
    for number in map(str, range(ATTEMPTS)):
        sent = channel.sent_attempts.get(number, 0)
        refused = channel.refused_attempts.get(number, 0)
        yield ("lbclient_sent_attempts_total", target, number), sent
        yield ("lbclient_refused_attempts_total", target, number), refused
    yield ("lbclient_throttled_total", target), channel.throttled
    for reason in REASONS:
        refused = channel.refused.get(reason, 0)
        yield ("lbclient_refused_total", target, reason), refused
    seconds = channel.latency
    yield from _histogram(
        ("lbclient_attempt_latency_seconds", target),
        seconds.bounds,
        seconds.counts,
        seconds.total,
    )
    seconds = channel.first_message
    yield from _histogram(
        ("lbclient_first_message_seconds", target),
        seconds.bounds,
        seconds.counts,
        seconds.total,
    )
    yield ("lbclient_waited_total", target), channel.waited
    yield ("lbclient_wait_seconds_total", target), channel.waited_seconds
    yield ("lbclient_loop_stall_seconds_total", target), channel.loop_stall_seconds
    yield ("lbclient_ejections_total", target), channel.ejections
    yield ("lbclient_spilled_total", target), channel.spilled
    yield ("lbclient_keyed_picks_total", target), channel.keyed_picks
    yield ("lbclient_first_choices_total", target), channel.first_choices
    yield ("lbclient_asked_keys_total", target), channel.asked_keys
    yield ("lbclient_expected_key_hits_total", target), channel.expected_hits
    yield ("lbclient_stream_moves_total", target), channel.stream_moves
    yield ("lbclient_task_failures_total", target), channel.task_failures
    yield ("lbclient_resolver_updates_total", target), channel.resolver.updates


def channel_gauges(channel: ChannelStatistics, target: str) -> Samples:
    yield ("lbclient_channels", target), 1
    yield ("lbclient_in_flight", target), channel.in_flight
    yield ("lbclient_resumable_streams", target), channel.resumable_streams
    yield ("lbclient_waiting", target), channel.waiting
    yield ("lbclient_retries_left", target), channel.retries_left
    states = [backend.state for backend in channel.backends]
    for state in State:
        count = states.count(state.value)
        yield ("lbclient_backends", target, state.name.lower()), count
    yield ("lbclient_subset_size", target), channel.subset_size
    yield ("lbclient_replacements", target), channel.replacements
    yield ("lbclient_draining_backends", target), channel.draining
    yield ("lbclient_ejected_backends", target), channel.ejected
    slowed = sum(backend.is_slowed for backend in channel.backends)
    yield ("lbclient_slowed_backends", target), slowed
    shared = sum(backend.is_shared for backend in channel.backends)
    yield ("lbclient_shared_backends", target), shared
    weights = [one.weight for one in channel.backends if one.weight]
    yield from _distribution(("lbclient_weights", target), WEIGHTS, weights)
    ages = [one.report_age for one in channel.backends if one.report_age is not None]
    yield from _distribution(("lbclient_report_ages_seconds", target), AGES, ages)
    for zone in channel.zones[:MOST_ZONES]:
        labels = (target, zone.zone, str(zone.priority))
        yield ("lbclient_zone_ready_backends", *labels), zone.ready
        if zone.utilization is not None:
            yield ("lbclient_zone_utilization", *labels), zone.utilization
        if zone.limit is not None:
            yield ("lbclient_zone_utilization_limit", *labels), zone.limit
    resolver = channel.resolver
    yield ("lbclient_resolver_endpoints", target), resolver.endpoints
    yield ("lbclient_resolver_failing", target), bool(resolver.error)
    if resolver.age is not None:
        yield ("lbclient_resolver_age_seconds", target), resolver.age


def backend_counts(channel: ChannelStatistics, target: str, most: int) -> Samples:
    """Counts of the first backends in the client's order of preference."""
    for backend in channel.backends[:most]:
        for verdict in Verdict:
            labels = (target, backend.address, verdict.value)
            count = getattr(backend, verdict.value)
            yield ("lbclient_backend_attempts_total", *labels), count


def backend_gauges(channel: ChannelStatistics, target: str, most: int) -> Samples:
    for backend in channel.backends[:most]:
        labels = (target, backend.address)
        is_ready = backend.state == State.READY.value
        yield ("lbclient_backend_in_flight", *labels), backend.in_flight
        yield ("lbclient_backend_ready", *labels), is_ready
        yield ("lbclient_backend_ejected", *labels), len(backend.ejected)
        yield ("lbclient_backend_recent_errors", *labels), backend.recent_errors
        yield ("lbclient_backend_slowed", *labels), backend.is_slowed
        yield ("lbclient_backend_fronts", *labels), backend.fronts
        yield ("lbclient_backend_weight", *labels), backend.weight
        if backend.utilization is not None:
            yield ("lbclient_backend_utilization", *labels), backend.utilization


def server_counts(server: ServerStatistics) -> Samples:
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
            yield ("lbclient_server_refused_total", reason, criticality), refused
    yield ("lbclient_server_declined_total",), server.declined
    for attempt, requests in server.attempts.requests.items():
        yield ("lbclient_server_attempts_total", attempt), requests
    withheld = server.attempts.withheld
    yield ("lbclient_server_retries_withheld_total",), withheld
    for key, misread in server.misread.items():
        yield ("lbclient_server_misread_total", key), misread
    for outcome in ("answered", "malformed", "forged", "limited"):
        probes = getattr(server.udp, outcome)
        yield ("lbclient_server_udp_probes_total", outcome), probes
    yield ("lbclient_server_udp_pushes_total",), server.udp.pushed
    for reason, refused in server.streams_refused.items():
        yield ("lbclient_server_streams_refused_total", reason), refused
    yield ("lbclient_server_signal_failures_total",), server.signal_failures
    yield ("lbclient_server_task_failures_total",), server.task_failures
    quotas = server.quotas
    yield ("lbclient_server_quota_exchanges_total", "done"), quotas.exchanges
    yield ("lbclient_server_quota_exchanges_total", "failed"), quotas.failures
    yield ("lbclient_server_quota_malformed_total",), quotas.malformed
    yield ("lbclient_server_quota_pooled_total",), quotas.pooled
    yield ("lbclient_server_quota_forgotten_total",), quotas.forgotten


def server_gauges(server: ServerStatistics) -> Samples:
    yield ("lbclient_server_active_requests",), server.active
    yield ("lbclient_server_utilization",), server.utilization
    kept = server.contention
    for kind in ("waiting", "throttled", "stolen"):
        if (share := getattr(kept, kind)) is not None:
            yield ("lbclient_server_contention", kind), share
    if server.cost.rise is not None:
        yield ("lbclient_server_cost_rise",), server.cost.rise
    yield ("lbclient_server_slowed",), server.cost.is_slowed
    yield ("lbclient_server_loop_utilization",), kept.loop
    yield ("lbclient_server_loop_lag_seconds",), kept.lag
    yield ("lbclient_server_load",), server.load
    for signal in server.signals:
        yield ("lbclient_server_signal", signal.name), signal.value / signal.target
    in_vain = float(server.attempts.others_refuse)
    yield ("lbclient_server_retries_in_vain",), in_vain
    yield ("lbclient_server_watchers",), server.watchers
    for state in TaskState:
        yield ("lbclient_server_state", state.name.lower()), state is server.state
    yield from _customers(server)


def _customers(server: ServerStatistics) -> Samples:
    """By name those that the config names: any other name is whatever a client says."""
    shown = set(server.quotas.listed[:MAX_CUSTOMERS]) - {OTHER}
    other = 0.0
    for customer, used in server.usage.items():
        if customer in shown:
            yield ("lbclient_server_quota_usage", customer[:MAX_LABEL]), used
        else:
            other += used
    if server.usage:
        yield ("lbclient_server_quota_usage", OTHER), other
    for customer, share in server.quotas.shares.items():
        if customer in shown:
            yield ("lbclient_server_quota_share", customer[:MAX_LABEL]), share


def call_counts(methods: Methods) -> Iterator[tuple[tuple[str, str, str], str, int]]:
    """Type, service and method; code; and how many: those of a code that came up."""
    for (kind, path), counts in methods.items():
        service, slash, method = path.removeprefix("/").rpartition("/")
        known = (TYPES.get(kind, "unknown"), service, method)
        for code, count in counts.items():
            if count:
                yield known if slash else UNKNOWN, GO_CODES[code], count


def method_costs(
    costs: Mapping[tuple[str, str], float],
) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Type, service and method, as in `call_counts`; and CPU seconds."""
    for (kind, path), cost in costs.items():
        service, slash, method = path.removeprefix("/").rpartition("/")
        known = (TYPES.get(kind, "unknown"), service, method)
        yield known if slash else UNKNOWN, cost


def _histogram(
    labelled: tuple[str, ...],
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float,
    of_now: str = "",
) -> Samples:
    """Prometheus's buckets accumulate, ours do not."""
    name, *labels = labelled
    at_most = list(accumulate(counts))
    for bound, count in zip((*map(str, bounds), "+Inf"), at_most, strict=True):
        yield (f"{name}_bucket", *labels, bound), count
    yield (f"{name}_{of_now}sum", *labels), total
    yield (f"{name}_{of_now}count", *labels), at_most[-1]


def _distribution(
    labelled: tuple[str, ...], bounds: tuple[float, ...], values: Sequence[float]
) -> Samples:
    seen = Histogram(bounds)
    for value in values:
        seen.observe(value)
    yield from _histogram(labelled, bounds, seen.counts, seen.sum, of_now="g")
