"""Frozen records of what a channel knows of itself, its backends and its resolver.

`client.statistics` makes them on demand. Times in seconds, rates per second.
"""

from dataclasses import dataclass, field

MOST_ZONES = 50  # of a channel that are shown, in its order of preference


@dataclass(frozen=True, slots=True)
class EjectionStatistics:
    """A method for which a backend is ejected: the picks of that method pass it by.

    `why` compares what it answered of late with what the others did: "UNIMPLEMENTED to
    5 of its last 5 calls, and to 0 of 212 of the other backends", or how long its calls
    took. `age` is how long ago it was ejected. `next_trial` is in how many seconds the
    next call of the method is sent to it, to see whether it is well again: 0.0 is now,
    None while one is there.
    """

    method: str
    why: str
    age: float
    next_trial: float | None


@dataclass(frozen=True, slots=True)
class BackendStatistics:
    """One backend as the channel sees it now.

    `weight` is the share of calls that the picker would give it before errors and
    ejections, mean 1, and 0.0 while it is not ready. `recent_errors` is what is held
    against it: errors of this client's calls of all methods, each 1.0 at first and
    fading over 10 s. Pickers that go by calls in flight add them to those, so a backend
    may get no calls long before it is ejected. `reason` tells why it is in that state,
    `why` why it is in the subset; `task`, `zone` and `priority` are what the resolver
    says.
    `last_error` is what last went wrong, with the connection or with a call.
    `utilization`, `qps`, `eps` and `active` are its own last word, `report_age` old;
    None where it has said nothing. A `utilization` of 0.0 in a report is None, too: it
    means unknown there, and not idle. `ejected` has the methods for which it is
    ejected, as it alone fails them or is late; it goes on with all others. `is_shared`
    says if several tasks answer at this address, as behind a proxy: what it says of its
    load is then their mean. `fronts` is how many of them answered within 10 s, 64 at
    most, and 0 for an address that is not shared. `health_refused` says which of its
    health and load services answer with a status other than UNIMPLEMENTED, and which:
    "refused: UNAUTHENTICATED: no token (lbclient.v1.BackendHealth,
    grpc.health.v1.Health)"; empty where none does. `relative_cost` is the share of its
    capacity that a request takes, over the median of the channel's backends, and
    `cost_rise` by what factor more it takes than is usual of this backend, if that of
    the others is as usual; None where it is not known, for the first minute, with few
    requests or fewer than three backends. It `is_slowed` from a rise of 1.5 until it is
    below 1.25: perhaps others use its machine. `own_cost_rise` is the same by the
    task's own account, which goes by what all of its clients tell; None where it does
    not tell. `first_message` is the mean time of late until the first message of a
    stream, in seconds; None before one. `declined` of its attempts were left to another
    pick, beside those `served`, `rejected`, `failed` and `abandoned`.
    """

    address: str
    state: str
    reason: str
    state_age: float
    weight: float
    in_flight: int
    started: int
    served: int
    rejected: int
    failed: int
    abandoned: int
    latency: float
    utilization: float | None
    qps: float | None
    eps: float | None
    active: int | None
    report_age: float | None
    why: str = ""
    last_error: str = ""
    last_error_age: float | None = None
    task: int | None = None
    zone: str = ""
    priority: int = 0
    ejected: tuple[EjectionStatistics, ...] = ()
    fronts: int = 0
    is_shared: bool = False
    recent_errors: float = 0.0
    health_refused: str = ""
    relative_cost: float | None = None
    cost_rise: float | None = None
    is_slowed: bool = False
    own_cost_rise: float | None = None
    first_message: float | None = None
    declined: int = 0


