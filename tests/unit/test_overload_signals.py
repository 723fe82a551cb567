"""From signals to a decision, with time and chance as arguments."""

from math import e
from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.overload.admission import CPU_NAME, LOAD, PATIENCE, QUEUE_NAME
from lbclient.core.overload.overload_signals import TUNING as OVERLOAD_SIGNALS
from lbclient.core.overload.overload_signals import Patience, Pressure
from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import ATTEMPTS

FLOOD = 1e9


def test_a_burst_is_let_in_and_a_flood_is_not() -> None:
    patience = Patience(LOAD.target)
    beyond = 0.9 * OVERLOAD_SIGNALS.patience * LOAD.target
    assert patience.scaled(beyond, 0.0) < LOAD.target
    assert patience.scaled(beyond, 10 * OVERLOAD_SIGNALS.tires) == pytest.approx(
        beyond, rel=0.01
    )
    patience.scaled(0.0, 10 * OVERLOAD_SIGNALS.tires + 10 * OVERLOAD_SIGNALS.recovers)
    assert (
        patience.scaled(
            beyond, 10 * OVERLOAD_SIGNALS.tires + 10 * OVERLOAD_SIGNALS.recovers
        )
        < LOAD.target
    )


def test_a_load_at_the_target_for_ever_is_no_overload() -> None:
    patience = Patience(LOAD.target)
    for now in range(1000):
        assert patience.scaled(LOAD.target, float(now)) <= LOAD.target


def flooded(now: float = 10.0) -> Pressure:
    """Nobody gets in: the load has been beyond all patience for long."""
    pressure = Pressure(LOAD.target, Random(1))
    pressure.sample(0.0, FLOOD)
    pressure.sample(now, FLOOD)
    return pressure


def test_a_flood_is_refused_and_a_last_attempt_may_not_try_elsewhere() -> None:
    pressure = flooded()
    critical = Criticality.CRITICAL
    assert pressure.refuses(critical, 0, 10.0) is Refusal.OVERLOADED
    assert pressure.refuses(critical, ATTEMPTS - 1, 10.0) is Refusal.DONT_RETRY
    assert "load is 1000000000.00, the limit 8" in pressure.why()


def test_what_is_cheaper_than_something_refused_lately_yields() -> None:
    pressure = flooded()
    assert pressure.refuses(Criticality.CRITICAL, 0, 10.0) is not None
    pressure.sample(10.1, 0.0)
    assert pressure.refuses(Criticality.CRITICAL, 0, 10.1) is None
    assert pressure.refuses(Criticality.SHEDDABLE, 0, 10.1) is Refusal.OVERLOADED
    assert (
        pressure.refuses(Criticality.SHEDDABLE, 0, 10.1 + OVERLOAD_SIGNALS.yields)
        is None
    )


def test_requests_are_alike_but_for_one_in_fifty() -> None:
    for others, are_alike in ((0, True), (1, True), (4, False), (50, False)):
        pressure = Pressure(LOAD.target, Random(1))
        assert not pressure.are_alike(), "nothing has come"
        for number in range(1600):
            is_other = number * others % 100 < others
            criticality = Criticality.SHEDDABLE if is_other else Criticality.CRITICAL
            pressure.refuses(criticality, 0, 0.0)
        assert pressure.are_alike() == are_alike


def test_who_waits_too_long_in_the_core_is_refused_by_the_queue_delay() -> None:
    delay = QueueDelay()
    pressure = Pressure(LOAD.target, Random(1), delay=delay)
    delay.admissible, delay.seconds, delay.target = 0.0, 1.0, 0.2
    pressure.sample(0.1, 0.0)
    assert pressure.refuses(Criticality.CRITICAL, 0, 0.1) is Refusal.OVERLOADED
    assert f"{QUEUE_NAME} is 1.00 s, the limit 0.2 s" in pressure.why()
    assert not pressure.is_calm(active=0)
    delay.admissible = 1.0
    pressure.sample(0.2, 0.0)
    assert pressure.refuses(Criticality.CRITICAL, 0, 0.2) is None
    assert pressure.is_calm(active=0)


