"""What every picker promises, whatever happens to its nodes.

A new picker is one more line in `PICKERS`, and has to keep all of it.
"""

import tracemalloc
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.load import FORGOTTEN_AFTER
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.protocols import Picker
from lbclient.core.report.load_monitor import LoadMonitor
from lbclient.pickers import PICKERS, Prequal, WeightedLeastLoaded
from lbclient.testing import FakeNode, fake_nodes
from tests.examples import examples

NODES = 6
LONG = 100.0  # seconds of a request: what is told of others fades in about as long

# Of calls without keys.
LIKE_WEIGHTED = ("weighted_least_loaded", "consistent_hashing", "cache_aware")

every_picker = pytest.mark.parametrize("name", PICKERS)
weighted_picker = pytest.mark.parametrize(
    "name", [name for name in PICKERS if name.startswith("weighted")]
)

rates = st.sampled_from([0.0, 1e-9, 0.5, 1.0, 70.0, 1e300])
counts = st.sampled_from([None, 0, 3, 4_000_000_000])
reports = st.none() | st.builds(LoadReport, rates, rates, rates, counts, counts)
outcomes = st.builds(Outcome, st.sampled_from(Verdict), rates, reports)
members = st.sets(st.integers(0, NODES - 1), min_size=1).map(sorted)
pauses = st.sampled_from([0.0, 0.001, 0.3, 1.0, 20.0, 1000.0])

# What happens between two picks: time passes, then nothing, or the request that was
# sent first finishes, or others are ready from now on, or one was restarted.
events = st.tuples(pauses, st.none() | outcomes | members | st.integers(0, NODES - 1))
stories = st.lists(events, max_size=60)


def play(picker: Picker, story: "list[tuple[float, object]]") -> Iterator[FakeNode]:
    nodes = ready = fake_nodes(NODES)
    sent: list[FakeNode] = []
    now = 0.0
    for pause, event in story:
        now += pause
        if isinstance(event, list):
            ready = tuple(nodes[i] for i in event)
        elif isinstance(event, int):
            nodes[event].load.enter_ready(now)
        elif isinstance(event, Outcome) and sent:
            sent.pop(0).load.finish(event, now)
        node = picker.pick(ready, now)
        assert node in ready
        answer_probes(picker, now, event.report if isinstance(event, Outcome) else None)
        node.load.begin()
        sent.append(node)
        yield node


def answer_probes(picker: Picker, now: float, *said: LoadReport | None) -> None:
    """All that are asked say the same, or each what it says of itself."""
    asked: list[FakeNode] = getattr(picker, "probes", [])
    for node in asked:
        report = said[int(node.endpoint.address[1:-2]) % len(said)]
        if report is not None:
            node.load.observe(report, now)
        picker.probed(node, report, now)  # type: ignore[attr-defined]
    asked.clear()


def addresses(picker: Picker, story: "list[tuple[float, object]]") -> list[str]:
    return [node.endpoint.address for node in play(picker, story)]


