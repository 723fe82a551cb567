"""Client-side load balancing for asyncio gRPC: the tour.

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

from importlib.metadata import version
from typing import TYPE_CHECKING

from lbclient.client.channel import Channel, info, insecure_channel, secure_channel
from lbclient.client.statistics import BackendStatistics, CallInfo, ChannelStatistics
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.criticality import Criticality, criticality
from lbclient.core.errors import ConfigError, LbError, ResolveError
from lbclient.core.model import Endpoint
from lbclient.grpc_seam import (
    BackendsFull,
    DeadlineWhileWaiting,
    LocalRpcError,
    NoBackend,
    OutOfQuota,
    Throttled,
)
from lbclient.server import Server, ServerStatistics, degraded, serve

if TYPE_CHECKING:
    # While the program runs it is the module, which can be called.
    from lbclient.server import server

__all__ = [
    "BackendStatistics",
    "BackendsFull",
    "CallInfo",
    "Channel",
    "ChannelConfig",
    "ChannelStatistics",
    "ConfigError",
    "Criticality",
    "DeadlineWhileWaiting",
    "Endpoint",
    "LbError",
    "LocalRpcError",
    "NoBackend",
    "OutOfQuota",
    "ResolveError",
    "Server",
    "ServerConfig",
    "ServerStatistics",
    "Throttled",
    "criticality",
    "degraded",
    "info",
    "insecure_channel",
    "secure_channel",
    "serve",
    "server",
]

__version__ = version("lbclient")
