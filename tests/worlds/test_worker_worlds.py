"""Worlds of tasks with workers: each one that serves is called, whatever happened.

`python -m tests.worlds --workers --seed N` tells the story of one.
"""

import gc
from collections.abc import Iterator

import pytest

from tests.worlds.invariants import broken
from tests.worlds.plan import WORKER_FAULTS, CallPlan, Plan, ServerPlan, workers_of
from tests.worlds.story import story
from tests.worlds.world import World

BATCHES, EACH = 3, 8


@pytest.fixture(autouse=True)
def lean() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


def run(plan: Plan, traces: bool = False) -> World:
    world = World(plan, traces)
    world.run()
    return world


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_worker_is_called(batch: int) -> None:
    for seed in range(1000 + batch * EACH, 1000 + (batch + 1) * EACH):
        world = run(workers_of(seed))
        assert not broken(world), "\n".join(story(run(world.plan, traces=True)))


def test_a_seed_of_workers_replays_exactly() -> None:
    traces = [run(workers_of(1003), traces=True).trace for _ in range(2)]
    assert traces[0]
    assert traces[0] == traces[1]


def test_worlds_of_workers_differ() -> None:
    plans = [workers_of(seed) for seed in range(300)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert kinds >= set(WORKER_FAULTS)
    servers = [server for plan in plans for server in plan.servers]
    assert {server.workers for server in servers} == {0, 1, 2, 3, 4}
    owns = {server.own for server in servers}
    assert owns == {"reached", "refused", "silent", "off"}


@pytest.mark.parametrize("own", ["reached", "refused", "silent", "off"])
def test_a_client_has_each_worker(own: str) -> None:
    """By its own port, or by one of several connections to the shared one."""
    server = ServerPlan("10.0.0.1:50051", "lbclient", workers=3, own=own)
    call = CallPlan(1, 1.0, "/world.World/Get", 5.0, 0.0)
    world = run(Plan(1, 9.0, 0.001, (), (server,), (), (call,)))
    assert not broken(world)
    backends = [one.address for one in world.statistics.backends]
    is_shared = [one.startswith("10.0.0.1:50051") for one in backends]
    assert is_shared == [own != "reached"] * 3
    assert len(world.working["10.0.0.1:50051"]) == 3
    world.machines["10.0.0.1:50051"].served.clear()  # type: ignore[attr-defined]
    assert {name for name, _ in broken(world)} == {"every worker is called"}
