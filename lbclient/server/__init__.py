"""The server's side: it reports its load, answers health checks, leaves in order.

`lbclient.server` is this module and the function that makes a server, `server` below:
the module can be called. So `import lbclient.server as s` gives what it says.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

from lbclient.server.grpc_server import Server, server
from lbclient.server.overload.gate import degraded
from lbclient.server.serving import serve
from lbclient.server.statistics import ServerStatistics
from lbclient.server.sync.serving import serve_sync
from lbclient.server.sync.sync_server import SyncServer, sync_server

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


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Server:
        return server(*arguments, **settings)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(server)


sys.modules[__name__].__class__ = _CallableModule
