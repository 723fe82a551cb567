"""The settings of a channel."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as setting
from typing import get_args

from lbclient.config.checks import (
    Health,
    WhenFull,
    check_attempts,
    check_methods,
    check_number_or_0,
    check_one_of,
    check_seconds,
    check_secret,
    check_text,
    check_true_or_false,
    check_whole,
)
from lbclient.config.sources import Sourced, section
from lbclient.core.criticality import Criticality, named
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import PickerFactory, Subset
from lbclient.core.retry import ATTEMPTS
from lbclient.core.throttle import K
from lbclient.pickers import picker_factory
from lbclient.pickers.slow_start import SLOW_START
from lbclient.subsets import ALGORITHMS


@section
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig(Sourced):
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
        check_whole("subset_size", self.subset_size, 1, 1_000_000)
        if isinstance(self.subset, str):
            if self.subset not in ("auto", *ALGORITHMS):
                want = f"one of auto, {', '.join(ALGORITHMS)}"
                raise ConfigError("subset", self.subset, want)
        elif not callable(self.subset):
            raise ConfigError("subset", self.subset, "a name or an order of endpoints")
        for field in ("client_id", "client_job", "zone"):
            check_text(field, getattr(self, field))
        for field in ("locality", "propagate_deadline"):
            check_true_or_false(field, getattr(self, field))
        if self.task_index is not None:
            check_whole("task_index", self.task_index, 0)
        if not (isinstance(self.picker, str) or callable(self.picker)):
            raise ConfigError("picker", self.picker, "a name or a factory")
        picker_factory(self.picker)
        check_seconds("replace_after", self.replace_after, 0.1, 3600)
        check_seconds("settle_after", self.settle_after, 0, 3600)
        check_whole("max_replacements", self.max_replacements, 0, 1000)
        check_seconds("slow_start", self.slow_start, 0, 3600)
        check_whole("active_limit", self.active_limit, 1)
        level = named("criticality", self.criticality)
        object.__setattr__(self, "criticality", level.name)
        check_number_or_0("throttle", self.throttle, 1.05, 1000)
        object.__setattr__(
            self, "idempotent", check_methods("idempotent", self.idempotent)
        )
        check_attempts("max_attempts", self.max_attempts)
        check_one_of("when_full", self.when_full, get_args(WhenFull))
        check_whole("max_waiting", self.max_waiting, 0)
        check_seconds("health_interval", self.health_interval, 0.2, 3600)
        check_one_of("health", self.health, get_args(Health))
        check_seconds("idle_after", self.idle_after, 0, 86400)
        check_secret("udp_secret", self.udp_secret)
        check_seconds("resolve_interval", self.resolve_interval, 0.1, 86400)
        check_seconds("empty_after", self.empty_after, 0, 86400)
        check_seconds("connect_backoff", self.connect_backoff, 0.01, 3600)
        check_seconds("max_connect_backoff", self.max_connect_backoff, 0.01, 3600)
        if self.max_connect_backoff < self.connect_backoff:
            want = f"no less than connect_backoff, {self.connect_backoff:g} s"
            raise ConfigError("max_connect_backoff", self.max_connect_backoff, want)
        if self.seed is not None and type(self.seed) is not int:
            raise ConfigError("seed", self.seed, "a whole number or None")
