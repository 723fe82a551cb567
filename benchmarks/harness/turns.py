"""Contenders that take turns: ratios of what they cost, on a machine that drifts.

On a shared machine absolute times drift by more than what is looked for, so contenders
take turns in slices of some 50 ms, forwards and backwards, and only the ratios of
neighbouring slices count: their median, and the quartiles as spread. A contender
against itself showed 0.99 to 1.02.
"""

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.harness.figures import BLUE, blank
from benchmarks.harness.measured import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_ROUNDS = 8

Echo = Callable[[], Awaitable[Any]]
"""Makes one call."""


@dataclass
class Contender:
    """One way to make the same call, and what its slices cost."""

    name: str
    echo: Echo
    cpu: Callable[[], Awaitable[float]]  # of the process in question, in seconds
    cpu_per_call: list[float] = field(default_factory=list)
    calls_per_second: list[float] = field(default_factory=list)

    async def run_slice(self, calls: int, concurrency: int) -> None:
        left = calls

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.echo()

        gc.collect()  # what the others left is not to be paid here
        cpu, began_at = await self.cpu(), time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        elapsed = time.perf_counter() - began_at
        self.cpu_per_call.append((await self.cpu() - cpu) / calls)
        self.calls_per_second.append(calls / elapsed)


async def compare(
    contenders: list[Contender], concurrency: int, calls: int, seconds: float
) -> None:
    """Fills the contenders' lists, so that equal indices are neighbours in time."""
    for contender in contenders:
        await contender.run_slice(2 * calls, concurrency)  # to warm up
        contender.cpu_per_call, contender.calls_per_second = [], []
    gc.collect()
    gc.freeze()  # or each slice's collection would look at all that the channels hold
    until = time.monotonic() + seconds
    try:
        for turn in itertools.count():
            if turn >= FEWEST_ROUNDS and time.monotonic() >= until:
                break
            # Turned and reversed: nobody always follows the same one.
            k = turn // 2 % len(contenders)
            order = contenders[k:] + contenders[:k]
            for contender in order if turn % 2 else reversed(order):
                await contender.run_slice(calls, concurrency)
    finally:
        gc.unfreeze()


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs, slice by slice."""

    what: str
    ours: str
    theirs: str
    concurrency: int
    pairs: int
    cpu: tuple[float, float, float]  # first quartile, median, third quartile
    throughput: tuple[float, float, float]
    target: float | None = None  # of the CPU
    least: float | None = None  # of the throughput

    @property
    def holds(self) -> bool | None:
        return None if self.target is None else self.cpu[1] <= self.target


def ratio(
    what: str,
    ours: Contender,
    theirs: Contender,
    concurrency: int,
    target: float | None = None,
    least: float | None = None,
) -> Ratio:
    return Ratio(
        what,
        ours.name,
        theirs.name,
        concurrency,
        len(ours.cpu_per_call),
        spread(ours.cpu_per_call, theirs.cpu_per_call),
        spread(ours.calls_per_second, theirs.calls_per_second),
        target,
        least,
    )


def measured_of(ratios: Iterable[Ratio]) -> Iterator[Measured]:
    """Two figures of each. Only against grpcio, or where it has a goal, one loses."""
    for one in ratios:
        name = f"{one.what}, {one.concurrency} at a time, {one.ours} / {one.theirs}"
        is_rival = one.theirs.startswith("grpc") and one.ours.startswith("lbclient")
        first, middle, third = one.cpu
        yield Measured(
            name=f"{name}: CPU of a call",
            value=middle,
            spread=(first, third),
            better="less" if is_rival or one.target else "",
            goal=one.target,
        )
        first, middle, third = one.throughput
        yield Measured(
            name=f"{name}: calls a second",
            value=middle,
            spread=(first, third),
            better="more" if is_rival or one.least else "",
            goal=one.least,
        )


async def own_cpu() -> float:
    """Of this process, its C threads included."""
    return time.process_time()


def spread(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    pairs = zip(ours, theirs, strict=True)
    first, middle, third = quantiles([a / b for a, b in pairs], n=4)
    return first, middle, third


# --- what is said -------------------------------------------------------------


def say_absolute(what: str, contenders: list[Contender], concurrency: int) -> None:
    for contender in contenders:
        print(
            f"{what} {concurrency:3d}  {contender.name:32}"
            f"{median(contender.cpu_per_call) * 1e6:7.0f} us CPU/call"
            f"{median(contender.calls_per_second):7.0f} calls/s",
            flush=True,
        )


def say_ratios(ratios: list[Ratio]) -> None:
    def figures(ratios: tuple[float, float, float]) -> str:
        first, middle, third = ratios
        return f"{middle:.3f} ({first:.3f} to {third:.3f})"

    print(f"\n{'':75}{'CPU per call':26}{'calls per second':26}pairs")
    for one in ratios:
        verdict = ""
        if one.holds is not None:
            verdict = f"target {one.target}: " + ("holds" if one.holds else "MISSED")
        print(
            f"{one.what} {one.concurrency:3d}  {one.ours:30} / {one.theirs:28}"
            f"{figures(one.cpu):26}{figures(one.throughput):26}"
            f"{one.pairs:5d}  {verdict}"
        )


def draw_all(ratios: list[Ratio]) -> "Figure":
    figure = blank(11, 1 + 0.3 * len(ratios))
    draw_ratios(figure.subplots(1, 2, sharey=True), ratios)
    return figure


def draw_ratios(both: Sequence["Axes"], ratios: list[Ratio]) -> None:
    """CPU and throughput; a line is from quartile to quartile, a mark is a target."""
    names = [f"{one.ours} / {one.theirs}, {one.concurrency}" for one in ratios]
    places = range(len(ratios), 0, -1)
    titles = ("CPU of a call, ratio", "calls a second, ratio")
    for axes, title, what in zip(both, titles, ("cpu", "throughput"), strict=True):
        for place, one in zip(places, ratios, strict=True):
            first, middle, third = getattr(one, what)
            axes.plot((first, third), (place, place), color=BLUE)
            axes.plot(middle, place, "o", color=BLUE)
            if one.target is not None and what == "cpu":
                axes.plot(one.target, place, "k|", markersize=12)
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel(title)
    both[0].set_yticks(places, names, fontsize=8)
