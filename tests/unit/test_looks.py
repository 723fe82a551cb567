"""When a backend is looked at by another connection, and checked by its own."""

from random import Random

from lbclient.core.backends.checks import Checks, Doubt
from lbclient.core.backends.looks import FIRST_LOOK, LOOK_PERIOD, LOOK_SPREAD, Looks

SPREAD = LOOK_SPREAD / 2


class Half(Random):
    """Chance that is always in the middle."""

    def random(self) -> float:
        return 0.5


def test_a_look_is_due_soon_unless_one_is_due_already() -> None:
    looks = Looks(Half())
    looks.soon(10.0)
    assert looks.due_at == 10.0 + FIRST_LOOK / 2
    looks.soon(11.0)
    looks.at_once(11.0)
    assert looks.due_at == 10.0 + FIRST_LOOK / 2


def test_no_look_is_due_while_one_is_under_way() -> None:
    looks = Looks(Half())
    looks.at_once(1.0)
    assert looks.take_due(1.0)
    looks.at_once(2.0)
    assert looks.due_at is None
    assert looks.end() == 1.0
    looks.at_once(3.0)
    assert looks.due_at == 3.0


def test_looks_at_a_busy_server_are_ever_further_apart_and_at_a_dead_one_are_not() -> (
    None
):
    looks, pauses = Looks(Half()), []
    for is_there in [True] * 7 + [False] * 2 + [True]:
        looks.again(100.0, 100.0, is_there)
        pauses.append((looks.due_at or 0.0) - 100.0 - FIRST_LOOK * SPREAD)
    far = [min(FIRST_LOOK * 2**n, LOOK_PERIOD) for n in range(7)]
    assert pauses == [*far, *[FIRST_LOOK] * 3]


def test_a_check_that_was_not_answered_comes_again() -> None:
    every, patience = 2.0, 3.0
    checks = Checks(every)
    assert not checks.is_unanswered
    checks.connected(0.0, patience)
    checks.not_answered(10.0)
    assert (checks.is_unanswered, checks.due_at) == (True, 10.0 + patience)
    checks.not_answered(20.0)
    assert checks.due_at == 20.0 + 2 * patience
    checks.begin(Doubt.EXCLUDED, "missed deadlines")
    checks.not_answered(30.0)
    assert checks.due_at == 30.0 + every
    checks.answered_badly(40.0)
    assert (checks.is_unanswered, checks.due_at) == (False, 40.0 + every)
