"""Client-side load balancing for asyncio gRPC: how to use it, by example.

A server reports its load in every response and leaves in order. Two words change:
`lbclient.server` for `grpc.aio.server`, and `lbclient.serve` to run it.

>>> import asyncio, grpc, lbclient
>>> async def greet(request, context):
...     return b"hello " + request
>>> async def start():
...     server = lbclient.server()
...     greeter = {"Greet": grpc.unary_unary_rpc_method_handler(greet)}
...     server.add_generic_rpc_handlers(
...         [grpc.method_handlers_generic_handler("tour.Greeter", greeter)]
...     )
...     port = server.add_insecure_port("127.0.0.1:0")
...     await server.start()  # a program of its own: await lbclient.serve(server)
...     return server, f"127.0.0.1:{port}"

A channel takes the place of grpc.aio's; stubs, interceptors and error handling stay.
It resolves its target to `Endpoint`s (`resolvers`), orders them (`subsets`), keeps
the first k connected (`pool`, `backend`, `health`), picks one for each call
(`pickers`) and learns from its `Outcome` (`attempt`, `load`). `balancer` wires it.
Every decision can be explained, for one call and for all of them. A server that
stops says so first: it is a lame duck, and no call is lost.

>>> async def tour():
...     servers = [await start() for _ in range(3)]
...     target = "ipv4:" + ",".join(address for _, address in servers)
...     async with lbclient.insecure_channel(target) as channel:
...         call = channel.unary_unary("/tour.Greeter/Greet")(b"you", timeout=5)
...         print(await call)
...         print(lbclient.info(call).backend in target, lbclient.info(call).attempts)
...         seen = channel.statistics()
...         print(seen.picker, seen.attempts["served"], len(seen.backends))
...         await asyncio.gather(*(server.drain() for server, _ in servers[1:]))
...         print(await channel.unary_unary("/tour.Greeter/Greet")(b"again"))
...     await servers[0][0].stop(None)
>>> asyncio.run(tour())
b'hello you'
True 1
WeightedLeastLoaded 1 3
b'hello again'

What decides imports no asyncio, grpc, time or logging: time is an argument, chance a
`random.Random`. What can be replaced is in `protocols`, every setting in `config`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# For type checkers: "as" makes a name public. The same names as in `_MODULES`.
if TYPE_CHECKING:
    from lbclient.client.call_info import info as info
    from lbclient.client.calls.resumed import resumed as resumed
    from lbclient.client.channel import Channel as Channel
    from lbclient.client.factory import insecure_channel as insecure_channel
    from lbclient.client.factory import secure_channel as secure_channel
    from lbclient.config import ChannelConfig as ChannelConfig
    from lbclient.config import ServerConfig as ServerConfig
    from lbclient.core.call_hints import CallHints as CallHints
    from lbclient.core.call_hints import key as key
    from lbclient.core.criticality import Criticality as Criticality
    from lbclient.core.criticality import criticality as criticality
    from lbclient.core.errors import ConfigError as ConfigError
    from lbclient.core.errors import LbError as LbError
    from lbclient.core.errors import ResolveError as ResolveError
    from lbclient.core.model import Endpoint as Endpoint
    from lbclient.core.quotas.customer import customer as customer
    from lbclient.core.resumable import resumable as resumable
    from lbclient.core.statistics.records import BackendStatistics as BackendStatistics
    from lbclient.core.statistics.records import CallInfo as CallInfo
    from lbclient.core.statistics.records import ChannelStatistics as ChannelStatistics
    from lbclient.server import Server as Server
    from lbclient.server import ServerStatistics as ServerStatistics
    from lbclient.server import SyncServer as SyncServer
    from lbclient.server import degraded as degraded
    from lbclient.server import serve as serve
    from lbclient.server import serve_sync as serve_sync
    from lbclient.server import server as server
    from lbclient.server import sync_server as sync_server
    from lbclient.wire.local_errors import BackendsFull as BackendsFull
    from lbclient.wire.local_errors import DeadlineWhileWaiting as DeadlineWhileWaiting
    from lbclient.wire.local_errors import LocalRpcError as LocalRpcError
    from lbclient.wire.local_errors import NoBackend as NoBackend
    from lbclient.wire.local_errors import OutOfQuota as OutOfQuota
    from lbclient.wire.local_errors import Throttled as Throttled

    __version__: str

# Where each public name is imported from when it is first used: so a client loads no
# server, and a server no client.
_MODULES = {
    "BackendStatistics": "lbclient.core.statistics.records",
    "BackendsFull": "lbclient.wire.local_errors",
    "CallHints": "lbclient.core.call_hints",
    "CallInfo": "lbclient.core.statistics.records",
    "Channel": "lbclient.client.channel",
    "ChannelConfig": "lbclient.config",
    "ChannelStatistics": "lbclient.core.statistics.records",
    "ConfigError": "lbclient.core.errors",
    "Criticality": "lbclient.core.criticality",
    "DeadlineWhileWaiting": "lbclient.wire.local_errors",
    "Endpoint": "lbclient.core.model",
    "LbError": "lbclient.core.errors",
    "LocalRpcError": "lbclient.wire.local_errors",
    "NoBackend": "lbclient.wire.local_errors",
    "OutOfQuota": "lbclient.wire.local_errors",
    "ResolveError": "lbclient.core.errors",
    "Server": "lbclient.server",
    "ServerConfig": "lbclient.config",
    "ServerStatistics": "lbclient.server",
    "SyncServer": "lbclient.server",
    "Throttled": "lbclient.wire.local_errors",
    "criticality": "lbclient.core.criticality",
    "customer": "lbclient.core.quotas.customer",
    "degraded": "lbclient.server",
    "info": "lbclient.client.call_info",
    "insecure_channel": "lbclient.client.factory",
    "key": "lbclient.core.call_hints",
    "resumable": "lbclient.core.resumable",
    "resumed": "lbclient.client.calls.resumed",
    "secure_channel": "lbclient.client.factory",
    "serve": "lbclient.server",
    "serve_sync": "lbclient.server",
    "sync_server": "lbclient.server",
}

# Folders that are attributes without an import of their own. `server` can be called.
_FOLDERS = (
    *("admin", "client", "config", "core", "metrics", "pickers", "resolvers"),
    *("server", "subsets", "testing"),
)


if not TYPE_CHECKING:  # type checkers would believe in any name
    # Not for type checkers, which can read no list that is computed.
    __all__ = sorted([*_MODULES, "server"])

    def __getattr__(name: str) -> object:
        """Python calls this for a name that the module does not have (PEP 562)."""
        if name in _MODULES:
            found = getattr(import_module(_MODULES[name]), name)
        elif name in _FOLDERS:
            found = import_module(f"{__name__}.{name}")
        elif name == "__version__":
            from importlib.metadata import version  # by way of email and zipfile

            found = version("lbclient")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_FOLDERS, "__version__"})
