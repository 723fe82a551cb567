"""The inference fleet without containers: engines and clients as processes.

    python examples/inference/fleet.py
    python examples/inference/fleet.py --seconds 20 --pickers cache_aware

For each picker it starts 4 engines and 2 clients of 20 sessions each, and at half of
the time 2 more engines. Then it tells how many blocks of prompts were there, how long
first tokens took, how even the engines were, and what became of the long streams.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import quantiles
from typing import Any

HERE = Path(__file__).parent
ENGINES, JOIN, CLIENTS, SESSIONS = 4, 2, 2, 20


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def start(program: str, **environment: object) -> "subprocess.Popen[str]":
    told = {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(
        [sys.executable, str(HERE / program)],
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        text=True,
    )


def play(picker: str, seconds: float) -> dict[str, Any]:
    """Runs the fleet, and returns what its clients saw together."""
    engines, clients = [], []
    ports = free_ports(2 * (ENGINES + JOIN) + CLIENTS)
    of_engines, of_metrics = ports[: ENGINES + JOIN], ports[ENGINES + JOIN :]
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in of_engines)
    try:
        for number, port in enumerate(of_engines):
            if number == ENGINES:
                for metrics_port in of_metrics[-CLIENTS:]:
                    given = {"TARGET": target, "PICKER": picker, "REPORT": 1}
                    given |= {"SESSIONS": SESSIONS, "METRICS_PORT": metrics_port}
                    clients.append(start("client.py", **given))
                time.sleep(seconds / 2)
            engines.append(
                start("engine.py", PORT=port, METRICS_PORT=of_metrics[number])
            )
        time.sleep(seconds / 2)
        for client in clients:
            client.send_signal(signal.SIGTERM)
        said = [client.communicate(timeout=30)[0].splitlines() for client in clients]
    finally:
        for process in (*clients, *engines):
            process.kill()
            process.wait()
    first = {f"127.0.0.1:{port}" for port in of_engines[:ENGINES]}
    return together([json.loads(lines[-1]) for lines in said], first)


def together(reports: list[dict[str, Any]], of: set[str]) -> dict[str, Any]:
    """Adds up what clients saw. `of` are the engines whose balance is told: those that
    were there all the time."""
    found: dict[str, Any] = {
        name: sum(report[name] for report in reports)
        for name in ("blocks", "hits", "failed", "lost", "moves")
    }
    found["firsts"] = [first for report in reports for first in report["firsts"]]
    started: Counter[str] = Counter()
    for one in reports:
        started.update({at: n for at, n in one["started"].items() if at in of})
    found["spread"] = max(started.values()) * len(started) / started.total()
    return found


def row(picker: str, found: dict[str, Any]) -> str:
    cuts = quantiles(found["firsts"], n=10)
    return (
        f"{picker:20} {found['hits'] / found['blocks']:6.0%} {1e3 * cuts[4]:8.0f} "
        f"{1e3 * cuts[8]:8.0f} {found['spread']:9.2f} {found['moves']:6} "
        f"{found['lost']:5} {found['failed']:7}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="for each picker")
    parser.add_argument(
        "--pickers", nargs="+", default=["round_robin", "cache_aware"], metavar="NAME"
    )
    given = parser.parse_args()
    print(
        "picker                 hits   p50 ms   p90 ms  max/mean  moved  lost  failed"
    )
    for picker in given.pickers:
        print(row(picker, play(picker, given.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
