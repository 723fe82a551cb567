"""Draws one fleet under round robin and under lbclient, backend by backend.

    python -m benchmarks.side_by_side --plot docs/images/side-by-side.png

Runs `lbclient demo` with the two policies, or reads what it wrote with `--read`. Takes
three quarters of a minute.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.harness.figures import BLUE, RED, blank
from benchmarks.harness.options import conclude, exit_with, parser_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POLICIES = {"round_robin": "round robin", "weighted_least_loaded": "lbclient"}


def run_demo() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        file = Path(folder, "demo.json")
        command = ["lbclient", "demo", "--policies", ",".join(POLICIES)]
        command = [sys.executable, "-m", *command, "--json", str(file)]
        subprocess.run(command, check=True, timeout=300)
        return read(file)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def draw(found: dict[str, Any]) -> "Figure":
    phases = {phase["name"]: phase for phase in found["phases"]}
    figure = blank(8.0, 3.2)
    axes = figure.subplots(1, len(POLICIES), sharey=True)
    for at, (policy, title) in zip(axes, POLICIES.items(), strict=True):
        draw_bars(at, phases[policy], found["configuration"]["speeds"], title)
    axes[0].set_ylabel("utilization of a backend")
    axes[-1].legend(frameon=False, loc="upper right")
    return figure


def draw_bars(
    at: "Axes", phase: dict[str, Any], speeds: list[float], title: str
) -> None:
    shares = phase["balance"]["utilization"]
    slow, fast = min(speeds), max(speeds)
    for speed, color, kind in ((slow, RED, "slow"), (fast, BLUE, "fast")):
        places = [place for place, of in enumerate(speeds) if of == speed]
        heights = [shares[place] for place in places]
        at.bar(places, heights, color=color, label=f"{kind} machine")
    mean = phase["balance"]["mean"]
    at.axhline(mean, color="black", linewidth=0.8, linestyle=":")
    p99 = phase["p99"] * 1000
    at.set_title(f"{title}: p99 {p99:.0f} ms", fontsize=11)
    at.set_xticks(range(len(shares)))
    at.set_xlabel("backend")
    at.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for side in ("top", "right"):
        at.spines[side].set_visible(False)


def main() -> int:
    parser = parser_of("side_by_side", __doc__, plot=True)
    parser.add_argument(
        "--read", metavar="FILE", type=Path, help="of `lbclient demo --json FILE`"
    )
    given = parser.parse_args()
    found = read(given.read) if given.read else run_demo()
    return conclude(given, found, None, lambda: draw(found))


if __name__ == "__main__":
    exit_with(main)
