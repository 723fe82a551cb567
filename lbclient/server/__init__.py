"""The server's side: it reports its load, answers health checks, leaves in order.

`lbclient.server` is this module and the function that makes a server, `server` below:
the module can be called. So `import lbclient.server as s` gives what it says.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Imported now: a program may replace grpc.aio.server by this module later, and this
# keeps grpcio's own.
from lbclient import originals as originals

if TYPE_CHECKING:
    from lbclient.server.factory import server as server
    from lbclient.server.factory import sync_server as sync_server
    from lbclient.server.grpc_server import Server as Server
    from lbclient.server.overload.degradation import degraded as degraded
    from lbclient.server.serving import serve as serve
    from lbclient.server.statistics import ServerStatistics as ServerStatistics
    from lbclient.server.sync.serving import serve_sync as serve_sync
    from lbclient.server.sync.sync_server import SyncServer as SyncServer

# Where each name is imported from when it is first used: so a program that is disabled
# loads no server of ours.
_MODULES = {
    "Server": "grpc_server",
    "ServerStatistics": "statistics",
    "SyncServer": "sync.sync_server",
    "degraded": "overload.degradation",
    "serve": "serving",
    "serve_sync": "sync.serving",
    "server": "factory",
    "sync_server": "factory",
}

__all__ = [
    "Server",
    "ServerStatistics",
    "SyncServer",
    "degraded",
    "serve",
    "serve_sync",
    "server",
    "sync_server",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Python calls this for a name that the module does not have (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> "Server":
        made: Server = self.server(*arguments, **settings)
        return made

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.server)


sys.modules[__name__].__class__ = _CallableModule
