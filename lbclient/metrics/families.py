"""The names of all metrics, their labels, and what a scrape says of each.

Seconds are seconds and counters end in `_total`, as Prometheus wants it. A family of
the kind `gaugehistogram` is a distribution as it is now, which may shrink: no `rate`.
"""

from typing import NamedTuple


class Family(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def _families(*rows: tuple[str, str, str, str]) -> tuple[Family, ...]:
    return tuple(Family(name, kind, tuple(labels.split()), help)
                 for name, kind, labels, help in rows)  # fmt: skip


# fmt: off
OURS = _families(
    ("lbclient_calls", "counter", "target code", "Calls that are over."),
    ("lbclient_attempts", "counter", "target verdict",
     "Calls that were sent, and are over."),
    ("lbclient_picks", "counter", "target policy", "Backends picked for a call."),
    ("lbclient_resends", "counter", "target", "Attempts after one that nobody took."),
    ("lbclient_retries", "counter", "target",
     "Attempts after one that was refused, or may have been run."),
    ("lbclient_retries_left", "gauge", "target",
     "Retries that the budget has for now."),
    ("lbclient_throttled", "counter", "target",
     "Attempts refused by this client itself."),
    ("lbclient_refused", "counter", "target reason",
     "Calls that ended here, for want of a backend, room, time or good prospects."),
    ("lbclient_attempt_latency_seconds", "histogram", "target", "How long those took."),
    ("lbclient_in_flight", "gauge", "target", "Calls sent, and not over."),
    ("lbclient_waiting", "gauge", "target", "Calls that wait for a backend."),
    ("lbclient_waited", "counter", "target", "Calls that got a backend after a wait."),
    ("lbclient_wait_seconds", "counter", "target", "How long those waited."),
    ("lbclient_task_failures", "counter", "target", "Background jobs started again."),
    ("lbclient_channels", "gauge", "target", "Channels that are open."),
    ("lbclient_backends", "gauge", "target state", "Backends of the subset."),
    ("lbclient_subset_size", "gauge", "target", "Backends when nobody is out."),
    ("lbclient_replacements", "gauge", "target", "Backends beyond the subset."),
    ("lbclient_draining_backends", "gauge", "target", "Backends leaving the subset."),
    ("lbclient_ejected_backends", "gauge", "target",
     "Backends that get no calls of one or more methods, as they alone fail them."),
    ("lbclient_shared_backends", "gauge", "target",
     "Backends whose address several tasks answer at, as behind a proxy."),
    ("lbclient_ejections", "counter", "target",
     "Ejections of a backend, each for one method that it alone failed."),
    ("lbclient_weights", "gaugehistogram", "target",
     "Backends by their share of the calls; 1 is the mean."),
    ("lbclient_report_ages_seconds", "gaugehistogram", "target",
     "Backends by the age of their last load report."),
    ("lbclient_resolver_updates", "counter", "target", "Answers of the resolver."),
    ("lbclient_resolver_age_seconds", "gauge", "target", "Since its last answer."),
    ("lbclient_resolver_endpoints", "gauge", "target", "Endpoints in that."),
    ("lbclient_resolver_failing", "gauge", "target", "Channels whose resolver fails."),
    # Of a server
    ("lbclient_server_requests", "counter", "code", "Requests that are over."),
    ("lbclient_server_latency_seconds", "histogram", "", "How long requests took."),
    ("lbclient_server_active_requests", "gauge", "", "Requests that are not over."),
    ("lbclient_server_utilization", "gauge", "", "As told to clients; 1 is full."),
    ("lbclient_server_contention", "gauge", "kind",
     "Share of time without a CPU that the server wanted, by kind."),
    ("lbclient_server_loop_lag_seconds", "gauge", "",
     "Seconds that timers of the server's event loop come late."),
    ("lbclient_server_load", "gauge", "", "Requests that run or want to, a processor."),
    ("lbclient_server_signal", "gauge", "signal",
     "Signals of overload, each over its target."),
    ("lbclient_server_refused", "counter", "reason criticality",
     "Requests that were not begun."),
    ("lbclient_server_misread", "counter", "key", "Requests with unsound metadata."),
    ("lbclient_server_state", "gauge", "state", "Servers in that state."),
    ("lbclient_server_watchers", "gauge", "", "Open streams of health and load."),
    ("lbclient_server_streams_refused", "counter", "reason",
     "Health and load streams refused, by reason."),
    ("lbclient_server_udp_probes", "counter", "outcome",
     "UDP health checks that came."),
    ("lbclient_server_udp_pushes", "counter", "",
     "Clients told by UDP of a lame duck."),
    ("lbclient_server_signal_failures", "counter", "", "Unsound ServerConfig signals."),
    ("lbclient_server_task_failures", "counter", "", "Background jobs started again."),
    ("lbclient_server_quota_usage", "gauge", "customer",
     "CPU seconds a second lately."),
    ("lbclient_server_quota_share", "gauge", "customer",
     "Fraction of the customer's limit that this task may give."),
    ("lbclient_server_quota_exchanges", "counter", "outcome",
     "Exchanges with the quota store, by outcome."),
    ("lbclient_server_quota_malformed", "counter", "",
     "Unsound entries of that store."),
    ("lbclient_server_quota_pooled", "counter", "",
     "Requests of one shared account: the name is too long or cannot be printed."),
    ("lbclient_server_quota_forgotten", "counter", "",
     "Customers' accounts dropped while ahead of their limit, for want of places."),
)

# Only of channels that are exported with `backends=`.
OF_BACKENDS = _families(
    ("lbclient_backend_attempts", "counter", "target backend verdict",
     "Calls that were sent to it, and are over."),
    ("lbclient_backend_in_flight", "gauge", "target backend",
     "Calls that were sent to it, and are not over."),
    ("lbclient_backend_ready", "gauge", "target backend",
     "Channels that send it calls."),
    ("lbclient_backend_ejected", "gauge", "target backend",
     "Methods that are not sent to the backend, as it alone fails them."),
    ("lbclient_backend_recent_errors", "gauge", "target backend",
     "Errors held against the backend, each fading over 10 s."),
    ("lbclient_backend_fronts", "gauge", "target backend",
     "Tasks behind the address that answered within 10 s; 0: it is not shared."),
    ("lbclient_backend_weight", "gauge", "target backend",
     "Its share of the calls, 1 being a channel's mean."),
    ("lbclient_backend_utilization", "gauge", "target backend",
     "As it last told; 1 is full."),
)

# The names and labels of go-grpc-prometheus, which dashboards everywhere know.
HANDLED = _families(*(
    (f"grpc_{side}_handled", "counter", "grpc_type grpc_service grpc_method grpc_code",
     f"Calls that are over on the {side}'s side, by method and code.")
    for side in ("client", "server")
))
# fmt: on

FAMILIES = (*OURS, *OF_BACKENDS, *HANDLED)

# Of several sources the highest says more than the sum.
HIGHEST = frozenset(
    {
        "lbclient_backend_fronts",
        "lbclient_backend_utilization",
        "lbclient_resolver_age_seconds",
        "lbclient_resolver_endpoints",
        "lbclient_server_contention",
        "lbclient_server_load",
        "lbclient_server_loop_lag_seconds",
        "lbclient_server_quota_share",
        "lbclient_server_signal",
        "lbclient_server_utilization",
    }
)

SUFFIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "counter": {"_total": ()},
    "gauge": {"": ()},
    "histogram": {"_bucket": ("le",), "_sum": (), "_count": ()},
    "gaugehistogram": {"_bucket": ("le",), "_gsum": (), "_gcount": ()},
}

SAMPLES = {
    family.name + suffix: (family, family.labels + more)
    for family in FAMILIES
    for suffix, more in SUFFIXES[family.kind].items()
}
