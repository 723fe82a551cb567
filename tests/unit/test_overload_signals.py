"""From signals to a decision, with time and chance as arguments."""

from random import Random

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.overload.admission import CPU_NAME, LOAD, QUEUE_NAME
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
    assert "load is 1000000000.00, and 8 is enough" in pressure.why()


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


def test_who_waits_too_long_in_the_core_is_refused_by_the_queue_delay() -> None:
    delay = QueueDelay()
    pressure = Pressure(LOAD.target, Random(1), delay=delay)
    delay.admissible, delay.seconds, delay.target = 0.0, 1.0, 0.2
    pressure.sample(0.1, 0.0)
    assert pressure.refuses(Criticality.CRITICAL, 0, 0.1) is Refusal.OVERLOADED
    assert f"{QUEUE_NAME} is 1.00 s, and 0.2 is enough" in pressure.why()
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
