"""The pictures of `lbclient sim book`: a function for each experiment."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lbclient.cli.lab.pictures import BLUE, GREEN, GREY, RED, YELLOW, blank
from lbclient.cli.lab.subset_answers import Fleet
from lbclient.cli.lab.subset_plots import PICTURES, Scene
from lbclient.sim.book import (
    attempts,
    connections,
    limits,
    lots,
    overload,
    probability,
    resized,
    shuffles,
    spread,
    switched,
    wasted,
)
from lbclient.sim.book.active_requests import ActiveRequests
from lbclient.sim.book.attempts import AttemptsSeen
from lbclient.sim.book.connections import SubsetConnections
from lbclient.sim.book.layers import Layers
from lbclient.sim.book.limits import CustomerLimits
from lbclient.sim.book.lots import Lots
from lbclient.sim.book.overload import Overload
from lbclient.sim.book.probability import Probability
from lbclient.sim.book.resized import Resized
from lbclient.sim.book.shuffles import Shuffles
from lbclient.sim.book.spread import SpreadByCause
from lbclient.sim.book.switched import Switched
from lbclient.sim.book.wasted import Wasted
from lbclient.subsets.rocksteadier import LOT, ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

USED, LOST, THIRD = BLUE, RED, YELLOW
COLORS = (RED, YELLOW, GREEN, BLUE)  # of pickers or rules, the best last
CLIENTS = (RED, BLUE, GREEN, YELLOW)  # in a table
SMALL = 9  # points, of a panel's title and labels


def draw_wasted(found: Wasted) -> "Figure":
    """Figures 20-1, over time, and 20-2 below: used, and what the busiest has more."""
    figure = blank(8, 5.2)
    panels = figure.subplots(2, 2, sharey="row")
    for column, picker in enumerate(wasted.PICKERS):
        above, below = panels[0][column], panels[1][column]
        above.plot(found.seconds[picker], color=USED, linewidth=0.4, alpha=0.6)
        above.set_title(f"{picker}, load {wasted.LOAD:g}", fontsize=SMALL)
        above.set_xlabel("seconds", fontsize=SMALL)
        used = sorted(found.utilization[picker], reverse=True)
        places = range(len(used))
        below.bar(places, used, width=1.0, color=USED, label="used")
        below.bar(
            places, [used[0] - one for one in used], bottom=used, width=1.0,
            color=LOST, label="wasted",
        )  # fmt: skip
        usable = 1000 * found.usable(picker)
        below.set_title(f"usable: {usable:.0f} of 1,000 CPUs", fontsize=SMALL)
        below.set_xlabel("task, the busiest first", fontsize=SMALL)
    for row in panels:
        row[0].set_ylabel("utilization", fontsize=SMALL)
        row[0].set_ylim(0, 1)
    panels[1][1].legend(fontsize=SMALL - 1, loc="lower right")
    return figure


def draw_spread(found: SpreadByCause) -> "Figure":
    figure = blank(8, 3.6)
    axes = figure.subplots()
    _bars(axes, found.ratios, spread.PICKERS)
    axes.axhline(2.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=1.0)
    axes.set_ylabel("busiest / idlest", fontsize=SMALL)
    axes.legend(fontsize=SMALL - 1)
    return figure


def _bars(
    axes: "Axes", heights: dict[str, dict[str, float]], names: tuple[str, ...]
) -> None:
    """A group for each key, in it a bar for each name."""
    width = 0.8 / len(names)
    colors = ("black", *COLORS)[-len(names) :]
    for rank, (name, color) in enumerate(zip(names, colors, strict=True)):
        aside = (rank - (len(names) - 1) / 2) * width
        places = [place + aside for place in range(len(heights))]
        tall = [group[name] for group in heights.values()]
        axes.bar(places, tall, width=width, color=color, label=name)
    labels = [name.replace(" ", "\n", 1) for name in heights]
    axes.set_xticks(range(len(heights)), labels, fontsize=SMALL)


def draw_switched(found: Switched) -> "Figure":
    """Figure 20-6."""
    figure = blank(8, 3.4)
    axes = figure.subplots()
    axes.plot(found.seconds, color=USED, linewidth=0.6, alpha=0.8)
    axes.axvline(found.at, color=LOST, linewidth=1.2)
    for at, name, side in (
        (found.at, switched.BEFORE, "right"),
        (found.at, switched.AFTER, "left"),
    ):
        axes.text(at, 1.02, f" {name} ", ha=side, fontsize=SMALL)
    axes.set_xlabel("seconds", fontsize=SMALL)
    axes.set_ylabel("utilization of each backend", fontsize=SMALL)
    axes.set_ylim(0, 1.1)
    axes.margins(x=0)
    return figure


def draw_resized(found: Resized) -> "Figure":
    """CACM's figure 5, with what causes its errors."""
    figure = blank(8, 4.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    places = range(len(found.steps))
    sizes = [after for _, after in found.steps]
    above.step(places, sizes, where="mid", color="black", linewidth=1)
    above.set_ylabel("backends", fontsize=SMALL)
    for job, color in zip(resized.JOBS, (LOST, USED), strict=True):
        below.plot(places, found.mean(job), "o-", color=color, label=f"{job}, mean")
        below.plot(
            places, found.most(job), "^:", color=color, markersize=4,
            linewidth=0.8, label=f"{job}, worst client",
        )  # fmt: skip
    below.plot(places, found.needed, color="black", linewidth=0.8, label="needed")
    below.set_ylabel(f"connections opened, of {resized.SUBSET_SIZE}", fontsize=SMALL)
    below.set_xticks(
        places, [f"{old} to\n{new}" for old, new in found.steps], fontsize=SMALL - 2
    )
    below.legend(fontsize=SMALL - 1, ncols=3, loc="upper center")
    below.set_ylim(0, 1.35 * resized.SUBSET_SIZE)
    return figure


def draw_attempts(found: AttemptsSeen) -> "Figure":
    """Figure 21-1 of both rules, and how requests grow."""
    figure = blank(9, 3.0)
    *panels, growth = figure.subplots(1, len(attempts.SHARES) + 1)
    for axes, share in zip(panels, attempts.SHARES, strict=True):
        sides = ((attempts.ANYWHERE, LOST, -0.2), (attempts.ELSEWHERE, USED, 0.2))
        for rule, color, beside in sides:
            counts = found.histograms[rule][share]
            places = [number + beside for number in range(len(counts))]
            label = rule.removeprefix("retries ")
            axes.bar(places, counts, 0.4, color=color, label=label)
        axes.set_title(f"{share:.0%} refuse", fontsize=SMALL)
        axes.set_xlabel("attempt", fontsize=SMALL)
        axes.set_xticks(range(len(counts)))
        axes.set_ylim(0, 1050)
        if axes is not panels[0]:
            axes.set_yticklabels([])
    panels[0].set_ylabel("a refusing task's, of 1,000", fontsize=SMALL)
    panels[1].legend(title="retries", fontsize=SMALL - 2, title_fontsize=SMALL - 2)
    for (name, by_share), color in zip(
        found.growth.items(), (LOST, THIRD, USED), strict=True
    ):
        growth.plot([*by_share], [*by_share.values()], "o-", color=color, label=name)
    growth.set_title("attempts a request", fontsize=SMALL)
    growth.set_xlabel("share that refuses", fontsize=SMALL)
    growth.legend(fontsize=SMALL - 2)
    return figure


def draw_layers(found: Layers) -> "Figure":
    figure = blank(6, 3.4)
    axes = figure.subplots()
    styles = (":", "--", "-", "-")
    for (rule, by_layers), color, style in zip(
        found.growth.items(), COLORS, styles, strict=True
    ):
        axes.plot(
            [*by_layers], [*by_layers.values()], f"o{style}", color=color, label=rule
        )
    axes.set_yscale("log")
    axes.set_yticks([1, 3, 9, 27, 81], ["1", "3", "9", "27", "81"])
    axes.minorticks_off()
    axes.set_xticks([*by_layers])
    axes.set_xlabel("layers above the service that refuses", fontsize=SMALL)
    axes.set_ylabel("what it gets for one request", fontsize=SMALL)
    axes.legend(fontsize=SMALL - 1)
    return figure


def draw_overload(found: Overload) -> "Figure":
    """What is sent by clients that throttle, and what is served."""
    figure = blank(8, 3.4)
    left, right = figure.subplots(1, 2)
    for (k, sent), color in zip(found.sent.items(), (USED, THIRD, LOST), strict=True):
        left.plot([*sent], [*sent.values()], "o-", color=color, label=f"K = {k:g}")
        left.axhline(k, color=color, linewidth=0.6, linestyle=":")
    left.set_ylabel("sent, in capacities", fontsize=SMALL)
    for (name, goodput), color in zip(
        found.goodput.items(), (LOST, THIRD, USED), strict=True
    ):
        right.plot([*goodput], [*goodput.values()], "o-", color=color, label=name)
    cost = overload.FLEET.refusal_cost
    right.set_title(f"a refusal costs {cost:g} of a request", fontsize=SMALL)
    right.set_ylabel("served, in capacities", fontsize=SMALL)
    for axes in (left, right):
        axes.set_xlabel("offered, in capacities", fontsize=SMALL)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=SMALL - 1)
    return figure


