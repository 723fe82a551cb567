"""What a pick costs: microseconds per pick, without the feedback around it.

    python -m benchmarks.picks                          all, some three minutes
    python -m benchmarks.picks weighted_least_loaded    some pickers

Between two picks one request begins and one finishes with a report; the same loop
without a picker is subtracted. What is looked at by time, not by pick, costs a pick
more the fewer there are: so there is a table for each rate. Whom a picker wants asked
is not asked, but taken away, or it would soon want no more; so `prequal`, without any
answer, picks by lot. CPU time, medians: other programs on the machine do not count.

The second table has the worst single pick, which holds up the event loop: the median
over repeats of the longest of each. The first pick, and those after a change of the
ready backends, are not in it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from random import Random
from statistics import median
from time import process_time, thread_time_ns

from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.protocols import Picker
from lbclient.pickers import PICKERS
from lbclient.testing import FakeNode, fake_nodes

SIZES = (3, 20, 100, 1000)
RATES = (10_000, 1000, 100, 10)  # requests a second, of one channel
PICKS = 5_000
REPEATS = 9
IN_FLIGHT = 32


class Traffic:
    """What happens between two picks: one request begins and one finishes."""

    def __init__(self, nodes: Sequence[FakeNode]) -> None:
        self._in_flight: deque[FakeNode] = deque()
        self._outcomes = {
            node: Outcome(Verdict.SERVED, 0.02, LoadReport(0.5 + i % 7, 50, 0, i % 5))
            for i, node in enumerate(nodes)
        }

    def send(self, node: FakeNode, now: float) -> None:
        node.load.begin()
        self._in_flight.append(node)
        if len(self._in_flight) > IN_FLIGHT:
            done = self._in_flight.popleft()
            done.load.finish(self._outcomes[done], now)


def seconds_with(picker: Picker, count: int, rate: float) -> float:
    nodes = fake_nodes(count)
    traffic = Traffic(nodes)
    wanted = getattr(picker, "probes", [])
    now = 20.0  # behind every blackout
    for _ in range(PICKS // 2):
        now += 1.0 / rate
        traffic.send(picker.pick(nodes, now), now)
    started = process_time()
    for _ in range(PICKS):
        now += 1.0 / rate
        traffic.send(picker.pick(nodes, now), now)
        wanted.clear()
    return process_time() - started


def seconds_without(count: int, rate: float) -> float:
    nodes = fake_nodes(count)
    traffic = Traffic(nodes)
    wanted: list[FakeNode] = []
    now = 20.0
    started = process_time()
    for node in islice(cycle(nodes), PICKS):
        now += 1.0 / rate
        traffic.send(node, now)
        wanted.clear()
    return process_time() - started


def microseconds(name: str, count: int, rate: float) -> float:
    differences = (
        seconds_with(PICKERS[name](Random(repeat)), count, rate)
        - seconds_without(count, rate)
        for repeat in range(REPEATS)
    )
    return median(differences) / PICKS * 1e6


def worst(name: str, count: int, rate: float) -> float:
    """Microseconds of the longest pick."""
    return median(longest(PICKERS[name](Random(i)), count, rate) for i in range(5))


def longest(picker: Picker, count: int, rate: float) -> float:
    nodes = fake_nodes(count)
    traffic = Traffic(nodes)
    wanted = getattr(picker, "probes", [])
    now, most = 20.0, 0
    for i in range(PICKS):
        now += 1.0 / rate
        began = thread_time_ns()
        node = picker.pick(nodes, now)
        took = thread_time_ns() - began
        traffic.send(node, now)
        wanted.clear()
        if i >= PICKS // 5:
            most = max(most, took)
    return most / 1e3


Measure = Callable[[str, int, float], float]


def table(what: str, names: list[str], measure: Measure, digits: int) -> list[Measured]:
    told = []
    for rate in RATES:
        head = f"{what} at {rate}/s"
        print(f"{head:26}" + "".join(f"{f'k = {k}':>10}" for k in SIZES))
        for name in names:
            costs = [measure(name, count, rate) for count in SIZES]
            line = "".join(f"{cost:10.{digits}f}" for cost in costs)
            print(f"{name:26}{line}", flush=True)
            told += [
                Measured(name=f"{head}, {name}, of {count:,}", value=cost, unit="us")
                for count, cost in zip(SIZES, costs, strict=True)
            ]
    return told


def main() -> int:
    parser = parser_of("picks", __doc__)
    parser.add_argument("picker", nargs="*", metavar="PICKER")
    given = parser.parse_args()
    names = given.picker or [*PICKERS]
    found = table("us per pick", names, microseconds, 2)
    found += table("us of the worst pick", names, worst, 0)
    return conclude(given, found, None, measured=found)


if __name__ == "__main__":
    exit_with(main)
