"""Makes servers: lbclient's own or, with `LBCLIENT_DISABLE`, grpcio's.

A disabled program loads nothing that touches private parts of grpcio: what the kinds of
server need is imported here when one is made.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, cast

import grpc
import grpc.aio

from lbclient import originals
from lbclient.config import ServerConfig, is_disabled
from lbclient.log import Log
from lbclient.server import kinds

logger = Log(__name__)


def server(
    migration_thread_pool: Executor | None = None,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[Any] | None = None,
    options: Sequence[tuple[str, Any]] | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    *,
    config: ServerConfig | None = None,
) -> "kinds.Server":
    """Makes a `Server`, with the arguments of `grpc.aio.server` and a config.

    With `LBCLIENT_DISABLE=1` in the environment it is grpc.aio's own server, with
    grpc.health.v1. `serve` takes it as well; what is ours alone (`drain`, ...) it does
    not have.
    """
    arguments: Any = {
        "interceptors": interceptors,
        "options": options,
        "maximum_concurrent_rpcs": maximum_concurrent_rpcs,
        "compression": compression,
    }
    if originals.are_wanted():
        own = originals.aio_server(migration_thread_pool, handlers, **arguments)
        return cast("kinds.Server", own)
    if is_disabled():
        from lbclient.server.disabled import PlainServer

        logger.info("LBCLIENT_DISABLE is set: this server is grpc.aio's own")
        with originals.making():
            pool = migration_thread_pool
            plain = grpc.aio.server(migration_thread_pool=pool, **arguments)
        return cast("kinds.Server", PlainServer(plain, handlers or ()))
    from lbclient.server.grpc_server import Server

    return Server(migration_thread_pool, handlers, **arguments, config=config)


def sync_server(
    thread_pool: ThreadPoolExecutor,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[Any] | None = None,
    options: Sequence[tuple[str, Any]] | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    *,
    config: ServerConfig | None = None,
) -> "kinds.SyncServer":
    """Makes a `SyncServer`, with the arguments of `grpc.server` and a config.

    With `LBCLIENT_DISABLE=1` in the environment it is grpcio's own server, with
    grpc.health.v1. `serve_sync` takes it as well; what is ours alone (`drain`, ...) it
    does not have.
    """
    arguments: Any = {
        "interceptors": list(interceptors or ()),
        "options": options,
        "maximum_concurrent_rpcs": maximum_concurrent_rpcs,
        "compression": compression,
    }
    if originals.are_wanted():
        own = originals.server(thread_pool, list(handlers or ()), **arguments)
        return cast("kinds.SyncServer", own)
    if is_disabled():
        from lbclient.server.sync.disabled import PlainSyncServer

        logger.info("LBCLIENT_DISABLE is set: this server is grpcio's own")
        with originals.making():
            plain = grpc.server(thread_pool, **arguments)
        return cast("kinds.SyncServer", PlainSyncServer(plain, handlers or ()))
    from lbclient.server.sync.sync_server import SyncServer

    return SyncServer(thread_pool, handlers, **arguments, config=config)