def test_without_a_target_no_load_is_too_much() -> None:
    pressure = Pressure(0.0, Random(1))
    pressure.sample(0.1, FLOOD)
    assert pressure.refuses(Criticality.SHEDDABLE, 0, 0.1) is None
    assert not pressure.is_strained(active=0, load=FLOOD)


def test_readings_name_each_signal_its_value_and_its_target() -> None:
    pressure = Pressure(LOAD.target, Random(1), max_cpu=0.8, own=["disk"])
    pressure.sample(0.1, 2.0, cpu=0.5, own=[0.25])
    readings = {name: (value, target) for name, value, target in pressure.readings()}
    assert readings[LOAD.name] == (2.0, LOAD.target)
    assert readings[CPU_NAME][0] == pytest.approx(0.5)
    assert readings[CPU_NAME][1] == 0.8
    assert readings["disk"] == (0.25, 1.0)
    assert QUEUE_NAME in readings


def test_a_limit_of_no_requests_is_full() -> None:
    pressure = Pressure(LOAD.target, Random(1))
    pressure.limit(0)
    assert pressure.is_full(Criticality.CRITICAL_PLUS, 0)
    assert pressure.taken(0) == (1.0, 1.0)
    assert not pressure.is_calm(0)


def test_patience_goes_and_comes_back_as_it_is_tuned() -> None:
    most, tires, recovers = (
        OVERLOAD_SIGNALS.patience,
        OVERLOAD_SIGNALS.tires,
        OVERLOAD_SIGNALS.recovers,
    )
    patience = Patience(2.0)
    tired = 1.0 + (most - 1.0) / e
    assert patience.scaled(6.0, tires) == pytest.approx(6.0 / tired)
    rested = most - (most - tired) / e
    assert patience.scaled(2.0, tires + recovers) == pytest.approx(2.0 / rested)
    assert patience.scaled(6.0, 100.0) == 6.0
    assert patience.scaled(1.0, 200.0) == 1.0 / most


@pytest.mark.parametrize("target", [LOAD.target, LOAD.target / 2])
def test_widths_of_a_load_are_parts_of_its_target(target: float) -> None:
    pressure = Pressure(target, Random(1))
    width = target * LOAD.width / LOAD.target
    pressure.sample(0.0, OVERLOAD_SIGNALS.patience * (target + 2.0 * width))
    assert pressure.admission.excess == pytest.approx(2.0)
    assert pressure.mix is pressure.admission.mix
    names = [name for name, _, _ in pressure.readings()]
    assert names == [LOAD.name, QUEUE_NAME]


def test_what_had_to_give_way_lets_nothing_in_that_is_cheaper() -> None:
    pressure = Pressure(LOAD.target, Random(1))
    pressure.sample(0.0, 0.0)
    pressure.give_way(Criticality.CRITICAL, 0.0)
    assert pressure.refuses(Criticality.SHEDDABLE_PLUS, 0, 0.1) is not None
    assert pressure.refuses(Criticality.CRITICAL, 0, 0.1) is None


def test_only_a_flood_is_refused_and_only_an_idle_server_is_calm() -> None:
    assert flooded().is_refusing() is True
    pressure = Pressure(LOAD.target, Random(1))
    assert pressure.is_refusing() is False
    for load, is_calm in ((0.99, True), (1.0, False), (1.5, False)):
        pressure.sample(1.0, load)
        assert pressure.is_calm(0) is is_calm


@pytest.mark.parametrize("criticality", Criticality)
def test_new_streams_are_refused_beyond_what_open_ones_may_want(
    criticality: Criticality,
) -> None:
    pressure, most = Pressure(2.0, Random(1)), 2.0 * PATIENCE[criticality]
    assert pressure.refuses_stream(most, criticality) is None
    assert pressure.refuses_stream(most + 0.01, criticality) is Refusal.OVERLOADED
    words = f"overloaded: 99.00 streams want to go on, the limit is {most:g}"
    assert pressure.why_stream(99.0, criticality) == words
