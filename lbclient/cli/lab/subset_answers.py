"""The answers of `lbclient subset`, each as text of 80 columns and as facts for JSON.

The text rounds, the facts do not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from lbclient.cli.layout import count, fill, histogram, item, ratio, short, table
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Algorithm
from lbclient.subsets import ALGORITHMS, order
from lbclient.subsets.advice import (
    DRAWS,
    MOST_CONNECTIONS,
    PERCENTILE,
    Adviser,
    Bursts,
    Excess,
)
from lbclient.subsets.properties import (
    Balance,
    Churn,
    Diversity,
    Spread,
    Subsets,
    balance,
    choose,
    churn,
    diversity,
    ideal_churn,
    spread,
)

REPLACEMENTS = 5  # shown after a subset
RESTARTING = 10  # one in so many backends restarts at once, neighbours together
SIZES = (10, 20, 50, 100)  # about the SRE book's usual 20 to 100, beside the advice
SEED = 1  # of the draws of hot clients

HEADINGS = (
    *("algorithm", "max", "min", "util", "subsets", "alike"),
    *("opens", "max", "down", "max"),
)

# Whoever takes all backends has nothing to choose, whatever `size` is.
WHOLE = "whole"
CHOOSERS = [name for name in ALGORITHMS if name != WHOLE]


@dataclass(frozen=True, slots=True)
class SubsetAnswer:
    text: str
    facts: dict[str, Any]


# Algorithms that make no list of all backends; the others sort or shuffle one for every
# client, 0.1 to 1.3 s for 100,000.
LAZY = ("random", "round_robin", "ringsteady", "ringsteady_unscaled", "rocksteadier")
MOST_BACKENDS = 10_000_000  # for those
MOST_LISTED = 500_000  # backends, for the others

MOST_PAIRS = 200_000_000  # of clients that share a backend; some 30 s


@dataclass(frozen=True, slots=True)
class Fleet:
    """One client job on one backend job. Raises ConfigError for what cannot be."""

    algorithm: str
    clients: int
    backends: int
    size: int
    offset: int = 0

    def __post_init__(self) -> None:
        _at_least_one("clients", self.clients)
        self.order(0)
        most = MOST_BACKENDS if self.algorithm in LAZY else MOST_LISTED
        for field in ("size", "backends"):
            if getattr(self, field) > most:
                want = f"at most {most} by {self.algorithm}"
                raise ConfigError(field, getattr(self, field), want)

    def order(self, client: int) -> Iterator[int]:
        return self.rule(client, self.backends, self.size)

    @property
    def rule(self) -> Algorithm:
        return partial(order, self.algorithm, offset=self.offset)

    @property
    def subsets(self) -> Subsets:
        most = MOST_CONNECTIONS // self.taken
        if self.clients > most:
            raise ConfigError("clients", self.clients, f"at most {most} of this size")
        if self.backends > MOST_CONNECTIONS:
            raise ConfigError("backends", self.backends, f"at most {MOST_CONNECTIONS}")
        if self.connections**2 // self.backends > MOST_PAIRS:
            want = f"fewer: {self.connections} connections are too many to compare"
            raise ConfigError("clients", self.clients, want)
        size = self.taken if self.algorithm == WHOLE else self.size
        return choose(self.rule, self.clients, self.backends, size)

    @property
    def taken(self) -> int:
        """Backends of a client: all where there are fewer than `size`."""
        if self.algorithm == WHOLE:
            return self.backends
        return min(self.size, self.backends)

    @property
    def connections(self) -> int:
        return self.clients * self.taken

    def facts(self) -> dict[str, Any]:
        return asdict(self) | {"size": self.taken}

    def of(self, algorithm: str) -> "Fleet":
        return replace(self, algorithm=algorithm)

    def resized(self, backends: int) -> "Fleet":
        return replace(self, backends=_at_least_one("resize", backends))

    def __str__(self) -> str:
        each = " each" if self.clients > 1 else ""
        return (
            f"{count(self.clients, 'client')} with {self.taken:,} of "
            f"{count(self.backends, 'backend')}{each}"
        )


@dataclass(frozen=True, slots=True)
class Properties:
    """All that is measured of one algorithm."""

    connections: Balance
    diversity: Diversity
    churn: Churn
    ideal_churn: float
    spread: Spread

    @classmethod
    def of(cls, fleet: Fleet, resized: Fleet) -> "Properties":
        subsets = fleet.subsets
        return cls(
            balance(subsets, fleet.backends),
            diversity(subsets),
            churn(subsets, resized.subsets),
            ideal_churn(
                fleet.backends, resized.backends, max(fleet.taken, resized.taken)
            ),
            spread(subsets, -(-fleet.backends // RESTARTING)),
        )

    def facts(self) -> dict[str, Any]:
        even = self.connections
        return {
            "connections": {
                "total": sum(even.connections),
                "mean": even.mean,
                "least": even.least,
                "most": even.most,
                "min_over_mean": even.min_over_mean,
                "max_over_mean": even.max_over_mean,
                "unused": even.unused,
                "utilization": even.utilization,
                "histogram": even.histogram,
            },
            "diversity": asdict(self.diversity),
            "churn": {
                "mean": self.churn.mean,
                "most": self.churn.most,
                "ideal": self.ideal_churn,
            },
            "spread": asdict(self.spread),
        }


def measure(fleet: Fleet, resized: Fleet) -> SubsetAnswer:
    """All properties of one algorithm."""
    found = Properties.of(fleet, resized)
    even, alike, moved, hit = (
        found.connections,
        found.diversity,
        found.churn,
        found.spread,
    )
    uneven = f" to {even.most:,}" if even.most > even.least else ""
    text = [
        f"{fleet.algorithm}: {fleet}",
        "",
        *histogram(even.histogram),
        "",
        item(
            "connections",
            f"{fleet.connections:,} in all, {even.least:,}{uneven} for each backend, "
            f"mean {short(even.mean)}",
        ),
        item(
            "balance",
            f"the busiest backend has {ratio(even.max_over_mean)} x the mean, the "
            f"idlest {ratio(even.min_over_mean)} x; utilization {even.utilization:.3f}",
        ),
        item(
            "diversity",
            f"{count(alike.distinct, 'distinct subset')}; a client shares "
            f"{count(short(alike.mean_overlap), 'backend')} with the one most like it, "
            f"at most {alike.max_overlap:,}",
        ),
        item(
            f"{fleet.backends:,} -> {resized.backends:,}",
            f"a client opens {count(short(moved.mean), 'connection')}, at most "
            f"{moved.most:,}; {short(found.ideal_churn)} would do",
        ),
        item(
            f"restart of {hit.window:,}",
            f"takes {hit.mean_share:.0%} of a subset at once, at most "
            f"{hit.max_share:.0%}; {_losing(hit.blackouts)} all",
        ),
        "",
        *fill(
            "So each backend must be provisioned for "
            f"{ratio(even.max_over_mean)} x the mean load, if clients send alike and "
            "spread their calls evenly."
        ),
    ]
    return SubsetAnswer("\n".join(text), _asked(fleet, resized) | found.facts())


def compare(fleet: Fleet, resized: Fleet) -> SubsetAnswer:
    """All algorithms but `whole`, in one table, and what `whole` would cost."""
    found = {name: Properties.of(fleet.of(name), resized.of(name)) for name in CHOOSERS}
    any_of_them = found[CHOOSERS[0]]
    window, ideal = any_of_them.spread.window, any_of_them.ideal_churn
    text = [
        f"{fleet}: {count(fleet.connections, 'connection')}",
        "",
        *table([HEADINGS, *((name, *_cells(each)) for name, each in found.items())]),
        "",
        item("max, min", "connections of the busiest and idlest backend, x mean"),
        item("util", "the most that one must have, over the most that one has"),
        item("subsets, alike", "how many differ; backends shared with the most like"),
        item(
            "opens, max",
            f"connections of a client at {fleet.backends:,} -> {resized.backends:,} "
            f"backends; {short(ideal)} would do",
        ),
        item(
            "down, max",
            f"share of a subset that a restart of {count(window, 'neighbour')} takes",
        ),
        item(
            "not here",
            f"whole, all backends for each client: "
            f"{count(fleet.of(WHOLE).connections, 'connection')}",
        ),
    ]
    facts = {name: each.facts() for name, each in found.items()}
    asked = _asked(fleet, resized)
    del asked["algorithm"]
    return SubsetAnswer("\n".join(text), asked | {"algorithms": facts})


def _losing(clients: int) -> str:
    return f"{count(clients, 'client')} {'loses' if clients == 1 else 'lose'}"


def _cells(found: Properties) -> Iterator[str]:
    even, moved, hit = found.connections, found.churn, found.spread
    yield ratio(even.max_over_mean)
    yield ratio(even.min_over_mean)
    yield f"{even.utilization:.2f}"
    yield f"{found.diversity.distinct:,}"
    yield f"{found.diversity.mean_overlap:.1f}"
    yield f"{moved.mean:.2f}"
    yield f"{moved.most:,}"
    yield f"{hit.mean_share:.0%}"
    yield f"{hit.max_share:.0%}"


def single(fleet: Fleet, client: int, resized: Fleet) -> SubsetAnswer:
    """The subset of one client, and what another number of backends does to it."""
    preferred = fleet.order(client)
    subset = list(islice(preferred, fleet.taken))
    replacements = list(islice(preferred, REPLACEMENTS))
    after = list(islice(resized.order(client), resized.taken))
    opened = [backend for backend in after if backend not in subset]
    dropped = [backend for backend in subset if backend not in after]
    text = [
        f"{fleet.algorithm}: client {client:,} has {fleet.taken:,} of "
        f"{count(fleet.backends, 'backend')}",
        "",
        item("subset", _listed(subset)),
        item("then, if one is down", _listed(replacements) or "nobody is left"),
        item(f"of {count(resized.backends, 'backend')}", _changes(opened, dropped)),
    ]
    facts = _asked(fleet, resized) | {
        "client": client,
        "subset": subset,
        "replacements": replacements,
        "opened": opened,
        "dropped": dropped,
    }
    del facts["clients"]
    return SubsetAnswer("\n".join(text), facts)


def _changes(opened: Sequence[int], dropped: Sequence[int]) -> str:
    parts = [
        f"{word} {_listed(backends)}"
        for word, backends in (("opens", opened), ("drops", dropped))
        if backends
    ]
    return ", ".join(parts) or "nothing changes"


def _listed(backends: Iterable[int]) -> str:
    return " ".join(map(str, backends))


def advise(fleet: Fleet, limit: float, bursts: Bursts | None) -> SubsetAnswer:
    """The sizes that keep the busiest backend to the limit, `fleet.size` at least."""
    if fleet.algorithm == WHOLE:
        raise ConfigError(
            "algorithm", WHOLE, "an algorithm that chooses; whole takes all"
        )
    if fleet.backends > MOST_CONNECTIONS:
        raise ConfigError("backends", fleet.backends, f"at most {MOST_CONNECTIONS}")
    hottest = MOST_CONNECTIONS // DRAWS
    if fleet.clients > hottest:
        raise ConfigError("clients", fleet.clients, f"at most {hottest} to advise on")
    adviser = Adviser(
        fleet.rule, fleet.clients, fleet.backends, rng=Random(SEED), bursts=bursts
    )
    even = adviser.even(limit, fleet.size)
    bursty = adviser.bursty(limit, fleet.size) if bursts else None
    found = [even, bursty] if bursty else [even]
    shown = {each.size for each in found} | {fleet.taken}
    most = min(fleet.backends, MOST_CONNECTIONS // fleet.clients)
    shown |= {size for size in SIZES if size < most}
    sizes = [adviser.at(size) for size in sorted(shown)]
    text = [
        f"{fleet.algorithm}: {count(fleet.clients, 'client')} on "
        f"{count(fleet.backends, 'backend')}",
        "",
        *table(_excesses(sizes, fleet.clients, bursts), left=0),
        "",
        item("alike", "the busiest backend, x mean load, if clients send alike"),
    ]
    if bursts:
        hot = bursts.hot(fleet.clients)
        text += [
            item(
                "bursts",
                f"in {PERCENTILE:.0%} of {DRAWS} draws of {count(hot, 'client')} "
                f"with {bursts.traffic:.0%} of all calls",
            ),
            item("worst", "if as many of these as can be share a backend"),
        ]
    text += [item("unused", "backends without a client"), ""]
    text += fill(f"The limit is {limit:g} x the mean load, and no backend unused.")
    text += _verdict(fleet, even, "If clients send alike,", even.even)
    if bursty:
        text += _verdict(fleet, bursty, "Through such bursts,", bursty.bursty)
    facts = fleet.facts() | {
        "excess": limit,
        "bursts": bursts and asdict(bursts),
        "even": asdict(even),
        "bursty": bursty and asdict(bursty),
        "sizes": [asdict(each) for each in sizes],
    }
    return SubsetAnswer("\n".join(text), facts)


def _excesses(
    sizes: Iterable[Excess], clients: int, bursts: Bursts | None
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("size", "connections", "unused", "alike", "bursts", "worst")
    ]
    for each in sizes:
        loads = map(ratio, (each.even, each.bursty, each.worst))
        total = clients * each.size
        rows.append((f"{each.size:,}", f"{total:,}", f"{each.unused:,}", *loads))
    return [row if bursts else row[:4] for row in rows]


def _verdict(fleet: Fleet, found: Excess, when: str, excess: float) -> list[str]:
    note = ""
    if found.size == fleet.backends:
        note = " (all there are)"
    elif found.size == fleet.size:
        note = " (the least that --size allows)"
    return fill(
        f"{when} {count(found.size, 'backend')} for each client{note} "
        f"{'keeps' if found.size == 1 else 'keep'} the busiest to {ratio(excess)}."
    )


def _asked(fleet: Fleet, resized: Fleet) -> dict[str, Any]:
    return fleet.facts() | {"resize": resized.backends}


def _at_least_one(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(field, value, "a whole number, at least 1")
    return value