class Watched:
    """A picker that is asked for its weights all the time."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self.probes: list[FakeNode] = getattr(picker, "probes", [])

    def probed(self, node: FakeNode, report: LoadReport | None, now: float) -> None:
        self._picker.probed(node, report, now)  # type: ignore[attr-defined]

    def pick(self, ready: tuple[FakeNode, ...], now: float) -> FakeNode:
        assert len(self._picker.weights(ready, now)) == len(ready)
        node = self._picker.pick(ready, now)
        self._picker.weights(ready[::-1], now + 1e6)
        repr(self._picker)
        return node


@every_picker
@given(stories, st.integers())
def test_a_pick_is_ready_and_the_same_seed_makes_the_same_picks(
    name: str, story: "list[tuple[float, object]]", seed: int
) -> None:
    once, again = (addresses(PICKERS[name](Random(seed)), story) for _ in range(2))
    assert once == again
    assert len(once) == len(story)


@every_picker
@given(stories)
def test_to_look_at_the_weights_changes_no_pick(
    name: str, story: "list[tuple[float, object]]"
) -> None:
    unseen = addresses(PICKERS[name](Random(7)), story)
    watched: Picker = Watched(PICKERS[name](Random(7)))  # type: ignore[assignment]
    assert addresses(watched, story) == unseen


@every_picker
@given(stories)
def test_shares_have_mean_one(name: str, story: "list[tuple[float, object]]") -> None:
    picker = PICKERS[name](Random(1))
    for _ in play(picker, story):
        pass
    shares = picker.weights(fake_nodes(NODES), 1e5)
    assert sum(shares) / NODES == pytest.approx(1.0)
    assert min(shares) > 0.0


@every_picker
@examples(15)
@given(st.lists(reports, min_size=2, max_size=NODES))
def test_nobody_is_starved(name: str, said: list[LoadReport | None]) -> None:
    """Whatever they say: a hundredth of a fair share, hence one pick in 100 k.

    One in 200 k for what is looked at only once in 100 k picks, or once a second. Where
    the hundredth goes by lot, one in 1,500 k: to miss that has a chance of e^-15.
    """
    rounds = 1500 if name == "prequal" else 200
    nodes = fake_nodes(len(said))
    picker = PICKERS[name](Random(1))
    missing = set(map(id, nodes))
    now = 100.0
    for _ in range(rounds * len(nodes) + 200):
        now += 0.01
        for node, report in zip(nodes, said, strict=True):
            if report is not None:
                node.load.observe(report, now)
        node = picker.pick(nodes, now)
        answer_probes(picker, now, *said)
        missing.discard(id(node))
        if not missing:
            return
        node.load.begin()
        node.load.finish(Outcome(Verdict.SERVED, 0.01), now)
    pytest.fail(f"{len(missing)} of {len(nodes)} never picked")


@pytest.mark.slow
@every_picker
@pytest.mark.parametrize("interval", [0.03, 0.003])
def test_when_all_have_failed_all_are_used_again(name: str, interval: float) -> None:
    """All refuse for 3 s. Of the next 10 s nobody has more than twice its share.

    Once hundreds of errors decided, by their differences: one of three had it all.
    """
    nodes, picker, rng = fake_nodes(3), PICKERS[name](Random(1)), Random(2)
    in_flight: list[tuple[float, FakeNode]] = []
    picks = dict.fromkeys(map(id, nodes), 0)
    now = 10.0
    while now < 43.0:
        now += rng.expovariate(1 / interval)
        is_out = 30.0 <= now < 33.0
        for at, node in [each for each in in_flight if each[0] <= now]:
            in_flight.remove((at, node))
            noise = rng.random()  # so that weights differ, and move meanwhile
            report = LoadReport(0.3 + noise, 50.0, 50.0 * is_out, node.load.in_flight)
            verdict = Verdict.REJECTED if is_out else Verdict.SERVED
            node.load.finish(Outcome(verdict, 0.01, report), at)
        node = picker.pick(nodes, now)
        answer_probes(picker, now, LoadReport(0.5, 50.0, 0.0, 1))
        node.load.begin()
        in_flight.append((now + rng.expovariate(100.0), node))
        if now >= 33.0:
            picks[id(node)] += 1
    assert max(picks.values()) < 2 / 3 * sum(picks.values())


class Telling:
    """A backend's own word: of 0.8 ms of a processor for each request, and no more."""

    def __init__(self) -> None:
        self._monitor = LoadMonitor(1.0)
        self._finished = 0
        self._sampled_at = 100.0

    def report(self, now: float) -> LoadReport:
        monitor = self._monitor
        monitor.active += 1
        monitor.finish(Verdict.SERVED)
        self._finished += 1
        if (passed := now - self._sampled_at) >= 0.1:
            monitor.sample(now, 0.04 + 0.0008 * self._finished / passed)
            self._finished, self._sampled_at = 0, now
        return monitor.report()


