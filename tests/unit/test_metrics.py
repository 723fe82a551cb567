"""What a scrape makes of the statistics of channels and servers, dead ones too."""

import gc
import logging
from dataclasses import replace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lbclient import Channel, ChannelStatistics, Server, ServerStatistics, metrics
from lbclient.client.observers import Observers
from lbclient.core.errors import ConfigError
from lbclient.core.model import TaskState
from lbclient.core.statistics.call_times import CallTimes
from lbclient.core.statistics.records import (
    BackendStatistics,
    LatencyStatistics,
    ResolverStatistics,
)
from lbclient.metrics import samples, sums
from lbclient.server.statistics import (
    AttemptStatistics,
    ContentionStatistics,
    CostStatistics,
    QuotaStatistics,
    SignalStatistics,
    UdpStatistics,
)

READY = grpc.ChannelConnectivity.READY
SHUTDOWN = grpc.ChannelConnectivity.SHUTDOWN


def backend(state: str, address: str = "b:1") -> BackendStatistics:
    return BackendStatistics(
        address=address,
        state=state,
        reason="",
        state_age=1.0,
        weight=1.0,
        in_flight=0,
        started=0,
        served=0,
        rejected=0,
        failed=0,
        abandoned=0,
        latency=0.0,
        utilization=None,
        qps=None,
        eps=None,
        active=None,
        report_age=None,
    )


CHANNEL = ChannelStatistics(
    target="dns:///search",
    state="ready",
    picker="RoundRobin",
    subset="",
    subset_size=20,
    calls={"OK": 7, "UNAVAILABLE": 2},
    attempts={"served": 7, "rejected": 0, "failed": 1, "abandoned": 0},
    latency=LatencyStatistics((0.1, 1.0), (5, 2, 1), 4.5),
    waiting=3,
    waited=4,
    waited_seconds=0.5,
    in_flight=6,
    backends=(backend("ready"), backend("ready"), backend("lame duck")),
    replacements=3,
    draining=1,
    task_failures=9,
    resolver=ResolverStatistics(endpoints=12, updates=2, age=30.0, error=""),
    retries_left=10.0,
    sent_attempts={"0": 9, "1": 4, "2": 1},
    refused_attempts={"0": 5, "1": 2, "2": 0},
    throttled=8,
    refused={"throttled": 5, "quota": 3},
    methods={
        ("unary_unary", "/search.Search/Search"): {"OK": 6, "NOT_FOUND": 1},
        ("unary_stream", "/search.Search/List"): {"OK": 1},
        ("", ""): {"UNAVAILABLE": 2},
    },
)

SERVER = ServerStatistics(
    state=TaskState.SERVING,
    utilization=0.4,
    qps=10.0,
    eps=0.0,
    active=2,
    requests={"OK": 5},
    watchers=1,
    signal_failures=0,
    latency_bounds=(0.1, 1.0),
    latency_counts=(4, 1, 0),
    latency_sum=0.9,
    load=3.0,
    refused={"overloaded": {"SHEDDABLE": 7, "CRITICAL": 0}},
    declined=17,
    misread={"lbclient-attempt": 2},
    streams_refused={"connection": 3, "server": 0},
    usage={"": 0.5, "mail": 2.0},
    contention=ContentionStatistics(
        waiting=0.1, throttled=0.2, stolen=0.3, loop=0.5, lag=0.004
    ),
    cost=CostStatistics(1.2, 1.6, is_slowed=True, clients=3),
    udp=UdpStatistics(50051, 11, 12, 13, 14, 15),
    methods={("stream_stream", "/search.Search/Chat"): {"OK": 5, "UNKNOWN": 0}},
    signals=(SignalStatistics("load", 4.0, 8.0), SignalStatistics("disk", 1.2, 1.0)),
)


class FakeChannel(Channel):
    """A channel that says what it is told to say."""

    def __init__(self, said: ChannelStatistics = CHANNEL) -> None:
        self.said: ChannelStatistics | Exception = said
        self.state = READY
        self._observers = Observers()
        self._balancer = None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.state

    def statistics(self) -> ChannelStatistics:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def __repr__(self) -> str:
        return "<fake channel>"


