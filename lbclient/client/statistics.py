"""Makes the records of what a channel knows, from plain counters.

Only on demand; reading them changes nothing. `core.statistics.records` has the records.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lbclient.config.identity import home_zone
from lbclient.core.outliers.relative_costs import RelativeCost
from lbclient.core.routing.locality import Rank, rank
from lbclient.core.routing.spill_control import limit_of, utilization
from lbclient.core.routing.spillover import Spillover
from lbclient.core.statistics.records import (
    BackendStatistics,
    ChannelStatistics,
    EjectionStatistics,
    LatencyStatistics,
    ResolverStatistics,
    ThrottleStatistics,
    WorkerStatistics,
    ZoneStatistics,
)
from lbclient.core.text import printable
from lbclient.wire.codes import STATUS_OF_NUMBER, told_against

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend
    from lbclient.client.balancer import Balancer
    from lbclient.core.counting.histogram import Histogram


def latency_statistics(histogram: "Histogram") -> LatencyStatistics:
    return LatencyStatistics(histogram.bounds, tuple(histogram.counts), histogram.sum)


def backend_statistics(
    backend: "Backend",
    weight: float,
    why: str,
    now: float,
    ejected: tuple[EjectionStatistics, ...],
    cost: RelativeCost | None,
) -> BackendStatistics:
    error, error_age = last_error(backend, now)
    load = backend.load
    report = load.report
    fronts = backend.reported.shared_address.tasks(now)
    is_shared = backend.reported.shared_address.is_shared(now)
    served, rejected, failed, abandoned, declined = load.counts.values()
    return BackendStatistics(
        address=backend.endpoint.address,
        state=backend.state.value,
        reason=backend.condition.reason,
        state_age=now - backend.condition.since,
        weight=weight,
        in_flight=load.in_flight,
        started=load.started,
        served=served,
        rejected=rejected,
        failed=failed,
        abandoned=abandoned,
        declined=declined,
        latency=load.latency,
        first_message=load.first_message or None,
        utilization=load.utilization() or None,
        qps=None if report is None else report.qps,
        eps=None if report is None else report.eps,
        active=None if report is None else report.active,
        report_age=None if report is None else now - load.reported_at,
        why=f"{why}; {_fronts(fronts)}" if is_shared else why,
        last_error=error,
        last_error_age=error_age,
        task=backend.endpoint.task,
        zone=backend.endpoint.zone,
        priority=backend.endpoint.priority,
        ejected=ejected,
        fronts=fronts,
        is_shared=is_shared,
        recent_errors=load.recent_errors(now),
        health_refused=str(backend.reported.refusals),
        relative_cost=None if cost is None else cost.relative,
        cost_rise=None if cost is None else cost.rise,
        is_slowed=cost is not None and cost.is_slowed,
        own_cost_rise=backend.reported.cost_rise,
    )


def _fronts(tasks: int) -> str:
    if not tasks:
        return "fronts several tasks, none heard lately"
    return f"fronts several tasks, {tasks} heard lately"


def ejections(
    balancer: "Balancer", backend: "Backend", now: float
) -> tuple[EjectionStatistics, ...]:
    return tuple(
        EjectionStatistics(
            path or "other methods",
            told_against(ejection.against),
            now - ejection.since,
            max(0.0, ejection.trial_at - now) if ejection.tried_at is None else None,
        )
        for (_, path), ejection in balancer.outliers.of(backend)
    )


def last_error(backend: "Backend", now: float) -> tuple[str, float | None]:
    """What it was, and how long ago."""
    condition = backend.condition
    code, failed_at = condition.last_failure
    if code and failed_at >= condition.troubled_at:
        return f"a call ended with {STATUS_OF_NUMBER[code].name}", now - failed_at
    if condition.trouble:
        return condition.trouble, now - condition.troubled_at
    return "", None


def why_in_subset(place: int | None, size: int, count: int) -> str:
    """Why a backend at this place of the client's order, from 0, is in its subset.

    >>> why_in_subset(0, 2, 9), why_in_subset(2, 2, 9)
    ('choice 1 of 9', 'stands in for another: choice 3 of 9')
    """
    if place is None:
        return "left the subset, and serves until others are ready"
    choice = f"choice {place + 1} of {count}"
    return choice if place < size else f"stands in for another: {choice}"


def zone_statistics(
    balancer: "Balancer", weights: dict["Backend", float], now: float
) -> tuple[ZoneStatistics, ...]:
    zone = home_zone(balancer.config)
    by_zone: dict[tuple[Rank, str], list[Backend]] = {}
    for node in balancer.pool.nodes.values():
        key = rank(node.endpoint, zone), node.endpoint.zone
        by_zone.setdefault(key, []).append(node)
    if not any(name or its.priority for its, name in by_zone):
        return ()
    total = sum(weights.values()) or 1.0
    spills = isinstance(balancer.pickers.current, Spillover)
    return tuple(
        _zone_statistics(
            name,
            its.priority,
            nodes,
            weights,
            total,
            limit_of(name, balancer.config.spill_above) if spills else None,
            now,
        )
        for (its, name), nodes in sorted(by_zone.items(), key=lambda item: item[0])
    )


def _zone_statistics(
    zone: str,
    priority: int,
    nodes: list["Backend"],
    weights: dict["Backend", float],
    total: float,
    limit: float | None,
    now: float,
) -> ZoneStatistics:
    ready = [node for node in nodes if node in weights]
    return ZoneStatistics(
        zone,
        priority,
        len(nodes),
        len(ready),
        utilization(ready, now) if ready else None,
        sum(weights[node] for node in ready) / total,
        sum(node.load.in_flight for node in nodes),
        limit,
    )


def _by_name(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts of calls by the names of their statuses, without zeros."""
    return {
        STATUS_OF_NUMBER[number].name: count
        for number, count in counts.items()
        if count
    }


