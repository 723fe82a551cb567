"""A queue of gRPC's core that nobody can look into, in virtual time. Seeded."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from random import Random

import pytest

from lbclient.core.overload.queue_delay import TUNING as QUEUE_DELAY
from lbclient.core.overload.queue_delay import QueueDelay

TICK = 0.1  # seconds, of a sample
MOST = 1000  # requests that the core keeps; the others are ended
DEADLINE = 1.0


@dataclass
class Sample:
    at: float
    came: int
    admitted: int
    refused: int
    waiting: int
    delay: float
    room: float


def serve(
    demand: Callable[[float], float],
    seconds: float,
    cost: float,
    refusal: float,
    speed: Callable[[float], float] = lambda at: 1.0,
    most: float = inf,
    time: float = DEADLINE,
    kept: float = inf,
) -> list[Sample]:
    """One processor; `demand` is in requests a second, and `most` may wait.

    `kept`: by the core, where that is known.
    """
    rng, delay, queue, owed = Random(5), QueueDelay(), 0, 0.0
    samples = []
    for tick in range(round(seconds / TICK)):
        at = tick * TICK
        mean = demand(at) * TICK
        came = max(0, round(rng.gauss(mean, sqrt(mean))))
        queue += came
        left, taken, admitted = TICK * speed(at) + owed, 0, 0
        while queue and left > 0.0:
            queue, taken = queue - 1, taken + 1
            if rng.random() < delay.admissible:
                admitted += 1
                left -= cost
            else:
                left -= refusal
        owed = min(0.0, left)
        queue = int(min(queue, MOST, kept))
        delay.sample(
            TICK,
            waiting=queue,
            taken=taken,
            let_in=admitted,
            time=time,
            core_bound=most,
            core_capacity=kept,
            refusal_cpu=refusal,
            loop_cpu=TICK * speed(at) - left,
        )
        samples.append(
            Sample(
                at,
                came,
                admitted,
                taken - admitted,
                queue,
                delay.seconds,
                delay.admissible,
            )
        )
    return samples


@pytest.mark.parametrize("times", [1.5, 3.0, 6.0])
@pytest.mark.parametrize("cost", [0.0005, 0.001, 0.002])
def test_what_is_served_has_waited_as_long_as_it_may(cost: float, times: float) -> None:
    refusal = 0.00008
    samples = serve(lambda _: times / cost, 20.0, cost, refusal)
    flood = [sample for sample in samples if sample.at >= 3.0]
    mean = sum(sample.delay for sample in flood) / len(flood)
    assert 0.5 * QUEUE_DELAY.share < mean < 2 * QUEUE_DELAY.share * DEADLINE
    assert max(sample.delay for sample in flood) < DEADLINE / 2
    served = sum(sample.admitted for sample in flood) * cost / (TICK * len(flood))
    refused = (sum(s.came - s.admitted for s in flood)) / (TICK * len(flood))
    assert served > 0.9 * (1.0 - refused * refusal)


def test_where_the_queue_cannot_be_made_shorter_some_are_served_all_the_same() -> None:
    """A refusal takes half of what serving does, and ten times too much comes."""
    samples = serve(lambda _: 10_000.0, 20.0, 0.001, 0.0005)
    served = sum(sample.admitted for sample in samples[30:]) * 0.001
    assert served > 0.25 * TICK * len(samples[30:])


def test_who_refuses_at_the_cost_of_serving_serves_most_that_come() -> None:
    """As a handler that does next to nothing: the wait is the same either way."""
    samples = serve(lambda _: 9_000.0, 20.0, 0.00022, 0.0002)
    served = sum(sample.admitted for sample in samples[30:]) * 0.00022
    assert served > 0.8 * TICK * len(samples[30:])
    assert max(sample.delay for sample in samples[30:]) < DEADLINE / 2


@pytest.mark.parametrize("times", [2.0, 5.0, 20.0])
@pytest.mark.parametrize("refusal", [0.00004, 0.00019])
def test_whom_the_core_keeps_is_refused_by_nobody_if_that_is_in_time(
    refusal: float, times: float
) -> None:
    """Handlers that only wait. What more comes the core ends, at no cost."""
    cost = 0.0002
    samples = serve(lambda _: times / cost, 10.0, cost, refusal, kept=700)
    assert (
        max(sample.delay for sample in samples)
        < 1.1 * QUEUE_DELAY.kept_share * DEADLINE
    )
    flood = samples[10:]
    assert all(sample.room == 1.0 for sample in flood)
    assert sum(sample.admitted for sample in flood) * cost > 0.98 * TICK * len(flood)


def test_who_was_slow_when_the_flood_began_refuses_nobody_once_it_is_fast() -> None:
    """As on a machine that others use, too, for a while."""
    cost, drop = 0.0002, 0.00005
    samples = serve(
        *(lambda _: 5.0 / cost, 20.0, cost, drop),
        speed=lambda at: 0.2 if at < 3.0 else 1.0,
        kept=700,
    )
    assert min(sample.room for sample in samples[:30]) < 0.5
    assert all(sample.room == 1.0 for sample in samples[100:])


def test_where_refusing_is_cheap_it_is_done_however_much_time_there_is() -> None:
    """So who is served is chosen by criticality, and not by the core."""
    args = 20.0, 0.002, 0.00005
    samples = serve(lambda _: 1_500.0, *args, time=5.0, most=350, kept=700)[100:]
    assert max(sample.room for sample in samples) < 0.6
    assert max(sample.waiting for sample in samples) < 700


def test_who_gets_slow_in_a_flood_serves_fresh_requests() -> None:
    cost, drop = 0.0002, 0.00005
    samples = serve(
        *(lambda _: 5.0 / cost, 20.0, cost, drop),
        speed=lambda at: 1.0 if at < 5.0 else 0.4,
        kept=700,
    )
    assert all(sample.room == 1.0 for sample in samples[10:50])
    assert (
        max(sample.delay for sample in samples[80:])
        < 1.1 * QUEUE_DELAY.kept_share * DEADLINE
    )


def test_a_handler_that_sleeps_on_the_loop_does_not_look_like_one_that_waits() -> None:
    """It takes no processor, so the loop seems to do nothing but refuse."""
    delay, refusal, refused = QueueDelay(), 0.0002, 200
    for _ in range(50):
        delay.sample(
            TICK,
            waiting=600,
            taken=4 + refused,
            let_in=4,
            time=DEADLINE,
            core_capacity=700,
            refusal_cpu=refusal,
            loop_cpu=1.01 * refused * refusal,
        )
        assert not delay.is_core_enough
    assert delay.admissible < 1.0


def test_a_core_that_keeps_what_would_wait_for_too_long_is_not_enough() -> None:
    def rooms(kept: float) -> list[float]:
        samples = serve(lambda _: 5_000.0, 10.0, 0.001, 0.00005, most=350, kept=kept)
        assert (
            max(sample.delay for sample in samples[20:])
            < QUEUE_DELAY.kept_share * DEADLINE
        )
        return [sample.room for sample in samples[20:]]

    assert rooms(700) == pytest.approx(rooms(MOST), abs=0.1)


@pytest.mark.parametrize("times", [2.0, 5.0])
@pytest.mark.parametrize("cost", [0.0004, 0.0012, 0.003])
def test_where_it_is_known_whom_to_end_the_core_ends_nobody(
    cost: float, times: float
) -> None:
    """As long as there is time to end all that come."""
    refusal = 0.00003
    samples = serve(lambda _: times / cost, 20.0, cost, refusal, most=MOST / 2)[30:]
    assert max(sample.waiting for sample in samples) < MOST
    served = sum(sample.admitted for sample in samples) * cost
    refused = sum(sample.came - sample.admitted for sample in samples) * refusal
    assert served > 0.9 * (TICK * len(samples) - refused)


@pytest.mark.parametrize("times", [2.0, 5.0, 10.0])
def test_who_is_let_in_as_it_comes_waits_no_longer_for_its_turn(times: float) -> None:
    """Of what is dropped as it comes the core hands over many: what is let in then
    waits in Python, and is served at another rate."""
    cost, drop, most, turns = 0.001, 0.00003, 300, 20
    rng, delay, in_core, here, left = Random(5), QueueDelay(), 0, 0, 0.0
    served, waits, let_in = 0, [], {0: 0, 2: 0}
    for tick in range(200):
        taken, handed_on, was_limited = 0, 0, delay.is_limited
        for _ in range(turns):
            mean = times / cost * TICK / turns
            came = max(0, round(rng.gauss(mean, sqrt(mean))))
            in_core = min(in_core + came, 2 * most)
            left = min(left, 0.0) + TICK / turns
            while left > 0.0 and (in_core or here):
                for _ in range(min(in_core, 32)):  # in one turn of the loop
                    in_core, taken, left = in_core - 1, taken + 1, left - drop
                    criticality = 2 if rng.random() < 0.5 else 0
                    is_let_in = rng.random() < delay.admissible
                    if is_let_in and delay.has_room(criticality, here, DEADLINE):
                        here += 1
                        let_in[criticality] += tick >= 10
                if here:
                    here, handed_on, left = here - 1, handed_on + 1, left - cost
        delay.sample(
            TICK,
            waiting=in_core + here,
            in_python=here,
            taken=taken,
            handed_on=handed_on,
            let_in=handed_on,
            time=DEADLINE,
            core_bound=most,
            drops_by_criticality=True,
        )
        if delay.is_limited and not was_limited:  # what came before is asked now
            here = sum(rng.random() < delay.admissible for _ in range(here))
            delay.emptied()
        if tick >= 10:
            served += handed_on
            waits.append(here * cost)
    rate = served / (TICK * len(waits))
    assert rate > 0.95 * (1.0 - (times - 1.0) * drop / cost) / cost
    assert max(waits) < 1.1 * QUEUE_DELAY.line_share * DEADLINE
    critical = min(0.5 * times / cost * TICK * len(waits), served)
    assert let_in[2] > 0.98 * critical


@pytest.mark.parametrize("burst", [10, 25, 40])
def test_who_comes_in_bursts_after_a_flood_is_let_in(burst: int) -> None:
    """As from clients whose own loops are busy. What a loop that is idle half of the
    time serves is no measure of what may wait."""
    cost, drop, rate = 0.001, 0.00003, 400.0
    rng, delay, flood, longest = Random(5), QueueDelay(), 30, -30
    for tick in range(100):
        is_flood = tick < flood
        here, done, dropped, left = 0, 0, 0, TICK
        bursts = round(5.0 / cost * TICK) if is_flood else round(rate * TICK / burst)
        for _ in range(bursts):
            for _ in range(1 if is_flood else burst):
                if delay.has_room(2 if rng.random() < 0.5 else 0, here, DEADLINE):
                    here += 1
                else:
                    dropped, left = dropped + 1, left - drop
            while here and left > 0.0:
                here, done, left = here - 1, done + 1, left - cost
        waiting = 500 if is_flood else 0
        delay.sample(
            TICK,
            waiting=waiting,
            taken=done + dropped,
            handed_on=done,
            let_in=done,
            time=DEADLINE,
            core_bound=300,
            drops_by_criticality=True,
            busy=1.0 if is_flood else (TICK - left) / TICK,
        )
        if delay.is_limited:
            longest = tick - flood
    assert -1 <= longest < 1.0 / TICK


def test_a_flood_that_found_the_process_slow_is_served_once_it_is_fast() -> None:
    """What it let in then is no measure, and no refusals make the wait short."""

    def demand(at: float) -> float:
        return 6_000.0 if at >= 3.0 else 1_000.0

    def speed(at: float) -> float:
        return 0.01 if 3.0 <= at < 4.5 else 1.0

    samples = serve(demand, 20.0, 0.0004, 0.00035, speed)
    served = sum(sample.admitted for sample in samples[100:]) * 0.0004
    assert served > 0.7 * TICK * len(samples[100:])
    assert max(sample.delay for sample in samples[100:]) < 0.75 * DEADLINE


def test_who_can_do_a_tenth_of_what_it_could_serves_fresh_requests() -> None:
    def speed(at: float) -> float:
        return 1.0 if at < 5.0 else 0.1

    samples = serve(lambda _: 800.0, 30.0, 0.001, 0.00002, speed)
    slow = samples[150:]
    mean = sum(sample.delay for sample in slow) / len(slow)
    assert mean < 2 * QUEUE_DELAY.share * DEADLINE
    served = sum(sample.admitted for sample in slow) * 0.001
    assert served > 0.7 * 0.1 * TICK * len(slow)


def test_all_come_in_soon_after_the_flood() -> None:
    def demand(at: float) -> float:
        return 3000.0 if at < 10.0 else 500.0

    samples = serve(demand, 20.0, 0.001, 0.00008)
    assert samples[99].room < 0.5
    assert all(sample.room == 1.0 for sample in samples if sample.at >= 12.0)


def test_who_can_do_all_that_comes_refuses_nobody() -> None:
    for load in (0.5, 0.8, 0.95):
        samples = serve(lambda _, load=load: load * 1000.0, 60.0, 0.001, 0.0)  # type: ignore[misc]
        assert all(sample.room == 1.0 for sample in samples)


def test_what_comes_while_a_handler_has_the_loop_is_no_queue_that_stands() -> None:
    delay = QueueDelay()
    for _ in range(10):
        delay.sample(TICK, waiting=0, taken=50, let_in=50, time=DEADLINE)
    delay.sample(0.4, waiting=184, taken=16, let_in=16, time=DEADLINE)
    assert delay.seconds > delay.target
    assert delay.admissible == 1.0
    delay.sample(TICK, waiting=0, taken=234, let_in=234, time=DEADLINE)
    assert delay.admissible == 1.0


def test_who_has_more_time_may_wait_longer() -> None:
    delay = QueueDelay()
    for _ in range(20):
        delay.sample(TICK, waiting=500, taken=100, let_in=100, time=5.0)
    assert delay.seconds == pytest.approx(0.5, rel=0.01)
    assert delay.admissible == 1.0
    for _ in range(20):
        delay.sample(TICK, waiting=500, taken=100, let_in=100, time=0.5)
    assert delay.admissible < 1.0


def test_where_nothing_is_taken_nothing_is_known() -> None:
    delay = QueueDelay()
    for _ in range(20):
        delay.sample(TICK, waiting=500, taken=0, let_in=0, time=1.0)
    assert (delay.seconds, delay.admissible) == (0.0, 1.0)


def test_a_process_that_stood_still_for_long_does_not_break_the_sum() -> None:
    delay = QueueDelay()
    for _ in range(5):
        delay.sample(0.1, waiting=500, taken=50, let_in=50, time=0.5)
    assert delay.admissible < 1.0
    delay.sample(5.0, waiting=900, taken=1, let_in=1, time=0.5)
    delay.sample(0.1, waiting=0, taken=900, let_in=900, time=0.5)
    assert delay.admissible == 1.0


def test_nothing_has_waited_for_longer_than_since_nothing_waited() -> None:
    """The loop stood still, and next to nothing was taken."""
    delay = QueueDelay()
    for _ in range(10):
        delay.sample(TICK, waiting=0, taken=50, let_in=50, time=9.0)
    delay.sample(1.5, waiting=400, taken=1, let_in=1, time=9.0)
    assert delay.seconds == 1.5
    delay.sample(TICK, waiting=0, taken=450, let_in=450, time=9.0)
    delay.sample(TICK, waiting=400, taken=0, let_in=0, time=9.0)
    assert delay.seconds <= TICK


def test_a_flood_with_short_deadlines_allows_no_long_waits_a_while_later() -> None:
    """A wait of 500 times their time allowed waits of 0.8 of it for two minutes."""
    delay = QueueDelay()
    for _ in range(30):
        delay.sample(TICK, waiting=500, taken=100, let_in=100, time=0.001)
    for _ in range(300):
        delay.sample(TICK, waiting=0, taken=100, let_in=100, time=DEADLINE)
    for _ in range(20):
        delay.sample(TICK, waiting=300, taken=100, let_in=100, time=DEADLINE)
        assert delay.target < 2 * QUEUE_DELAY.share * DEADLINE


def test_nobody_is_refused_for_what_cannot_be_refused() -> None:
    """Health checks fill the queue, 25 calls a second wait among them."""
    delay = QueueDelay()
    for calls in (2, 3) * 20:
        delay.sample(
            TICK,
            waiting=800,
            taken=200,
            let_in=200,
            time=DEADLINE,
            never_refused=200 - calls,
        )
        assert delay.admissible == 1.0
    assert delay.seconds > 0.0
    assert delay.is_of_checks
    for _ in range(20):
        delay.sample(
            TICK, waiting=800, taken=200, let_in=200, time=DEADLINE, never_refused=100
        )
    assert not delay.is_of_checks
    assert delay.admissible < 1.0
