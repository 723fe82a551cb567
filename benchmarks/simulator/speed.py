"""How fast the simulator is: requests per second of CPU time, one core.

    python -m benchmarks.simulator speed

With 20 backends for each client, and in a fleet of 1,000 backends and 300 clients. The
garbage collector is off, as in `lbclient sim`.
"""

import gc
from dataclasses import replace
from time import process_time

from lbclient.pickers import PICKERS
from lbclient.sim import SCENARIOS, Scenario, simulate
from lbclient.sim.traffic import draw

LOAD = 0.7
SMALL = replace(SCENARIOS["S2_diverse"], warm_up=2.0, window=8.0)
LARGE = replace(
    SMALL, clients=300, backends=1000, subset="rocksteadier", warm_up=0.5, window=1.0
)


def rates(scenario: Scenario, picker: str) -> tuple[float, float]:
    """Requests per second of CPU time, and simulated seconds per second of it."""
    traffic = draw(scenario, LOAD, seed=1)
    gc.collect()
    gc.disable()
    began = process_time()
    simulate(scenario, picker, load=LOAD, seed=1, traffic=traffic)
    took = process_time() - began
    gc.enable()
    seconds = scenario.warm_up + scenario.window
    return len(traffic.times) / took, seconds / took


def main() -> None:
    print(f"{'requests/s':22} {'subset of 20':>13} {'1,000 backends':>15}")
    for picker in PICKERS:
        small, _ = rates(SMALL, picker)
        large, slower = rates(LARGE, picker)
        print(
            f"{picker:22} {small:13,.0f} {large:15,.0f}  ({1 / slower:.1f} s for 1 s)"
        )
