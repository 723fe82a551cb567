"""Open channels and servers are known until they are closed."""

from lbclient.core.statistics.registry import Registry


class Thing:
    """One that can be held weakly."""


def test_whoever_asked_is_told_once_that_one_has_left() -> None:
    things: Registry[Thing] = Registry()
    told: list[Thing] = []
    things.tell_when_left.append(told.append)
    one, other = Thing(), Thing()
    number, _ = things.enter(one), things.enter(other)
    things.leave(number)
    things.leave(number)
    assert told == [one]
    assert [thing for _, thing in things.present()] == [other]
