"""Runs a function of a benchmark in this process: see `processes.command_of`.

python -m benchmarks.harness MODULE FUNCTION ARGUMENTS
"""

import asyncio
import json
import signal
import sys
from importlib import import_module
from inspect import iscoroutine

from benchmarks.harness.processes import say


def main(module: str, function: str, arguments: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    result = getattr(import_module(module), function)(*json.loads(arguments))
    if iscoroutine(result):
        result = asyncio.run(result)
    if result is not None:
        say(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
