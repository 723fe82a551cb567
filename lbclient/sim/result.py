"""Results of a simulation: how evenly the work was spread, and how long requests took.

A request that failed, or took longer than the scenario's timeout, counts as the
timeout: else a picker would look good for failing slow requests. Utilization is of each
backend's own processors, whatever their speed, so max/mean is 1 if all are equally
busy.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from lbclient.sim.scenario import Scenario


class Second(NamedTuple):
    """Totals of each backend at one second: busy seconds, requests received."""

    at: float
    busy: list[float]
    received: list[int]


class Result(NamedTuple):
    """Results of one run, without its warm-up. Latencies in seconds; `errors` is a
    share.

    `spread` is max/mean utilization of the backends that are not sinkholes.
    """

    requests: int
    spread: float
    mean: float
    errors: float
    p50: float
    p99: float
    throttled: float  # share that never left its client
    attempts: float  # for each request
    probes: float  # likewise
    # Fair shares that sinkholes, or gray backends, got from 5 s after on; 0.0: unknown
    sinkhole: float
    away: float  # share of all attempts, of the warm-up too, that left their zone
    utilization: list[float]  # of each backend
    seconds: list[list[float]]  # the same for each second
    tails: list[float]  # p99 of the requests sent in each second
    # Root mean square, over clients and seconds, of how far the utilization of the
    # zone's backends in a client's subset is from that of all the zone's backends.
    zone_error: float


SINKHOLE_KNOWN = 5.0  # seconds until a picker is to have noticed a sinkhole; ours


def measure(
    scenario: Scenario,
    latencies: "array[float]",
    sent_at: "array[float]",
    seconds: Sequence[Second],
    throttled: int,
    attempts: int,
    probes: int = 0,
    away: float = 0.0,
    zone_error: float = 0.0,
) -> Result:
    """Raises ValueError if the window is so short that no request came in it."""
    if not latencies:
        raise ValueError("no request came in the window")
    timeout = scenario.timeout
    lasted = sorted(min(each, timeout) for each in latencies)
    total = len(lasted)
    inside = during(scenario, seconds, 0.0)
    utilization = rates(inside[0].busy, inside[-1].busy, scenario.window)
    working = utilization[scenario.sinkholes :]
    mean = fmean(working)
    return Result(
        total,
        max(working) / mean if mean else 1.0,
        mean,
        lasted.count(timeout) / total,
        lasted[total // 2],
        lasted[total * 99 // 100],
        throttled / total,
        attempts / total,
        probes / total,
        _sinkhole(scenario, during(scenario, seconds, SINKHOLE_KNOWN)),
        away,
        utilization,
        [
            rates(one.busy, other.busy, other.at - one.at)
            for one, other in pairwise(inside)
        ],
        _tails(scenario, latencies, sent_at),
        zone_error,
    )


def _tails(
    scenario: Scenario, latencies: "array[float]", sent_at: "array[float]"
) -> list[float]:
    tails = []
    begin = 0
    for second in range(1, int(scenario.window) + 1):
        end = bisect_left(sent_at, scenario.warm_up + second, begin)
        lasted = sorted(latencies[begin:end])
        worst = lasted[len(lasted) * 99 // 100] if lasted else 0.0
        tails.append(min(worst, scenario.timeout))
        begin = end
    return tails


def of_zones(scenario: Scenario, values: Sequence[float]) -> list[float]:
    """The mean of each zone, of values of all backends."""
    zones = max(1, scenario.zones)
    return [fmean(values[first::zones]) for first in range(zones)]


def rms(values: Sequence[float]) -> float:
    """The root mean square; 0.0 without values."""
    return sqrt(fmean(value * value for value in values)) if values else 0.0


def during(scenario: Scenario, seconds: Sequence[Second], after: float) -> list[Second]:
    """Those within the window, from `after` its beginning on."""
    begin, end = scenario.warm_up + after - 0.5, scenario.warm_up + scenario.window
    return [each for each in seconds if begin <= each.at < end + 0.5]


def rates(
    before: Sequence[float], after: Sequence[float], lasted: float
) -> list[float]:
    return [(new - old) / lasted for old, new in zip(before, after, strict=True)]


def _sinkhole(scenario: Scenario, seconds: Sequence[Second]) -> float:
    ill = scenario.sinkholes or scenario.gray
    if not ill or len(seconds) < 2:
        return 0.0
    got = rates(seconds[0].received, seconds[-1].received, 1.0)
    return fmean(got[:ill]) / fmean(got) if any(got) else 0.0


class MeanAndDeviation(NamedTuple):
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float


def over_seeds(
    results: Sequence[Result], field: Callable[[Result], float]
) -> MeanAndDeviation:
    """The deviation is that of a single run, 0.0 where there is only one."""
    values = [field(result) for result in results]
    deviation = stdev(values) if len(values) > 1 else 0.0
    return MeanAndDeviation(fmean(values), deviation)


def variation(result: Result, backend: int, seconds: int = 5) -> float:
    """Coefficient of variation in time, of one backend's utilization over 5 s."""
    samples = [row[backend] for row in result.seconds]
    blocks = [
        fmean(samples[start : start + seconds])
        for start in range(0, len(samples) - seconds + 1, seconds)
    ]
    mean = fmean(blocks)
    square = fmean((block - mean) ** 2 for block in blocks)
    return sqrt(square) / mean if mean else 0.0
