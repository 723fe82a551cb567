"""The client's side: the channel, its calls, its backends and their health.

Start with `channel`, what users hold, then `balancer`, which picks backends for calls
and settles attempts; `pending` has the calls that wait. `methods` is what stubs call.
In `calls/` are call objects and their attempts, in `backends/` what finds, connects and
wakes backends, in `health/` the ways to ask them how they are.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbclient.core.statistics import records as records
else:

    def __getattr__(name: str) -> ModuleType:
        """Imports `records`, which take a while to make, for type hints."""
        if name != "records":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("lbclient.core.statistics.records")
