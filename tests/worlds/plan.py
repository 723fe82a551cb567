"""What happens in a world, as data: drawn from a seed, and cut down by shrinking.

Chance of the network and of the client comes from the seed, too, but not from here: who
takes a fault or a call out of a plan leaves all others as they were.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

HEALS = 40.0  # seconds after the last fault in which all must be well again
# Seconds between two calls of that time; many where each worker is to have some.
PROBE_EVERY, PROBE_WORKERS_EVERY = 0.5, 0.1
FIRST_PROBE = 1000  # their numbers

IDEMPOTENT, ONCE = "/world.World/Get", "/world.World/Put"
KINDS = {
    IDEMPOTENT: "unary_unary",
    ONCE: "unary_unary",
    "/world.World/List": "unary_stream",
    "/world.World/ListOnce": "unary_stream",
    "/world.World/Sum": "stream_unary",
    "/world.World/Chat": "stream_stream",
}
MAY_REPEAT = (IDEMPOTENT, "/world.World/List")

# What may happen to a server, how often of a hundred, and how long it lasts.
SERVER_FAULTS = {
    "crash": (10, 0.2, 15.0),  # and starts again
    "move": (6, 0.2, 5.0),  # to another address, which the resolver tells
    "drain": (10, 0.1, 5.0),
    "stop": (4, 0.1, 5.0),  # at once, without a word
    "freeze": (8, 0.2, 20.0),
    "freeze long": (2, 70.0, 90.0),
    "block": (8, 0.1, 5.0),
    "cut": (10, 0.1, 20.0),
    "vanish": (5, 1.0, 15.0),
    "slow": (6, 0.5, 15.0),
    "goaway": (8, 0.1, 0.1),
    "goaway abrupt": (5, 0.1, 0.1),
    "refuse streams": (4, 0.1, 2.0),
    "lie": (6, 1.0, 15.0),
    "fail": (7, 1.0, 15.0),  # every call, at once
    "hang": (7, 1.0, 20.0),  # every call, and health goes on
    "overload": (7, 1.0, 15.0),  # its admission refuses
    "mute": (4, 1.0, 20.0),  # health checks and streams hang
}
# Drawn by themselves: who adds one leaves other worlds as they were.
MORE_SERVER_FAULTS = {
    "garble": (3, 1.0, 15.0),  # its reports are rubbish, or lies that can be parsed
    "lose": (2, 1.0, 20.0),  # half of all datagrams
}
MORE_CLIENT_FAULTS = {"resolver lies": (2, 0.5, 5.0)}  # all endpoints are others
# To tasks with workers. "own ports": a firewall changes what it does with them.
WORKER_FAULTS = {
    "kill worker": (20, 0.1, 0.1),
    "kill and kill again": (10, 0.1, 1.0),  # the one that takes its place, so soon
    "freeze worker": (8, 0.2, 15.0),
    "block worker": (8, 0.1, 5.0),
    "reload": (10, 0.1, 0.1),
    "own ports": (6, 1.0, 20.0),
    "crash": (6, 0.2, 10.0),
    "drain": (6, 0.1, 5.0),
    "freeze": (4, 0.2, 15.0),
    "cut": (6, 0.1, 15.0),
    "vanish": (3, 1.0, 10.0),
    "slow": (4, 0.5, 10.0),
    "goaway": (5, 0.1, 0.1),
    "goaway abrupt": (4, 0.1, 0.1),
}
CLIENT_FAULTS = {
    "resolver fails": (10, 1.0, 20.0),
    "resolver is empty": (6, 1.0, 20.0),
    "resolver forgets one": (8, 1.0, 20.0),
    "resolver invents one": (8, 1.0, 20.0),
    "client blocks": (10, 0.1, 6.0),
}


@dataclass(frozen=True)
class ServerPlan:
    """`kind`: lbclient, health (grpc.health.v1 alone) or plain (no health). `workers`:
    how many share the port; 0: it is one process. `own`: what becomes of who connects
    to a worker's own port: "reached", "refused" or "silent"; "off": there is none."""

    address: str
    kind: str
    slots: int | None = None
    workers: int = 0
    own: str = "reached"

    def __str__(self) -> str:
        if not self.workers:
            return f"{self.kind} at {self.address}"
        return f"{self.workers} workers at {self.address}, own ports {self.own}"


@dataclass(frozen=True)
class Fault:
    at: float
    kind: str
    server: int  # -1: none
    lasts: float

    def __str__(self) -> str:
        whom = "" if self.server < 0 else f" server {self.server}"
        return f"{self.kind}{whom} for {self.lasts:.2f} s"


