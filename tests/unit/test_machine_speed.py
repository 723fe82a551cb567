"""What a CPU second is worth, by a clock that the tests set."""

import pytest

from lbclient.server.meters.machine_speed import (
    AT_START,
    HIGHEST,
    LATER,
    PAUSE,
    REFERENCE,
    MachineSpeed,
)


class Machine:
    """One whose loop takes what it is told, in terms of the reference."""

    def __init__(self, takes: float) -> None:
        self.takes = takes
        self.time = 0.0
        self.loops = 0
        self.speed = MachineSpeed(lambda: self.time, self.work)

    def work(self, rounds: int) -> None:
        self.loops += 1
        self.time += self.takes * REFERENCE


def test_a_machine_twice_as_fast_has_seconds_of_twice_the_worth() -> None:
    machine = Machine(0.5)
    assert machine.speed.factor == 1.0  # nobody knows yet
    machine.speed.start()
    assert machine.speed.factor == pytest.approx(2.0)
    assert machine.loops == AT_START
    machine.speed.start()
    assert machine.loops == AT_START


def test_a_neighbour_at_the_start_is_forgotten_once_it_was_quiet() -> None:
    machine = Machine(1.7)
    machine.speed.start()
    assert machine.speed.factor == pytest.approx(1 / 1.7)
    machine.takes = 1.0
    machine.speed.sample(10.0)
    assert machine.speed.factor == pytest.approx(1.0)
    machine.takes = 1.7
    machine.speed.sample(10.0 + PAUSE)
    assert machine.speed.factor == pytest.approx(1.0)


def test_it_is_measured_a_number_of_times_with_pauses() -> None:
    machine = Machine(1.0)
    machine.speed.start()
    for tenth in range(round(20 * LATER / PAUSE)):
        machine.speed.sample(tenth / 10)
        assert machine.loops <= AT_START + tenth / 10 / PAUSE + 1
    for second in range(10 * LATER):
        machine.speed.sample(1000.0 + second)
    assert machine.loops == AT_START + LATER


@pytest.mark.parametrize(("takes", "factor"), [(1e9, 1 / HIGHEST), (1e-9, HIGHEST)])
def test_a_factor_has_bounds(takes: float, factor: float) -> None:
    machine = Machine(takes)
    machine.speed.start()
    assert machine.speed.factor == factor


def test_a_clock_that_stands_still_tells_nothing() -> None:
    machine = Machine(0.0)
    machine.speed.start()
    assert machine.speed.factor == 1.0


def test_the_real_loop_takes_a_time_of_the_right_order() -> None:
    speed = MachineSpeed()
    speed.start()
    assert 1 / HIGHEST < speed.factor < HIGHEST
