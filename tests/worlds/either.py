"""Worlds of clients and worlds of servers, for who runs, tells and shrinks both."""

from collections.abc import Iterator
from typing import TypeAlias

from tests.worlds import invariants, server_promises
from tests.worlds.arrivals import ArrivalPlan
from tests.worlds.plan import Plan
from tests.worlds.server_world import ServerWorld
from tests.worlds.world import World

AnyPlan: TypeAlias = Plan | ArrivalPlan
AnyWorld: TypeAlias = World | ServerWorld


def run(plan: AnyPlan, traces: bool = False) -> AnyWorld:
    """The world of a plan, once it is over."""
    world: AnyWorld
    if isinstance(plan, ArrivalPlan):
        world = ServerWorld(plan, traces)
    else:
        world = World(plan, traces)
    world.run()
    return world


def broken(world: AnyWorld) -> list[tuple[str, str]]:
    """Every breach, as the name of a promise and words."""
    if isinstance(world, ServerWorld):
        return server_promises.broken(world)
    return invariants.broken(world)


def places() -> Iterator[tuple[str, str]]:
    """The promises, with the page that makes each."""
    yield from ((one.name, one.place) for one in invariants.PROMISES)
    yield from ((one.name, one.place) for one in server_promises.SERVER_PROMISES)