def slow_calls(
    told: str, users: int, count: int, *, error_after: float = inf
) -> tuple[list[bool], list[bool]]:
    """Which calls went to the slow one of idle backends: of users who send one after
    the other for 5 s, then of one who is alone. An error of a fast one may follow after
    so many seconds; then calls before it are not told."""
    nodes = fake_nodes(count)
    slow = nodes[-1]
    for node in nodes:
        node.load.enter_ready(0.0)
    telling = {node.endpoint.address: Telling() for node in nodes}
    picker = WeightedLeastLoaded(Random(1))
    rng = Random(users)
    events: list[tuple[float, int, float, FakeNode | None]]
    events = [(100.0, user, 0.0, None) for user in range(users)]
    busy: list[bool] = []
    alone: list[bool] = []
    said = LoadReport(0.02, 10.0, 0.0, 0) if told == "next to nothing" else None
    erred_at = 105.0 + error_after
    while len(alone) < 100:
        now, user, took, ended = heappop(events)
        if ended is not None:
            if told == "what is used":
                said = telling[ended.endpoint.address].report(now)
            verdict = Verdict.SERVED
            if now > erred_at and ended is not slow:
                verdict, erred_at = Verdict.FAILED, inf
                alone.clear()
            ended.load.finish(Outcome(verdict, took, said), now)
        if user and now > 105.0:
            continue
        node = picker.pick(nodes, now)
        answer_probes(picker, now, said)
        node.load.begin()
        (busy if events else alone).append(node is slow)
        takes = (0.3 if node is slow else 0.005) * rng.uniform(0.9, 1.1)
        heappush(events, (now + takes, user, takes, node))
    return busy, alone


def longest_run(calls: list[bool]) -> int:
    return max(
        (len(list(run)) for is_slow, run in groupby(calls) if is_slow), default=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "users", "count"),
    [
        ("what is used", 4, 2),
        ("what is used", 20, 2),
        ("what is used", 20, 3),
        ("what is used", 8, 10),
        ("what is used", 60, 100),
        ("next to nothing", 4, 3),
        ("next to nothing", 8, 10),
        ("next to nothing", 30, 100),
        ("nothing", 8, 3),
        ("nothing", 8, 10),
        ("nothing", 30, 100),
    ],
)
def test_turns_missed_while_there_was_more_to_do_are_made_up_for_by_and_by(
    told: str, users: int, count: int
) -> None:
    """One of idle backends takes 60 times as long. Users send one call after the other
    for 5 s, then one is alone, who got 31 to 68 slow calls of three in a row, and ten
    of them where the slow one had more weight, as the less used one.
    """
    busy, alone = slow_calls(told, users, count)
    assert longest_run(alone) <= 5
    assert sum(alone) <= 100 / min(count, 3) + 5
    assert sum(busy) <= (0.05 if count > 2 else 0.15) * len(busy)


@pytest.mark.slow
@pytest.mark.parametrize("told", ["what is used", "next to nothing", "nothing"])
@pytest.mark.parametrize("users", [10, 20, 40])
def test_an_error_weighs_no_more_after_a_burst_than_in_a_calm(
    told: str, users: int
) -> None:
    """It counts as one request: 19 calls to the slow one of two in a calm. It kept a
    lone caller there for 57 to 100 calls, while turns of before counted next to nothing
    and all that the slow one had missed were made up for at once."""
    assert longest_run(slow_calls(told, 1, 2, error_after=3.0)[1]) <= 20
    assert longest_run(slow_calls(told, users, 2, error_after=3.0)[1]) <= 20
    assert longest_run(slow_calls(told, users, 3, error_after=3.0)[1]) <= 5


