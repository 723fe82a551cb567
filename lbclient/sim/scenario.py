"""What is simulated, as one flat record: sizes, machines, costs, traffic, misfortunes.

Two things are easily misread. Loads are shares of what all processors can do, slow
ones included, so half of it can be too much for a slow machine under round robin. And
nothing random is in here: it is drawn anew for each seed (which machines are slow,
which clients hot, when neighbours come), the same for all pickers.

A scenario of your own is the same fields in TOML.
"""

import tomllib
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from lbclient.core.errors import ConfigError
from lbclient.core.report import SMOOTHING
from lbclient.core.routing.spill_control import SPILL_ABOVE
from lbclient.subsets import ALGORITHMS, SUBSET_SIZE

LOCALITIES = ("spill", "strict", "off")
COSTS = ("lognormal", "exponential", "normal", "heavy", "equal")
TOLD = ("nothing", "estimate", "runnable")
UNLIMITED = 10**9  # requests in flight: as good as no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One experiment. Times in seconds; raises ConfigError for what cannot be.

    A field that says `share` is one of backends, or of clients, from 0 to 1; who is
    meant is drawn by lot.
    """

    summary: str = ""
    loads: tuple[float, ...] = (0.7, 0.85)  # unless others are asked for

    clients: int = 40
    backends: int = 40
    subset_size: int = SUBSET_SIZE
    max_subset_size: int = 0  # subsets grow up to it with the traffic; 0: none does
    subset: str = "deterministic"  # a name of lbclient.subsets.ALGORITHMS
    zones: int = 0  # that clients and backends are in by turns; 0: none
    # What a client of each zone sends, relative to others; 1 for zones beyond the list.
    zone_traffic: tuple[float, ...] = (1.0,)
    zone_lost: float = 0.0  # share of the first one's backends that leave after warm-up
    zone_priorities: tuple[int, ...] = (0,)  # of backends; 0 beyond the list
    locality: str = "spill"  # or strict: calls never leave their zone; or off
    # The limit of each zone, see ChannelConfig; the default for zones beyond the list.
    spill_above: tuple[float, ...] = (SPILL_ABOVE,)
    cores: int = 4
    speeds: tuple[float, ...] = (1.0,)  # each of as many backends as any other
    sizes: tuple[int, ...] = (1,)  # multiples of `cores`, likewise

    cost: float = 0.02  # mean processor time of a request at speed 1
    # With sigma 1; or exponential, equal, or normal: above 0, its deviation is the mean
    # itself; or heavy: 99 % are lognormal, and 1 % cost 100 to 1000 times what these
    # do, uniformly by their logarithm.
    costs: str = "lognormal"
    wait: float = 0.0  # mean of a pure wait before it, exponential
    waiting_share: float = 1.0  # of the requests; below 1, latencies are of the others
    second_share: float = 0.0  # of the requests: of a second method, which cost ...
    second_cost: float = 1.0  # ... so many times what the first one's do
    round_trip: float = 0.001
    farther: tuple[float, ...] = (0.0,)  # beyond that; each of as many backends
    full: int = 200  # runnable requests at which a backend refuses
    timeout: float = 5.0  # a request that took longer counts as failed
    batch: int = 1  # requests that a client sends at once
    swings: tuple[float, ...] = (1.0,)  # of the load, one after the other, each ...
    swing_lasts: float = 0.0  # ... for so many seconds; 0: the load is steady
    hot_share: float = 0.0  # of the clients; they send ...
    hot_traffic: float = 0.0  # ... this share of all requests
    keys: int = 0  # that requests have; 0: they have none
    key_skew: float = 1.0  # the n-th key has n^-key_skew times the first one's requests

    neighbour: float = 1.0  # a machine's speed while its neighbour is busy
    neighbour_period: float = 20.0  # mean of its busy times, and of those between
    # Processors that a backend may use while its neighbour is busy, and while it is
    # not, where `cores` are its share of the machine; 0: `cores`.
    neighbour_cores: tuple[int, ...] = (0,)
    restart_every: float = 0.0  # one backend, by lot; 0: never
    restart_away: float = 0.0  # not connected meanwhile; 0: no connection is lost
    restart_loses: bool = False  # the requests that it has, as in a crash
    restart_speed: float = 0.4  # afterwards, for `restart_lasts`
    restart_lasts: float = 15.0
    joining: int = 0  # so many are there from the end of the warm-up on, as restarted
    leaving: int = 0  # so many are there until then, and serve what they have
    slowed: int = 0  # so many backends slow down at `slowed_after`
    slowed_speed: float = 0.5
    slowed_after: float = 20.0  # the warm-up
    sinkholes: int = 0  # fail all at once from the end of the warm-up
    failing: int = 0  # fail some at once from then on: ...
    failing_share: float = 0.3  # ... of the second method, or of the only one
    gray: int = 0  # take much longer from then on, with no more processor time ...
    gray_factor: float = 10.0  # ... than their mean latency without a queue
    refusing: int = 0  # refuse all, always

    warm_up: float = 30.0
    window: float = 40.0

    smoothing: float = SMOOTHING  # of what is reported
    # A report comes at least as often; lbclient's servers send one a second. Nearly all
    # come with answers.
    health_interval: float = 5.0
    # Of requests in flight, beside their number: who runs or wants to as far as a
    # server can know it by its own figures; or exactly, "runnable"; or "nothing".
    told: str = "estimate"
    # Share of the use of its processors that a server sees: less if they are GPUs.
    seen: float = 1.0
    report_delay: float = 0.0  # of all that is reported
    rates_delay: float = 0.0  # of what is sampled, but not of counted requests
    report_loss: float = 0.0  # share of the responses without a report
    report_noise: float = 0.0  # utilization off by so much, uniformly, each time
    silent_share: float = 0.0  # report nothing, from ...
    silent_from: float = 0.0  # ... then on, which may be before the end of the warm-up
    wrong_share: float = 0.0  # report `wrong_factor` times their utilization
    wrong_factor: float = 1.0
    liars: int = 0  # always report 0.01

    ejection: bool = True  # clients eject backends that fail what others do not
    eject_late: bool = True  # and those that are late while others are not
    active_limit: int = UNLIMITED  # see ChannelConfig
    throttle: float = 0.0  # likewise; 0: none
    attempts: int = 1  # of a refused request, within ...
    retry_ratio: float = 0.1  # ... the client's budget: so many retries a request
    avoid_tried: bool = True  # no attempt goes where one of its request was refused
    admission: bool = False  # backends refuse by load, not only when full
    late_binding: int = 0  # attempts of a request that may be declined, at most
    # Processor time of a refusal, or of a declined attempt, in mean requests.
    refusal_cost: float = 0.0
    event_loop: bool = False  # a processor has one request at a time, others wait ...
    # ... unseen in gRPC's core, of which `full` is the length.

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), field.default)
        if self.costs not in COSTS:
            raise ConfigError("costs", self.costs, f"one of {', '.join(COSTS)}")
        if self.told not in TOLD:
            raise ConfigError("told", self.told, f"one of {', '.join(TOLD)}")
        if self.subset not in ALGORITHMS:
            wanted = f"one of {', '.join(ALGORITHMS)}"
            raise ConfigError("subset", self.subset, wanted)
        if self.throttle and self.throttle < 1.05:
            raise ConfigError("throttle", self.throttle, "0, or 1.05 to 1000")
        if len(self.neighbour_cores) > 2:
            wanted = "one or two numbers"
            raise ConfigError("neighbour_cores", self.neighbour_cores, wanted)
        self._check_pairs()
        self._check_together()
        self._check_zones()
        self._check_counts()

    def _check_counts(self) -> None:
        """How many backends something happens to."""
        for name in ("sinkholes", "joining", "leaving", "failing", "gray"):
            if getattr(self, name) >= self.backends:
                raise ConfigError(name, getattr(self, name), "fewer than backends")
        for name in ("slowed", "liars", "refusing"):
            if getattr(self, name) > self.backends:
                raise ConfigError(name, getattr(self, name), "no more than backends")

    def _check_pairs(self) -> None:
        """Fields of which at most one of two may be set."""
        if self.hot_share and self.has_zone_traffic:
            wanted = "0 where zone_traffic is not 1"
            raise ConfigError("hot_share", self.hot_share, wanted)
        if self.report_delay and self.rates_delay:
            wanted = "0 where report_delay is not"
            raise ConfigError("rates_delay", self.rates_delay, wanted)
        if self.event_loop and self.wait:
            raise ConfigError("wait", self.wait, "0 where event_loop is true")
        if any(self.neighbour_cores) and self.sizes != (1,):
            wanted = "0 where sizes is not 1"
            raise ConfigError("neighbour_cores", self.neighbour_cores, wanted)
        for name in ("gray", "failing", "restart_loses"):
            if self.event_loop and getattr(self, name):
                wanted = "false" if name == "restart_loses" else "0"
                wanted += " where event_loop is true"
                raise ConfigError(name, getattr(self, name), wanted)
        if self.event_loop and any(self.neighbour_cores):
            wanted = "0 where event_loop is true"
            raise ConfigError("neighbour_cores", self.neighbour_cores, wanted)

    def _check_together(self) -> None:
        """Fields that say something only where another one does."""
        if self.restart_loses and not self.restart_away:
            wanted = "false where restart_away is 0"
            raise ConfigError("restart_loses", self.restart_loses, wanted)
        if self.waiting_share < 1.0 and not self.wait:
            wanted = "1 where wait is 0"
            raise ConfigError("waiting_share", self.waiting_share, wanted)
        if len(self.swings) > 1 and not self.swing_lasts:
            wanted = "above 0 where swings are several"
            raise ConfigError("swing_lasts", self.swing_lasts, wanted)

    def _check_zones(self) -> None:
        if self.zones > min(self.clients, self.backends):
            raise ConfigError("zones", self.zones, "no more than clients or backends")
        if self.locality not in LOCALITIES:
            wanted = f"one of {', '.join(LOCALITIES)}"
            raise ConfigError("locality", self.locality, wanted)
        needs_zones = self.has_zone_traffic, self.zone_lost, *self.zone_priorities
        if not self.zones and any(needs_zones):
            raise ConfigError("zones", self.zones, "at least 1 for what is of a zone")

    @property
    def is_careful(self) -> bool:
        """Whether clients and backends do more than to send and to serve."""
        return bool(
            self.throttle
            or self.attempts > 1
            or self.admission
            or self.refusing
            or self.late_binding
        )

    @property
    def has_neighbours(self) -> bool:
        return self.neighbour != 1.0 or any(self.neighbour_cores)

    def cores_beside(self, *, is_busy: bool) -> int:
        """What a backend may use while its neighbour is busy, or is not."""
        return self.neighbour_cores[0 if is_busy else -1] or self.cores

    @property
    def mean_speed(self) -> float:
        """Of all processors in the long run, for each of `cores` of a backend; restarts
        are not in it, being failures."""
        whole = sum(self.speed_of(i) * self.size_of(i) for i in range(self.backends))
        mean = whole / self.backends
        return mean * (1.0 + self.neighbour) / 2.0

    @property
    def samples_zones(self) -> bool:
        """Whether clients go by the utilization of zones, of which they see a part."""
        return self.zones > 1 and self.locality == "spill" and not self.zone_lost

    @property
    def has_zone_traffic(self) -> bool:
        return any(sends != 1.0 for sends in self.zone_traffic)

    def zone_of(self, number: int) -> str:
        """Of the client or the backend of that number."""
        return f"z{number % self.zones}" if self.zones else ""

    def sends(self, client: int) -> float:
        """Relative to other clients."""
        return self._of_zone(self.zone_traffic, client, 1.0)

    def priority_of(self, backend: int) -> int:
        return int(self._of_zone(self.zone_priorities, backend, 0))

    def spill_limits(self) -> dict[str, float]:
        """As `ChannelConfig.spill_above` has them."""
        return {self.zone_of(i): limit for i, limit in enumerate(self.spill_above)}

    def _of_zone(self, values: tuple[float, ...], number: int, other: float) -> float:
        zone = number % self.zones if self.zones else 0
        return values[zone] if zone < len(values) else other

    def speed_of(self, place: int) -> float:
        """Before the lot decides which backend has which place."""
        return self.speeds[place % len(self.speeds)]

    def size_of(self, place: int) -> int:
        """Likewise, in multiples of `cores`."""
        return self.sizes[place % len(self.sizes)]

    def farther_of(self, place: int) -> float:
        """Likewise, in seconds beyond `round_trip`."""
        return self.farther[place % len(self.farther)]

    def swing_at(self, now: float) -> tuple[float, float]:
        """What the load is multiplied by, and until when; from then on look again."""
        if not self.swing_lasts:
            return self.swings[0], inf
        number = int(now / self.swing_lasts)
        until = (number + 1) * self.swing_lasts
        if until <= now:  # by rounding
            number, until = number + 1, until + self.swing_lasts
        return self.swings[number % len(self.swings)], until

    def delay_of(self, speed: float) -> float:
        """What a gray backend adds to each request, in seconds."""
        return (self.gray_factor - 1.0) * (self.cost / speed + self.wait)

    def rate(self, load: float) -> float:
        """Requests per second that need that share of all processors."""
        return load * self.cores * self.backends * self.mean_speed / self.cost


# What is not here is from 0 up to a thousand.
BOUNDS: dict[str, tuple[float, float]] = {
    "clients": (1, 10_000),
    "backends": (1, 10_000),
    "subset_size": (1, 10_000),
    "max_subset_size": (0, 10_000),
    "cores": (1, 1000),
    "cost": (1e-6, 1000.0),
    "full": (1, 10**6),
    "zones": (0, 100),
    "keys": (0, 10**6),
    "key_skew": (0.0, 3.0),
    "zone_traffic": (0.01, 100.0),
    "zone_lost": (0.0, 1.0),
    "zone_priorities": (0, 65535),
    "spill_above": (0.1, 0.95),
    "timeout": (0.001, 1000.0),
    "hot_share": (0.0, 1.0),
    "hot_traffic": (0.0, 1.0),
    "neighbour": (0.01, 100.0),
    "neighbour_cores": (0, 1000),
    "neighbour_period": (0.1, 1000.0),
    "restart_speed": (0.01, 100.0),
    "slowed_speed": (0.01, 100.0),
    "slowed": (0, 10_000),
    "sinkholes": (0, 10_000),
    "joining": (0, 10_000),
    "leaving": (0, 10_000),
    "failing": (0, 10_000),
    "failing_share": (0.0, 1.0),
    "waiting_share": (0.0, 1.0),
    "second_share": (0.0, 1.0),
    "second_cost": (0.001, 1000.0),
    "swings": (0.0, 100.0),
    "farther": (0.0, 10.0),
    "gray": (0, 10_000),
    "gray_factor": (1.0, 1000.0),
    "batch": (1, 1000),
    "sizes": (1, 1000),
    "liars": (0, 10_000),
    "refusing": (0, 10_000),
    "retry_ratio": (0.0, 2.0),
    "late_binding": (0, 3),
    "refusal_cost": (0.0, 1.0),
    "window": (1.0, 100_000.0),
    "smoothing": (0.01, 1000.0),
    "health_interval": (0.1, 1000.0),
    "report_loss": (0.0, 1.0),
    "seen": (0.0, 1.0),
    "report_noise": (0.0, 1.0),
    "silent_share": (0.0, 1.0),
    "wrong_share": (0.0, 1.0),
    "active_limit": (1, UNLIMITED),
    "attempts": (1, 3),
    "loads": (0.001, 100.0),
    "speeds": (0.01, 100.0),
}


def _check(name: str, value: object, default: object) -> None:
    if isinstance(default, (bool, str)):
        if type(value) is not type(default):
            kind = "text" if isinstance(default, str) else "true or false"
            raise ConfigError(name, value, kind)
        return
    low, high = BOUNDS.get(name, (0.0, 1000.0))
    if isinstance(default, tuple):
        if not isinstance(value, tuple) or not value:
            raise ConfigError(name, value, "a list of numbers, one at least")
        for one in value:
            _check_number(name, one, low, high, type(default[0]))
    else:
        _check_number(name, value, low, high, type(default))


def _check_number(
    name: str, value: object, low: float, high: float, kind: type
) -> None:
    kinds = (int,) if kind is int else (int, float)
    if type(value) not in kinds or not low <= value <= high:  # type: ignore[operator]
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(name, value, f"{what}, {low:g} to {high:g}")


def parse(text: str) -> Scenario:
    """A scenario from TOML. Raises ConfigError for what is none.

    >>> parse("backends = 3\\nspeeds = [1, 2.5]").backends
    3
    """
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("scenario", str(error), "TOML") from None
    known = {field.name for field in fields(Scenario)}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(name, value, f"one of {', '.join(sorted(known))}")
    lists = {k: tuple(v) for k, v in table.items() if isinstance(v, list)}
    return Scenario(**{**table, **lists})