def draw_connections(found: SubsetConnections) -> "Figure":
    """Figures 20-3 to 20-5, CACM's figure 1, and how even larger random subsets are."""
    figure = blank(10, 5)
    *panels, growth = figure.subplots(2, 3).flat
    shown = [
        ("figure 20-3", "random", connections.OF_20_3, found.random),
        ("figure 20-4", "random", connections.OF_20_4, found.random),
        ("figure 20-5", "deterministic", connections.OF_20_5, found.deterministic),
        ("CACM's figure 1", "random", connections.OF_CACM, found.random),
        ("20-3's, without chance", "rocksteadier", connections.OF_20_3,
         found.rocksteadier),
    ]  # fmt: skip
    for axes, (title, name, size, by_size) in zip(panels, shown, strict=True):
        axes.stairs(by_size[size], fill=True, color=USED)
        axes.axhline(size, color=LOST, linewidth=0.8)
        axes.set_title(f"{title}: {name}, {size} of 300", fontsize=SMALL)
        axes.margins(x=0)
    panels[0].set_ylabel("connections", fontsize=SMALL)
    shares = [size / connections.BACKENDS for size in found.drawn]
    for extreme, label in ((found.busiest, "busiest"), (found.idlest, "idlest")):
        over_mean = [extreme(size) / size for size in found.drawn]
        growth.plot(shares, over_mean, "o-", label=label, markersize=4)
    growth.axhline(connections.EVEN, color="black", linewidth=0.8, linestyle=":")
    growth.axvline(0.75, color="black", linewidth=0.8, linestyle=":")
    growth.set_title("random, over the mean", fontsize=SMALL)
    growth.set_xlabel("share of all backends in a subset", fontsize=SMALL)
    growth.legend(fontsize=SMALL - 1)
    return figure


