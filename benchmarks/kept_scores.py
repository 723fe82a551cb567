"""What it costs that `WeightedLeastLoaded` keeps its scores: p99, by simulation.

    python -m benchmarks.kept_scores        about two minutes

Its scores age by steps of an eighth of a request's time, and errors in them by a
quarter of a second. Here it is compared with a picker that computes all of them anew
for each pick, on the same requests.
"""

from collections.abc import Sequence

from benchmarks.harness.options import exit_with, parser_of
from lbclient.core.protocols import N
from lbclient.pickers import WeightedLeastLoaded
from lbclient.sim import SCENARIOS, simulate
from lbclient.sim.traffic import draw

CELLS = (("S2_diverse", 0.85), ("S1_homog", 0.95))


class Exact(WeightedLeastLoaded):
    """Looks at all backends for each pick."""

    def pick(self, ready: Sequence[N], now: float) -> N:
        for candidate in self._candidates:
            self._rescore(candidate, now)
        self._age_at = now
        return super().pick(ready, now)


def main() -> None:
    parser = parser_of("kept_scores", __doc__, json=False)
    parser.add_argument("--seed", default="1,2", metavar="N,O")
    seeds = [int(seed) for seed in parser.parse_args().seed.split(",")]
    print("                     p99 ms            max/mean")
    print("scenario       seed  kept     exact    kept     exact")
    for name, load in CELLS:
        for seed in seeds:
            traffic = draw(SCENARIOS[name], load, seed)
            kept, exact = (
                simulate(SCENARIOS[name], each, load=load, seed=seed, traffic=traffic)
                for each in (WeightedLeastLoaded, Exact)
            )
            print(
                f"{name}@{load}{seed:4}  {1000 * kept.p99:<8.2f} "
                f"{1000 * exact.p99:<8.2f} {kept.spread:<8.4f} {exact.spread:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    exit_with(main)
