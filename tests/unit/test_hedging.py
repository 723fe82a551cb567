"""When a call is hedged, played by a virtual clock; and why it is not."""

from heapq import heappop, heappush
from random import Random

import pytest

from lbclient.core.counting.call_counts import MOST
from lbclient.core.retries.hedging import (
    BUDGET,
    BURST,
    HedgedMethod,
    Hedging,
    hedging_delay,
)
from lbclient.core.retries.hedging import TUNING as HEDGING
from lbclient.core.retries.retry import Budget, RetryPolicy

PATH = "/a.B/C"
WELL = {"is_throttled": False, "is_waiting": False, "is_other": True}
STALL = 1.0  # seconds


def make(
    delay: float | None = 0.1, ratio: float = 0.1, budget: float = BUDGET
) -> Hedging:
    policy = RetryPolicy(Budget(ratio), Random(1), 3, lambda path: path == PATH)
    return Hedging(policy, 3, lambda path: path == PATH, budget, delay)


def found(hedging: Hedging) -> HedgedMethod:
    method = hedging.find(PATH)
    assert method is not None
    return method


def body(rng: Random) -> float:
    """Some 10 ms, as of a backend that has little to do."""
    return 0.008 + rng.expovariate(1 / 0.002)


class Play:
    """Calls one after the other in virtual time, 100 a second; attempts overlap."""

    def __init__(self, hedging: Hedging, stalls: float, latency: float = 1.0) -> None:
        self.hedging, self.method = hedging, found(hedging)
        self.rng = Random(7)
        self.stalls, self.latency = stalls, latency
        self.took: list[float] = []

    def draw(self) -> float:
        stall = STALL if self.rng.random() < self.stalls else 0.0
        return (body(self.rng) + stall) * self.latency

    def run(self, calls: int, start: int = 0) -> None:
        """Arrivals, delays and ends in the order of their times."""
        events: list[tuple[float, int, str]] = []
        for number in range(start, start + calls):
            heappush(events, (number / 100, number, "begin"))
        ends: dict[int, float] = {}
        began: dict[int, float] = {}
        is_due: set[int] = set()
        sent = start
        while events:
            now, number, what = heappop(events)
            if what == "begin":
                began[number], ends[number] = now, now + self.draw()
                delay = self.method.delay
                if delay is not None:
                    is_due.add(number)
                    heappush(events, (now + delay, number, "delay"))
                heappush(events, (ends[number], number, "end"))
            elif what == "delay" and number in is_due:
                is_due.remove(number)
                if self.hedging.decide(self.method, sent, **WELL):
                    hedged = now + self.draw()
                    if hedged < ends[number]:
                        ends[number] = hedged
                        heappush(events, (hedged, number, "end"))
            elif what == "end" and ends.get(number) == now:
                del ends[number]
                sent += 1
                if number in is_due:
                    is_due.remove(number)
                    self.method.answered_in_time()
                self.method.observe(now - began[number])
                self.took.append(now - began[number])


def p999(took: list[float]) -> float:
    return sorted(took)[int(0.999 * len(took))]


def test_rare_stalls_are_cut_for_two_percent_more_requests() -> None:
    """One of ten backends stalls 5 % of its calls."""
    play = Play(make(None), stalls=0.005)
    play.run(1000)
    play.took.clear()
    play.run(20_000, start=1000)
    assert p999(play.took) < 0.2 * STALL
    assert play.hedging.sent <= BUDGET * 21_000 + 1


@pytest.mark.parametrize("stalls", [0.0, 0.02, 0.2, 1.0])
def test_hedges_are_never_more_than_the_budget(stalls: float) -> None:
    play = Play(make(None), stalls)
    play.run(5000)
    assert play.hedging.sent <= BUDGET * 5000 + 1


def test_where_all_become_slow_only_a_few_calls_are_hedged() -> None:
    play = Play(make(None, budget=0.1), stalls=0.0)
    play.run(2000)
    before = play.hedging.sent
    play.latency = 50.0
    play.run(60, start=2000)
    assert play.hedging.sent - before <= BURST + 1
    assert play.hedging.withheld["slow"] > 30
    assert play.method.slow > HEDGING.most_slow


def test_the_delay_follows_a_method_that_has_become_slower() -> None:
    play = Play(make(None), stalls=0.0)
    play.run(2000)
    before = play.method.delay or 0.0
    play.latency = 10.0
    play.run(2000, start=2000)
    assert 5 * before < (play.method.delay or 0.0) < 20 * before
    assert play.method.slow < HEDGING.most_slow


def test_nothing_is_hedged_before_a_hundred_calls_are_known() -> None:
    method = found(make(None))
    for _ in range(HEDGING.least_known - 1):
        method.observe(0.01)
    assert method.delay is None
    method.observe(0.01)
    assert method.delay == 0.01


def test_a_delay_that_is_set_stays() -> None:
    method = found(make(0.5))
    for _ in range(2 * HEDGING.least_known):
        method.observe(0.01)
    assert method.delay == 0.5


def test_the_delay_is_the_p95_where_the_budget_has_room() -> None:
    latencies = [number / 100 for number in range(1, 101)]
    assert hedging_delay(latencies, 0.1) == 0.95


REASONS = [
    ("throttled", {"is_throttled": True}),
    ("waiting", {"is_waiting": True}),
    ("no-backend", {"is_other": False}),
]


@pytest.mark.parametrize(("reason", "what"), REASONS)
def test_a_hedge_is_withheld(reason: str, what: dict[str, bool]) -> None:
    hedging = make()
    assert hedging.decide(found(hedging), 1000, **{**WELL, **what}) is None
    assert {why for why, count in hedging.withheld.items() if count} == {reason}
    assert hedging.sent == 0
    retry = hedging.decide(found(hedging), 1000, **WELL)
    assert retry is not None
    assert retry.attempt == 1
    assert (hedging.sent, hedging.won) == (1, 0)
    hedging.hedge_won()
    assert hedging.won == 1
    before = hedging.withheld["no-backend"]
    hedging.take_back()
    assert (hedging.sent, hedging.withheld["no-backend"]) == (0, before + 1)


def test_hedges_and_retries_share_the_retry_budget() -> None:
    hedging = make(ratio=0.001)
    assert hedging.decide(found(hedging), 1, **WELL) is not None
    assert hedging.decide(found(hedging), 100, **WELL) is None
    assert hedging.withheld["budget"] == 1


def test_what_is_not_idempotent_or_has_one_attempt_is_not_hedged() -> None:
    assert make().find("/a.B/Other") is None
    policy = RetryPolicy(Budget(), Random(1), {PATH: 1}, lambda path: True)
    assert Hedging(policy, {PATH: 1}, lambda path: True).find(PATH) is None
    assert Hedging(policy, {PATH: 2}, lambda path: True).find(PATH) is not None


def test_so_many_methods_are_hedged_at_most_and_each_is_known() -> None:
    policy = RetryPolicy(Budget(), Random(1), 3, lambda path: True)
    hedging = Hedging(policy, 3, lambda path: True)
    first = hedging.find("/a.B/0")
    for number in range(1, MOST):
        assert hedging.find(f"/a.B/{number}") is not None
    assert hedging.find("/a.B/more") is None
    assert hedging.find("/a.B/0") is first is not None


def test_the_share_of_slow_calls_follows_them() -> None:
    method = found(make())
    for slow, share in ((True, 1.0), (False, 0.0)):
        for _ in range(400):
            (method.outlived if slow else method.answered_in_time)()
        assert method.slow == pytest.approx(share, abs=0.01)
        assert 0.0 <= method.slow <= 1.0