def _table(
    axes: "Axes", rows: Sequence[Sequence[object]], colors: dict[tuple[int, int], str]
) -> None:
    """Cells, some of which have a color by (row, column)."""
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            color = colors.get((row, column), GREY)
            axes.text(
                column, row, str(cell), ha="center", va="center", fontsize=SMALL - 1,
                color="black" if color in (GREY, YELLOW) else "white",
                bbox={"boxstyle": "round,pad=0.2", "facecolor": color,
                      "edgecolor": "none"},
            )  # fmt: skip
    axes.set_xlim(-0.6, max(map(len, rows)) - 0.4)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_lots(found: Lots) -> "Figure":
    """CACM's tables 1 to 5, with our shuffles for its second lot of clients."""
    figure = blank(11, 3.4)
    panels = figure.subplots(1, 5, width_ratios=(4, 6, 6, 6, 6))
    _table(panels[0], found.round_robin, {})
    sorted_lots = [sorted(column) for column in found.columns]
    for axes, columns, clients in (
        (panels[1], sorted_lots, {}),
        (panels[2], found.columns, {client: client % LOT for client in lots.READ}),
        (panels[3], found.reordered, {n: n % LOT for n in lots.FINAL}),
        (panels[4], found.reordered,
         {n: ROWS.index(n % LOT) for n in lots.FINAL}),
    ):  # fmt: skip
        taken = {
            at: color
            for (client, row), color in zip(clients.items(), CLIENTS, strict=False)
            for at in _taken(columns, row, 8 if client in lots.READ else 10)
        }
        rows = [
            [cell if cell < lots.BACKENDS else "" for cell in row]
            for row in zip(*columns, strict=True)
        ]
        _table(axes, rows, taken)
    titles = ("of 5 clients", "lots, padded", "clients 13 and 19",
              "clients 10 to 12", "clients 10 to 12")  # fmt: skip
    for number, (axes, title) in enumerate(zip(panels, titles, strict=True), 1):
        axes.set_title(f"table {number}\n{title}", fontsize=SMALL)
    return figure


