"""The settings of a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as setting
from inspect import iscoroutinefunction

from lbclient.config.checks import (
    MTLS,
    Customer,
    check_number,
    check_seconds,
    check_secret,
    check_signal,
    check_signals,
    check_store,
    check_true_or_false,
    check_whole,
)
from lbclient.config.sources import Sourced, section
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import UsageStore
from lbclient.core.quota import limits, rooms


@section
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Sourced):
    """What a server reports of itself and how it leaves. Times in seconds."""

    _section = "server"

    utilization: Callable[[], float] | None = None
    """The application's own utilization, read every 0.1 s: 1.0 is all that it is
    provisioned for, and more is possible. None: the process's CPU time over the
    CPUs it may use, with what others kept from it."""

    runnable: Callable[[], int] | None = None
    """How many requests want a processor now, where the application can tell."""

    max_load: float = 8.0
    """Requests that run or want to, for each processor, beyond which some are refused;
    0: none for that. Ours: see `lbclient.core.admission.LOAD`."""

    max_cpu: float = 0.0
    """The CPU utilization beyond which requests are refused; 0: none for that. Off, as
    it cannot tell a task that is just full from one with a long queue."""

    max_memory: float = 0.95
    """The share of the memory's limit beyond which requests are refused; 0: none for
    that. Ours: later is too late, and caches may fill what is below."""

    adaptive_concurrency: bool = False
    """Whether unary requests at a time are limited to what the server can serve, which
    it finds out: for handlers that wait for a pool. Off: where no latency is worth
    more than any other, a queue within the deadline refuses nobody."""

    signals: Mapping[str, Callable[[], float]] | None = None
    """More of them, by name, read every 0.1 s: some requests are refused beyond 1.0,
    and nearly all at 2.0."""

    quotas: Mapping[str, float | Mapping[str, float]] | None = None
    """What customers may use of the whole fleet, in CPU seconds a second, by name; or
    {"total": 4.0, "SHEDDABLE": 1.0}, where one is for its criticality and above."""

    default_quota: float | Mapping[str, float] | None = None
    """The same for each customer who is not among `quotas`; None: no limit."""

    customer: str | Customer | None = None
    """Who pays: "mtls", the client's certificate; or a callable that takes a request's
    context; None: what `lbclient-customer` says."""

    cpu_factor: float = 1.0
    """What a CPU second of this machine is worth, for fleets of several kinds."""

    quota_store: str | UsageStore | None = setting(default=None, repr=False)
    """Where tasks tell each other what they gave: redis://host:port/db?fleet=name, or a
    store of your own. None: in the memory of this process."""

    quota_share: float = 1.0
    """What share of each limit this task may give while no store says anything."""

    smoothing: float = 2.0
    """Time constant of what is reported; 1 to 2 s suits the pickers best."""

    report_interval: float = 1.0
    """Between two health reports to a watcher that names no interval."""

    orca_min_interval: float = 1.0
    """The shortest interval of ORCA's out-of-band reports that is granted."""

    max_streams: int = 4000
    """Streams of health and load at a time, of all clients. Ours: one for each client
    process of a large fleet; each takes some 30 kB with its connection, and their
    reports, however many streams there are, some 3 % of a processor."""

    max_streams_per_connection: int = 8
    """The same on one connection, of each kind (ours, ORCA's, grpc.health.v1's). Ours:
    a client has one, and two while it changes its pace; the rest is for clients behind
    a proxy that shares a connection."""

    lame_duck_period: float = 30.0
    """The longest a stopping task waits for its requests; SRE book, ch. 20: a
    good rule of thumb is 10 to 150 s."""

    lame_duck_quiet: float = 1.0
    """How long a stopping task must have been without a request before it sends
    GOAWAY, so that late arrivals find it. Requests of clients that watch no health do
    not count."""

    udp_health: bool = True
    """Whether UDP health checks are answered, on the hosts of the gRPC ports. On, as
    they tell no more than those ports do; beside secure ports only with a secret."""

    udp_secret: str = setting(default="", repr=False)
    """What clients must know to be answered over UDP, and tasks to be believed."""

    def __post_init__(self) -> None:
        for field in ("utilization", "runnable"):
            if (signal := getattr(self, field)) is not None:
                check_signal(field, signal)
        check_number("max_load", self.max_load, 0, 1e6)
        check_number("max_cpu", self.max_cpu, 0, 1)
        check_number("max_memory", self.max_memory, 0, 1)
        check_number("cpu_factor", self.cpu_factor, 1e-3, 1e3)
        check_number("quota_share", self.quota_share, 0, 1)
        if self.default_quota is not None:
            limits("default_quota", self.default_quota)
        if self.customer not in (None, MTLS) and not callable(self.customer):
            want = f"{MTLS}, or a callable that takes a request's context"
            raise ConfigError("customer", self.customer, want)
        if iscoroutinefunction(self.customer):
            want = "a function that returns a name: no coroutine is awaited"
            raise ConfigError("customer", self.customer, want)
        check_store("quota_store", self.quota_store)
        rooms(self.quotas)
        check_signals("signals", self.signals)
        check_seconds("smoothing", self.smoothing, 0.01, 3600)
        check_seconds("report_interval", self.report_interval, 0.1, 3600)
        check_seconds("orca_min_interval", self.orca_min_interval, 0.1, 3600)
        check_whole("max_streams", self.max_streams, 1, 1_000_000)
        per_connection = self.max_streams_per_connection
        check_whole("max_streams_per_connection", per_connection, 1, 1_000_000)
        check_seconds("lame_duck_period", self.lame_duck_period, 0, 86400)
        check_seconds("lame_duck_quiet", self.lame_duck_quiet, 0, 3600)
        check_true_or_false("udp_health", self.udp_health)
        check_true_or_false("adaptive_concurrency", self.adaptive_concurrency)
        check_secret("udp_secret", self.udp_secret)
