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
    ("lbclient_disabled", "gauge", "",
     "1 if LBCLIENT_DISABLE is set and channels and servers are grpc.aio's own, else "
     "0."),
    ("lbclient_calls", "counter", "target code",
     "Calls that have ended, by status code."),
    ("lbclient_attempts", "counter", "target verdict",
     "Attempts that have ended, by what the client concluded about the backend."),
    ("lbclient_picks", "counter", "target policy",
     "Backends picked for an attempt, by picker."),
    ("lbclient_resends", "counter", "target",
     "Attempts sent again because no server had accepted the one before."),
    ("lbclient_retries", "counter", "target",
     "Attempts after one that was refused, or that may have been executed."),
    ("lbclient_hedges", "counter", "target",
     "Hedges sent: second attempts of calls whose first attempt was in flight."),
    ("lbclient_hedges_won", "counter", "target",
     "Hedges whose answer became the answer of their call."),
    ("lbclient_hedges_withheld", "counter", "target reason",
     "Hedges that were due and not sent, by reason."),
    ("lbclient_sent_attempts", "counter", "target attempt",
     "Attempts sent, by number, from 0, as servers are told; later attempts than 2 "
     "count as 2."),
    ("lbclient_refused_attempts", "counter", "target attempt",
     "Attempts that a backend refused because of its load, by number as in "
     "lbclient_sent_attempts."),
    ("lbclient_retries_left", "gauge", "target",
     "Retries that the retry budget allows right now."),
    ("lbclient_throttled", "counter", "target",
     "Attempts that the client did not send because backends were refusing such "
     "requests."),
    ("lbclient_refused", "counter", "target reason",
     "Calls that failed in the client without a response from a backend, by "
     "reason."),
    ("lbclient_attempt_latency_seconds", "histogram", "target",
     "Latency of attempts, from picking a backend to the end of the attempt."),
    ("lbclient_first_message_seconds", "histogram", "target",
     "Time from sending a stream to a backend until its first message."),
    ("lbclient_resumable_streams", "gauge", "target",
     "Resumable streams that are open."),
    ("lbclient_stream_moves", "counter", "target",
     "Times that a resumable stream was asked to move to another backend."),
    ("lbclient_call_duration_seconds", "histogram",
     "target grpc_service grpc_method grpc_code",
     "Duration of whole calls as the caller sees them, with waiting for a backend and "
     "all retries, by method and status code."),
    ("lbclient_attempt_duration_seconds", "histogram",
     "target grpc_service grpc_method grpc_code",
     "Duration of single attempts, with waiting for a backend, by method and status "
     "code. A call that is retried has several attempts."),
    ("lbclient_in_flight", "gauge", "target", "Attempts in flight."),
    ("lbclient_waiting", "gauge", "target", "Calls waiting for a backend."),
    ("lbclient_waited", "counter", "target",
     "Calls that waited before a backend was picked."),
    ("lbclient_wait_seconds", "counter", "target",
     "Total time that calls have waited before a backend was picked."),
    ("lbclient_loop_stall_seconds", "counter", "target",
     "Total time that the client's event loop stood still while calls were in flight, "
     "by the count of each channel."),
    ("lbclient_task_failures", "counter", "target",
     "Background tasks of channels that failed and were started again."),
    ("lbclient_channels", "gauge", "target", "Open channels."),
    ("lbclient_backends", "gauge", "target state",
     "Backends that the channels keep, by state."),
    ("lbclient_subset_size", "gauge", "target",
     "Backends in the subset when all of them are healthy."),
    ("lbclient_replacements", "gauge", "target",
     "Backends kept in place of unhealthy ones of the subset."),
    ("lbclient_draining_backends", "gauge", "target",
     "Backends no longer in the subset that still have calls in flight."),
    ("lbclient_ejected_backends", "gauge", "target",
     "Backends that get no calls of at least one method, because only they fail "
     "it or answer late."),
    ("lbclient_slowed_backends", "gauge", "target",
     "Backends whose requests take more of their capacity than usual, compared with "
     "the other backends."),
    ("lbclient_shared_backends", "gauge", "target",
     "Backends whose address is shared by several tasks, as behind a proxy."),
    ("lbclient_spilled", "counter", "target",
     "Picks in another zone or priority than the first one, because the first one was "
     "full or gone. A call that is sent again has several picks."),
    ("lbclient_keyed_picks", "counter", "target",
     "Picks for calls with a key, by a picker that knows keys."),
    ("lbclient_first_choices", "counter", "target",
     "Picks for calls with a key that went to the key's first choice among the ready "
     "backends."),
    ("lbclient_asked_keys", "counter", "target",
     "Keys of calls whose backend was picked by the keys it has probably cached."),
    ("lbclient_expected_key_hits", "counter", "target",
     "Keys of calls that their backend had probably cached."),
    ("lbclient_zone_ready_backends", "gauge", "target zone priority",
     "Ready backends, by zone and priority. Absent where the resolver tells neither."),
    ("lbclient_zone_utilization", "gauge", "target zone priority",
     "Mean utilization of the ready backends in the channel's subset, by zone and "
     "priority."),
    ("lbclient_zone_utilization_limit", "gauge", "target zone priority",
     "Utilization above which calls leave a zone and priority (spill_above). Absent "
     "without spill-over."),
    ("lbclient_ejections", "counter", "target",
     "Ejections: one backend for one method that only it failed or answered late."),
    ("lbclient_weights", "gaugehistogram", "target",
     "Backends by their share of the calls, relative to the mean share."),
    ("lbclient_report_ages_seconds", "gaugehistogram", "target",
     "Backends by the age of their last load report."),
    ("lbclient_resolver_updates", "counter", "target", "Answers of the resolver."),
    ("lbclient_resolver_age_seconds", "gauge", "target",
     "Age of the resolver's last answer."),
    ("lbclient_resolver_endpoints", "gauge", "target",
     "Endpoints in the resolver's last answer."),
    ("lbclient_resolver_failing", "gauge", "target",
     "Channels whose resolver failed or found no endpoints at its last attempt, or "
     "whose subset algorithm raised."),
    # Of a server
    ("lbclient_server_requests", "counter", "code",
     "Requests that have ended, by status code."),
    ("lbclient_server_latency_seconds", "histogram", "",
     "Latency of requests, from their acceptance to their end."),
    ("lbclient_server_request_duration_seconds", "histogram",
     "grpc_service grpc_method grpc_code",
     "Duration of requests that the server has ended, refused ones included, by method "
     "and status code."),
    ("lbclient_server_active_requests", "gauge", "", "Requests in progress."),
    ("lbclient_server_utilization", "gauge", "",
     "Utilization that the server reports to clients; 1 is full."),
    ("lbclient_server_contention", "gauge", "kind",
     "Share of time in which the server needed a CPU and got none, by cause."),
    ("lbclient_server_cost_rise", "gauge", "",
     "Cost of a request, in capacity of the server, over its usual cost, compared with "
     "the fleet as clients tell it; 1 is usual."),
    ("lbclient_server_slowed", "gauge", "",
     "1 if a request takes more of the server's capacity than usual, compared with the "
     "fleet, else 0."),
    ("lbclient_server_loop_utilization", "gauge", "",
     "Share of time in which the server's event loop was busy; 1 is full."),
    ("lbclient_server_loop_lag_seconds", "gauge", "",
     "Delay of timers on the server's event loop."),
    ("lbclient_server_load", "gauge", "", "Requests running or ready to run, per CPU."),
    ("lbclient_server_signal", "gauge", "signal",
     "Overload signals, each divided by its target; above 1 the server refuses "
     "requests."),
    ("lbclient_server_refused", "counter", "reason criticality",
     "Requests refused before their handler ran, by reason and criticality."),
    ("lbclient_server_declined", "counter", "",
     "Attempts left to another pick of their client, as the server was busier than "
     "usual; neither finished requests nor refused ones."),
    ("lbclient_server_attempts", "counter", "attempt",
     "Requests by the number of their attempt, from 0, as the client counts them; "
     "later attempts than 2 count as 2."),
    ("lbclient_server_retries_in_vain", "gauge", "",
     "1 if so many requests are retries that the server tells clients not to retry, "
     "else 0."),
    ("lbclient_server_retries_withheld", "counter", "",
     "Refusals for load that told stock gRPC clients not to retry, because the retry "
     "budget that the server keeps for them was spent."),
    ("lbclient_server_misread", "counter", "key",
     "Requests whose metadata could not be parsed, by metadata key."),
    ("lbclient_server_state", "gauge", "state", "Servers in each state."),
    ("lbclient_server_watchers", "gauge", "", "Open health and load streams."),
    ("lbclient_server_streams_refused", "counter", "reason",
     "Health and load streams refused, by reason."),
    ("lbclient_server_udp_probes", "counter", "outcome",
     "UDP health checks received, by outcome."),
    ("lbclient_server_udp_pushes", "counter", "",
     "UDP messages telling clients that the server is a lame duck."),
    ("lbclient_server_signal_failures", "counter", "",
     "Readings of ServerConfig.signals that raised an error or were no valid "
     "number."),
    ("lbclient_server_task_failures", "counter", "",
     "Background tasks of servers that failed and were started again."),
    ("lbclient_server_method_cost_seconds", "counter", "grpc_service grpc_method",
     "CPU seconds that requests have cost in their handlers, normalized by "
     "cpu_factor, by method."),
    ("lbclient_server_customer_cost_seconds", "counter", "customer",
     "CPU seconds that requests have cost in their handlers, normalized by "
     "cpu_factor, by customer."),
    ("lbclient_server_quota_usage", "gauge", "customer",
     "CPU time used by a customer's requests, in CPU seconds per second."),
    ("lbclient_server_quota_share", "gauge", "customer",
     "Fraction of a customer's quota that this server may give out."),
    ("lbclient_server_quota_exchanges", "counter", "outcome",
     "Exchanges with the quota store, by outcome."),
    ("lbclient_server_quota_malformed", "counter", "",
     "Entries of the quota store that could not be parsed."),
    ("lbclient_server_quota_pooled", "counter", "",
     "Requests charged to one shared account because the customer's name is too "
     "long or not printable."),
    ("lbclient_server_quota_forgotten", "counter", "",
     "Customer accounts dropped for lack of room while above their limit."),
)

