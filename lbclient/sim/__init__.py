"""A fleet in virtual time, with the pickers, pools and throttles of production.

>>> from lbclient.sim.scenario import Scenario
>>> small = Scenario(clients=2, backends=3, warm_up=1.0, window=2.0)
>>> simulate(small, "round_robin", load=0.5, seed=1).errors
0.0
"""

from lbclient.core.protocols import PickerFactory
from lbclient.pickers import PICKERS, picker_factory
from lbclient.sim.result import Result
from lbclient.sim.scenario import Scenario
from lbclient.sim.scenarios import SCENARIOS
from lbclient.sim.simulation import Simulation
from lbclient.sim.traffic import Traffic, draw

__all__ = ["SCENARIOS", "SMOOTHING", "Result", "Scenario", "simulate"]

# What servers smooth over where a picker's own definition says so: gRFC A58's weights
# were measured with 5 s. For all others it is the scenario's.
SMOOTHING = {"weighted_round_robin": 5.0}


def simulate(
    scenario: Scenario,
    picker: str | PickerFactory,
    *,
    load: float,
    seed: int,
    traffic: Traffic | None = None,
) -> Result:
    """One run. `traffic`, if several pickers are to share it: `draw` of the same.

    Raises ConfigError for an unknown picker.
    """
    factory = picker_factory(picker)
    smoothing = next(
        (SMOOTHING[name] for name in SMOOTHING if PICKERS[name] is factory), None
    )
    requests = traffic or draw(scenario, load, seed)
    return Simulation(scenario, factory, requests, seed, smoothing).run()
