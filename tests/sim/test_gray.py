"""What a backend that answers ten times as late gets, of simulated clients.

Each client finds out for itself, by its own calls and the reports that it hears.
"""

from dataclasses import replace

import pytest

from lbclient.pickers import picker_factory
from lbclient.sim import SCENARIOS
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import draw

BEGINS = 30  # seconds
GRAY = replace(SCENARIOS["gray"], warm_up=float(BEGINS), window=30.0)


class Shares(Simulation):
    def share(self, begin: int, end: int) -> float:
        """What the first backend got of all calls, in seconds after it became gray."""
        before, after = (self._seconds[BEGINS + at] for at in (begin, end))
        got = [
            new - old for old, new in zip(before.received, after.received, strict=True)
        ]
        return got[0] / sum(got)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_a_gray_one_of_20_has_less_than_2_percent_of_the_calls_after_5_s(
    load: float, seed: int
) -> None:
    """An even share is 5 %; a client sends it 1.5 or 3.5 calls a
    second."""
    factory = picker_factory("weighted_least_loaded")
    fleet = Shares(GRAY, factory, draw(GRAY, load, seed), seed)
    fleet.run()
    assert fleet.share(5, 10) <= 0.02
    assert fleet.share(10, 30) <= 0.02
    for client in fleet.clients:
        ejected = [one for one in client.pool.ready if client.outliers.of(one)]
        assert [node.endpoint.task for node in ejected] in ([], [0])


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.7])
def test_where_a_few_requests_wait_for_long_backends_keep_their_share(
    load: float,
) -> None:
    """Of 200 pairs of a client and a backend some are left out by chance, as traffic
    ends."""
    waits = SCENARIOS["long_waits"]
    factory = picker_factory("weighted_least_loaded")
    fleet = Simulation(waits, factory, draw(waits, load, 1), 1)
    fleet.run()
    left_out = [
        node
        for client in fleet.clients
        for node in client.pool.ready
        if client.outliers.of(node)
    ]
    assert len(left_out) <= 2