def _taken(
    columns: Sequence[Sequence[int]], row: int, size: int
) -> list[tuple[int, int]]:
    """The cells that a client takes which starts in that row."""
    cells = [
        ((row + step) % LOT, column)
        for step in range(LOT)
        for column in range(len(columns))
    ]
    real = [(at, column) for at, column in cells if columns[column][at] < lots.BACKENDS]
    return real[:size]


def draw_shuffles(found: Shuffles) -> "Figure":
    """The book's shuffled lists; a color for each subset that a client has."""
    figure = blank(6, 1.5)
    axes = figure.subplots()
    used = shuffles.CLIENTS * shuffles.SIZE
    colors = {
        divmod(n, shuffles.BACKENDS): CLIENTS[n // shuffles.SIZE % len(CLIENTS)]
        for n in range(used)
    }
    _table(axes, found.rounds, colors)
    axes.set_yticks(range(3), [f"round {n}" for n in range(3)], fontsize=SMALL)
    axes.tick_params(length=0)
    return figure


def draw_active_requests(found: ActiveRequests) -> "Figure":
    """A row for each pick, which is red."""
    figure = blank(6, 2.4)
    axes = figure.subplots()
    picks = dict.fromkeys(enumerate(found.picks, 1), LOST)
    _table(axes, found.tables, picks)
    axes.set_xticks(range(10), [f"t{task}" for task in range(10)], fontsize=SMALL)
    labels = ["at first", *(f"pick {n}" for n in range(1, len(found.tables)))]
    axes.set_yticks(range(len(labels)), labels, fontsize=SMALL)
    axes.tick_params(length=0)
    return figure


def draw_limits(found: CustomerLimits) -> "Figure":
    """What each customer gets, beside its limit."""
    figure = blank(8, 3)
    axes = figure.subplots()
    places = range(len(limits.LIMITS))
    for got, color, aside, label in (
        (found.all_want_more, LOST, -0.2, f"all want {limits.MUCH:g} x their limits"),
        (found.one_wants_more, USED, 0.2, f"Gmail does, others {limits.LITTLE:g} x"),
    ):
        axes.bar([place + aside for place in places], [*got.values()], 0.4,
                 color=color, label=label)  # fmt: skip
    for place, limit in zip(places, limits.LIMITS.values(), strict=True):
        axes.plot((place - 0.45, place + 0.45), (limit, limit), color="black")
    axes.set_xticks(places, [*limits.LIMITS], fontsize=SMALL)
    axes.set_ylabel("CPU seconds a second; line: limit", fontsize=SMALL)
    axes.legend(fontsize=SMALL - 1)
    return figure


def draw_probability(found: Probability) -> "Figure":
    """Equation 21-1, dotted, and the throttle's probability."""
    figure = blank(6, 3)
    axes = figure.subplots()
    for (k, by_accepted), color in zip(
        found.ours.items(), (LOST, THIRD, USED), strict=True
    ):
        axes.plot(
            [*by_accepted], [*by_accepted.values()], color=color, label=f"K = {k:g}"
        )
        equation = [
            probability.equation(k, probability.REQUESTS, one) for one in by_accepted
        ]
        axes.plot([*by_accepted], equation, ":", color="black", linewidth=1)
    axes.set_xlabel(f"accepted, of {probability.REQUESTS:,} requests", fontsize=SMALL)
    axes.set_ylabel("probability of refusing", fontsize=SMALL)
    axes.legend(fontsize=SMALL - 1)
    return figure


def _of_subsets(name: str) -> "Callable[[object], Figure]":
    """A picture of `lbclient subset`, at the article's sizes."""
    picture = PICTURES[name]
    fleet = Fleet("rocksteadier", *picture.sizes)
    scene = Scene(fleet, fleet.resized(fleet.backends + 1), 1)
    return lambda found: picture.draw(scene)  # which computes it by itself


PLOTS: dict[str, Callable[[Any], "Figure"]] = {
    "wasted": draw_wasted,
    "spread": draw_spread,
    "switched": draw_switched,
    "resized": draw_resized,
    "attempts": draw_attempts,
    "layers": draw_layers,
    "overload": draw_overload,
    "connections": draw_connections,
    "lots": draw_lots,
    "shuffles": draw_shuffles,
    "active_requests": draw_active_requests,
    "limits": draw_limits,
    "probability": draw_probability,
    "utilization": _of_subsets("utilization"),
    "changed": _of_subsets("churn"),
    "ring": _of_subsets("ring"),
}
