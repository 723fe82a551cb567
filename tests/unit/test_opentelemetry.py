"""The same statistics as OpenTelemetry's SDK gets them."""

import gc
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import (
    MeterProvider,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
)
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View

from lbclient.metrics import opentelemetry
from lbclient.metrics.families import HANDLED, SAMPLES
from tests.unit.test_metrics import CHANNEL, FakeChannel, FakeServer


class Collected:
    def __init__(
        self,
        *sources: Any,
        backends: int = 0,
        kind: type[MeterProvider] = MeterProvider,
    ) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = kind([self._reader], shutdown_on_exit=False)
        self.provider.__dict__["is_made"] = True
        for source in sources:
            opentelemetry.export(source, self.provider, backends=backends)

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def __call__(self, name: str, **labels: str) -> float | None:
        metric = self.metrics().get(name)
        for point in metric.data.data_points if metric else ():
            if labels.items() <= point.attributes.items():
                return float(point.value)
        return None


def test_a_channel_and_a_server_are_shown() -> None:
    seen = Collected(_channel := FakeChannel(), _server := FakeServer(), backends=1)
    assert seen("lbclient.calls", code="OK", target="dns:///search") == 7
    assert seen("lbclient.picks", policy="round_robin") == 14
    assert seen("lbclient.in_flight") == 6
    assert seen("lbclient.resolver_age") == 30
    assert seen("lbclient.wait") == 0.5
    assert seen("lbclient.backend_ready", backend="b:1") == 1
    assert seen("lbclient.server_requests", code="OK") == 5
    assert seen("lbclient.server_utilization") == 0.4


def test_a_histogram_is_one_in_the_sdk_and_a_distribution_of_now_three() -> None:
    seen = Collected(_channel := FakeChannel())
    metrics = seen.metrics()
    latency = metrics["lbclient.attempt_latency"]
    (point,) = latency.data.data_points
    assert latency.unit == "s"
    assert (point.count, point.sum) == (8, 4.5)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert point.attributes == {"target": "dns:///search"}
    assert "lbclient.attempt_latency.bucket" not in metrics
    assert seen("lbclient.weights.count") == 3


@pytest.mark.parametrize("has_others", [False, True])
def test_histograms_need_no_other_instrument_of_ours(has_others: bool) -> None:
    """Views drop all that are no histograms of ours; somebody else may have some."""
    reader, channel = InMemoryMetricReader(), FakeChannel()
    views = [
        View(instrument_type=kind, meter_name="lbclient", aggregation=DropAggregation())
        for kind in (ObservableCounter, ObservableUpDownCounter, ObservableGauge)
    ]
    provider = MeterProvider([reader], views=views)
    if has_others:
        provider.get_meter("theirs").create_counter("theirs").add(1)
    opentelemetry.export(channel, provider)
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    found = {scope.scope.name: scope.metrics for scope in resource.scope_metrics}
    assert found.keys() == ({"theirs", "lbclient"} if has_others else {"lbclient"})
    assert "lbclient.attempt_latency" in {one.name for one in found["lbclient"]}
    provider.shutdown()


class OtherMeters(MeterProvider):
    """As of another SDK, which has no door for histograms."""

    def __getattribute__(self, name: str) -> Any:
        if name == "_metric_readers" and "is_made" in self.__dict__:
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_with_another_sdk_a_histogram_is_three_instruments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = Collected(_channel := FakeChannel(), kind=OtherMeters)
    assert seen("lbclient.attempt_latency.bucket", le="1.0") == 7
    (record,) = caplog.records  # once: it derives from the SDK's own
    assert "takes no histograms" in record.getMessage()
    assert seen("lbclient.attempt_latency.bucket", le="+Inf") == 8
    assert seen("lbclient.attempt_latency.count") == 8
    assert seen("lbclient.attempt_latency.sum") == 4.5
    metrics = seen.metrics()
    assert "lbclient.attempt_latency" not in metrics
    assert metrics["lbclient.attempt_latency.sum"].unit == "s"
    assert metrics["lbclient.attempt_latency.count"].unit == "1"


def test_what_may_fall_is_no_counter() -> None:
    seen = Collected(_channel := FakeChannel(), _server := FakeServer())
    metrics = seen.metrics()
    assert metrics["lbclient.calls"].data.is_monotonic
    assert not metrics["lbclient.in_flight"].data.is_monotonic
    assert not hasattr(metrics["lbclient.server_utilization"].data, "is_monotonic")


def test_every_sample_has_a_name_of_its_own() -> None:
    names = [
        opentelemetry.dotted(sample, family)
        for sample, (family, _) in SAMPLES.items()
        if family not in HANDLED
    ]
    assert len(set(names)) == len(names)


def test_to_export_twice_counts_once_and_to_another_provider_too() -> None:
    channel = FakeChannel()
    seen, other = Collected(channel, channel), Collected(channel)
    assert seen("lbclient.channels") == other("lbclient.channels") == 1


def test_counts_outlive_a_channel() -> None:
    seen = Collected(channel := FakeChannel(), _other := FakeChannel(CHANNEL))
    assert seen("lbclient.calls", code="OK") == 14
    channel.said = replace(CHANNEL, calls={"OK": 9})
    del channel
    gc.collect()
    assert seen("lbclient.calls", code="OK") == 14


def test_only_channels_and_servers_can_be_exported() -> None:
    with pytest.raises(TypeError, match="neither a channel nor a server"):
        opentelemetry.export("dns:///search")  # type: ignore[arg-type]
