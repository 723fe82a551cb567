"""At each thirtieth moment of each kind of call something breaks or ends it.

`python -m tests.worlds.moments` takes every one.
"""

import gc

import pytest

from tests.worlds.moments import breaches, instants, plan_of


@pytest.mark.slow
def test_promises_are_kept_at_every_moment_of_a_call() -> None:
    gc.freeze()
    try:
        found = list(breaches(every=30))
    finally:
        gc.unfreeze()
    assert len(found) > 150
    assert not [words for words in found if words is not None]


def test_a_call_has_many_moments() -> None:
    assert len(instants(plan_of("/world.World/Chat", is_first=True))) > 20