# Only of channels that are exported with `backends=`.
OF_BACKENDS = _families(
    ("lbclient_backend_attempts", "counter", "target backend verdict",
     "Attempts on the backend that have ended, by what the client concluded."),
    ("lbclient_backend_in_flight", "gauge", "target backend",
     "Attempts in flight on the backend."),
    ("lbclient_backend_ready", "gauge", "target backend",
     "Channels in which the backend is ready for calls."),
    ("lbclient_backend_ejected", "gauge", "target backend",
     "Methods of which the backend gets no calls, because only it fails them or "
     "answers them late."),
    ("lbclient_backend_recent_errors", "gauge", "target backend",
     "Recent errors held against the backend; each fades over 10 s."),
    ("lbclient_backend_fronts", "gauge", "target backend",
     "Tasks seen behind the backend's address within 10 s; 0: not shared."),
    ("lbclient_backend_weight", "gauge", "target backend",
     "The backend's share of the calls, relative to the mean of its channel."),
    ("lbclient_backend_utilization", "gauge", "target backend",
     "Utilization that the backend last reported; 1 is full."),
    ("lbclient_backend_slowed", "gauge", "target backend",
     "Channels that see requests take more of the backend's capacity than usual, "
     "compared with the other backends."),
)

# The names and labels of go-grpc-prometheus, which dashboards everywhere know.
HANDLED = _families(*(
    (f"grpc_{side}_handled", "counter", "grpc_type grpc_service grpc_method grpc_code",
     f"Calls that have ended on the {side}'s side, by method and status code.")
    for side in ("client", "server")
))
# fmt: on

FAMILIES = (*OURS, *OF_BACKENDS, *HANDLED)

# Of several sources the highest says more than the sum.
HIGHEST = frozenset(
    {
        "lbclient_zone_utilization",
        "lbclient_zone_utilization_limit",
        "lbclient_disabled",
        "lbclient_backend_fronts",
        "lbclient_backend_utilization",
        "lbclient_resolver_age_seconds",
        "lbclient_resolver_endpoints",
        "lbclient_server_contention",
        "lbclient_server_cost_rise",
        "lbclient_server_load",
        "lbclient_server_loop_lag_seconds",
        "lbclient_server_loop_utilization",
        "lbclient_server_quota_share",
        "lbclient_server_retries_in_vain",
        "lbclient_server_signal",
        "lbclient_server_slowed",
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
