"""When the limit is lowered for a probe, and when it is raised again."""

from lbclient.core.overload.latency_probe import (
    PERIOD,
    PERIOD_BASELINES,
    REQUESTS,
    TIMEOUT,
    TIMEOUT_LATENCIES,
    LatencyProbe,
)


def test_a_probe_is_over_once_enough_requests_were_measured() -> None:
    probe = LatencyProbe(6)
    probe.begin(100.0, 0.05)
    for _ in range(REQUESTS):
        assert probe.is_running
        assert not probe.is_over(100.1)
        probe.measure()
    assert probe.is_over(100.1)
    probe.end(100.1, 0.05)
    assert not probe.is_running
    assert not probe.has_all


def test_a_probe_does_not_wait_for_ever() -> None:
    probe = LatencyProbe(6)
    probe.begin(100.0, 0.5)
    timeout = TIMEOUT + 0.5 * TIMEOUT_LATENCIES
    assert not probe.is_over(100.0 + 0.99 * timeout)
    assert probe.is_over(100.0 + 1.01 * timeout)


def test_slow_requests_are_probed_less_often() -> None:
    probe = LatencyProbe(6)
    for baseline, period in ((0.01, PERIOD), (1.0, PERIOD_BASELINES)):
        probe.end(100.0, baseline)
        assert not probe.is_due(100.0 + 0.99 * period)
        assert probe.is_due(100.0 + 1.01 * period)
