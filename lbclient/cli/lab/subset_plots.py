"""The pictures of `lbclient subset`: the articles' figures, for any fleet."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from math import gcd, log2, pi
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from lbclient.cli.lab.pictures import BLUE, GREY, RED, YELLOW, blank, write
from lbclient.cli.lab.subset_answers import Fleet
from lbclient.core.errors import ConfigError
from lbclient.subsets.consistent import place as consistent_place
from lbclient.subsets.properties import balance, churn, scenarios
from lbclient.subsets.ring import rank, reverse
from lbclient.subsets.rocksteadier import LOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BACKEND, CLIENT, MARKED, QUIET = YELLOW, BLUE, RED, GREY

# Those of CACM 2023, figures 2 and 4, from a on.
UTILIZATION_OF = (
    "random",
    "deterministic_leftover",
    "ringsteady_unscaled",
    "ringsteady",
)
RINGS = ("consistent", "ringsteady_unscaled", "ringsteady")

NUMBERS = 80  # of backends at most: so many of all there could be are dense enough
STEPS = 4  # of the ratio, for each doubling, over which a mean is drawn
ROWS = 12  # clients whose subsets fit into a picture
COLUMNS = 20  # and backends of each
PANEL = 280  # points that a row is long; a digit takes 0.64 of its size, a box 0.4
AROUND = 24  # clients, and backends, that fit around a ring


class Scene(NamedTuple):
    fleet: Fleet
    resized: Fleet
    client: int


def distribution(scene: Scene) -> "Figure":
    """A step for each backend, as high as it has connections."""
    fleet = scene.fleet
    found = balance(fleet.subsets, fleet.backends)
    figure = blank(7, 3)
    axes = figure.subplots()
    axes.stairs(found.connections, fill=True, color=CLIENT)
    for level in (found.least, found.mean, found.most):
        axes.axhline(level, color=MARKED, linewidth=1)
    axes.set_title(
        f"{fleet.algorithm}: {fleet}\nleast {found.least:,} "
        f"({found.min_over_mean:.0%}), mean {found.mean:.4g}, most {found.most:,} "
        f"({found.max_over_mean:.0%})",
        fontsize=10,
    )
    axes.set_xlabel("backend")
    axes.set_ylabel("connections")
    axes.margins(x=0)
    return figure


def utilization(scene: Scene) -> "Figure":
    """A dot for each pair of jobs: how even it is over how many clients there are."""
    fleet = scene.fleet
    names = tuple(dict.fromkeys((*UTILIZATION_OF, fleet.algorithm)))
    figure = blank(9, 5.4)
    panels = figure.subplots(2, 3, sharex=True, sharey=True).flat
    means = panels[-1]
    for axes, name in zip(panels, names, strict=False):
        dots = sorted(_dots(fleet, name))
        axes.plot(*zip(*dots, strict=True), ".", color=CLIENT, markersize=1.5)
        line = list(_means(dots))
        axes.plot(*zip(*line, strict=True), color=MARKED, linewidth=1.5)
        axes.set_title(f"{name}, mean {fmean(y for _, y in dots):.3f}", fontsize=10)
        means.plot(*zip(*line, strict=True), linewidth=1.5, label=name)
    for axes in panels[len(names) : -1]:
        axes.set_visible(False)
    means.set_title("the means", fontsize=10)
    means.legend(fontsize=7, loc="lower right")
    means.set_xscale("log", base=2)
    means.set_ylim(0, 1.03)
    figure.supxlabel("clients for each backend", fontsize=10)
    figure.supylabel("utilization", fontsize=10)
    return figure


def _dots(fleet: Fleet, algorithm: str) -> Iterator[tuple[float, float]]:
    """Dots for some numbers of backends and every number of clients."""
    if fleet.size > fleet.backends:
        raise ConfigError("size", fleet.size, f"at most --backends, {fleet.backends}")
    if fleet.clients < 2:  # who have more connections than there are backends
        raise ConfigError("clients", fleet.clients, "at least 2, to draw their ratio")
    every = -(-(fleet.backends - fleet.size + 1) // NUMBERS)
    while gcd(every, LOT) > 1:  # else whole lots would be too many or too few
        every += 1
    numbers = range(fleet.size, fleet.backends + 1, every)
    of = fleet.of(algorithm)
    for clients, backends, found in scenarios(of.rule, of.clients, numbers, of.taken):
        yield clients / backends, found


def _means(dots: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The mean of the dots of each step along the ratio."""
    steps: dict[int, list[float]] = {}
    for ratio, found in dots:
        steps.setdefault(round(log2(ratio) * STEPS), []).append(found)
    for step, values in sorted(steps.items()):
        yield 2.0 ** (step / STEPS), fmean(values)