@dataclass(frozen=True, slots=True)
class ZoneStatistics:
    """The channel's backends of one zone and priority.

    `utilization` is their mean, as spill-over sees it, None while none is `ready`: by
    reports, and of a backend without any by this channel's own calls. `limit` is the
    utilization above which calls leave, None without spill-over. `share` is that of the
    channel's calls that go there now.
    """

    zone: str
    priority: int
    backends: int
    ready: int
    utilization: float | None
    share: float
    in_flight: int
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class ResolverStatistics:
    """Where the endpoints come from. `age` is that of the last answer applied.

    `error` says why there is none since, or what is amiss with it.
    """

    endpoints: int = 0
    updates: int = 0
    age: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Tasks of several workers: `by_own_ports` are connected to by each worker's own
    port, `by_shared_port` by the one that all share, as their own cannot be reached.
    `shared_connections` are how many connections the latter have."""

    by_own_ports: int = 0
    by_shared_port: int = 0
    shared_connections: int = 0


@dataclass(frozen=True, slots=True)
class ThrottleStatistics:
    """Requests of one criticality in the last two minutes, or since the first refusal;
    `probability` is that of the next one to be refused here."""

    criticality: str
    probability: float
    accepted: int
    refused_there: int
    refused_here: int


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """A histogram: `counts[i]` calls took at most `bounds[i]` seconds, and more
    than the bound before; the last count is of those above every bound."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """What `channel.statistics()` returns.

    `target` is what the channel was given, `name` what it is called; empty if it was
    given no name.
    `calls` counts finished calls by status code, `attempts` by verdict. `resends` are
    attempts after one that no server took, `retries` those after one that was refused,
    or may have been executed, and `retries_left` is what the budget has for now.
    `sent_attempts` counts attempts by the number that servers are told: "0" the first
    ones, of calls that have ended, "1", and "2" with all beyond. `refused_attempts` are
    those of them that a backend refused because of its load. If most retries are
    refused, other backends are overloaded, too.
    `hedges` were sent, `hedges_won` of them answered their call, and `hedges_withheld`
    counts those that were not sent, by reason: "throttled", "waiting", "no-backend",
    "slow" or "budget". All are zero or empty without `ChannelConfig.hedging`.
    `throttled` were refused here, as backends refuse so much. `refused` are the calls
    that ended here: "throttled", for a customer's "quota", "no-backend", "full" or by
    their "deadline".
    `waited` of the calls had to wait for a backend, `waiting` do so now,
    `waited_seconds` is the sum of their waits. `replacements` backends are there
    beyond the subset, as some of it are out or not ready yet. `draining` backends
    have left the subset and end their last calls.
    `ejected` backends are ejected now, for one method or several; `ejections` counts
    how often one was, for each method. `task_failures` counts background jobs started
    again. `methods` has `calls` by the
    kind ("unary_stream") and the path of the method.

    `zones` has the subset by zone and priority, first those that calls should go to;
    empty where backends have neither. `spilled` counts picks elsewhere, as the first
    ones were full or gone; a call that is sent again has several picks.
    `keyed_picks` counts picks for calls with a key, and `first_choices` those of them
    that went to the first choice of the key among the ready backends, if that is not
    outside of the subset and unconnected; 0 where the picker knows no keys.
    `asked_keys` are all keys of these calls, `expected_hits` as many of them as their
    backends had probably cached; 0 but for `cache_aware`.
    `first_message` has the times until the first messages of streams.
    `resumable_streams` are open now, and `stream_moves` counts how often one was asked
    to move to another backend.
    `loop_stall_seconds` is how long the client's event loop stood still in all, as in a
    blocking function, while calls were in flight; stalls of less than 0.1 s are none.

    `workers` counts the tasks that have several.

    `throttle` is empty while nothing is refused; `retries_left` is what the budget has
    for now.

    `subset` says how the backends were chosen, and why so: "rocksteadier as client 7
    (LBCLIENT_TASK_INDEX=7) of 60 numbered backends", "rendezvous as client 'web-x7f':
    backends have no task numbers".
    """

    target: str
    state: str
    picker: str = ""
    subset: str = ""
    subset_size: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    resends: int = 0
    retries: int = 0
    retries_left: float = 0.0
    sent_attempts: dict[str, int] = field(default_factory=dict)
    refused_attempts: dict[str, int] = field(default_factory=dict)
    throttled: int = 0
    throttle: tuple[ThrottleStatistics, ...] = ()
    refused: dict[str, int] = field(default_factory=dict)
    latency: LatencyStatistics = LatencyStatistics()
    waiting: int = 0
    waited: int = 0
    waited_seconds: float = 0.0
    in_flight: int = 0
    backends: tuple[BackendStatistics, ...] = ()
    replacements: int = 0
    draining: int = 0
    ejected: int = 0
    ejections: int = 0
    task_failures: int = 0
    resolver: ResolverStatistics = ResolverStatistics()
    methods: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    name: str = ""
    zones: tuple[ZoneStatistics, ...] = ()
    spilled: int = 0
    hedges: int = 0
    hedges_won: int = 0
    hedges_withheld: dict[str, int] = field(default_factory=dict)
    workers: WorkerStatistics = WorkerStatistics()
    keyed_picks: int = 0
    first_choices: int = 0
    asked_keys: int = 0
    expected_hits: int = 0
    first_message: LatencyStatistics = LatencyStatistics()
    resumable_streams: int = 0
    stream_moves: int = 0
    loop_stall_seconds: float = 0.0

    @property
    def label(self) -> str:
        """Returns the name, or the target if there is none; metrics and logs call the
        channel so."""
        return self.name or self.target


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What `lbclient.info(call)` tells of one call.

    `backend` is the address that it went to, None while it waits or if it never
    left. `waited` is the time without a backend. `history` has a line for each attempt
    that failed: where, with what, and why there was another one or none.

    `cost` is the CPU time of the attempt that the call ended with, in seconds, as its
    server told: see `ServerConfig.request_cost`. None until the call is over, and where
    the server does not tell.

    `zone` and `priority` are the backend's, as the resolver says. With `locality` a
    call has `left_zone` if this is not the client's, whose backends were full or gone.

    `hedge` says what became of the call's hedge: "sent" while both attempts are in
    flight, then "won" if the hedge has answered, or "lost". Empty: there was none.
    """

    backend: str | None
    attempts: int
    waited: float
    history: tuple[str, ...] = ()
    cost: float | None = None
    zone: str = ""
    priority: int = 0
    left_zone: bool = False
    hedge: str = ""
