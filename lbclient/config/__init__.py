"""Every setting with its default and where that comes from.

Frozen and checked at construction: a config that exists is sound. Values come from
code, else from the TOML file that `LBCLIENT_CONFIG` names, else from `LBCLIENT_*`
variables; a variable beats the file. A config knows where each value is from.
"""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, fields
from dataclasses import field as setting
from difflib import get_close_matches
from inspect import iscoroutinefunction
from math import inf
from typing import Any, ClassVar, Literal, Self, get_args

from lbclient.config.redis_url import FORM, redis_place
from lbclient.core.admission import OWN_SIGNALS
from lbclient.core.criticality import Criticality, named
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import PickerFactory, Subset, UsageStore
from lbclient.core.quota import limits, rooms
from lbclient.core.retry import ATTEMPTS
from lbclient.core.throttle import K
from lbclient.pickers import picker_factory
from lbclient.pickers.slow_start import SLOW_START
from lbclient.subsets import ALGORITHMS

WhenFull = Literal["wait", "fail"]
Health = Literal["auto", "watch", "off"]

PREFIX = "LBCLIENT_"

# Variables with it that are not fields of a config.
RESERVED = frozenset({"LBCLIENT_CONFIG", "LBCLIENT_DISABLE"})
# Fields that no variable's text can say: functions, and tables, which TOML has.
IN_CODE = frozenset({"LBCLIENT_RUNNABLE", "LBCLIENT_SIGNALS", "LBCLIENT_UTILIZATION"})
IN_TABLES = frozenset({"LBCLIENT_QUOTAS"})
SECTIONS = frozenset({"channel", "server"})

# What `LBCLIENT_DISABLE` may say, in any case.
ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")

# Who may be named as `ServerConfig.customer`.
MTLS = "mtls"
Customer = Callable[[Any], str | bytes | None]

# Texts that may hold a secret, which no error shows.
SECRETS = frozenset({"quota_store", "udp_secret"})
SECRET_SIZE = 16  # bytes, as the seal that it makes; shorter ones can be guessed

MOST_ATTEMPTS = 5  # gRFC A6
MOST_BYTES = 1 << 20  # of a file; a thousand quotas have 50,000

METHOD_PATH = re.compile(r"/[^/\s*]+/([^/\s*]+|\*)")

# What Kubernetes sets for a Service that is called lbclient.
SERVICE_LINK = re.compile(r"LBCLIENT_(PORT|SERVICE_(HOST|PORT))(_|$)")


def _whole(field: str, value: object, low: int, high: float = inf) -> None:
    bound = f"at least {low}" if high == inf else f"{low} to {high:.0f}"
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(field, value, f"a whole number, {bound}")