def _by_number(counts: list[int]) -> dict[str, int]:
    return {str(number): count for number, count in enumerate(counts)}


def channel_statistics(
    balancer: "Balancer", target: str, name: str
) -> ChannelStatistics:
    now = balancer.clock()
    pool, counters, pickers = balancer.pool, balancer.counters, balancer.pickers
    ready, nodes = pool.read_ready(), pool.nodes.values()
    weights = pickers.current.weights(ready, now) if ready else ()
    weight_of = dict(zip(ready, weights, strict=True))
    in_flight = [
        node.load.in_flight
        for node in (*nodes, *list(balancer.connections.draining.values()))
    ]
    discovery = balancer.backends.discovery
    resolved_at = discovery.resolved_at
    places, size = pool.places(), pool.subset_size()

    def why_of(node: "Backend") -> str:
        place = places.get(node.endpoint.address)
        if node.endpoint.address in pool.guests:
            return "outside of the subset, for its keys"
        if place is None and node.endpoint.lame_duck:
            return "was in the subset, and serves when nobody else does"
        return why_in_subset(place, size, pool.choices)

    backends = tuple(
        backend_statistics(
            node,
            weight_of.get(node, 0.0),
            why_of(node),
            now,
            ejections(balancer, node, now),
            balancer.backends.slowdowns.costs.read(node.endpoint.address, now),
        )
        for node in nodes
    )
    return ChannelStatistics(
        target=target,
        state=balancer.backends.connectivity.state().name.lower(),
        picker=type(pickers.inner()).__name__,
        subset=repr(balancer.connections.subset),
        subset_size=size,
        calls=_by_name(counters.calls),
        attempts={
            v.value: count for v, count in balancer.connections.attempts().items()
        },
        resends=counters.resends,
        retries=counters.retries,
        retries_left=balancer.retry_policy.left(counters.sent),
        sent_attempts=_by_number(counters.sent_attempts()),
        refused_attempts=_by_number(counters.refused_attempts),
        throttled=balancer.throttling.throttled,
        throttle=tuple(
            ThrottleStatistics(one.name, probability, accepted, there, here)
            for one, probability, accepted, there, here in balancer.throttling.read(now)
        ),
        refused=dict(counters.refused),
        latency=latency_statistics(counters.latency),
        waiting=balancer.pending.count(),
        waited=counters.waited,
        waited_seconds=counters.waited_seconds,
        in_flight=sum(in_flight),
        backends=backends,
        replacements=pool.replacements(),
        draining=len(balancer.connections.draining),
        ejected=sum(bool(backend.ejected) for backend in backends),
        ejections=balancer.outliers.total,
        task_failures=balancer.backends.tasks.failures,
        resolver=ResolverStatistics(
            endpoints=len(pool.endpoints),
            updates=discovery.updates,
            age=None if resolved_at is None else now - resolved_at,
            error=discovery.error
            or printable(str(getattr(discovery.resolver, "trouble", ""))),
        ),
        methods={
            method: _by_name(counts)
            for method, counts in counters.by_method.read().items()
        },
        name=name,
        zones=zone_statistics(balancer, weight_of, now),
        spilled=getattr(pickers.current, "spilled", 0),
        hedges=counters.hedges,
        hedges_won=0 if balancer.hedging is None else balancer.hedging.won,
        hedges_withheld=dict(balancer.hedging.withheld) if balancer.hedging else {},
        workers=WorkerStatistics(*balancer.connections.workers.counts()),
        keyed_picks=pickers.total("keyed_picks"),
        first_choices=pickers.total("first_choices"),
        asked_keys=pickers.total("asked_keys"),
        expected_hits=pickers.total("expected_hits"),
        first_message=latency_statistics(counters.first_message),
        resumable_streams=pickers.streams.count,
        stream_moves=pickers.streams.asked,
        loop_stall_seconds=balancer.loop_lag.stalled,
    )
