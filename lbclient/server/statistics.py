"""What a server tells of itself at one moment; the metrics collector's only source."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbclient.core.model import TaskState


@dataclass(frozen=True, slots=True)
class UdpStatistics:
    """UDP health checks: the first `port`, 0 for none, and what came of the datagrams.

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


@dataclass(frozen=True, slots=True)
class SignalStatistics:
    """An overload signal. Beyond `target`, which may be infinite, some requests are
    refused."""

    name: str
    value: float
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionStatistics:
    """What keeps the task from CPU time that it wants, and how busy its loop is,
    smoothed as utilization is.

    None is what the system does not tell, as where there is no /proc.
    """

    waiting: float | None = None
    """The share of time in which the event loop's thread waited for a CPU."""

    throttled: float | None = None
    """CPU time that a control group around the task lost to its quota, over that quota;
    of several groups the largest. More than 1.0 where a group that could use several
    quotas' worth of CPUs is throttled most of the time. 0.0 without a quota."""

    stolen: float | None = None
    """The share of the machine's busy CPU time that the hypervisor gave to others."""

    loop: float = 0.0
    """The share of time in which the event loop was busy, that is, did not wait for
    events; the CPU time of its thread a second where only that can be read."""

    lag: float = 0.0
    """Seconds that the event loop's timers come late. Not part of the utilization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStatistics:
    """Customers with a limit, and a server's exchanges with its quota store."""

    listed: tuple[str, ...] = ()
    """Customers with a limit of their own."""

    exchanges: int = 0
    failures: int = 0
    """Exchanges that failed, or took too long."""

    malformed: int = 0
    """Entries of others that made no sense."""

    pooled: int = 0
    """Requests whose customer's name is too long, or cannot be printed: they share an
    account."""

    forgotten: int = 0
    """Accounts that made way for others while their customers were ahead of their
    limits: see `lbclient.core.quotas.quota_accounts`."""

    tasks: int = 0
    """That were heard of lately, this one too; 0 where there is nobody to hear of."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """By customer who has a limit, what part of it is this task's; as last heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatistics:
    """Which attempt the requests are, as lbclient's channels and gRPC's own retries
    count them: "0" the first, "1", and "2" with all beyond. Are other tasks overloaded,
    too? Then many requests are retries."""

    requests: Mapping[str, int] = field(default_factory=dict)
    """All so far."""

    recent: Mapping[str, float] = field(default_factory=dict)
    """Shares of about the last 4,000."""

    others_refuse: bool = False
    """So many are retries that refused requests are told not to be retried."""

    granted: float = 1.0
    """Retries granted to stock clients for each request, while requests are refused."""

    withheld: int = 0
    """Refusals that only our own channels may retry: stock clients have no budget."""


@dataclass(frozen=True, slots=True)
class CostStatistics:
    """What a request takes of the task's capacity, compared with the fleet: other
    programs on its machine, for instance, make it rise. None is not known."""

    relative: float | None = None
    """Over the median of other tasks, as clients tell it."""

    rise: float | None = None
    """`relative`, over what is usual of it here."""

    is_slowed: bool = False
    """From a rise of 1.5 until it is below 1.25."""

    clients: int = 0
    """That have told the median within 30 s, of at most 64."""


@dataclass(frozen=True, slots=True)
class WorkerUtilization:
    """Of a server in one of its task's workers. It reports the larger one."""

    own: float
    """Of its event loop, its threads and its process's CPU time."""

    task_cpu: float
    """The CPU time of all workers over the CPUs that the task may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """What `server.statistics()` returns. Rates are per second, latencies in
    seconds."""

    state: TaskState
    utilization: float
    """As reported to clients; 1.0 is all that the task can have now."""

    qps: float
    eps: float
    active: int
    requests: Mapping[str, int]
    """Finished requests by the name of their status code."""

    watchers: int
    """Health and load streams that are open now."""

    signal_failures: int = 0
    """How often a signal of `ServerConfig` gave no sound number."""

    latency_bounds: tuple[float, ...]
    latency_counts: tuple[int, ...]
    """Per bucket, as in `Histogram`; requests that their clients gave up left out."""

    latency_sum: float
    load: float = 0.0
    """Requests that run or want to, for each processor: see `ServerConfig.max_load`."""

    refused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Requests that were refused, by reason and criticality.

    Of what gRPC's core has ended, "unseen", the criticality is "UNKNOWN".
    """

    attempts: AttemptStatistics = AttemptStatistics()
    misread: Mapping[str, int] = field(default_factory=dict)
    """Requests with metadata that was not understood, by its key."""

    usage: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds a second of each customer lately; empty without quotas."""

    cpu_factor: float = 1.0
    """What a CPU second of this machine is worth: `ServerConfig.cpu_factor`, or what
    the server has measured. 1.0 if nobody counts CPU time."""

    method_costs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """CPU seconds that the requests of each method have cost so far, in the handler and
    normalized by `cpu_factor`, by the kind and the path of the method."""

    customer_costs: Mapping[str, float] = field(default_factory=dict)
    """The same by customer; those without a name, and too many, are ''."""

    quotas: QuotaStatistics = field(default_factory=QuotaStatistics)
    signals: tuple[SignalStatistics, ...] = ()
    """As last read, every 0.1 s."""

    admitted: Mapping[str, float] = field(default_factory=dict)
    """The share of requests that gets in at the moment, by criticality: 1.0 is all."""

    ports: tuple[str, ...] = ()
    """Where it listens, as it was told, with the numbers that it got."""

    services: tuple[str, ...] = ()

    udp: UdpStatistics = UdpStatistics()
    task_failures: int = 0
    """Background tasks and timers that failed and were started again."""

    methods: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """`requests` by the kind ("unary_stream") and the path of their method."""

    streams: Mapping[str, int] = field(default_factory=dict)
    """`watchers` by kind: "health" is ours, "load" ORCA's, "serving" grpc.health.v1."""

    streams_refused: Mapping[str, int] = field(default_factory=dict)
    """By reason: too many on a "connection", too many on the "server", too many that
    begin at a time ("openings"), or too few streams allowed on a connection to spare
    one ("slots")."""

    report_floor: float = 0.0
    """Seconds between two reports of a stream, at least, for there are so many streams;
    0.0: each has the pace that it asked for."""

    contention: ContentionStatistics = ContentionStatistics()
    cost: CostStatistics = CostStatistics()
    declined: int = 0
    """Attempts whose client was to pick once more: see `ChannelConfig.late_binding`.
    Not among `requests`, `refused` or errors."""

    worker: WorkerUtilization | None = None
    """None: its process is no worker of several."""