@dataclass(frozen=True)
class CallPlan:
    """`ends`: how the handler answers. `stops`: when and how the caller gives up."""

    number: int
    at: float
    method: str
    timeout: float | None
    takes: float
    parts: int = 1
    size: int = 10
    pause: float = 0.0  # of who reads or writes, between two messages
    ends: str = "ok"
    stops: tuple[float, str] | None = None
    waits_for_ready: bool | None = None
    drips: float = 0.0  # seconds of the handler between two answers

    def __str__(self) -> str:
        name = self.method.rpartition("/")[2]
        limit = "no deadline" if self.timeout is None else f"{self.timeout:.3f} s"
        return f"call {self.number} {name} of {self.takes:.3f} s, {limit}"


@dataclass(frozen=True)
class Plan:
    seed: int
    lasts: float
    delay: float
    settings: tuple[tuple[str, Any], ...]
    servers: tuple[ServerPlan, ...]
    faults: tuple[Fault, ...]
    calls: tuple[CallPlan, ...]
    closes: tuple[float, float | None] | None = None  # when, and with which grace
    intercepts: bool = False  # the channel has interceptors, which pass everything on
    probes: bool = True  # calls, after all was healed, show that all is well
    udp: bool = False  # servers answer health checks by UDP

    def __str__(self) -> str:
        kinds = ", ".join(map(str, self.servers))
        said = ", ".join(f"{name}={value!r}" for name, value in self.settings)
        return (
            f"{len(self.servers)} servers ({kinds}), {len(self.faults)} faults,"
            f" {len(self.calls)} calls in {self.lasts:.0f} s; channel: {said}"
        )


def plan_of(seed: int) -> Plan:
    rng = Random(f"plan {seed}")
    count = rng.choice((1, 2, 2, 3, 3, 4, 5))
    mixed = rng.random() < 0.25
    servers = tuple(
        ServerPlan(
            f"10.0.0.{number + 1}:50051",
            rng.choice(("lbclient", "health", "plain")) if mixed else "lbclient",
            rng.choice((4, 20)) if rng.random() < 0.1 else None,
        )
        for number in range(count)
    )
    lasts = rng.uniform(4.0, 20.0)
    faults = _faults(rng, count, lasts)
    closes = None
    if rng.random() < 0.1:
        closes = (rng.uniform(0.0, lasts), rng.choice((None, 0.5, 5.0)))
    plan = Plan(
        seed,
        lasts,
        rng.choice((0.0005, 0.002, 0.02)),
        _settings(rng),
        servers,
        faults,
        _calls(rng, lasts),
        closes,
        rng.random() < 0.15,
    )
    return _with_more(plan)


def workers_of(seed: int) -> Plan:
    """A plan of tasks with workers, each of which must have calls in the end."""
    rng = Random(f"workers {seed}")
    count = rng.choice((1, 1, 2, 3))
    mixed = rng.random() < 0.2
    own = rng.choice(("reached", "reached", "refused", "silent", "off", "off"))
    servers = tuple(
        ServerPlan(
            f"10.0.0.{number + 1}:50051",
            "lbclient",
            workers=0 if mixed and rng.random() < 0.5 else rng.choice((1, 2, 2, 3, 4)),
            own=own,
        )
        for number in range(count)
    )
    begins, lasts = 1.0, rng.uniform(5.0, 15.0)  # once all workers serve
    said = dict(_settings(rng))
    for name in ("subset_size", "idle_after", "active_limit", "health"):
        said.pop(name, None)  # some are not called then, or nobody hears of workers
    picker = rng.choice(("weighted_least_loaded", "p2c", "round_robin"))
    said["picker"] = picker
    delay = rng.choice((0.0005, 0.002, 0.02))
    calls = tuple(
        replace(one, at=begins + one.at) for one in _calls(rng, lasts - begins)
    )
    known = WORKER_FAULTS | CLIENT_FAULTS
    some = rng.sample(list(known), rng.randint(1, 5))
    faults = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6))):
        [kind] = rng.choices(some, [known[one][0] for one in some])
        whom = count if kind in WORKER_FAULTS else 0
        fault = _fault(rng, {kind: known[kind]}, whom, lasts - begins)
        faults.append(replace(fault, at=begins + fault.at))
    faults.sort(key=lambda fault: fault.at)
    settings = tuple(said.items())
    udp = own == "reached" and rng.random() < 0.3
    return Plan(seed, lasts, delay, settings, servers, tuple(faults), calls, udp=udp)


