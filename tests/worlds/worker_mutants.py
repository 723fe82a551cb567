"""Faults to be planted where a client meets workers, and found by their worlds."""

from tests.worlds.planting import Mutant

WORKER_MUTANTS = [
    Mutant(
        "one worker of two is no news",
        "core/backends/task_workers.py",
        "        if told.serving == 1 and task is None:",
        "        if told.serving == 1:",
    ),
    Mutant(
        "nobody looks at a shared connection that is back",
        "client/backends/worker_endpoints.py",
        "        for one in self._tasks.doubles(self._worker_at):",
        "        for one in ():",
    ),
    Mutant(
        "a health check does not tell which worker answers",
        "client/health/ordered_checks.py",
        "self._reported.answered(health)",
        "self._reported.believed(health)",
    ),
    Mutant(
        "a double stays for the calls of others",
        "client/backends/former_connections.py",
        "is_used = has_calls(channel, default=self._load.in_flight > 0)",
        "is_used = self._load.in_flight > 0",
    ),
    Mutant(
        "own ports that are shut are tried for ever",
        "core/backends/task_workers.py",
        "                if now >= task.tried_at + patience:",
        "                if False:",
    ),
    Mutant(
        "two connections may have one worker",
        "core/backends/task_workers.py",
        "            if other != address and worker_at(other) == worker\n",
        "            if False\n",
    ),
    Mutant(
        "a worker's end is no news",
        "core/backends/task_workers.py",
        "        elif task.group != told.group or task.told == ports:",
        "        elif True:",
    ),
]
