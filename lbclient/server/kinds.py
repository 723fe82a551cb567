"""`is_server`: whether an object is a server of lbclient, without importing it.

Whoever has a server of ours has loaded it. `Server` and `SyncServer` are for type
hints, and imported when they are evaluated.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, TypeGuard

MODULES = {
    "Server": "lbclient.server.grpc_server",
    "SyncServer": "lbclient.server.sync.sync_server",
}

if TYPE_CHECKING:
    from lbclient.server.grpc_server import Server as Server
    from lbclient.server.sync.sync_server import SyncServer as SyncServer
else:

    def __getattr__(name: str) -> object:
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(MODULES[name]), name)


def is_async_server(thing: object) -> "TypeGuard[Server]":
    """Whether it is a server of lbclient for asyncio."""
    return _is_loaded("Server", thing)


def is_sync_server(thing: object) -> "TypeGuard[SyncServer]":
    """Whether it is a synchronous server of lbclient."""
    return _is_loaded("SyncServer", thing)


def is_server(thing: object) -> "TypeGuard[Server | SyncServer]":
    """Whether it is a server of lbclient, of either kind."""
    return _is_loaded("Server", thing) or _is_loaded("SyncServer", thing)


def _is_loaded(name: str, thing: object) -> bool:
    module = sys.modules.get(MODULES[name])
    return module is not None and isinstance(thing, getattr(module, name))