def _with_more(plan: Plan) -> Plan:
    rng = Random(f"more {plan.seed}")
    calls = plan.calls
    if rng.random() < 0.3:
        calls = tuple(replace(one, drips=rng.choice((0.0, 0.1, 0.5))) for one in calls)
    if rng.random() < 0.05:  # nearly all fail, and may be retried
        often = [rng.random() < 0.8 for _ in calls]
        calls = tuple(
            replace(one, ends="unavailable") if is_failing else one
            for one, is_failing in zip(calls, often, strict=True)
        )
    faults = list(plan.faults)
    if plan.faults and rng.random() < 0.25:
        faults.append(_fault(rng, MORE_SERVER_FAULTS, len(plan.servers), plan.lasts))
    if plan.faults and rng.random() < 0.1:
        faults.append(_fault(rng, MORE_CLIENT_FAULTS, 0, plan.lasts))
    faults.sort(key=lambda fault: fault.at)
    udp = rng.random() < 0.3
    return replace(plan, calls=calls, faults=tuple(faults), udp=udp)


def _fault(
    rng: Random, kinds: dict[str, tuple[int, float, float]], servers: int, lasts: float
) -> Fault:
    kind = rng.choice(list(kinds))
    _, least, most = kinds[kind]
    server = rng.randrange(servers) if servers else -1
    return Fault(rng.uniform(0.0, lasts), kind, server, rng.uniform(least, most))


def _settings(rng: Random) -> tuple[tuple[str, Any], ...]:
    pickers = ("weighted_least_loaded", "p2c", "round_robin", "weighted_round_robin")
    said: dict[str, Any] = {
        "idempotent": MAY_REPEAT,
        "picker": rng.choice((*pickers, "peak_ewma", "prequal")),
        "seed": rng.getrandbits(32),
    }
    chances: dict[str, tuple[float, tuple[Any, ...]]] = {
        "active_limit": (0.3, (1, 3, 10)),
        "max_attempts": (0.2, (1, 2, 5)),
        "health": (0.2, ("watch", "off")),
        "health_interval": (0.3, (0.5, 5.0)),
        "hedging": (0.2, (True,)),
        "hedging_delay": (0.1, (0.05,)),
        "idle_after": (0.3, (0.0, 3.0)),
        "max_waiting": (0.1, (5,)),
        "when_full": (0.15, ("fail",)),
        "slow_start": (0.3, (0.0,)),
        "subset_size": (0.2, (1, 2)),
        "throttle": (0.1, (1.1,)),
    }
    for name, (chance, values) in chances.items():
        if rng.random() < chance:
            said[name] = rng.choice(values)
    return tuple(said.items())


def _faults(rng: Random, servers: int, lasts: float) -> tuple[Fault, ...]:
    kinds = list(SERVER_FAULTS) + list(CLIENT_FAULTS)
    known = SERVER_FAULTS | CLIENT_FAULTS
    some = rng.sample(kinds, rng.randint(1, 6))
    weights = [known[kind][0] for kind in some]
    faults = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6, 9))):
        kind = rng.choices(some, weights)[0]
        _, least, most = known[kind]
        at = rng.uniform(0.0, lasts)
        server = rng.randrange(servers) if kind in SERVER_FAULTS else -1
        faults.append(Fault(at, kind, server, rng.uniform(least, most)))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _calls(rng: Random, lasts: float) -> tuple[CallPlan, ...]:
    calls: list[CallPlan] = []
    at = 0.0 if rng.random() < 0.5 else rng.uniform(0.0, 2.0)
    rate = rng.choice((2.0, 5.0, 10.0, 20.0))
    only_unary = rng.random() < 0.5
    while at < lasts and len(calls) < 100:
        calls.append(_call(rng, len(calls), at, only_unary))
        at += rng.expovariate(rate) if rng.random() < 0.9 else 0.0
    return tuple(calls)


def _call(rng: Random, number: int, at: float, only_unary: bool) -> CallPlan:
    streams = list(KINDS)[2:]
    is_unary = only_unary or rng.random() < 0.6
    method = rng.choice((IDEMPOTENT, ONCE)) if is_unary else rng.choice(streams)
    timeout = rng.choice((0.05, 0.3, 1.0, 1.0, 5.0, 20.0, None))
    call = CallPlan(number, at, method, timeout, rng.choice((0.0, 0.01, 0.05, 0.5)))
    if not is_unary:
        call = replace(
            call,
            parts=rng.choice((0, 1, 3, 10)),
            size=rng.choice((10, 10, 30_000)),
            pause=rng.choice((0.0, 0.0, 0.01, 0.3)),
        )
    if rng.random() < 0.1:
        call = replace(call, ends=rng.choice(("not-found", "raises", "unavailable")))
    if rng.random() < 0.25:
        when = rng.choice((0.0, 0.0001, rng.uniform(0.0, 0.1), rng.uniform(0.0, 3.0)))
        how = ("task", "call") if is_unary else ("task", "call", "drop", "drop", "drop")
        call = replace(call, stops=(when, rng.choice(how)))
    if rng.random() < 0.15:
        call = replace(call, waits_for_ready=True)
    return call
