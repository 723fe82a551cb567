"""What a server tells of itself at one moment; the metrics collector's only source."""

from collections.abc import Mapping
from dataclasses import dataclass

from lbclient.model import TaskState


@dataclass(frozen=True, slots=True)
class UdpStatistics:
    """UDP health checks: `port`, 0 for none, and what became of the datagrams.

    `answered` probes; `malformed` ones, which are none; `forged` ones, sealed with
    another secret; `limited` ones, too many at a time. `pushed` is the number of
    clients that were told of the lame duck unasked.
    """

    port: int = 0
    answered: int = 0
    malformed: int = 0
    forged: int = 0
    limited: int = 0
    pushed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Rates are per second, latencies in seconds."""

    state: TaskState
    utilization: float
    qps: float
    eps: float
    active: int
    requests: Mapping[str, int]
    """Finished requests by the name of their status code."""

    watchers: int
    """Health and load streams that are open now."""

    signal_failures: int
    """How often a signal of `ServerConfig` gave no sound number."""

    latency_bounds: tuple[float, ...]
    latency_counts: tuple[int, ...]
    """Per bucket, as in `Histogram`; requests that their clients gave up left out."""

    latency_sum: float
    load: float
    """Requests that run or want to, for each processor: see `ServerConfig.max_load`."""

    refused: Mapping[str, Mapping[str, int]]
    """Requests that were refused, by reason and criticality."""

    misread: Mapping[str, int]
    """Requests with metadata that was not understood, by its key."""

    usage: Mapping[str, float]
    """CPU seconds a second of each customer lately; empty without quotas."""

    udp: UdpStatistics = UdpStatistics()
