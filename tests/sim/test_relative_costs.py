"""Backends that slow down are noticed by simulated clients, and no others."""

from dataclasses import replace

import pytest

from lbclient.core.outliers.relative_costs import RelativeCosts
from lbclient.pickers import picker_factory
from lbclient.sim.scenario import Scenario
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

EVERY = 5.0  # seconds between two looks of a client
AFTER = 120.0  # seconds until backends slow down

FLEET = Scenario(
    clients=4, backends=8, subset_size=8, cores=1, speeds=(1.0, 2.5),
    warm_up=AFTER, slowed_after=0.0, window=120.0,
)  # fmt: skip


class Looking(Simulation):
    """Its first client looks, as a channel does."""

    def look_now_and_then(self) -> None:
        self.costs = RelativeCosts()
        self.told: list[tuple[float, str]] = []  # when, and of whom, that it is slowed
        self._at(EVERY, self._look)

    def _look(self, now: float, _: None) -> None:
        nodes = self.clients[0].pool.ready
        ready = [(node.endpoint.address, node.load) for node in nodes]
        for address, cost in self.costs.observe(ready, now):
            if cost.is_slowed:
                self.told.append((now, address))
        self._at(now + EVERY, self._look)

    def truly_slowed(self) -> set[str]:
        return {f"b{i:05}:1" for i, one in enumerate(self._factors) if "slowed" in one}


def play(scenario: Scenario, load: float, seed: int) -> Looking:
    factory = picker_factory("weighted_least_loaded")
    simulation = Looking(scenario, factory, draw(scenario, load, seed), seed)
    simulation.look_now_and_then()
    simulation.run()
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_backends_that_become_half_as_fast_are_told_of_within_a_minute(
    load: float,
) -> None:
    """On fast and slow machines; in 6 runs of this it took 20 to 50 s."""
    fleet = play(replace(FLEET, slowed=2), load, seed=1)
    assert len(fleet.truly_slowed()) == 2
    assert {address for _, address in fleet.told} == fleet.truly_slowed()
    assert all(AFTER < at <= AFTER + 60.0 for at, _ in fleet.told)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [FLEET, replace(FLEET, neighbour=0.8), replace(FLEET, costs="exponential")],
    ids=["alike", "neighbours that come and go", "exponential"],
)
def test_where_nothing_much_changes_nobody_is_told_of(scenario: Scenario) -> None:
    assert play(scenario, 0.5, seed=2).told == []
