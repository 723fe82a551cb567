"""gRPC's own debug services on a server: channelz and reflection.

They are services of the server itself, so whoever may call that may ask them. Health
checks and these are never refused, nor counted as load.
"""

from __future__ import annotations

import grpc
import grpc.aio
from google.protobuf import descriptor_pool

from lbclient import wire
from lbclient.core.errors import ConfigError
from lbclient.server.kinds import is_async_server
from lbclient.server.running import check_server

OWN = (wire.WATCH_METHOD, wire.SERVING_WATCH_METHOD, wire.ORCA_METHOD)


def register(server: grpc.aio.Server) -> None:
    """Adds channelz and reflection to a server that has all its services.

    Raises ConfigError where their packages, the extra `admin`, are not installed, and
    TypeError for what is no server.
    """
    check_server(server)
    try:
        from grpc_channelz.v1 import channelz

        from lbclient.admin.reflection import add_reflection
    except ModuleNotFoundError as error:
        want = f"{error.name} to be installed: pip install 'lbclient[admin]'"
        raise ConfigError("register", server, want) from None
    own = [method.split("/")[1] for method in OWN]
    known = list(server._services) if is_async_server(server) else []
    channelz.add_channelz_servicer(server)
    names = [name for name in dict.fromkeys([*known, *own]) if is_described(name)]
    add_reflection(server, [*names, "grpc.channelz.v1.Channelz"])


def is_described(service: str) -> bool:
    """Whether there is a .proto of it, which is what is asked next."""
    try:
        descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return False
    return True