class FakeServer(Server):
    def __init__(self, said: ServerStatistics = SERVER) -> None:
        self.said = said
        self.times = CallTimes(lambda: None)

    def _keep_times(self, find_trace: object, measures: bool) -> CallTimes:
        return self.times

    def statistics(self) -> ServerStatistics:
        return self.said


class Scraped:
    """A registry and the sources that are shown in it."""

    def __init__(self, *sources: Channel | Server) -> None:
        self.registry = CollectorRegistry()
        for source in sources:
            metrics.export(source, self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        if not name.startswith(("lbclient_server", "grpc_")):
            labels.setdefault("target", "dns:///search")
        return self.registry.get_sample_value(name, labels)

    def series(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        text = generate_latest(self.registry).decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def test_a_channel_is_shown() -> None:
    scraped = Scraped(channel := FakeChannel())
    assert scraped("lbclient_calls_total", code="OK") == 7
    assert scraped("lbclient_calls_total", code="UNAVAILABLE") == 2
    assert scraped("lbclient_attempts_total", verdict="failed") == 1
    assert scraped("lbclient_in_flight") == 6
    assert scraped("lbclient_waiting") == 3
    assert scraped("lbclient_waited_total") == 4
    assert scraped("lbclient_wait_seconds_total") == 0.5
    assert scraped("lbclient_channels") == 1
    assert scraped("lbclient_backends", state="ready") == 2
    assert scraped("lbclient_backends", state="lame_duck") == 1
    assert scraped("lbclient_subset_size") == 20
    assert scraped("lbclient_picks_total", policy="round_robin") == 14
    assert scraped("lbclient_retries_left") == 10
    assert scraped("lbclient_throttled_total") == 8
    assert scraped("lbclient_refused_total", reason="quota") == 3
    assert scraped("lbclient_refused_total", reason="full") == 0
    assert scraped("lbclient_replacements") == 3
    assert scraped("lbclient_draining_backends") == 1
    assert scraped("lbclient_task_failures_total") == 9
    assert scraped("lbclient_resolver_updates_total") == 2
    assert scraped("lbclient_resolver_age_seconds") == 30
    assert scraped("lbclient_resolver_endpoints") == 12
    assert scraped("lbclient_resolver_failing") == 0
    resolver = replace(CHANNEL.resolver, error="no answer", age=None)
    channel.said = replace(CHANNEL, resolver=resolver)
    assert scraped("lbclient_resolver_failing") == 1
    assert scraped("lbclient_resolver_age_seconds") is None


def test_a_server_is_shown() -> None:
    scraped = Scraped(_server := FakeServer())
    assert scraped("lbclient_server_requests_total", code="OK") == 5
    assert scraped("lbclient_server_requests_total", code="INTERNAL") == 0
    assert scraped("lbclient_server_active_requests") == 2
    assert scraped("lbclient_server_utilization") == 0.4
    assert scraped("lbclient_server_watchers") == 1
    refused = "lbclient_server_streams_refused_total"
    assert scraped(refused, reason="connection") == 3
    assert scraped(refused, reason="server") == 0
    assert scraped("lbclient_server_signal_failures_total") == 0
    assert scraped("lbclient_server_udp_probes_total", outcome="answered") == 11
    assert scraped("lbclient_server_udp_probes_total", outcome="malformed") == 12
    assert scraped("lbclient_server_udp_probes_total", outcome="forged") == 13
    assert scraped("lbclient_server_udp_probes_total", outcome="limited") == 14
    assert scraped("lbclient_server_udp_pushes_total") == 15
    assert scraped("lbclient_server_state", state="serving") == 1
    assert scraped("lbclient_server_state", state="lame_duck") == 0
    assert scraped("lbclient_server_latency_seconds_count") == 5
    assert scraped("lbclient_server_signal", signal="disk") == 1.2
    assert scraped("lbclient_server_contention", kind="waiting") == 0.1
    assert scraped("lbclient_server_contention", kind="throttled") == 0.2
    assert scraped("lbclient_server_contention", kind="stolen") == 0.3
    assert scraped("lbclient_server_cost_rise") == 1.6
    assert scraped("lbclient_server_slowed") == 1
    assert scraped("lbclient_server_loop_utilization") == 0.5
    assert scraped("lbclient_server_loop_lag_seconds") == 0.004
    assert scraped("lbclient_server_declined_total") == 17
    said = {"reason": "overloaded", "criticality": "SHEDDABLE"}
    assert scraped("lbclient_server_refused_total", **said) == 7


def test_contention_that_cannot_be_read_has_no_sample() -> None:
    kept = ContentionStatistics(waiting=0.0, lag=0.002)
    scraped = Scraped(_server := FakeServer(replace(SERVER, contention=kept)))
    assert scraped("lbclient_server_contention", kind="waiting") == 0.0
    assert scraped("lbclient_server_contention", kind="throttled") is None
    assert scraped("lbclient_server_contention", kind="stolen") is None
    assert scraped("lbclient_server_loop_lag_seconds") == 0.002


def test_buckets_accumulate_up_to_infinity() -> None:
    scraped = Scraped(_channel := FakeChannel())
    name = "lbclient_attempt_latency_seconds"
    assert [scraped(f"{name}_bucket", le=le) for le in ("0.1", "1.0", "+Inf")] == [
        5,
        7,
        8,
    ]
    assert scraped(f"{name}_count") == 8
    assert scraped(f"{name}_sum") == 4.5


def test_what_never_happened_is_zero_and_not_missing() -> None:
    scraped = Scraped(_channel := FakeChannel())
    assert scraped("lbclient_calls_total", code="DATA_LOSS") == 0
    assert scraped("lbclient_attempts_total", verdict="rejected") == 0
    assert scraped("lbclient_backends", state="refusing") == 0
    scraped = Scraped(_idle := FakeChannel(ChannelStatistics(CHANNEL.target, "idle")))
    assert scraped("lbclient_sent_attempts_total", attempt="2") == 0
    assert scraped("lbclient_refused_attempts_total", attempt="0") == 0


def test_attempts_are_counted_by_number() -> None:
    scraped = Scraped(_channel := FakeChannel())
    assert scraped("lbclient_sent_attempts_total", attempt="0") == 9
    assert scraped("lbclient_sent_attempts_total", attempt="1") == 4
    assert scraped("lbclient_refused_attempts_total", attempt="1") == 2


def test_channels_to_one_target_add_up_and_to_another_do_not() -> None:
    channels = [FakeChannel(), FakeChannel(), FakeChannel(replace(CHANNEL, target="b"))]
    scraped = Scraped(*channels)
    assert scraped("lbclient_calls_total", code="OK") == 14
    assert scraped("lbclient_channels") == 2
    assert scraped("lbclient_resolver_endpoints") == 12
    assert scraped("lbclient_calls_total", code="OK", target="b") == 7


def test_servers_of_one_process_add_up() -> None:
    in_vain = AttemptStatistics(others_refuse=True)
    serving = replace(SERVER, attempts=in_vain)
    leaving = replace(serving, state=TaskState.LAME_DUCK, utilization=0.1)
    servers = [FakeServer(serving), FakeServer(leaving)]
    scraped = Scraped(*servers)
    assert scraped("lbclient_server_retries_in_vain") == 1
    assert scraped("lbclient_server_requests_total", code="OK") == 10
    assert scraped("lbclient_server_utilization") == 0.4
    assert scraped("lbclient_server_state", state="lame_duck") == 1


def test_to_export_twice_counts_once() -> None:
    channel = FakeChannel()
    scraped = Scraped(channel, channel)
    assert scraped("lbclient_channels") == 1


def test_a_channel_is_held_weakly_and_its_counts_outlive_it() -> None:
    scraped = Scraped(channel := FakeChannel(), _other := FakeChannel())
    before = scraped.series()
    del channel
    gc.collect()
    after = scraped.series()
    counts = {key for key in before if key[0].endswith(("_total", "seconds_sum"))}
    assert {key: after[key] for key in counts} == {key: before[key] for key in counts}
    assert scraped("lbclient_channels") == 1
    assert scraped("lbclient_in_flight") == 6


def test_a_closed_channel_keeps_its_counts_and_has_no_backends() -> None:
    scraped = Scraped(channel := FakeChannel())
    channel.state = SHUTDOWN
    assert scraped("lbclient_calls_total", code="OK") == 7
    assert scraped("lbclient_backends", state="ready") is None
    assert scraped("lbclient_in_flight") is None


def test_a_channel_without_a_call_is_shown_with_zeros() -> None:
    scraped = Scraped(
        _channel := FakeChannel(ChannelStatistics("dns:///search", "idle"))
    )
    assert scraped("lbclient_calls_total", code="OK") == 0
    assert scraped("lbclient_attempts_total", verdict="failed") == 0
    assert scraped("lbclient_backends", state="ready") == 0
    assert scraped("lbclient_channels") == 1


def test_a_count_that_was_read_while_it_changed_takes_no_step_back() -> None:
    """A sum of several counts that change meanwhile can be one too few; `rate` would
    take that for a restart, and add all that was counted before."""
    scraped = Scraped(channel := FakeChannel(), server := FakeServer())
    seen = []
    for ok in (7, 6, 8):
        calls = {"OK": ok, "UNAVAILABLE": 2}
        channel.said = replace(CHANNEL, calls=calls)
        server.said = replace(SERVER, requests={"OK": ok})
        of_server = scraped("lbclient_server_requests_total", code="OK")
        seen.append((scraped("lbclient_calls_total", code="OK"), of_server))
    assert seen == [(7, 7), (7, 7), (8, 8)]
    del channel, server
    gc.collect()
    assert scraped("lbclient_calls_total", code="OK") == 8


def test_one_broken_source_does_not_cost_the_scrape(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scraped = Scraped(broken := FakeChannel(), _other := FakeChannel())
    assert scraped("lbclient_calls_total", code="OK") == 14
    broken.said = ZeroDivisionError("a picker of one's own")
    with caplog.at_level(logging.ERROR):
        assert scraped("lbclient_calls_total", code="OK") == 14
    assert scraped("lbclient_channels") == 1
    assert "could not be read" in caplog.text


def test_targets_are_bounded_in_number_and_length() -> None:
    targets = [f"t{i}" for i in range(sums.MAX_TARGETS + 5)]
    channels = [FakeChannel(replace(CHANNEL, target=target)) for target in targets]
    scraped = Scraped(*channels)
    assert scraped("lbclient_channels", target="t0") == 1
    assert scraped("lbclient_channels", target=targets[-1]) is None
    assert scraped("lbclient_channels", target="other") == 5
    del channels[0]
    gc.collect()
    assert scraped("lbclient_calls_total", code="OK", target="t0") == 7
    assert scraped("lbclient_calls_total", code="OK", target="other") == 35

    long = "ipv4:" + ",".join(["10.0.0.1:1"] * 10_000)
    scraped = Scraped(_channel := FakeChannel(replace(CHANNEL, target=long)))
    shown = long[: samples.MAX_LABEL]
    assert scraped("lbclient_channels", target=shown) == 1


def test_customers_are_shown_by_name_if_they_are_listed_and_not_too_many() -> None:
    """One whose name is that of all the rest is one of them."""
    listed = ("other", *(f"customer {i}" for i in range(samples.MAX_CUSTOMERS + 5)))
    invented = [f"invented {i}" for i in range(1000)]
    said = replace(
        SERVER,
        usage=dict.fromkeys((*listed, *invented), 0.5),
        quotas=QuotaStatistics(
            listed=listed, shares=dict.fromkeys((*listed, *invented), 0.25), forgotten=3
        ),
    )
    scraped = Scraped(_server := FakeServer(said))
    shown = samples.MAX_CUSTOMERS - 1
    usage, share = "lbclient_server_quota_usage", "lbclient_server_quota_share"
    names = [name for name, _ in scraped.series() if name in (usage, share)]
    assert (names.count(usage), names.count(share)) == (shown + 1, shown)
    assert scraped(usage, customer="customer 0") == 0.5
    rest = 0.5 * (len(listed) + len(invented) - shown)
    assert scraped(usage, customer="other") == rest
    assert scraped("lbclient_server_quota_forgotten_total") == 3


def test_costs_are_shown_by_method_and_by_a_bounded_number_of_customers() -> None:
    invented = [f"invented {i}" for i in range(sums.MAX_CUSTOMERS + 5)]
    path = ("unary_unary", "/search.Search/Query")
    said = replace(
        SERVER,
        method_costs={path: 2.5, ("", ""): 0.5},
        customer_costs={"": 1.0, "mail": 2.0, **dict.fromkeys(invented, 0.25)},
    )
    scraped = Scraped(*(servers := [FakeServer(said), FakeServer(said)]))
    name = "lbclient_server_method_cost_seconds_total"
    assert scraped(name, grpc_service="search.Search", grpc_method="Query") == 5.0
    assert scraped(name, grpc_service="unknown", grpc_method="unknown") == 1.0
    name = "lbclient_server_customer_cost_seconds_total"
    shown = [labels for found, labels in scraped.series() if found == name]
    assert len(shown) == sums.MAX_CUSTOMERS
    assert scraped(name, customer="mail") == 4.0
    rest = 1.0 + 0.25 * (len(invented) + 2 - sums.MAX_CUSTOMERS)
    assert scraped(name, customer="other") == 2 * rest
    servers.clear()
    gc.collect()
    assert scraped(name, customer="mail") == 4.0


def test_dead_channels_that_nobody_scrapes_leave_nothing_behind() -> None:
    scraped = Scraped()
    for _ in range(1000):
        metrics.export(FakeChannel(), scraped.registry)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        metrics.export(FakeChannel(), scraped.registry)
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_every_registry_has_its_own_collector() -> None:
    channel = FakeChannel()
    assert Scraped(channel)("lbclient_channels") == 1
    assert Scraped(channel)("lbclient_channels") == 1
    assert Scraped()("lbclient_channels") is None


def test_a_registry_can_be_asked_for_some_names_only() -> None:
    scraped = Scraped(_channel := FakeChannel())
    some = scraped.registry.restricted_registry(["lbclient_in_flight"])
    assert [metric.name for metric in some.collect()] == ["lbclient_in_flight"]


def test_weights_and_ages_of_reports_are_distributions_as_they_are_now() -> None:
    some = [
        replace(backend("ready"), weight=weight, report_age=age)
        for weight, age in [(0.5, 0.2), (1.5, 7.0), (0.0, None)]
    ]
    scraped = Scraped(channel := FakeChannel(replace(CHANNEL, backends=tuple(some))))
    bounds = ("0.5", "1.25", "1.5", "+Inf")
    name = "lbclient_weights"
    assert [scraped(f"{name}_bucket", le=le) for le in bounds] == [1, 1, 2, 2]
    assert scraped(f"{name}_gsum") == scraped(f"{name}_gcount") == 2
    assert scraped("lbclient_report_ages_seconds_bucket", le="5.0") == 1
    channel.said = replace(CHANNEL, backends=())
    assert scraped(f"{name}_gcount") == scraped(f"{name}_gsum") == 0


def test_a_policy_of_ones_own_goes_by_the_name_of_its_class() -> None:
    scraped = Scraped(_channel := FakeChannel(replace(CHANNEL, picker="Mine")))
    assert scraped("lbclient_picks_total", policy="Mine") == 14


def test_calls_by_method_have_the_names_that_dashboards_know() -> None:
    scraped = Scraped(_channel := FakeChannel(), _server := FakeServer())
    seen = {key: n for key, n in scraped.series().items() if "_handled" in key[0]}

    def series(side: str, *labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
        names = ("grpc_type", "grpc_service", "grpc_method", "grpc_code")
        pairs = zip(names, labels, strict=True)
        return f"grpc_{side}_handled_total", frozenset(pairs)

    assert seen == {
        series("client", "unary", "search.Search", "Search", "OK"): 6,
        series("client", "unary", "search.Search", "Search", "NotFound"): 1,
        series("client", "server_stream", "search.Search", "List", "OK"): 1,
        series("client", "unknown", "unknown", "unknown", "Unavailable"): 2,
        series("server", "bidi_stream", "search.Search", "Chat", "OK"): 5,
    }


def test_methods_are_bounded_over_all_channels() -> None:
    def calling(first: int) -> FakeChannel:
        paths = range(first, first + 300)
        methods = {("unary_unary", f"/a.B/{path}"): {"OK": 1} for path in paths}
        return FakeChannel(replace(CHANNEL, methods=methods))

    scraped = Scraped(_one := calling(0), _two := calling(300))
    seen = {key: n for key, n in scraped.series().items() if "_handled" in key[0]}
    assert len(seen) == sums.MAX_METHODS + 1
    assert sum(seen.values()) == 600


def test_names_that_others_have_taken_are_left_to_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    theirs = Counter("grpc_server_handled", "By an interceptor.", registry=registry)
    theirs.inc(3)
    scraped = Scraped()
    scraped.registry = registry
    metrics.export(_server := FakeServer(), registry)
    assert scraped("lbclient_server_requests_total", code="OK") == 5
    assert registry.get_sample_value("grpc_server_handled_total") == 3
    assert "without grpc_client_handled and grpc_server_handled" in caplog.text


def test_the_multiprocess_mode_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "somewhere")
    Scraped(FakeServer())
    assert "multiprocess mode" in caplog.text


# --- single backends ------------------------------------------------------------------


def with_backends(served: dict[str, int]) -> ChannelStatistics:
    some = [replace(backend("ready", a), served=n) for a, n in served.items()]
    return replace(CHANNEL, backends=tuple(some))


def served(scraped: Scraped, address: str) -> float | None:
    name = "lbclient_backend_attempts_total"
    return scraped(name, backend=address, verdict="served")


def test_nothing_is_told_of_single_backends_unless_somebody_asks() -> None:
    scraped = Scraped(channel := FakeChannel(with_backends({"a:1": 3, "b:1": 4})))
    assert "lbclient_backend_attempts_total" not in {n for n, _ in scraped.series()}
    metrics.export(channel, scraped.registry, backends=1)
    assert served(scraped, "a:1") == 3
    assert scraped("lbclient_backend_ready", backend="a:1") == 1
    assert scraped("lbclient_backend_weight", backend="a:1") == 1
    assert scraped("lbclient_backend_recent_errors", backend="a:1") == 0
    assert scraped("lbclient_backend_slowed", backend="a:1") == 0
    assert scraped("lbclient_backend_in_flight", backend="a:1") == 0
    assert scraped("lbclient_backend_utilization", backend="a:1") is None
    assert served(scraped, "b:1") is None  # one was asked for


def test_a_backend_that_all_have_left_is_shown_no_more() -> None:
    scraped = Scraped()
    one, two = (FakeChannel(with_backends({"a:1": 3, "b:1": 4})) for _ in range(2))
    for channel in (one, two):
        metrics.export(channel, scraped.registry, backends=10)
    assert served(scraped, "b:1") == 8
    one.said = with_backends({"a:1": 5})
    assert served(scraped, "a:1") == 8
    assert served(scraped, "b:1") == 8  # no step back while another has it
    two.said = with_backends({"a:1": 5, "b:1": 6})
    assert served(scraped, "b:1") == 10
    two.state = SHUTDOWN
    assert served(scraped, "b:1") is None
    assert served(scraped, "a:1") == 10


def test_a_backend_that_came_back_goes_on_from_where_it_was() -> None:
    scraped = Scraped()
    channel = FakeChannel(with_backends({"a:1": 3}))
    metrics.export(channel, scraped.registry, backends=10)
    assert served(scraped, "a:1") == 3
    channel.said = with_backends({"a:1": 1})
    assert served(scraped, "a:1") == 4


@pytest.mark.parametrize("backends", [-1, 1.5, None, True])
def test_a_number_of_backends_that_is_none_is_refused(backends: Any) -> None:
    """-1 showed all but the last, whose series are without bound."""
    with pytest.raises(ConfigError, match=f"backends = {backends}: want a whole"):
        metrics.export(FakeChannel(), CollectorRegistry(), backends=backends)


def test_only_channels_and_servers_can_be_exported() -> None:
    with pytest.raises(TypeError, match="neither a channel nor a server"):
        metrics.export("dns:///search")  # type: ignore[arg-type]
