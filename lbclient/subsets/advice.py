"""How large a subset must be, so that no backend gets far more than its share.

SRE book, ch. 20, has two reasons for a larger one, and both are computed here. Few
clients: whole connections cannot be even where there are few for each backend, and
some backends have none. Bursts: the subsets of those clients that send more than
the others are busier than the rest.

A client is taken to spread its calls evenly over its subset. Pickers that follow
the load do better, so a size that is advised here is on the safe side.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from random import Random

from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Algorithm
from lbclient.subsets.properties import Balance, Subsets, balance, choose

# Which clients are hot is drawn anew so often; of their excesses, lowest first, the
# one at this share is reported.
DRAWS = 100
PERCENTILE = 0.95  # share of the draws

MOST_CONNECTIONS = 5_000_000  # that are looked at together: some 200 MB


@dataclass(frozen=True, slots=True)
class Bursts:
    """Some clients, anyone may be among them, send more than the others.

    `share` of the clients, rounded to whole ones and at least one, are hot and send
    `traffic` of all calls, each of them the same.
    """

    share: float
    traffic: float

    def __post_init__(self) -> None:
        for field, value in (("hot_share", self.share), ("hot_traffic", self.traffic)):
            if not isinstance(value, float | int) or not 0.0 < value <= 1.0:
                raise ConfigError(field, value, "a number above 0, at most 1")

    def hot(self, clients: int) -> int:
        """How many of so many clients are hot.

        Raises ConfigError if they would then send less than the others.
        """
        hot = max(1, round(self.share * clients))
        if self.traffic < hot / clients:
            raise ConfigError(
                "hot_traffic",
                self.traffic,
                f"at least {hot / clients:.3g}: {hot} of {clients} clients are hot",
            )
        return hot

    def rates(self, clients: int) -> tuple[float, float]:
        """What a hot one sends and what another one, where the mean of all is 1."""
        hot = self.hot(clients)
        if hot == clients:
            return 1.0, 1.0
        others = (1.0 - self.traffic) * clients / (clients - hot)
        return self.traffic * clients / hot, others


@dataclass(frozen=True, slots=True)
class Excess:
    """The load of the busiest backend over the mean load, at one subset size."""

    size: int
    even: float  # while all clients send alike
    bursty: float  # PERCENTILE of DRAWS of hot clients; without bursts as `even`
    worst: float  # if the hot ones are those that share a backend
    unused: int  # backends without any client


class Adviser:
    """Knows the excess of every size, for one client job on one backend job.

    Raises ConfigError where `bursts` do not fit the number of clients.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clients: int,
        backends: int,
        *,
        rng: Random,
        bursts: Bursts | None = None,
    ) -> None:
        self.clients = clients
        self.backends = backends
        # Without bursts everybody is hot, that is, nobody is.
        self._bursts = bursts or Bursts(1.0, 1.0)
        self._hot = self._bursts.hot(clients)
        # Once for all sizes, so that sizes differ by nothing else.
        self._draws = [] if bursts is None else self._draw(rng)
        self._algorithm = algorithm
        self._known: dict[int, Excess] = {}

    def at(self, size: int) -> Excess:
        """The figures of a size from 1 to the number of backends.

        Raises ConfigError for a size that makes too many connections to look at.
        """
        most = MOST_CONNECTIONS // self.clients
        if size > most:
            most = MOST_CONNECTIONS // size
            want = f"at most {most} to look at subsets of {size}"
            raise ConfigError("clients", self.clients, want)
        if size not in self._known:
            self._known[size] = self._measure(size)
        return self._known[size]

    def even(self, limit: float, least: int = 1) -> Excess:
        """A smallest size that reaches every backend and keeps `even` to the limit."""
        return self._smallest(
            least, lambda excess: not excess.unused and excess.even <= limit
        )

    def bursty(self, limit: float, least: int = 1) -> Excess:
        """A smallest size that does so through bursts as well."""
        return self._smallest(
            least,
            lambda excess: (
                not excess.unused and max(excess.even, excess.bursty) <= limit
            ),
        )

    def _smallest(self, least: int, holds: Callable[[Excess], bool]) -> Excess:
        """By doubling and halving: the size holds, and one less does not.

        Excess falls with size on the whole, not in every step, so a smaller one that
        holds by luck may be passed over. All backends always hold.
        """
        high = min(least, self.backends)
        low = high - 1
        while high < self.backends and not holds(self.at(high)):
            low, high = high, min(2 * high, self.backends)
        while high - low > 1:
            middle = (low + high) // 2
            if holds(self.at(middle)):
                high = middle
            else:
                low = middle
        return self.at(high)

    def _measure(self, size: int) -> Excess:
        subsets = choose(self._algorithm, self.clients, self.backends, size)
        found = balance(subsets, self.backends)
        drawn = sorted(self._busiest(subsets, found, draw) for draw in self._draws)
        even = found.max_over_mean
        return Excess(
            size,
            even,
            drawn[ceil(PERCENTILE * DRAWS) - 1] if drawn else even,
            self._worst(found),
            found.unused,
        )

    def _busiest(self, subsets: Subsets, found: Balance, hot: Sequence[int]) -> float:
        """The excess while these clients are hot."""
        hot_rate, rate = self._bursts.rates(self.clients)
        of_hot = Counter(chain.from_iterable(subsets[client] for client in hot))
        # Backends without a hot client are no busier than they are without bursts.
        busiest = max(
            rate * found.connections[backend] + (hot_rate - rate) * connections
            for backend, connections in of_hot.items()
        )
        return max(busiest, rate * found.most) / found.mean

    def _worst(self, found: Balance) -> float:
        """As many of the hot clients as can be have one backend in common."""
        hot_rate, rate = self._bursts.rates(self.clients)
        hot = min(self._hot, found.most)
        return (hot * hot_rate + (found.most - hot) * rate) / found.mean

    def _draw(self, rng: Random) -> list[list[int]]:
        # `sample` may draw differently in another Python; `random` never does.
        return [
            sorted(range(self.clients), key=lambda _: rng.random())[: self._hot]
            for _ in range(DRAWS)
        ]
