"""The values that the parts exchange: endpoint, load report, outcome, states.

All are immutable. How they are encoded is in `wire`, what is concluded from them in
`load`.
"""

import re
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

# What grpcio would look up in DNS, with its slashes. It knows one scheme with an
# authority, and several that have a path alone.
_URL = re.compile("(?!dns:)[a-z][a-z0-9+.-]*://[^/]", re.IGNORECASE)


def _check_address(address: str) -> None:
    if not isinstance(address, str) or not address:
        raise ConfigError("address", address, "text such as '10.0.0.3:50051'")
    if len(address) > LONGEST_ADDRESS or not is_printable(address):
        want = f"at most {LONGEST_ADDRESS} characters, all of them printable"
        raise ConfigError("address", address, want)
    if "://" in address and _URL.match(address):
        want = "host:port without a scheme, such as '10.0.0.3:50051'"
        raise ConfigError("address", address, want)
    _, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and not 0 < int(port[:6]) < 65536:
        # grpcio takes it, never connects, and may hang when the process ends.
        raise ConfigError("address", address, "a port of 1 to 65535")


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where one backend task listens. Its identity is the address alone.

    `address` is what gRPC dials: `10.0.0.3:50051`, `[::1]:50051` or `unix:/path`. All
    else is what the resolver knows. `weight` is the relative capacity until the backend
    reports its load. `task` is the number of the task in its job, from 0; endpoints
    with the same number are addresses of one task. A `lame_duck` is about to leave: it
    finishes its calls, and gets new ones only if there is no other backend. Endpoints
    with a higher `priority` number get calls while those with lower numbers are full or
    gone. `task_weight` is set by channels, where `weight` is only a part of the task's,
    as for one worker of several. Raises ConfigError for invalid values.
    """

    address: str
    weight: float = 1.0
    zone: str = ""
    task: int | None = None
    lame_duck: bool = False
    priority: int = 0
    task_weight: float | None = None

    def __post_init__(self) -> None:
        _check_address(self.address)
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
    """Which task of its job a client is; `index` is None if it is unknown.

    `source` says where the index comes from, as in `LBCLIENT_TASK_INDEX=7`, and which
    other source was ignored.
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

    `utilization` is the application's own if it has one, else the CPU's; 0.0 means
    unknown, as it does for `qps` (gRFC A58). `active` is the number of requests in
    flight on the backend from all its clients, and `runnable` the number of these that
    run or want a processor; None means unknown. `latency`, in seconds, is the median of
    recent requests with about as many in flight as now; only answers to probes have it.
    `task_id` is the number of the server that reports, 0 if unknown. `refused` are the
    shares, from 0 to 1, of recent requests that it refused because of its load, by
    criticality; None means unknown. `metrics` are its positive utilizations and named
    metrics by the names of gRFC A114, such as `mem_utilization` or
    `named_metrics.pool`; they must not be changed.

    For speed it is made by position in `wire.reports` and twice in `sim.backend`: add a
    new field at the end, and to those three places.
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

    SERVED = "served"  # OK, or an error of the application: the backend is fine
    REJECTED = "rejected"  # the backend shed the request
    FAILED = "failed"  # unavailable, internal, deadline exceeded, ...
    ABANDONED = "abandoned"  # cancelled or dropped by the client: tells nothing
    DECLINED = "declined"  # as the client allowed: only its load report counts

    # By identity, as each member exists once. Enum's own hash is a function in Python,
    # and verdicts are looked up several times a call.
    __hash__ = object.__hash__


class Outcome(NamedTuple):
    """All that is learned from one attempt. `latency` is in seconds.

    `refusal` is why the backend refused it, if known. `is_answer`: the status is the
    backend's own answer, so it can be compared with the answers of other backends.
    """

    verdict: Verdict
    latency: float
    report: LoadReport | None = None
    refusal: Refusal | None = None
    is_answer: bool = True


new_outcome: Callable[[tuple[object, ...]], Outcome]
# As a named tuple's own constructor, without its call of a function in Python.
new_outcome = partial(tuple.__new__, Outcome)