@weighted_picker
@examples(15)
@given(st.lists(st.floats(0.2, 0.8), min_size=2, max_size=5))
def test_picks_are_in_proportion_to_the_weights(
    name: str, utilizations: list[float]
) -> None:
    """With nothing in flight, to 1 % of a fair share.

    Of 2,500 picks for each node, all within a second, so that no weight moves: a stride
    is off by one pick, recent picks by one for each node.
    """
    nodes = fake_nodes(len(utilizations))
    for node, utilization in zip(nodes, utilizations, strict=True):
        node.load.observe(LoadReport(utilization, qps=100.0), 100.0)
    picker = PICKERS[name](Random(1))
    total = 2500 * len(nodes)
    picks = dict.fromkeys(map(id, nodes), 0)
    now = 100.0
    for _ in range(total):
        now += 0.5 / total
        node = picker.pick(nodes, now)
        node.load.begin()
        node.load.finish(Outcome(Verdict.SERVED, 0.001), now)
        picks[id(node)] += 1
    shares = [count * len(nodes) / total for count in picks.values()]
    assert shares == pytest.approx(picker.weights(nodes, now), abs=0.01)


class Last(Random):
    """Whose first whole number is the last but two of those that it can be."""

    def getrandbits(self, k: int) -> int:
        return (1 << k) - 3 if k == 32 else super().getrandbits(k)


@every_picker
@pytest.mark.parametrize("count", [(1 << 32) - 3, (1 << 64) - 3])
def test_counters_may_pass_what_fits_a_machine_word(name: str, count: int) -> None:
    """The same picks as from the beginning; and from the end of a sequence all are
    picked, about as often as any other."""
    told = []
    for began in (0, count):
        nodes, picker = fake_nodes(NODES), PICKERS[name](Last(1))
        picks = []
        for node in nodes:
            node.load.counts[Verdict.SERVED] = began
        for i in range(100 * NODES):
            now = 100.0 + i / 100
            node = picker.pick(nodes, now)
            active = node.load.in_flight
            answer_probes(picker, now, LoadReport(0.5, 50.0, active=active))
            node.load.begin()
            report = LoadReport(0.5, 50.0, active=active)
            node.load.finish(Outcome(Verdict.SERVED, 0.01, report), now)
            picks.append(node.endpoint.address)
        told.append(picks)
    assert told[0] == told[1]
    often = [told[1].count(node.endpoint.address) for node in nodes]
    assert min(often) > 100 * 0.5
    assert max(often) < 100 * 1.5


def peak_of_a_pick(name: str, count: int) -> int:
    """Bytes that 99 of 100 picks take at most beyond what was taken before."""
    nodes, picker, rng = fake_nodes(count), PICKERS[name](Random(1)), Random(2)
    in_flight: deque[FakeNode] = deque()
    peaks = []
    now = 20.0
    tracemalloc.start()
    try:
        for _ in range(8 * count + 1500):
            now += 0.001
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            node = picker.pick(nodes, now)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            answer_probes(picker, now, None)
            node.load.begin()
            in_flight.append(node)
            if len(in_flight) > 32:
                report = LoadReport(0.3 + rng.random(), 50.0, active=rng.randrange(5))
                outcome = Outcome(Verdict.SERVED, 0.02, report)
                in_flight.popleft().load.finish(outcome, now)
    finally:
        tracemalloc.stop()
    return sorted(peaks[-1000:])[990]


@every_picker
@pytest.mark.slow
def test_a_pick_takes_no_memory_that_grows_with_the_backends(name: str) -> None:
    """But what is looked at four times a second, as it may be: not one in 100 here.

    Scores were once written into a new list at every eighth of a request's time. Of
    many backends a part is looked at more often, the same part of 200 and of 400.
    """
    few, many, more = (peak_of_a_pick(name, count) for count in (20, 200, 400))
    part = 4096 if name in LIKE_WEIGHTED else 0
    assert many <= few + part + 64
    assert more <= many + 128, "numbers above 256 take memory"


