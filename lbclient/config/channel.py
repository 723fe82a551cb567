"""The settings of a channel, a field each; the part of `client` concerned reads it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any, Literal, Self

from lbclient.config.fields import PREFIX, Kind, setting
from lbclient.config.kinds import (
    DAY,
    HOUR,
    MILLION,
    SECRET,
    SWITCH,
    TEXT,
    kind,
    number,
    number_or_0,
    one_of,
    optional,
    read_whole,
    seconds,
    whole,
)
from lbclient.config.methods import ATTEMPTS, KEY_METADATA, METHODS, split
from lbclient.config.sources import ENVIRONMENT, Sourced, section
from lbclient.core.criticality import DEFAULT, Criticality, named
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import PickerFactory, Subset
from lbclient.core.quotas import customer
from lbclient.core.retries import retry
from lbclient.core.retries.hedging import BUDGET as HEDGING_BUDGET
from lbclient.core.routing.spill_control import SPILL_ABOVE
from lbclient.core.routing.stream_moves import MOVE_RATE
from lbclient.core.throttles.throttle import K
from lbclient.core.utilization import METRIC
from lbclient.pickers import picker_factory
from lbclient.pickers.consistent_hashing import BALANCE_FACTOR
from lbclient.pickers.slow_start import SLOW_START
from lbclient.subsets import ALGORITHMS, SUBSET_SIZE

WhenFull = Literal["wait", "fail"]
Health = Literal["auto", "watch", "off"]
KeyOf = Callable[[str, Any], str | Sequence[str] | None]


def _check_subset(field: str, value: Any) -> Any:
    if isinstance(value, str):
        if value not in ("auto", *ALGORITHMS):
            raise ConfigError(field, value, f"one of auto, {', '.join(ALGORITHMS)}")
    elif not callable(value):
        raise ConfigError(field, value, "a name or an order of endpoints")
    return value


def _check_picker(field: str, value: Any) -> Any:
    if not (isinstance(value, str) or callable(value)):
        raise ConfigError(field, value, "a name or a factory")
    picker_factory(value)
    return value


def _check_metrics(field: str, value: Any) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, list | tuple) else (value,)
    for name in names:
        if not isinstance(name, str) or not METRIC.fullmatch(name):
            raise ConfigError(field, name, METRICS.want)
    return names


def _check_spill_limits(field: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return SPILL_LIMIT.check(field, value)
    for zone, limit in value.items():
        if not isinstance(zone, str):
            raise ConfigError(field, zone, "names of zones")
        SPILL_LIMIT.check(f"{field}[{zone!r}]", limit)
    return value


# Ours: a lower limit sends calls away from zones that are almost idle, a higher one
# keeps them until the zone is full.
SPILL_LIMIT = number(0.1, 0.95)
SPILL_LIMITS = Kind(
    f"{SPILL_LIMIT.want}, or such numbers by zone",
    _check_spill_limits,
    float,
    note="one number",
)
METRICS = Kind(
    "names such as 'named_metrics.pool', 'utilization.disk', 'mem_utilization', "
    "'cpu_utilization' or 'application_utilization'",
    _check_metrics,
    split,
    note="names with commas between them",
)
SUBSET = Kind(
    '"auto", a name of `lbclient.subsets.ALGORITHMS`, or a callable', _check_subset, str
)
PICKER = Kind("a name of `lbclient.pickers.PICKERS`, or a factory", _check_picker, str)
CRITICALITY = Kind(
    f"{', '.join(one.name for one in reversed(Criticality))}, in capitals or not; or a "
    "`lbclient.Criticality`",
    lambda field, value: named(field, value).name,
    str,
)
CUSTOMER = Kind(customer.WANT, customer.checked, str)
KEY_OF = kind(
    "a callable that takes a method's path and a request, no coroutine, or None",
    lambda value: value is None or (callable(value) and not iscoroutinefunction(value)),
    None,
)
SEED = kind("a whole number or None", lambda value: type(value) is int, read_whole)


@section
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig(Sourced):
    """How a channel chooses and uses its backends. Times in seconds."""

    _section = "channel"

    subset_size: int = setting(
        SUBSET_SIZE,
        whole(1, MILLION),
        help="Number of backends that the channel connects to.",
        source="SRE book, ch. 20: typically 20 to 100.",
    )
    max_subset_size: int = setting(
        100,
        whole(1, MILLION),
        help="The subset grows up to so many while more than a tenth of its backends' "
        "traffic is this client's. `subset_size` or less: it does not grow.",
        source="SRE book, ch. 20: typically 20 to 100.",
    )
    max_connections: int = setting(
        100,
        whole(1, MILLION),
        help="The channel connects to each worker of its tasks up to so many "
        "connections, and beyond that to some workers of each task, at least one. "
        "`subset_size` counts tasks. With consistent_hashing it also connects to "
        "backends of keys outside of its subset, up to so many with the subset.",
        source="SRE book, ch. 20: subsets are typically of 20 to 100.",
    )
    subset: str | Subset = setting(
        "auto",
        SUBSET,
        help="Which of the backends the channel connects to: the name of an algorithm, "
        "or a callable that returns the endpoints in this client's order of "
        'preference. "auto": rocksteadier where client and backends have task numbers, '
        "else rendezvous, and crowded backends are replaced.",
    )
    client_id: str = setting(
        "",
        TEXT,
        help="What tells this client from its siblings where it has no task number. "
        "Empty: random, so a restarted client gets another subset.",
    )
    task_index: int | None = setting(
        None,
        optional(whole(0)),
        help="The client's task number in its job, from 0. None: the number that "
        "`lbclient.config.identity` finds in the environment or the hostname.",
    )
    client_job: str = setting(
        "",
        TEXT,
        help="The name of this client's job, the same in all its tasks. Without it "
        "many small jobs that call the same backends all take the same few.",
    )
    zone: str = setting(
        "",
        TEXT,
        help="The client's zone, by the resolver's names of zones. Empty: what "
        "LBCLIENT_ZONE says.",
    )
    locality: bool = setting(
        False,
        SWITCH,
        help="Whether calls stay in the client's zone while its backends there are "
        "ready and have room: see `lbclient.core.routing.spillover`.",
    )
    spill_above: float | Mapping[str, float] = setting(
        SPILL_ABOVE,
        SPILL_LIMITS,
        help="The utilization of a zone, or of the backends of a priority, above which "
        "calls go on to others that are less utilized; or such numbers by zone. Zones "
        f"that are not named have {SPILL_ABOVE}.",
        source="Ours: below the knee of the latency, so calls go on before any fails.",
    )
    picker: str | PickerFactory = setting(
        "weighted_least_loaded",
        PICKER,
        help="How a backend is chosen for each call: the name of a picker, or a "
        "callable that makes one from a `random.Random`.",
    )
    key_metadata: tuple[str, ...] | Mapping[str, tuple[str, ...]] = setting(
        (),
        KEY_METADATA,
        help="Names of metadata whose values are the keys of a call, from the most to "
        "the least specific; or such names by method, named like those in "
        "`idempotent`. Without any of them it has the keys of `lbclient.key`.",
    )
    key_of: KeyOf | None = setting(
        None,
        KEY_OF,
        help="Makes the keys of calls that have none by metadata or `lbclient.key`. It "
        "takes the path of the method and the request, or None where requests are a "
        "stream, and returns a text, several from the most to the least specific, or "
        "None for no key.",
    )
    hash_balance_factor: float = setting(
        BALANCE_FACTOR,
        number(1.05, 10),
        help="With consistent_hashing, how many times the mean load a backend may have "
        "before calls of its hottest keys go on to their next choice.",
        source="Mirrokni, Thorup and Zadimoghaddam 2016: 1 + epsilon. Envoy's "
        "`hash_balance_factor` is the same in percent.",
    )
    cache_miss_cost: float | None = setting(
        None,
        optional(seconds(1e-6, HOUR)),
        help="With cache_aware, how long a backend takes for a key that it has not "
        "cached. None: learned from how soon calls are answered.",
    )
    metric_names_for_computing_utilization: tuple[str, ...] = setting(
        (),
        METRICS,
        help="Which of the metrics that backends report is their utilization, by which "
        "weighted_least_loaded and weighted_round_robin go: the largest of those named "
        "that a backend reports. If it reports none of them, the application's "
        "utilization, else the CPU's.",
        source="gRFC A114, where it is the same setting of weighted_round_robin.",
    )
    replace_after: float = setting(
        1.0,
        seconds(0.1, HOUR),
        help="How long a backend may be neither ready nor a lame duck before another "
        "takes its place. A lame duck is replaced at once.",
        source="Ours: longer than a quick restart.",
    )
    settle_after: float = setting(
        10.0,
        seconds(0, HOUR),
        help="How long a backend must be ready again before its replacement goes.",
        source="Ours: a backend that comes and goes faster opens one connection, once.",
    )
    max_replacements: int = setting(
        20,
        whole(0, 1000),
        help="Largest number of connections beyond the subset.",
        source="Ours: as many as the subset has.",
    )
    slow_start: float = setting(
        SLOW_START,
        seconds(0, HOUR),
        help="How long the share of a backend that became ready grows from a tenth to "
        "its full size. 0: it starts at its full size.",
        source="Ours: where one of ten returned cold in `benchmarks.fleet`, round "
        "robin had a p99 of 5, 2.1, 0.30 and 0.27 s with 0, 5, 10 and 20 s.",
    )
    stream_move_rate: float = setting(
        MOVE_RATE,
        number(0, 1),
        help="The share of a channel's resumable streams that it asks to move in a "
        "second while backends have too many of them. 0: only those of backends that "
        "leave.",
        source="Ours: half of all streams, as of a fleet that has doubled, in 25 s.",
    )
    active_limit: int = setting(
        100,
        whole(1),
        help="Largest number of calls in flight on one backend.",
        source="SRE book, ch. 20, flow control: a fixed limit; 100 is also what HTTP/2 "
        "servers commonly allow on a connection.",
    )
    criticality: str | Criticality | None = setting(
        None,
        optional(CRITICALITY),
        help="Criticality of calls that name none. None: they are sent without one, "
        f"and count as {DEFAULT.name}.",
        source='SRE book, ch. 21: "the default for requests sent from production '
        'jobs".',
    )
    customer: str | None = setting(
        None,
        optional(CUSTOMER),
        prefix=f"{PREFIX}CHANNEL_",  # LBCLIENT_CUSTOMER is the server's
        help="Who pays for calls that name nobody: the account of the backends' quotas "
        "that they are charged to. None: the account that all such calls share.",
    )
    propagate_customer: bool = setting(
        True,
        SWITCH,
        help="Whether the calls that a handler makes are paid for by the customer of "
        "its request.",
        source="As with criticality: otherwise all customers share this task's "
        "account at the next tier.",
    )
    throttle: float = setting(
        K,
        number_or_0(1.05, 1000),  # 1 and less would refuse what backends accept
        help="How many requests may be sent for each request that the backends accept. "
        "0: any number.",
        source='SRE book, ch. 21, "adaptive throttling": K = 2.',
    )
    idempotent: tuple[str, ...] = setting(
        (),
        METHODS,
        help="Methods that may be executed twice, so they are retried: "
        "`/package.Service/Method`, or `/package.Service/*` for all methods of a "
        "service. Methods whose .proto says so need not be named.",
    )
    max_attempts: int | Mapping[str, int] = setting(
        retry.ATTEMPTS,
        ATTEMPTS,
        help="Largest number of attempts of a request, the first one included; or such "
        "a number by method, named like those in `idempotent`. 1: no retries.",
        source="SRE book, ch. 21: three. gRFC A6 allows five.",
    )
    hedging: bool = setting(
        False,
        SWITCH,
        help="Whether a call of an idempotent method whose answer takes long is sent "
        "to a second backend, too. The first answer counts, and the other attempt is "
        "cancelled. Calls that stream their requests are not hedged.",
        source="gRFC A6 has it off, too: it adds load, and executes calls twice.",
    )
    hedging_delay: float | None = setting(
        None,
        optional(seconds(0.001, HOUR)),
        help="How long a call is in flight before it is hedged. None: from the p95 of "
        "its method to twice that, so that `hedging_budget` lasts.",
        source='CACM 2013, "The Tail at Scale": the p95. gRFC A6: `hedgingDelay`.',
    )
    hedging_budget: float = setting(
        HEDGING_BUDGET,
        number(0.001, 0.1),
        help="Largest number of hedges for each request. They are paid for by the "
        "retry budget, too.",
        source='CACM 2013, "The Tail at Scale": 2 % more requests cut the p99.9 by '
        "96 %.",
    )
    late_binding: bool = setting(
        False,
        SWITCH,
        help="Whether a server of lbclient that is busier than usual may decline the "
        "first attempt of a unary call, for another pick with its report. For clients "
        "that send little to each backend, and requests of at least 5 ms.",
        source="Off, as up to half of the requests are sent twice.",
    )
    eject_late: bool = setting(
        True,
        SWITCH,
        help="Whether a backend whose answers to a method come much later than usual, "
        "while the others' do not, gets only trial calls of the method. Calls with "
        "a key are not compared.",
        source="Weights and statuses do not show such a backend.",
    )
    propagate_deadline: bool = setting(
        False,
        SWITCH,
        help="Whether the calls that a handler makes end by the deadline of its "
        "request.",
        source="As in grpc.aio: what outlives its request, such as a cache's refresh, "
        "would fail with it.",
    )
    when_full: WhenFull = setting(
        "wait",
        one_of(WhenFull),
        help="What a call does when every backend is at its `active_limit`: wait until "
        "its deadline, or fail at once.",
    )
    max_waiting: int = setting(
        1000,
        whole(0),
        help="Largest number of calls that wait for a backend. One more fails, or the "
        "last of the least critical.",
        source="Ours: a second of a thousand calls a second.",
    )
    health_interval: float = setting(
        2.0,
        seconds(0.2, HOUR),
        help="A backend that is silent for this long gets no new calls. It is asked to "
        "report twice as often.",
        source="Ours: one report a second costs both sides little.",
    )
    health: Health = setting(
        "auto",
        one_of(Health),
        help="Which health and load streams the channel opens. "
        '"auto": servers of lbclient report by a stream; others are asked by unary '
        "calls, and stream their load if they offer it. "
        '"watch": the health of others is watched by a stream, too. "off": none.',
        source="Ours: a stream holds what calls may need, a slot of the connection or "
        "a thread.",
    )
    idle_after: float = setting(
        300.0,
        seconds(0, DAY),
        help="How long a connection may be without calls before it is closed and its "
        "backend is watched from afar, by UDP health checks. 0: connections stay open.",
        source="Ours: gRPC's own 30 min are long for a server that has many clients, "
        "each with its health reports.",
    )
    udp_secret: str = setting(
        "",
        SECRET,
        is_secret=True,
        help="What servers must know to be believed over UDP: the same text as their "
        "`udp_secret`. Without one, servers with TLS give each client a secret.",
    )
    resolve_interval: float = setting(
        10.0,
        seconds(0.1, DAY),
        help="Time within which new addresses of a name get calls. The name is looked "
        "up again after 0.8 to 0.9 of it.",
        source="Ours: well within the 30 s for which clusters commonly cache an "
        "answer.",
    )
    empty_after: float = setting(
        60.0,
        seconds(0, DAY),
        help="How long a resolver must insist that there are no endpoints before the "
        "channel gives up the last ones.",
        source="Ours: an outage of the name service is more likely than an empty "
        "fleet.",
    )
    connect_backoff: float = setting(
        0.1,
        seconds(0.01, HOUR),
        help="First pause before a refused connection is tried again. It grows by 1.6 "
        "each time, with a jitter of a fifth.",
        source="Ours: gRPC's 1 s suits clients far away. Growth and jitter are gRPC's.",
    )
    max_connect_backoff: float = setting(
        5.0,
        replace(seconds(0.01, HOUR), want="seconds, `connect_backoff` to 3600"),
        help="Longest pause before a refused connection is tried again.",
        source="Ours: gRPC's 120 s would find a restarted task late.",
    )
    seed: int | None = setting(
        None,
        optional(SEED),
        help="Seeds every random choice of the channel, for tests and simulations. "
        "None: the system's randomness.",
    )

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str] = ENVIRONMENT,
        *,
        target: str = "",
        name: str = "",
        **defaults: Any,
    ) -> Self:
        """Returns what a channel to `target`, of this name, has if it is given none.

        Reads `LBCLIENT_<FIELD>` variables, and for fields without a variable the file
        that `LBCLIENT_CONFIG` names: its `[channel."name"]`, `[channel."target"]` and
        `[channel]`, in this order. What none of them has is as in `defaults`, and else
        as documented. A variable that is no setting has no effect, and is warned of
        once.

        Raises ConfigError for a value out of bounds, a file that is not there or not
        TOML, and a name in the file that is no field.
        """
        return cls._from_environment(environ, (target, name), defaults)

    @classmethod
    def from_toml(cls, path: str, *, target: str = "", name: str = "") -> Self:
        """Reads the file at `path`, as `from_environment` does, and no variable."""
        return cls._from_toml(path, (target, name))

    def tables(self) -> dict[str, bool]:
        """Returns the file's tables for single channels: whether each is for this one.

        By the path of the file and the name of the table.
        """
        return dict(self._tables)

    def __post_init__(self) -> None:
        self._check_each()
        if self.max_connect_backoff < self.connect_backoff:
            want = f"no less than connect_backoff, {self.connect_backoff:g} s"
            raise ConfigError("max_connect_backoff", self.max_connect_backoff, want)
