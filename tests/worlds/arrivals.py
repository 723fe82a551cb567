"""What happens to the servers of a world, as data drawn from a seed: who asks what of
them, how much CPU time that takes, and what breaks.

Five kinds of worlds, as what a server promises depends on what is asked of it.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.worlds.plan import Fault

CALM, FLOOD, QUOTA, LEAVING, MIXED = "calm", "flood", "quota", "leaving", "mixed"
KINDS = (CALM, FLOOD, FLOOD, QUOTA, QUOTA, LEAVING, LEAVING, MIXED)
QUIET = 6.0  # seconds at the end in which little comes, and nothing is broken
SECRET = "known to all of a fleet"
MOST = 400  # requests, about

# What may happen to a task, and how long it lasts.
TASK_FAULTS = {
    "drain": (1.0, 4.0),  # until it starts again
    "stop": (1.0, 4.0),
    "crash": (0.5, 4.0),
    "freeze": (0.3, 3.0),
    "block": (0.3, 2.0),
    "cut": (0.3, 4.0),
    "lose": (1.0, 6.0),  # half of all datagrams
    "goaway": (0.1, 0.1),
}
STORE_FAULTS = {
    "store fails": (1.0, 6.0),
    "store hangs": (1.0, 6.0),
    "store lies": (1.0, 6.0),
}


@dataclass(frozen=True)
class Traffic:
    """Requests of one customer, at random moments.

    `watches`: its clients hear of a lame duck, and ask others; gRPC's own go by GOAWAY.
    """

    begins: float
    ends: float
    rate: float  # a second, at all tasks together
    cost: float  # CPU seconds of each
    timeout: float | None
    criticality: str = ""  # "": none is said
    customer: str = ""
    waits: float = 0.0  # seconds, besides
    watches: bool = True

    def __str__(self) -> str:
        whose = f" of {self.customer}" if self.customer else ""
        return (
            f"{self.rate:.1f} {self.criticality or 'requests'}{whose} a second, each"
            f" {self.cost:.3f} s of CPU, from {self.begins:.1f} to {self.ends:.1f} s"
        )


@dataclass(frozen=True)
class ArrivalPlan:
    """`settings` are of the servers. `secret` seals UDP, `is_secure` has sessions."""

    seed: int
    kind: str
    lasts: float
    delay: float
    tasks: int
    settings: tuple[tuple[str, Any], ...]
    traffic: tuple[Traffic, ...]
    faults: tuple[Fault, ...]
    places: int | None = None  # maximum_concurrent_rpcs
    secret: str = ""
    is_secure: bool = False

    def setting(self, name: str, default: Any = None) -> Any:
        return dict(self.settings).get(name, default)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.settings)
        return (
            f"a {self.kind} world of {self.tasks} servers, {self.lasts:.0f} s:"
            f" {'; '.join(map(str, self.traffic))}; server: {said}"
        )


def arrivals_of(seed: int) -> ArrivalPlan:
    rng = Random(f"arrivals {seed}")
    kind = rng.choice(KINDS)
    tasks = rng.choice((1, 1, 2, 3)) if kind != LEAVING else rng.choice((2, 3))
    busy = rng.uniform(4.0, 8.0) if kind != LEAVING else rng.uniform(12.0, 20.0)
    settings: dict[str, Any] = {"lame_duck_period": 10.0, "request_cost": True}
    traffic = {
        CALM: _calm,
        FLOOD: _flood,
        QUOTA: _quota,
        LEAVING: _calm,
        MIXED: _flood,
    }[kind](rng, tasks, busy, settings)
    places = rng.choice((None, None, 30)) if kind == MIXED else None
    is_secure = rng.random() < 0.3
    return ArrivalPlan(
        seed,
        kind,
        busy + QUIET,
        rng.choice((0.0005, 0.002, 0.02)),
        tasks,
        tuple(settings.items()),
        tuple(traffic),
        _faults(rng, kind, tasks, busy),
        places,
        "" if is_secure else rng.choice(("", SECRET)),
        is_secure,
    )


def _after(rng: Random, tasks: int, busy: float) -> Traffic:
    """What comes when all is over."""
    cost = rng.choice((0.005, 0.02))
    return Traffic(busy, busy + QUIET, 0.15 * tasks / cost, cost, 5.0)


def _calm(
    rng: Random, tasks: int, busy: float, settings: dict[str, Any]
) -> list[Traffic]:
    """At most half of the capacity; of one task, where others leave."""
    most = 0.5 * (tasks if busy <= 8.0 else 1)
    result, left = [], rng.uniform(0.2, 1.0) * most
    for _ in range(rng.choice((1, 2))):
        cost = rng.choice((0.005, 0.02, 0.05))
        share = left * rng.uniform(0.3, 1.0)
        traffic = Traffic(
            0.0,
            busy,
            min(share / cost, MOST / 2 / busy),
            cost,
            rng.choice((None, 5.0, 20.0)),
            rng.choice(("", "CRITICAL_PLUS", "SHEDDABLE")),
            waits=rng.choice((0.0, 0.0, 0.1)),
            watches=rng.random() < 0.7,
        )
        result.append(traffic)
        left -= traffic.rate * cost
    return [*result, _after(rng, tasks, busy)]


def _flood(
    rng: Random, tasks: int, busy: float, settings: dict[str, Any]
) -> list[Traffic]:
    """Much more than the capacity, most of it sheddable, by clients of all kinds."""
    cost = rng.choice((0.03, 0.05))
    capacity = tasks / cost
    times = min(rng.choice((2.0, 3.0, 5.0, 10.0)), MOST / busy / capacity)
    timeout = rng.choice((1.0, 2.0))
    shares = {"SHEDDABLE": 0.6, "SHEDDABLE_PLUS": 0.25, "": 0.1}
    result = [
        Traffic(0.0, busy, times * capacity * share, cost, timeout, name)
        for name, share in shares.items()
    ]
    plus = min(0.05 * times, 0.4) * capacity
    result.append(Traffic(0.0, busy, plus, cost, timeout, "CRITICAL_PLUS"))
    return [*result, _after(rng, tasks, busy)]


def _quota(
    rng: Random, tasks: int, busy: float, settings: dict[str, Any]
) -> list[Traffic]:
    """One asks for more than its quota, and others for less; there is CPU for all."""
    limit = rng.choice((0.1, 0.2, 0.3)) * tasks
    cost = rng.choice((0.005, 0.01, 0.02))
    settings["quotas"] = {"greedy": limit, "modest": limit}
    names = "greedy", "modest"
    if rng.random() < 0.4:  # the same, of customers whom nobody has listed
        settings["quotas"] = {"third": limit}
        settings["default_quota"] = limit
    settings["cpu_factor"] = 1.0
    rate = min(rng.uniform(2.0, 6.0) * limit / cost, MOST / busy)
    greedy = Traffic(0.0, busy, rate, cost, 5.0, customer=names[0])
    modest = Traffic(0.0, busy, 0.4 * limit / cost, cost, 5.0, customer=names[1])
    after = replace(_after(rng, tasks, busy), customer="third")
    return [greedy, modest, replace(after, rate=0.4 * limit / after.cost)]


def _restarts(rng: Random, tasks: int, busy: float) -> tuple[Fault, ...]:
    """One task after the other leaves, and starts again."""
    first = rng.randrange(tasks)
    faults = [
        Fault(at, "drain", (first + number) % tasks, rng.uniform(0.2, 1.0))
        for number, at in enumerate((rng.uniform(0.5, 2.0), busy / 2))
    ]
    if rng.random() < 0.3:
        faults.append(Fault(0.3, "lose", first, busy))
    return tuple(faults)


def _faults(rng: Random, kind: str, tasks: int, busy: float) -> tuple[Fault, ...]:
    if kind == LEAVING:
        return _restarts(rng, tasks, busy)
    known = {
        CALM: {},
        FLOOD: {},
        QUOTA: STORE_FAULTS,
        MIXED: TASK_FAULTS,
    }[kind]
    if not known:
        return ()
    faults = []
    least = 0 if kind == QUOTA else 1
    for _ in range(rng.choice((least, 1, 2, 3))):
        name = rng.choice(list(known))
        at = rng.uniform(0.0, busy - 1.0)
        task = rng.randrange(tasks) if name in TASK_FAULTS else -1
        lasts = min(rng.uniform(*known[name]), busy - at)
        faults.append(Fault(at, name, task, lasts))
    return tuple(sorted(faults, key=lambda one: one.at))