def _seconds(field: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not low <= float(str(value)) <= high:
        raise ConfigError(field, value, f"seconds, {low:g} to {high:g}")


def _number_or_0(field: str, value: object, low: float, high: float) -> None:
    number = float(str(value)) if type(value) in (int, float) else -1.0
    if number and not low <= number <= high:
        raise ConfigError(field, value, f"0, or a number, {low:g} to {high:g}")


def _text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(field, value, "text")


def _true_or_false(field: str, value: object) -> None:
    if type(value) is not bool:
        raise ConfigError(field, value, "true or false")


def _one_of(field: str, value: object, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ConfigError(field, value, f"one of {', '.join(names)}")


def _number(field: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not low <= float(str(value)) <= high:
        raise ConfigError(field, value, f"a number, {low:g} to {high:.7g}")


def _signal(field: str, value: object) -> None:
    if not callable(value) or iscoroutinefunction(value):
        raise ConfigError(field, value, "a callable without arguments, no coroutine")


def _signals(field: str, value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(field, value, "callables without arguments, by name")
    for name, signal in (value or {}).items():
        if not isinstance(name, str) or not name:
            raise ConfigError(field, name, "names of signals")
        if name in OWN_SIGNALS:
            own = ", ".join(map(repr, OWN_SIGNALS))
            want = f"another name: {own} are the server's own signals"
            raise ConfigError(field, name, want)
        _signal(f"{field}[{name!r}]", signal)


def _store(field: str, value: object) -> None:
    if isinstance(value, str):
        redis_place(field, value)
    elif value is not None and not callable(getattr(value, "exchange", None)):
        # By its type: it may hold a password.
        raise ConfigError(field, type(value), f"{FORM}, or a store of your own")


def _methods(field: str, value: object) -> tuple[str, ...]:
    """A sequence of method paths; TOML has lists."""
    paths = tuple(value) if isinstance(value, list | tuple) else (value,)
    for path in paths:
        if not isinstance(path, str) or not METHOD_PATH.fullmatch(path):
            want = "paths such as '/package.Service/Method' or '/package.Service/*'"
            raise ConfigError(field, path, want)
    return paths


def _attempts(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        _whole(field, value, 1, MOST_ATTEMPTS)
        return
    _methods(field, list(value))
    for path, attempts in value.items():
        _whole(f"{field}[{path!r}]", attempts, 1, MOST_ATTEMPTS)


def check_secret(field: str, value: object) -> None:
    """Its text stays out of the error."""
    if not isinstance(value, str):
        raise ConfigError(field, type(value), "text")
    if value and len(value.encode()) < SECRET_SIZE:
        said = f"<{len(value)} characters>"
        raise ConfigError(field, said, f"at least {SECRET_SIZE} bytes, or none")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sourced:
    """Reading a config's fields from a file and from the environment."""

    _section: ClassVar[str]

    # By field what was read where, which `dataclasses.replace` hands on.
    _read: Mapping[str, tuple[str, object]] = setting(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, **defaults: Any
    ) -> Self:
        """Reads `LBCLIENT_CONFIG`'s file, then `LBCLIENT_<FIELD>` variables.

        What neither has is as in `defaults`, and else as documented.

        Raises ConfigError for a value out of bounds, a file that is not there or
        not TOML, and a name that is no field.
        """
        values: dict[str, Any] = {}
        path = environ.get("LBCLIENT_CONFIG", "")
        if path:
            values = cls._table(path)
        sources = dict.fromkeys(values, path)
        known = {f"{PREFIX}{name.upper()}": name for name in _all_fields()}
        own = {field.name: field.type for field in settings(cls)}
        for variable, text in environ.items():
            if not variable.startswith(PREFIX) or variable in RESERVED:
                continue
            if SERVICE_LINK.match(variable):
                continue
            if variable not in known:
                # Its text may be a secret whose name is misspelt.
                names = {*known, *RESERVED} - IN_CODE - IN_TABLES
                want = _like(variable, names, PREFIX)
                raise ConfigError("variable", variable, want)
            if (name := known[variable]) in own and not (
                # What the downward API gives for a label that is not there.
                text == "" and own[name] == int | None
            ):
                values[name] = _convert(variable, text, own[name])
                sources[name] = variable
        try:
            return cls(**defaults | values)._from(sources)
        except ConfigError as error:
            raise _where_to_mend(error, sources, environ) from None

    @classmethod
    def from_toml(cls, path: str) -> Self:
        """Reads the `[channel]` or `[server]` table of a TOML file.

        Raises ConfigError, as `from_environment` does.
        """
        values = cls._table(path)
        sources = dict.fromkeys(values, path)
        try:
            return cls(**values)._from(sources)
        except ConfigError as error:
            raise _where_to_mend(error, sources, {}) from None

    def _from(self, sources: Mapping[str, str]) -> Self:
        read = {name: (source, getattr(self, name)) for name, source in sources.items()}
        object.__setattr__(self, "_read", read)
        return self

    def sources(self) -> dict[str, str]:
        """Where the value of each field is from, in the order of the fields.

        The name of a variable, the path of a file, "default" or, for all else, "code".
        """
        told = {}
        for field in settings(type(self)):
            value = getattr(self, field.name)
            source, was = self._read.get(field.name, ("default", field.default))
            told[field.name] = source if value == was else "code"
        return told

    def where_to_mend(self, error: ConfigError) -> ConfigError:
        """The same with the variable or file of its field: for what is found later."""
        source = self.sources()[error.field]
        if source == f"{PREFIX}{error.field.upper()}":
            return ConfigError(source, error.value, error.want)
        if source in ("default", "code"):
            return error
        return ConfigError(error.field, error.value, error.want, source)

    @classmethod
    def _table(cls, path: str) -> dict[str, Any]:
        try:
            tables = _read_toml(path)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error  # without its path
            want = f"a readable TOML file ({why})"
            raise ConfigError("LBCLIENT_CONFIG", path, want) from None
        for section in sorted(tables.keys() - SECTIONS):
            if not isinstance(tables[section], dict):
                want = "it below [channel] or [server]"
                raise ConfigError("name", section, want, path)
            want = f"one of {', '.join(sorted(SECTIONS))}"
            raise ConfigError("table", section, want, path)
        table = tables.get(cls._section, {})
        if not isinstance(table, dict):
            raise ConfigError(cls._section, table, "a table", path)
        names = {field.name for field in settings(cls)}
        for name in table:
            if name not in names:
                field = f"name in [{cls._section}]"
                raise ConfigError(field, name, _like(name, names), path)
        return table


def _read_toml(path: str) -> dict[str, Any]:
    """Raises OSError, ValueError for what is no TOML, RecursionError if it is deep."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return tomllib.loads(data.decode())


def _like(said: str, names: Collection[str], prefix: str = "") -> str:
    """A prefix that all of them have makes none of them like what was said."""
    bare = [name.removeprefix(prefix) for name in names]
    close = get_close_matches(said.removeprefix(prefix), bare, 1, cutoff=0.8)
    if close:
        return f"perhaps {prefix}{close[0]}"
    return f"one of {', '.join(sorted(names))}"


def _where_to_mend(
    error: ConfigError, sources: Mapping[str, str], environ: Mapping[str, str]
) -> ConfigError:
    """The same with the variable or file of its field, or of what bounds it."""
    field, *others = re.findall(r"\w+", f"{error.field} {error.want}")
    source = sources.get(field, "")
    if source in environ:
        said = error.value if field in SECRETS else environ[source]
        return ConfigError(source, said, error.want)
    if not source:
        source = next((sources[name] for name in others if name in sources), "")
    return ConfigError(error.field, error.value, error.want, source)


TEXTS = (
    str,
    WhenFull,
    Health,
    str | Criticality,
    str | PickerFactory,
    str | Subset,
    str | Customer | None,
    str | UsageStore | None,
)


def _convert(variable: str, text: str, kind: object) -> Any:
    if kind in (int, int | None, int | Mapping[str, int]):
        convert: Callable[[str], Any] = int
    elif kind in (float, float | None, float | Mapping[str, float] | None):
        convert = float
    elif kind is bool:
        convert = _truth
    elif kind == tuple[str, ...]:
        convert = _split
    elif kind in TEXTS:
        convert = str
    else:
        where = "code or TOML" if variable in IN_TABLES else "code"
        raise ConfigError(variable, text, f"to be set in {where}: it is not text")
    try:
        if convert is int and not re.fullmatch("[+-]?[0-9]+", text):
            raise ValueError  # int() takes 1_0 and digits of any script
        return convert(text)
    except ValueError:
        return text  # which the field's own check refuses, as it knows the bounds


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig(_Sourced):
    """How a channel chooses and uses its backends. Times in seconds."""

    _section = "channel"

    subset_size: int = 20
    """Backends to connect to. SRE book, ch. 20: typically 20 to 100."""

    subset: str | Subset = "auto"
    """Which of the backends: a name of `lbclient.subsets.ALGORITHMS`, or what puts
    endpoints in order. "auto": rocksteadier (CACM 2023) where client and backends
    have task numbers, else rendezvous."""

    client_id: str = ""
    """What tells this client from its siblings where it has no task number.
    Empty: random, so a restarted client gets another subset."""

    task_index: int | None = None
    """The number of this client in its job, from 0, where it is known here. None:
    what `lbclient.config.identity` finds."""

    client_job: str = ""
    """What tells this client's job from other jobs that call the same backends: so
    many small jobs do not all take the same few. Empty: as in CACM 2023."""

    zone: str = ""
    """Where this client is, by the names that the resolver has for zones. Empty: what
    `LBCLIENT_ZONE` says."""

    locality: bool = False
    """Whether calls stay in the client's zone while its backends have room, and most of
    its subset is there: see `lbclient.core.locality`. Off: zones mean nothing."""

    picker: str | PickerFactory = "weighted_least_loaded"
    """A name of `lbclient.pickers.PICKERS`, or what makes one from a Random."""

    replace_after: float = 1.0
    """How long a backend may be neither ready nor a lame duck, which is replaced at
    once, before another takes its place. Ours: longer than a quick restart."""

    settle_after: float = 10.0
    """How long a backend must be back before its replacement goes. Ours: one that
    comes and goes faster than that opens no connection more than once."""

    max_replacements: int = 20
    """Connections beyond the subset, at most. Ours: as many as the subset has."""

    slow_start: float = SLOW_START
    """How long the share of a backend that became ready grows, from a tenth to all of
    it; 0: it jumps. Ours: where one of ten returned cold in `benchmarks.fleet`, round
    robin had a p99 of 5, 2.1, 0.30 and 0.27 s with 0, 5, 10 and 20 s."""

    active_limit: int = 100
    """Calls in flight on one backend. SRE book, ch. 20, flow control: a fixed
    limit; 100 is also what HTTP/2 servers commonly allow on a connection."""

    criticality: str | Criticality = "CRITICAL"
    """Of calls that say nothing of their own: a name of `lbclient.Criticality`. SRE
    book, ch. 21: "the default for requests sent from production jobs"."""

    throttle: float = K
    """How many requests may be sent for each one that the backends accept; 0: any
    number. SRE book, ch. 21, "adaptive throttling": K = 2."""

    idempotent: tuple[str, ...] = ()
    """Methods that may be executed twice, beside those whose .proto says so, as
    `/package.Service/Method`, or `/package.Service/*` for all of a service."""

    max_attempts: int | Mapping[str, int] = ATTEMPTS
    """Of a request, all in all, as in gRFC A6; or by method, named like those that are
    idempotent. 1: no retries. SRE book, ch. 21: three, so that is what others have."""

    propagate_deadline: bool = False
    """Whether calls made for a request end by its deadline, too. Off, as in grpc.aio:
    what outlives its request, a cache's refresh, would fail with it."""

    when_full: WhenFull = "wait"
    """What a call does when every backend is at its limit: wait its turn until
    its deadline, or fail at once."""

    max_waiting: int = 1000
    """Calls that may wait, for a turn or for a connection; one more fails, or the last
    of the least critical. Ours: a second of a thousand calls a second."""

    health_interval: float = 2.0
    """A backend that says nothing for this long gets no new calls. It is asked to
    report twice as often. Ours: one report a second costs both sides little."""

    health: Health = "auto"
    """Which health and load streams the channel opens. "auto": servers of ours report
    by a stream, others are asked by unary calls, and stream their load if they offer
    that. "watch": the health of others is watched by a stream, too. "off": none. Ours:
    a stream holds what calls may need, a slot of the connection or a thread."""

    idle_after: float = 300.0
    """How long a connection may be without calls before it is closed and its backend
    watched from afar; 0: for ever. Ours: gRPC's own 30 min are long for a server
    that has many clients, each with its health reports."""

    udp_secret: str = setting(default="", repr=False)
    """What servers must know to be believed over UDP, as their `udp_secret`."""

    resolve_interval: float = 10.0
    """Within which new addresses of a name get calls: it is looked up again after 0.8
    to 0.9 of it. Ours: well within the 30 s that clusters commonly let an answer
    live."""

    empty_after: float = 60.0
    """How long a resolver must insist that there are no endpoints at all. Ours:
    an outage of the name service is far more likely than an empty fleet."""

    connect_backoff: float = 0.1
    """The first pause before a refused connection is tried again; it grows by
    1.6 each time, jittered by a fifth (gRPC's connection backoff)."""

    max_connect_backoff: float = 5.0
    """The longest such pause. Ours; gRPC's 120 s would find a restarted task late."""

    seed: int | None = None
    """Seeds every random choice of the channel; None: by the system."""

    def __post_init__(self) -> None:
        _whole("subset_size", self.subset_size, 1, 1_000_000)
        if isinstance(self.subset, str):
            if self.subset not in ("auto", *ALGORITHMS):
                want = f"one of auto, {', '.join(ALGORITHMS)}"
                raise ConfigError("subset", self.subset, want)
        elif not callable(self.subset):
            raise ConfigError("subset", self.subset, "a name or an order of endpoints")
        for field in ("client_id", "client_job", "zone"):
            _text(field, getattr(self, field))
        for field in ("locality", "propagate_deadline"):
            _true_or_false(field, getattr(self, field))
        if self.task_index is not None:
            _whole("task_index", self.task_index, 0)
        if not (isinstance(self.picker, str) or callable(self.picker)):
            raise ConfigError("picker", self.picker, "a name or a factory")
        picker_factory(self.picker)
        _seconds("replace_after", self.replace_after, 0.1, 3600)
        _seconds("settle_after", self.settle_after, 0, 3600)
        _whole("max_replacements", self.max_replacements, 0, 1000)
        _seconds("slow_start", self.slow_start, 0, 3600)
        _whole("active_limit", self.active_limit, 1)
        level = named("criticality", self.criticality)
        object.__setattr__(self, "criticality", level.name)
        _number_or_0("throttle", self.throttle, 1.05, 1000)
        object.__setattr__(self, "idempotent", _methods("idempotent", self.idempotent))
        _attempts("max_attempts", self.max_attempts)
        _one_of("when_full", self.when_full, get_args(WhenFull))
        _whole("max_waiting", self.max_waiting, 0)
        _seconds("health_interval", self.health_interval, 0.2, 3600)
        _one_of("health", self.health, get_args(Health))
        _seconds("idle_after", self.idle_after, 0, 86400)
        check_secret("udp_secret", self.udp_secret)
        _seconds("resolve_interval", self.resolve_interval, 0.1, 86400)
        _seconds("empty_after", self.empty_after, 0, 86400)
        _seconds("connect_backoff", self.connect_backoff, 0.01, 3600)
        _seconds("max_connect_backoff", self.max_connect_backoff, 0.01, 3600)
        if self.max_connect_backoff < self.connect_backoff:
            want = f"no less than connect_backoff, {self.connect_backoff:g} s"
            raise ConfigError("max_connect_backoff", self.max_connect_backoff, want)
        if self.seed is not None and type(self.seed) is not int:
            raise ConfigError("seed", self.seed, "a whole number or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(_Sourced):
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
                _signal(field, signal)
        _number("max_load", self.max_load, 0, 1e6)
        _number("max_cpu", self.max_cpu, 0, 1)
        _number("max_memory", self.max_memory, 0, 1)
        _number("cpu_factor", self.cpu_factor, 1e-3, 1e3)
        _number("quota_share", self.quota_share, 0, 1)
        if self.default_quota is not None:
            limits("default_quota", self.default_quota)
        if self.customer not in (None, MTLS) and not callable(self.customer):
            want = f"{MTLS}, or a callable that takes a request's context"
            raise ConfigError("customer", self.customer, want)
        if iscoroutinefunction(self.customer):
            want = "a function that returns a name: no coroutine is awaited"
            raise ConfigError("customer", self.customer, want)
        _store("quota_store", self.quota_store)
        rooms(self.quotas)
        _signals("signals", self.signals)
        _seconds("smoothing", self.smoothing, 0.01, 3600)
        _seconds("report_interval", self.report_interval, 0.1, 3600)
        _seconds("orca_min_interval", self.orca_min_interval, 0.1, 3600)
        _whole("max_streams", self.max_streams, 1, 1_000_000)
        per_connection = self.max_streams_per_connection
        _whole("max_streams_per_connection", per_connection, 1, 1_000_000)
        _seconds("lame_duck_period", self.lame_duck_period, 0, 86400)
        _seconds("lame_duck_quiet", self.lame_duck_quiet, 0, 3600)
        _true_or_false("udp_health", self.udp_health)
        _true_or_false("adaptive_concurrency", self.adaptive_concurrency)
        check_secret("udp_secret", self.udp_secret)


def settings(config: type[_Sourced]) -> list[Field[Any]]:
    """Its fields, but for what it keeps for itself."""
    return [field for field in fields(config) if not field.name.startswith("_")]


def _all_fields() -> list[str]:
    configs = (ChannelConfig, ServerConfig)
    return [field.name for config in configs for field in settings(config)]


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """The kill switch: whether grpc.aio's own channels and servers are wanted.

    Raises ConfigError for a word that says neither.
    """
    text = environ.get("LBCLIENT_DISABLE", "")
    word = text.strip().lower()
    if word not in ON + OFF:
        want = f"one of {', '.join(ON)}; or {', '.join(OFF[1:])} or nothing to enable"
        raise ConfigError("LBCLIENT_DISABLE", text, want)
    return word in ON
