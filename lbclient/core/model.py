"""The values that flow: endpoint, load report, outcome, states. All are immutable.

Nothing here knows how it travels (`wire`) or what is concluded from it (`load`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from lbclient.core.errors import ConfigError
from lbclient.core.refusal import Refusal
from lbclient.core.text import is_printable

# Characters. A name of DNS has 253, a path of a socket 107, a zone of Kubernetes 63.
LONGEST_ADDRESS = 400
LONGEST_ZONE = 200  # characters, likewise
LARGEST_PRIORITY = 65535  # RFC 2782, of an SRV record


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where one backend task listens. Its identity is the address alone.

    `address` is what gRPC dials: `10.0.0.3:50051`, `[::1]:50051` or
    `unix:/path`. `weight`, what it is worth until it reports, and
    `zone` are the resolver's hints. `task` is the number
    of the task in its job, from 0, where the resolver knows it; endpoints with one
    number are addresses of one task. A `lame_duck` is about to leave, says the
    resolver: it ends its calls and gets new ones only if there is nobody else.
    Endpoints of a higher `priority` number get calls while those of lower numbers are
    full or gone. `task_weight` is that of the whole task where `weight` is a part of
    it, as of one worker of several; channels set it.
    Raises ConfigError for what these cannot be.
    """

    address: str
    weight: float = 1.0
    zone: str = ""
    task: int | None = None
    lame_duck: bool = False
    priority: int = 0
    task_weight: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not self.address:
            raise ConfigError("address", self.address, "text such as '10.0.0.3:50051'")
        if len(self.address) > LONGEST_ADDRESS or not is_printable(self.address):
            want = f"at most {LONGEST_ADDRESS} characters, all of them printable"
            raise ConfigError("address", self.address, want)
        _, colon, port = self.address.rpartition(":")
        if colon and port.isdecimal() and not 0 < int(port[:6]) < 65536:
            # grpcio takes it, never connects, and may hang when the process ends.
            raise ConfigError("address", self.address, "a port of 1 to 65535")
        zone = self.zone
        if zone and (
            not isinstance(zone, str)
            or len(zone) > LONGEST_ZONE
            or not is_printable(zone)
        ):
            want = f"text of at most {LONGEST_ZONE} characters, all of them printable"
            raise ConfigError("zone", zone, want)
        weight = self.weight
        if type(weight) not in (int, float) or not 0.0 < weight < inf:
            raise ConfigError("weight", weight, "a number above 0")
        task = self.task
        if task is not None and (type(task) is not int or task < 0):
            raise ConfigError("task", task, "a whole number, at least 0, or None")
        if type(self.lame_duck) is not bool:
            raise ConfigError("lame_duck", self.lame_duck, "True or False")
        priority = self.priority
        if type(priority) is not int or not 0 <= priority <= LARGEST_PRIORITY:
            want = f"a whole number, 0 to {LARGEST_PRIORITY}"
            raise ConfigError("priority", priority, want)
        whole = self.task_weight
        if whole is not None and (
            type(whole) not in (int, float) or not 0.0 < whole < inf
        ):
            raise ConfigError("task_weight", whole, "a number above 0, or None")


Endpoints = tuple[Endpoint, ...]
"""A whole snapshot: sorted, each address once. Never a difference."""


def snapshot(endpoints: "Endpoints | list[Endpoint]") -> Endpoints:
    """Sorts, and keeps the first of several endpoints with one address.

    >>> snapshot([Endpoint("b:1"), Endpoint("a:1"), Endpoint("b:1", zone="z")])[1].zone
    ''
    """
    by_address: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        by_address.setdefault(endpoint.address, endpoint)
    return tuple(by_address[address] for address in sorted(by_address))


@dataclass(frozen=True, slots=True)
class Identity:
    """Which task of its job a client is; `index` is None where nobody told it.

    `source` says who did, as in `LBCLIENT_TASK_INDEX=7`, and whose word was ignored.
    """

    index: int | None
    source: str = ""


class TaskState(Enum):
    """What a backend task says of itself (SRE book, ch. 20, "lame duck")."""

    STARTING = 1
    SERVING = 2
    LAME_DUCK = 3


class State(Enum):
    """What a client thinks of a backend."""

    CONNECTING = "connecting"
    STARTING = "starting"
    READY = "ready"
    LAME_DUCK = "lame duck"
    REFUSING = "refusing"
    INACTIVE = "inactive"


class LoadReport(NamedTuple):
    """What a backend last said of its load. Rates per second, never negative.

    `utilization` is the application's own where it has one, else the CPU's;
    0.0 means unknown, as it does for `qps` (gRFC A58). `active` is the number of
    requests in the backend from all its clients, None where it does not tell;
    `runnable` those of them that want a processor. `latency` is the median of late
    with about as many requests as now, in seconds; who is asked tells it, answers
    do not. `task_id` is the number of the server that says it, 0 if it tells none.
    `refused` are shares, from 0 to 1, of late requests that it refused because of its
    load, by criticality; None where it does not tell. `metrics` are its positive
    utilizations and named metrics by the names of gRFC A114, such as
    `mem_utilization` or `named_metrics.pool`; nobody changes them.

    It is made by position, for speed, in `wire.reports` and twice in `sim.backend`:
    a new field goes last, and there, too.
    """

    utilization: float = 0.0
    qps: float = 0.0
    eps: float = 0.0
    active: int | None = None
    runnable: int | None = None
    state: TaskState | None = None
    latency: float = 0.0
    task_id: int = 0
    refused: tuple[float, ...] | None = None
    metrics: Mapping[str, float] = MappingProxyType({})


class Verdict(Enum):
    """What one attempt says of the backend, not of the request."""

    SERVED = "served"  # it worked, or the application said no: the backend is fine
    REJECTED = "rejected"  # the backend shed us
    FAILED = "failed"  # unavailable, internal, deadline exceeded, ...
    ABANDONED = "abandoned"  # we cancelled or dropped it: teaches nothing
    DECLINED = "declined"  # as we had allowed: teaches what its report says

    # Members are single, so identity will do; Enum's own is not in C, and verdicts
    # are looked up several times a call.
    __hash__ = object.__hash__


class Outcome(NamedTuple):
    """The one thing that flows back from an attempt. `latency` in seconds.

    `refusal` is why the backend did not want it, as far as is known. `is_answer`: the
    status is the backend's own answer, so that others' answers may be held against it.
    """

    verdict: Verdict
    latency: float
    report: LoadReport | None = None
    refusal: Refusal | None = None
    is_answer: bool = True


new_outcome: Callable[[tuple[object, ...]], Outcome]
# What a named tuple's own constructor does after a call in Python.
new_outcome = partial(tuple.__new__, Outcome)
