"""Why a backend is in its state, and what is remembered of its troubles."""

from lbclient.core.backends.condition import Condition
from lbclient.core.model import State


def test_trouble_is_remembered_when_it_is_over() -> None:
    condition = Condition(0.0)
    condition.changed(State.REFUSING, "refused", 1.0)
    condition.changed(State.READY, "it says serving", 2.0)
    assert (condition.reason, condition.since) == ("it says serving", 2.0)
    assert (condition.trouble, condition.troubled_at) == ("refused", 1.0)


def test_a_lame_duck_is_no_trouble() -> None:
    condition = Condition(0.0)
    condition.changed(State.LAME_DUCK, "it sent GOAWAY", 1.0)
    assert condition.trouble == ""


def test_another_reason_for_the_same_state_is_news_once() -> None:
    condition = Condition(0.0)
    assert condition.stays("asked, it says starting")
    assert not condition.stays("asked, it says starting")
    assert (condition.reason, condition.since) == ("asked, it says starting", 0.0)
