"""Some backends of the large fleet in one process, each a server on a port of its own.

Takes orders on stdin, one JSON object a line: {"backends": 10} starts as many servers
and says their ports. Ends when stdin is closed.

A call takes `BURNT` of a processor and then waits for what the request says, as for a
database, while it holds one of the backend's places.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from fleet_pb2 import WorkReply
from fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server

import lbclient

BURNT = 0.001  # CPU seconds of a call, which are what its customer pays
PLACES = 8  # calls that a backend takes at once


class Work(FleetServicer):
    def __init__(self, name: str) -> None:
        self._name = name

    async def Work(self, request: Any, context: Any) -> Any:
        until = time.thread_time() + BURNT
        while time.thread_time() < until:
            pass
        await asyncio.sleep(request.cost)
        return WorkReply(backend=self._name)


async def serve(quotas: dict[str, float]) -> Any:
    """A server that has started, and its port."""
    server = lbclient.server(
        maximum_concurrent_rpcs=PLACES,
        config=lbclient.ServerConfig(
            # Of this process: its servers share a limit in memory. A fleet that runs
            # on many machines shares it through `quota_store`, a Redis.
            quotas=quotas,
            cpu_factor=1.0,  # one machine: a CPU second is a CPU second
            max_load=0,  # many servers on few cores: the places are what is full here
        ),
    )
    port = server.add_insecure_port("127.0.0.1:0")
    add_FleetServicer_to_server(Work(str(port)), server)
    await server.start()
    return server, port


async def main() -> None:
    quotas = json.loads(sys.argv[1])
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    servers = []
    while line := await orders.readline():
        started = [await serve(quotas) for _ in range(json.loads(line)["backends"])]
        servers += started
        print(json.dumps([port for _, port in started]), flush=True)
    os._exit(0)  # whoever gave the orders is gone


if __name__ == "__main__":
    asyncio.run(main())