def churn_of(scene: Scene) -> "Figure":
    """The subsets of the first clients before and after; what is new or gone in red."""
    fleet, resized = scene.fleet, scene.resized
    if fleet.taken > COLUMNS:
        raise ConfigError("size", fleet.taken, f"at most {COLUMNS}, to fit the picture")
    names = tuple(dict.fromkeys(("deterministic_leftover", fleet.algorithm)))
    figure = blank(9, 0.6 + 0.25 * min(fleet.clients, ROWS) * len(names) + 0.8)
    panels = figure.subplots(len(names), 2, squeeze=False)
    for (left, right), name in zip(panels, names, strict=True):
        before, after = fleet.of(name).subsets, resized.of(name).subsets
        found = churn(before, after)
        _cells(left, before, after)
        _cells(right, after, before)
        left.set_title(f"{name}: {fleet.backends:,} backends", fontsize=10)
        right.set_title(
            f"{resized.backends:,} backends: {found.mean:.2f} new of "
            f"{resized.taken} on average",
            fontsize=10,
        )
    if fleet.clients > ROWS:
        figure.supxlabel(sizes("churn", fleet), fontsize=9)
    return figure


def _cells(
    axes: "Axes", subsets: Sequence[Collection[int]], others: Sequence[Collection[int]]
) -> None:
    """A row for each client; red what the same client has not in the other picture."""
    columns = max(map(len, subsets[:ROWS]))
    digits = max(len(str(backend)) for subset in subsets[:ROWS] for backend in subset)
    for row, (subset, other) in enumerate(zip(subsets[:ROWS], others, strict=False)):
        for column, backend in enumerate(sorted(subset)):
            axes.text(
                column,
                row,
                str(backend),
                ha="center",
                va="center",
                fontsize=min(9, PANEL / columns / (0.64 * digits + 0.4)),
                color="black" if backend in other else "white",
                bbox={
                    "boxstyle": "round,pad=0.2",
                    "facecolor": QUIET if backend in other else MARKED,
                    "edgecolor": "none",
                },
            )
    rows = min(len(subsets), ROWS)
    axes.set_xlim(-0.6, columns - 0.4)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_yticks(range(rows), [f"client {client}" for client in range(rows)])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)


def ring(scene: Scene) -> "Figure":
    """Backends on a circle, clients around; the arrow is the subset of one client."""
    fleet, client = scene.fleet, scene.client
    fleet.order(client)
    for field, value in (("clients", fleet.clients), ("backends", fleet.backends)):
        if value > AROUND:
            want = f"--{field} of at most {AROUND}, to fit the picture"
            raise ConfigError(field, value, want)
    if client >= fleet.clients:
        raise ConfigError("client", client, f"a number below {fleet.clients}")
    figure = blank(9, 3.8)
    panels = figure.subplots(1, len(RINGS), subplot_kw={"projection": "polar"})
    for axes, name in zip(panels, RINGS, strict=True):
        chosen = list(islice(fleet.of(name).order(client), fleet.taken))
        _tasks(axes, name, fleet, chosen)
        start = _client_at(name, client, fleet)
        _arrow(axes, start, _backend_at(name, chosen[-1], fleet))
        axes.set_title(
            f"{name}\nclient {client} takes {', '.join(map(str, chosen))}",
            fontsize=10,
        )
    return figure


