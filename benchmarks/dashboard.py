"""Draws the panels of a dashboard from what a Prometheus has: no Grafana needed.

    python -m benchmarks.dashboard --for 120 --output docs/images/fleet.png

Each panel is drawn by its own queries over the last seconds, its variables standing for
all there is.
"""

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from benchmarks.harness.figures import blank
from benchmarks.harness.options import drawable, exit_with, parser_of

DASHBOARDS = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
COLUMNS = 3
STEP = 2.0  # seconds, as deploy/prometheus/prometheus.yml scrapes
WINDOW = "10s"  # what Grafana would take for $__rate_interval is 4 scrapes
FORMS = {"percentunit": "{x:.0%}", "s": "{x:g} s", "reqps": "{x:g}/s", "ops": "{x:g}/s"}


def filled_in(expression: str, job: str) -> str:
    expression = expression.replace("$__rate_interval", WINDOW)
    expression = expression.replace("$job", job)
    return re.sub(r"\$(target|instance)\b", ".*", expression)


def series(url: str, query: str, seconds: float) -> list[dict[str, Any]]:
    now = time.time()
    words = {"query": query, "start": now - seconds, "end": now, "step": STEP}
    with urlopen(f"{url}/api/v1/query_range?{urlencode(words)}", timeout=30) as reply:
        found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
    return found


def legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), template)


def draw(panel: dict[str, Any], axes: Any, url: str, job: str, seconds: float) -> None:
    count = 0
    for target in panel["targets"]:
        for one in series(url, filled_in(target["expr"], job), seconds):
            times, values = zip(*one["values"], strict=True)
            ago = [float(at) - time.time() for at in times]
            label = legend(target["legendFormat"], one["metric"])
            axes.plot(ago, [float(v) for v in values], label=label, linewidth=1)
            count += 1
    axes.set_title(panel["title"], fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.yaxis.set_major_formatter(FORMS.get(unit, "{x:g}"))
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0)
    if 0 < count <= 6:
        axes.legend(fontsize=6, loc="lower left")


def main() -> None:
    parser = parser_of("dashboard", __doc__, json=False)
    add = parser.add_argument
    names = sorted(path.stem for path in DASHBOARDS.glob("*.json"))
    add("--dashboard", choices=names, default="fleet", help="(default: fleet)")
    add("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    add("--job", default="backend", help="(default: backend)")
    add("--for", dest="seconds", type=float, default=120.0, metavar="SECONDS")
    add("--output", type=drawable, default="dashboard.png", metavar="FILE")
    given = parser.parse_args()

    board = json.loads((DASHBOARDS / f"{given.dashboard}.json").read_text())
    panels = board["panels"]
    rows = -(-len(panels) // COLUMNS)
    figure = blank(4 * COLUMNS, 2.2 * rows)
    grid = figure.subplots(rows, COLUMNS)
    for panel, axes in zip(panels, grid.flat, strict=False):
        draw(panel, axes, given.prometheus, given.job, given.seconds)
    for axes in grid.flat[-COLUMNS:]:
        axes.set_xlabel("seconds", fontsize=7)
    of = f"panels of the dashboard “{board['title']}”"
    figure.suptitle(f"{of}, drawn from Prometheus by a script", fontsize=11)
    figure.savefig(given.output, dpi=80)


if __name__ == "__main__":
    exit_with(main)
