"""The pictures of `lbclient sim book`: a function for each experiment."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lbclient.cli.lab.pictures import BLUE, GREEN, RED, YELLOW, blank
from lbclient.sim.book import attempts, overload, resized, spread, switched, wasted
from lbclient.sim.book.attempts import AttemptsSeen
from lbclient.sim.book.layers import Layers
from lbclient.sim.book.overload import Overload
from lbclient.sim.book.resized import Resized
from lbclient.sim.book.spread import SpreadByCause
from lbclient.sim.book.switched import Switched
from lbclient.sim.book.wasted import Wasted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

USED, LOST, THIRD = BLUE, RED, YELLOW
COLORS = (RED, YELLOW, GREEN, BLUE)  # of pickers or rules, the best last
SMALL = 9


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
    for rank, (name, color) in enumerate(zip(names, COLORS, strict=True)):
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


PLOTS: dict[str, Callable[[Any], "Figure"]] = {
    "wasted": draw_wasted,
    "spread": draw_spread,
    "switched": draw_switched,
    "resized": draw_resized,
    "attempts": draw_attempts,
    "layers": draw_layers,
    "overload": draw_overload,
}
