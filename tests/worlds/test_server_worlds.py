"""Worlds of servers: what arrives, what breaks, and what lbclient promises of them.

`python -m tests.worlds --servers --seed N` tells the story of one.
"""

from collections.abc import Iterator

import pytest

from tests.worlds import server_promises
from tests.worlds.arrivals import KINDS, arrivals_of
from tests.worlds.either import run
from tests.worlds.server_promises import broken
from tests.worlds.server_world import ServerWorld
from tests.worlds.shrinking import Shrinking
from tests.worlds.story import story

BATCHES, EACH = 4, 10


def told(seed: int) -> str:
    return "\n".join(story(run(arrivals_of(seed), traces=True)))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_of_servers_are_kept(batch: int) -> None:
    for seed in range(1000 + batch * EACH, 1000 + (batch + 1) * EACH):
        world = run(arrivals_of(seed))
        assert isinstance(world, ServerWorld)
        assert not broken(world), told(seed)


def test_a_seed_of_servers_replays_exactly() -> None:
    traces = [run(arrivals_of(1001), traces=True).trace for _ in range(2)]
    assert traces[0]
    assert traces[0] == traces[1]


def test_worlds_of_servers_differ() -> None:
    plans = [arrivals_of(seed) for seed in range(200)]
    assert {plan.kind for plan in plans} == set(KINDS)
    assert len({fault.kind for plan in plans for fault in plan.faults}) == 11
    assert len({plan.traffic for plan in plans}) == 200


def test_a_broken_promise_of_servers_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promise that nobody makes: that nothing sheddable is served."""

    def none_served(world: ServerWorld) -> Iterator[str]:
        for asked in world.asked:
            if asked.traffic.criticality == "SHEDDABLE" and asked.is_served:
                yield str(asked)

    ours = server_promises.ServerPromise("none is served", "", none_served)
    monkeypatch.setattr(server_promises, "SERVER_PROMISES", [ours])
    plan = next(one for one in map(arrivals_of, range(100)) if one.kind == "flood")
    small = Shrinking(plan, ours.name, 12).run()
    assert len(small.traffic) == 1 < len(plan.traffic)