@examples(30)
@given(st.integers(0, 2**32), st.integers(2, 30), st.floats(0.005, 0.02))
def test_the_least_loaded_is_who_has_the_fewest_requests_of_all_clients(
    seed: int, count: int, interval: float
) -> None:
    """Within one, for turns count a little, too: whatever finishes, fails, tells of
    others' requests or becomes full meanwhile.

    In its first second it learns how much there is to do. Requests take long here, so
    that what was told has not faded. Who failed may be passed over, and is not
    preferred.
    """
    rng = Random(seed)
    nodes = ready = fake_nodes(count)
    picker = WeightedLeastLoaded(Random(1))
    others = {node: rng.randrange(7) for node in nodes}
    failed: set[FakeNode] = set()
    in_flight: list[FakeNode] = []
    now = 100.0
    for node in nodes:
        node.load.begin()
        finish(node, Verdict.SERVED, others[node], now)
    for _ in range(400):
        now += rng.expovariate(1 / interval)
        if rng.random() < 0.05:  # one becomes full, the one before is so no more
            full = rng.randrange(count)
            ready = nodes[:full] + nodes[full + 1 :]
        node = picker.pick(ready, now)
        requests = {one: one.load.in_flight + others[one] for one in ready}
        sound = [requests[one] for one in ready if one not in failed]
        assert now < 101.0 or not sound or requests[node] <= min(sound) + 1
        node.load.begin()
        in_flight.append(node)
        while in_flight and rng.random() < len(in_flight) / 2 / count:
            done = in_flight.pop(rng.randrange(len(in_flight)))
            others[done] = rng.randrange(7)
            verdict = Verdict.SERVED if rng.random() < 0.98 else Verdict.FAILED
            if verdict is Verdict.FAILED:
                failed.add(done)
            finish(done, verdict, others[done], now)


def finish(node: FakeNode, verdict: Verdict, others: int, now: float) -> None:
    """A long request; the backend tells of all that it still has."""
    report = LoadReport(0.5, 50.0, 0.0, others + node.load.in_flight - 1)
    node.load.finish(Outcome(verdict, LONG, report), now)


class NoLot(Random):
    """Nothing goes by lot: no part of the picks is so small."""

    def random(self) -> float:
        return 0.5


answers = st.builds(
    LoadReport,
    active=st.integers(0, 4),
    runnable=st.none() | st.integers(0, 4),
    latency=st.sampled_from([0.001, 0.01, 0.02, 1.0]),
)
ages = st.sampled_from([0.0, 5.0, 50.0, FORGOTTEN_AFTER, 2 * FORGOTTEN_AFTER])
failures = st.lists(ages, max_size=4).map(lambda ages: sorted(ages, reverse=True))
asked = st.lists(st.tuples(answers, failures), min_size=4, max_size=12)


@examples(200)
@given(asked, st.sampled_from([0.0, 0.5, 1.0]))
def test_prequal_picks_nobody_while_a_probed_one_is_better_in_all(
    said: "list[tuple[LoadReport, list[float]]]", quantile: float
) -> None:
    """It has fewer requests, is faster and has not failed; hot or cold, it goes first.
    What is sent to it counts as a request.
    """
    now = 1000.0
    nodes = fake_nodes(60)
    picker = Prequal(NoLot(), probes=0.0, removed=0.0, quantile=quantile)
    picker.pick(nodes, now)
    told = {node: answer for node, (answer, _) in zip(nodes, said, strict=False)}
    well = [node for node, (_, ages) in zip(nodes, said, strict=False) if not ages]
    for node, (answer, failed) in zip(nodes, said, strict=False):
        for age in failed:
            node.load.begin()
            node.load.finish(Outcome(Verdict.FAILED, 0.0), now - age)
        picker.probed(node, answer, now)
    requests = {
        node: (answer.active if answer.runnable is None else answer.runnable) or 0
        for node, answer in told.items()
    }
    for _ in said:
        node = picker.pick(nodes, now)
        assert not [
            other
            for other in well
            if requests[other] < requests[node]
            and told[other].latency < told[node].latency
        ]
        requests[node] += 1
