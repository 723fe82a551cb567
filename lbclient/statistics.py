"""Frozen records of what a channel knows: the answer to "why did it pick that one?"

Made on demand from plain counters; reading them changes nothing. Times in seconds,
rates per second.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lbclient.grpc_codes import STATUS_OF_NUMBER

if TYPE_CHECKING:
    from lbclient.backend import Backend
    from lbclient.balancer import Balancer
    from lbclient.histogram import Histogram


@dataclass(frozen=True, slots=True)
class BackendStatistics:
    """One backend as the channel sees it now.

    `weight` is the share of calls that the picker would give it, mean 1, and 0.0
    while it gets none. `utilization`, `qps`, `eps` and `active` are its own last
    word, `report_age` old; None where it has said nothing.
    """

    address: str
    state: str
    reason: str
    state_age: float
    weight: float
    in_flight: int
    started: int
    served: int
    rejected: int
    failed: int
    abandoned: int
    latency: float
    utilization: float | None
    qps: float | None
    eps: float | None
    active: int | None
    report_age: float | None


@dataclass(frozen=True, slots=True)
class ResolverStatistics:
    """Where the endpoints come from. `age` is that of the last answer applied."""

    endpoints: int = 0
    updates: int = 0
    age: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """A histogram: `counts[i]` calls took at most `bounds[i]` seconds, and more
    than the bound before; the last count is of those above every bound."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """What `channel.statistics()` returns.

    `calls` counts finished calls by status code, `attempts` by verdict. `resends` are
    attempts after one that no server took, `retries` those after one that may have
    been executed. `throttled` were refused here, as backends refuse so much. `waited`
    of the calls had to wait for a backend, `waiting` do so now, `waited_seconds`
    is the sum of their waits. `replacements` backends are there beyond the subset, as
    some of it are out or not ready yet. `draining` backends have left the subset and
    end their last calls. `task_failures` counts background jobs started again.

    `subset` says how the backends were chosen, and why so: "rocksteadier as client 7
    (LBCLIENT_TASK_INDEX=7) of 60 numbered backends", "rendezvous as client 'web-x7f':
    backends have no task numbers".
    """

    target: str
    state: str
    picker: str = ""
    subset: str = ""
    subset_size: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    resends: int = 0
    retries: int = 0
    throttled: int = 0
    latency: LatencyStatistics = LatencyStatistics()
    waiting: int = 0
    waited: int = 0
    waited_seconds: float = 0.0
    in_flight: int = 0
    backends: tuple[BackendStatistics, ...] = ()
    replacements: int = 0
    draining: int = 0
    task_failures: int = 0
    resolver: ResolverStatistics = ResolverStatistics()


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What `lbclient.info(call)` tells of one call.

    `backend` is the address that it went to, None while it waits or if it never
    left. `waited` is the time without a backend.
    """

    backend: str | None
    attempts: int
    waited: float


def latency_statistics(histogram: "Histogram") -> LatencyStatistics:
    return LatencyStatistics(histogram.bounds, tuple(histogram.counts), histogram.sum)


def backend_statistics(
    backend: "Backend", weight: float, now: float
) -> BackendStatistics:
    load = backend.load
    report = load.report
    served, rejected, failed, abandoned = load.counts.values()
    return BackendStatistics(
        address=backend.endpoint.address,
        state=backend.state.value,
        reason=backend.reason,
        state_age=now - backend.since,
        weight=weight,
        in_flight=load.in_flight,
        started=load.started,
        served=served,
        rejected=rejected,
        failed=failed,
        abandoned=abandoned,
        latency=load.latency,
        utilization=None if report is None else report.utilization,
        qps=None if report is None else report.qps,
        eps=None if report is None else report.eps,
        active=None if report is None else report.active,
        report_age=None if report is None else now - load.reported_at,
    )


def channel_statistics(balancer: "Balancer") -> ChannelStatistics:
    now = balancer.clock()
    pool = balancer.pool
    ready, nodes = pool.ready, pool.nodes.values()
    weights = balancer.picker.weights(ready, now) if ready else ()
    weight_of = dict(zip(ready, weights, strict=True))
    in_flight = [node.load.in_flight for node in (*nodes, *list(balancer.draining))]
    resolved_at = balancer.resolved_at
    return ChannelStatistics(
        target=balancer.target,
        state=balancer.connectivity().name.lower(),
        picker=type(balancer.picker).__name__,
        subset=repr(balancer.subset),
        subset_size=pool.subset_size(),
        calls={
            STATUS_OF_NUMBER[number].name: count
            for number, count in balancer.calls.items()
            if count
        },
        attempts={v.value: count for v, count in balancer.attempts().items()},
        resends=balancer.resends,
        retries=balancer.retries,
        throttled=balancer.throttled,
        latency=latency_statistics(balancer.latency),
        waiting=len(balancer.waiting) + len(balancer.waiting.pausing),
        waited=balancer.waited,
        waited_seconds=balancer.waited_seconds,
        in_flight=sum(in_flight),
        backends=tuple(
            backend_statistics(node, weight_of.get(node, 0.0), now) for node in nodes
        ),
        replacements=pool.replacements(),
        draining=len(balancer.draining),
        task_failures=balancer.task_failures,
        resolver=ResolverStatistics(
            endpoints=len(pool.endpoints),
            updates=balancer.resolver_updates,
            age=None if resolved_at is None else now - resolved_at,
            error=balancer.resolver_error,
        ),
    )
