"""The demo's emulated processor against cases that can be solved on paper."""

from math import inf
from random import Random

import pytest

from examples.fleet.cpu import Processor


class Log:
    """When each job was done, in the processor's own time."""

    def __init__(self, cores: int, speed: float) -> None:
        self.cpu = Processor(cores, speed, 100.0)
        self.done_at: dict[str, float] = {}

    def start(self, name: str, cost: float, now: float) -> int:
        def done() -> None:
            self.done_at[name] = self.cpu.advanced_to

        return self.cpu.start(cost, done, now)


def test_a_job_alone_takes_its_cost_over_the_speed() -> None:
    log = Log(cores=2, speed=2.5)
    log.start("a", 1.0, now=100.0)
    assert log.cpu.next_at() == pytest.approx(100.4)
    log.cpu.advance(100.39)
    assert log.done_at == {}
    log.cpu.advance(100.5)
    assert log.done_at == pytest.approx({"a": 100.4})
    assert log.cpu.busy == pytest.approx(0.4)
    assert log.cpu.next_at() == inf


def test_three_equal_jobs_on_two_cores_take_half_as_long_again() -> None:
    log = Log(cores=2, speed=1.0)
    for name in "abc":
        log.start(name, 1.0, now=100.0)
    log.cpu.advance(101.5)
    assert log.done_at == pytest.approx(dict.fromkeys("abc", 101.5))
    assert log.cpu.busy == pytest.approx(3.0)


def test_a_late_comer_slows_the_first_from_then_on() -> None:
    # One core: a runs alone for 1 s, shares for 2 s until it has had 2, and b, which
    # then has had 1 of its 3, runs alone for the other 2.
    log = Log(cores=1, speed=1.0)
    log.start("a", 2.0, now=100.0)
    log.start("b", 3.0, now=101.0)
    log.cpu.advance(110.0)
    assert log.done_at == pytest.approx({"a": 103.0, "b": 105.0})
    assert log.cpu.busy == pytest.approx(5.0)


def test_a_dropped_job_leaves_its_share_to_the_others() -> None:
    log = Log(cores=1, speed=1.0)
    log.start("a", 2.0, now=100.0)
    dropped = log.start("b", 3.0, now=100.0)
    log.cpu.drop(dropped, now=102.0)
    log.cpu.advance(110.0)
    assert log.done_at == pytest.approx({"a": 103.0})
    assert log.cpu.busy == pytest.approx(3.0)


def test_idle_time_is_not_accounted() -> None:
    log = Log(cores=4, speed=1.0)
    log.cpu.advance(105.0)
    log.start("a", 1.0, now=107.0)
    log.cpu.advance(120.0)
    assert log.done_at == pytest.approx({"a": 108.0})
    assert log.cpu.busy == pytest.approx(1.0)


def test_waking_late_changes_no_completion_and_no_account() -> None:
    rng = Random(1)
    arrivals = [(100.0 + rng.uniform(0, 10), rng.expovariate(2.0)) for _ in range(60)]
    arrivals.sort()

    def play(wake_every: float | None) -> Log:
        log = Log(cores=2, speed=1.3)
        now = 100.0
        for number, (at, cost) in enumerate(arrivals):
            while wake_every is not None and now + wake_every < at:
                now += wake_every
                log.cpu.advance(now)
            log.start(str(number), cost, at)
        log.cpu.advance(200.0)
        return log

    often, never = play(0.01), play(None)
    assert never.done_at == pytest.approx(often.done_at)
    assert never.cpu.busy == pytest.approx(often.cpu.busy)
    # All that was asked for was done, and nothing else.
    total = sum(cost for _, cost in arrivals) / 1.3
    assert never.cpu.busy == pytest.approx(total)