def _tasks(axes: "Axes", name: str, fleet: Fleet, chosen: Collection[int]) -> None:
    """The circle and who stands where; polar axes count clockwise from the top."""
    axes.set_theta_zero_location("N")  # type: ignore[attr-defined]
    axes.set_theta_direction(-1)  # type: ignore[attr-defined]
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_ylim(0, 1.45)
    axes.plot([2 * pi * step / 100 for step in range(101)], [1] * 101, color=QUIET)
    for task in range(fleet.backends):
        angle = 2 * pi * _backend_at(name, task, fleet)
        edge = MARKED if task in chosen else BACKEND
        axes.plot(angle, 1, "o", color=BACKEND, mec=edge, mew=2.5, markersize=15)
        axes.text(angle, 1, str(task), ha="center", va="center", fontsize=9)
    for task in range(fleet.clients):
        angle = 2 * pi * _client_at(name, task, fleet)
        axes.plot(angle, 1.27, "s", color=CLIENT, markersize=14)
        axes.text(
            angle, 1.27, str(task), ha="center", va="center", fontsize=9, color="white"
        )


def _arrow(axes: "Axes", start: float, end: float) -> None:
    """Clockwise from one place to another, inside the circle."""
    way = (end - start) % 1.0
    angles = [2 * pi * (start + way * step / 100) for step in range(101)]
    axes.plot(angles, [0.78] * 101, color=MARKED, linewidth=2)
    axes.annotate(
        "",
        xy=(angles[-1], 0.9),
        xytext=(angles[-1], 0.78),
        arrowprops={"arrowstyle": "->", "color": MARKED, "linewidth": 2},
    )


def _client_at(name: str, task: int, fleet: Fleet) -> float:
    """Where a client stands, 0 to 1 clockwise from the top."""
    task += LOT * fleet.offset
    return _random_place(b"client", task) if name == "consistent" else _place(task)


def _backend_at(name: str, task: int, fleet: Fleet) -> float:
    if name == "consistent":
        return _random_place(b"backend", task)
    return (
        rank(task, fleet.backends) / fleet.backends
        if name == "ringsteady"
        else _place(task)
    )


def _place(task: int) -> float:
    return reverse(task, task.bit_length()) / (1 << task.bit_length())


def _random_place(kind: bytes, task: int) -> float:
    return consistent_place(kind, task) / 2**64


class Picture(NamedTuple):
    """How to draw a figure, the article's, and what of a command line it heeds.

    `sizes` are the article's clients, backends, and backends of each client.
    """

    draw: Callable[[Scene], "Figure"]
    source: str
    sizes: tuple[int, int, int]
    heeds: frozenset[str]


PICTURES = {
    "distribution": Picture(
        distribution,
        "SRE book, figure 20-4",
        (300, 300, 30),
        frozenset({"algorithm"}),
    ),
    "utilization": Picture(
        utilization,
        "CACM 2023, figure 2",
        (256, 256, 20),
        frozenset({"algorithm"}),
    ),
    "churn": Picture(
        churn_of,
        "CACM 2023, figure 3",
        (6, 10, 4),
        frozenset({"algorithm", "resize"}),
    ),
    "ring": Picture(ring, "CACM 2023, figure 4", (4, 6, 2), frozenset({"client"})),
}


def sizes(name: str, fleet: Fleet) -> str:
    """What a figure of that fleet shows."""
    if name == "utilization":
        return f"up to {fleet}"
    if name == "churn" and fleet.clients > ROWS:
        return f"{fleet}; the first {ROWS} are shown, the means are of all"
    return str(fleet)


def draw(name: str, scene: Scene, file: str) -> None:
    """Writes the file. Raises ConfigError if it cannot be drawn or written."""
    write(file, lambda: PICTURES[name].draw(scene))
