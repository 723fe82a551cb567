"""The settings of a server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any, Literal

from lbclient.config.fields import Kind, setting
from lbclient.config.kinds import (
    DAY,
    HOUR,
    MILLION,
    SECRET,
    SIGNAL,
    SWITCH,
    number,
    one_of,
    optional,
    seconds,
    whole,
)
from lbclient.config.redis_url import FORM, redis_place
from lbclient.config.sources import Sourced, section
from lbclient.core.criticality import DEFAULT, Criticality, named
from lbclient.core.errors import ConfigError
from lbclient.core.overload.admission import BUILT_IN_SIGNALS, LOAD
from lbclient.core.protocols import UsageStore
from lbclient.core.quotas.quota import HIGHEST, limits, rooms
from lbclient.core.report import SMOOTHING
from lbclient.core.report.named_metrics import LONGEST, MOST, is_tellable

# Who may be named as `ServerConfig.customer`.
MTLS = "mtls"
WorkerPorts = Literal["any", "next", "off"]
Customer = Callable[[Any], str | bytes | None]


def _check_signals(field: str, value: Any) -> Any:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(field, value, SIGNALS.want)
    for name, signal in (value or {}).items():
        if not isinstance(name, str) or not name:
            raise ConfigError(field, name, "names of signals")
        if name in BUILT_IN_SIGNALS:
            own = ", ".join(map(repr, BUILT_IN_SIGNALS))
            want = f"another name: {own} are the server's own signals"
            raise ConfigError(field, name, want)
        SIGNAL.check(f"{field}[{name!r}]", signal)
    return value


def _check_named_metrics(field: str, value: Any) -> Any:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(field, value, NAMED_METRICS.want)
    _check_signals(field, value)
    for name in value or ():
        if not is_tellable(name):
            want = f"names of up to {LONGEST} bytes, all printable"
            raise ConfigError(field, name, want)
    if value is not None and len(value) > MOST:
        want = f"at most {MOST} names, not {len(value)}: a load report has no more"
        raise ConfigError(field, value, want)
    return value


def _check_quotas(field: str, value: Any) -> Any:
    rooms(value)
    return value


def _check_default_quota(field: str, value: Any) -> Any:
    if value is not None:
        limits(field, value)
    return value


def _check_customer(field: str, value: Any) -> Any:
    if value not in (None, MTLS) and not callable(value):
        # A name is perhaps whom the process's own calls are for.
        theirs = "; LBCLIENT_CHANNEL_CUSTOMER is who pays for a channel's calls"
        want = CUSTOMER.want + (theirs if isinstance(value, str) else "")
        raise ConfigError(field, value, want)
    if iscoroutinefunction(value):
        want = "a function that returns a name: no coroutine is awaited"
        raise ConfigError(field, value, want)
    return value


def _check_highest(field: str, value: Any) -> Any:
    criticality = named(field, value)
    if criticality < DEFAULT:
        raise ConfigError(field, value, HIGHEST_CRITICALITY.want)
    return criticality.name


def _check_store(field: str, value: Any) -> Any:
    if isinstance(value, str):
        redis_place(field, value)
    elif value is not None and not callable(getattr(value, "exchange", None)):
        # By its type: it may hold a password.
        raise ConfigError(field, type(value), STORE.want)
    return value


def _threshold(high: float) -> Kind:
    plain = number(0, high)
    return replace(plain, want=f"{plain.want}; 0: never")


RATE = f"CPU seconds a second, 0 to {HIGHEST}"
SIGNALS = Kind("callables without arguments, by name", _check_signals)
NAMED_METRICS = Kind(
    f"callables without arguments, by up to {MOST} names of up to {LONGEST} bytes",
    _check_named_metrics,
)
QUOTAS = Kind(f"{RATE}, by customer", _check_quotas, place="code or TOML")
QUOTA = Kind(
    f"{RATE}, or such limits by criticality",
    _check_default_quota,
    float,
    note="one number",
)
CUSTOMER = Kind(
    f"{MTLS}, or a callable that takes a request's context", _check_customer, str
)
HIGHEST_CRITICALITY = Kind(
    "CRITICAL_PLUS or CRITICAL, which is what a request without a word counts as",
    _check_highest,
    str,
)
STORE = Kind(f"{FORM}, or a store of your own", _check_store, str)


@section
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Sourced):
    """How a server reports load, admits requests and drains. Times in seconds."""

    _section = "server"

    utilization: Callable[[], float] | None = setting(
        None,
        optional(SIGNAL),
        help="The application's own utilization, read every 0.1 s: 1.0 is all that the "
        "task is provisioned for, and more is possible. Reports tell the largest of it "
        "and of what the server measures: the process's CPU time over the CPUs it may "
        "use, including CPU time that others kept from it, the share of time in which "
        "the event loop was busy, and the share of the handlers' threads in use.",
    )
    utilization_replaces: bool = setting(
        False,
        SWITCH,
        help="Whether reports tell `utilization` also where it is the smaller one: for "
        "a figure that is measured against another limit than this process's.",
        source="Ours: off, because a full event loop limits a task whatever else is "
        "free.",
    )
    runnable: Callable[[], int] | None = setting(
        None,
        optional(SIGNAL),
        help="How many requests want a processor now, where the application can tell. "
        "Read for every request and response, so it must be cheap.",
    )
    estimate_runnable: bool = setting(
        True,
        SWITCH,
        help="Whether reports tell, without `runnable`, how many requests want a "
        "processor, by an estimate from their number, their durations and the "
        "utilization.",
        source="docs/simulator.md: p99 beside long polls is 11 to 18 % shorter.",
    )
    max_load: float = setting(
        LOAD.target,
        _threshold(MILLION),
        help="Requests that run or want to, for each processor, beyond which some "
        "requests are refused. 0: none for that.",
        source="Ours: see `lbclient.core.overload.admission.LOAD`.",
    )
    max_cpu: float = setting(
        0.0,
        _threshold(1),
        help="CPU utilization beyond which some requests are refused. 0: none for "
        "that.",
        source="Ours: off, as it cannot tell a task that is just full from a task with "
        "a long queue.",
    )
    max_memory: float = setting(
        0.95,
        _threshold(1),
        help="Share of the memory's limit beyond which some requests are refused. "
        "0: none for that.",
        source="Ours: later is too late, and caches may fill what is below.",
    )
    adaptive_concurrency: bool = setting(
        False,
        SWITCH,
        help="Whether unary requests in flight are limited to what the server can "
        "serve, which it finds out: for handlers that wait for a pool.",
        source="Ours: off, because where no latency is worth more than another, a "
        "queue within the deadline refuses nobody.",
    )
    signals: Mapping[str, Callable[[], float]] | None = setting(
        None,
        SIGNALS,
        help="More signals of overload, by name, read every 0.1 s: some requests are "
        "refused beyond 1.0, and nearly all at 2.0.",
    )
    named_metrics: Mapping[str, Callable[[], float]] | None = setting(
        None,
        NAMED_METRICS,
        help="Metrics of the application by name, read every 0.1 s, that load reports "
        "carry and nothing is refused for. NaN: not known now, so it is left out.",
    )
    quotas: Mapping[str, float | Mapping[str, float]] | None = setting(
        None,
        QUOTAS,
        help="What each customer may use of the whole fleet, in CPU seconds a second, "
        'by name: a number, or {"total": 4.0, "SHEDDABLE": 1.0}, where a '
        "criticality's limit is for requests of that criticality and all above it.",
    )
    default_quota: float | Mapping[str, float] | None = setting(
        None,
        QUOTA,
        help="The same for each customer that is not in `quotas`. None: no limit.",
    )
    customer: str | Customer | None = setting(
        None,
        CUSTOMER,
        help='Who pays for a request: "mtls", the client\'s certificate; or a callable '
        "that takes the request's context and returns a name. None: what the metadata "
        "`lbclient-customer` says.",
    )
    highest_criticality: str | Criticality = setting(
        Criticality.CRITICAL_PLUS.name,
        HIGHEST_CRITICALITY,
        help="The most critical that a request may claim to be. One that claims more "
        "counts as this, and so do its handler's own calls.",
        source='SRE book, ch. 21: CRITICAL_PLUS is "reserved for the most critical '
        'requests"; each tier believes the one above.',
    )
    request_cost: bool = setting(
        False,
        SWITCH,
        help="Whether the server counts the CPU time of each request, tells it to the "
        "client, and sums it up by method and customer. With quotas it counts anyway.",
        source="Ours: off, as it takes some 20 us, 10 % of the CPU of a small request "
        "(`benchmarks.overhead`), and the bound was 2 %.",
    )
    cpu_factor: float | None = setting(
        None,
        optional(number(1e-3, 1e3)),
        help="What a CPU second of this machine is worth, for fleets of several kinds. "
        "None: the server measures it by a short loop.",
        source="Ours: measured, as fleets of one kind of machine become fleets of "
        "several.",
    )
    quota_store: str | UsageStore | None = setting(
        None,
        STORE,
        is_secret=True,
        help="Where tasks tell each other what they gave: "
        "redis://host:port/db?fleet=name, or a store of your own. None: in the memory "
        "of this process.",
    )
    quota_share: float = setting(
        1.0,
        number(0, 1),
        help="The share of each limit that this task may give while the store says "
        "nothing.",
        source="1: the task is the whole fleet.",
    )
    smoothing: float = setting(
        SMOOTHING,
        seconds(0.01, HOUR),
        help="Time constant of what the server reports.",
        source="Ours: in simulations 1 to 2 s suit the pickers best, 5 to 10 s are too "
        "slow.",
    )
    report_interval: float = setting(
        1.0,
        seconds(0.1, HOUR),
        help="Time between two health reports to a watcher that names no interval.",
        source="Ours: half of a channel's `health_interval`, as lbclient's clients ask "
        "for.",
    )
    orca_min_interval: float = setting(
        1.0,
        seconds(0.1, HOUR),
        help="The shortest interval of ORCA's out-of-band reports that is granted.",
        source="Ours: as often as lbclient's own health reports.",
    )
    orca_trailers: bool = setting(
        True,
        SWITCH,
        help="Whether each response has the load report for clients that are not "
        "lbclient's, too.",
        source="Ours: on, as gRPC's own weighted round robin and Envoy read it there.",
    )
    max_streams: int = setting(
        4000,
        whole(1, MILLION),
        help="Largest number of health and load streams, of all clients together.",
        source="Ours: one for each client process of a large fleet. Each takes some "
        "30 kB with its connection, and their reports, however many streams there are, "
        "some 3 % of a processor.",
    )
    max_streams_per_connection: int = setting(
        8,
        whole(1, MILLION),
        help="The same on one connection, of each kind: lbclient's, ORCA's and "
        "grpc.health.v1's.",
        source="Ours: a client has one, and two while it changes its interval; the "
        "rest is for clients behind a proxy that shares a connection.",
    )
    intercept_health: bool = setting(
        False,
        SWITCH,
        help="Whether the server's interceptors are asked about its health and load "
        "services, too.",
        source="Ours: off, as an interceptor that refuses or breaks them hides from "
        "clients that a server drains or is frozen.",
    )
    lame_duck_period: float = setting(
        30.0,
        seconds(0, DAY),
        help="The longest time that a stopping task waits for its requests.",
        source="SRE book, ch. 20: a good rule of thumb is 10 to 150 s.",
    )
    lame_duck_quiet: float = setting(
        1.0,
        seconds(0, HOUR),
        help="How long a stopping task must have been without a request before it "
        "sends GOAWAY, so that late arrivals find it. Requests of clients that watch "
        "no health do not count.",
        source="Ours: what clients sent before they knew arrives sooner.",
    )
    worker_ports: WorkerPorts = setting(
        "any",
        one_of(WorkerPorts),
        help="Which port a worker has of its own, besides the one that it shares with "
        'the other workers of its task: any free one; "next": the shared port plus 1 '
        "to N + 1, where there are N workers and on a reload one more; or none.",
        source="Ours: any free one is no trouble where nothing filters ports between "
        "clients and tasks.",
    )
    udp_health: bool = setting(
        True,
        SWITCH,
        help="Whether UDP health checks are answered, on the hosts of the gRPC ports; "
        "beside secure ports only those of clients that were given a session over TLS.",
        source="Ours: on, as they tell no more than the gRPC ports do.",
    )
    udp_secret: str = setting(
        "",
        SECRET,
        is_secret=True,
        help="What clients must know to be answered over UDP, and tasks to be "
        "believed: the same text as the channels' `udp_secret`. No sessions are given "
        "then.",
    )

    def __post_init__(self) -> None:
        self._check_each()
        for name in self.named_metrics or ():
            if name in (self.signals or ()):
                want = "another name: a signal in `signals` has this one"
                raise ConfigError("named_metrics", name, want)
