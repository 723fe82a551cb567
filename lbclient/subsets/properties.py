"""What a choice of subsets is worth: balance, diversity, churn and spread.

All measures take subsets, not an algorithm: `choose` them once and measure them in
every way; put several client jobs' subsets together and they are measured as one.
Utilization is that of CACM 2023: relative to what is possible with whole
connections, so 1.0 does not mean that all backends have equally many.

"Reinventing Backend Subsetting at Google", CACM 2023, names the properties; SRE
book, ch. 20, the reasons.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil
from statistics import fmean

from lbclient.core.protocols import Algorithm
from lbclient.subsets import whole_number

Subsets = Sequence[Sequence[int]]
"""A client's backends each, by task number on both sides."""


def choose(algorithm: Algorithm, clients: int, backends: int, size: int) -> Subsets:
    """The subsets of clients 0..clients-1: min(size, backends) numbers each.

    Raises ConfigError for clients, backends or a size below 1.
    """
    whole_number("clients", clients, 1)
    whole_number("backends", backends, 1)
    whole_number("size", size, 1)
    return [
        list(islice(algorithm(client, backends, size), size))
        for client in range(clients)
    ]


@dataclass(frozen=True, slots=True)
class Balance:
    """How many connections each backend has; `connections[n]` are those of task n."""

    connections: tuple[int, ...]

    @property
    def mean(self) -> float:
        return fmean(self.connections)

    @property
    def least(self) -> int:
        return min(self.connections)

    @property
    def most(self) -> int:
        return max(self.connections)

    @property
    def max_over_mean(self) -> float:
        return self.most / self.mean

    @property
    def min_over_mean(self) -> float:
        return self.least / self.mean

    @property
    def unused(self) -> int:
        """Backends without any client."""
        return self.connections.count(0)

    @property
    def utilization(self) -> float:
        """What the best algorithm's busiest backend has over what ours has: 0 to 1."""
        return ceil(sum(self.connections) / len(self.connections)) / self.most

    @property
    def histogram(self) -> dict[int, int]:
        """How many backends have so many connections, fewest connections first."""
        return dict(sorted(Counter(self.connections).items()))


def balance(subsets: Subsets, backends: int) -> Balance:
    """The balance of all subsets together, on backends 0..backends-1."""
    counts = Counter(chain.from_iterable(subsets))
    return Balance(tuple(counts[backend] for backend in range(backends)))


def utilizations(subsets: Subsets, backends: int) -> Iterator[float]:
    """The utilization with the first client only, with the first two, and so on.

    One pass over the connections, where `balance` for each would take many.
    """
    connections = [0] * backends
    total = most = 0
    for chosen in subsets:
        total += len(chosen)
        for backend in chosen:
            connections[backend] += 1
            if connections[backend] > most:
                most = connections[backend]
        yield ceil(total / backends) / most


def scenarios(
    algorithm: Algorithm, clients: int, backends: Iterable[int], size: int
) -> Iterator[tuple[int, int, float]]:
    """The utilization of each M <= clients on each N: (M, N, utilization).

    Without those that have fewer connections than backends, where one is ideal and
    any two on one backend are as bad as can be. CACM 2023, figure 2, has 256 clients
    and 20 to 256 backends.
    """
    for number in backends:
        subsets = choose(algorithm, clients, number, size)
        for few, found in enumerate(utilizations(subsets, number), 1):
            if few * min(size, number) > number:
                yield few, number, found


@dataclass(frozen=True, slots=True)
class Diversity:
    """How much clients differ, so that what breaks one's backends spares the other's.

    An overlap is the number of backends that a client shares with the one other
    client that is most like it.
    """

    distinct: int  # sets, whatever the order in them
    mean_overlap: float
    max_overlap: int


def diversity(subsets: Subsets) -> Diversity:
    """The diversity of at least one subset. Takes a step for each two clients of one
    backend."""
    clients_of: dict[int, list[int]] = {}
    for client, chosen in enumerate(subsets):
        for backend in chosen:
            clients_of.setdefault(backend, []).append(client)
    overlaps = []
    for client, chosen in enumerate(subsets):
        shared = Counter(chain.from_iterable(clients_of[backend] for backend in chosen))
        del shared[client]
        overlaps.append(max(shared.values(), default=0))
    distinct = len({frozenset(chosen) for chosen in subsets})
    return Diversity(distinct, fmean(overlaps), max(overlaps))


@dataclass(frozen=True, slots=True)
class Churn:
    """What each client opens and drops when something changes; `opened[m]` is m's.

    A connection that is replaced counts once as opened and once as dropped.
    """

    opened: tuple[int, ...]
    dropped: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Connections that a client opens, on average: what the change costs."""
        return fmean(self.opened)

    @property
    def most(self) -> int:
        return max(self.opened)


def churn(before: Subsets, after: Subsets) -> Churn:
    """The churn of the clients that are there before and after.

    Choose with more backends for backend churn, with another size for subset-size
    churn; and for client churn with the algorithm that a larger client job uses,
    which is the same one unless it is told the number of clients.
    """
    both = [(set(old), set(new)) for old, new in zip(before, after, strict=False)]
    return Churn(
        tuple(len(new - old) for old, new in both),
        tuple(len(old - new) for old, new in both),
    )


def ideal_churn(backends: int, resized: int, size: int) -> float:
    """Connections that a client must open on average, to be as even as before.

    >>> ideal_churn(100, 110, 20) == 20 * 10 / 110
    True
    """
    before, after = min(size, backends), min(size, resized)
    if resized >= backends:
        return after * (resized - backends) / resized
    return after - before * resized / backends


@dataclass(frozen=True, slots=True)
class Spread:
    """What a client can lose at once, while neighbouring tasks restart together.

    Shares are of a client's subset, in the consecutive backends that hit it most.
    """

    window: int
    mean_share: float
    max_share: float
    blackouts: int  # clients whose whole subset is in one window


def spread(subsets: Subsets, window: int) -> Spread:
    """The spread of subsets that are not empty, under a restart of `window` tasks at a
    time."""
    shares = [_densest(sorted(chosen), window) / len(chosen) for chosen in subsets]
    return Spread(window, fmean(shares), max(shares), shares.count(1.0))


def _densest(ordered: Sequence[int], window: int) -> int:
    """The most numbers that lie in one window; a restart does not wrap around."""
    first, most = 0, 0
    for last, number in enumerate(ordered):
        while number - ordered[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most
