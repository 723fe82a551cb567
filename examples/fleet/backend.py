"""One backend of the demo: a gRPC server whose work runs on an emulated processor.

The only lines that a server owes to lbclient are `lbclient.server` and
`lbclient.serve`; an application with no signals of its own needs no config either.
Says "ready" on stdout. Ends on SIGTERM, as a lame duck, or when stdin is closed.
"""

import argparse
import asyncio
import os
import sys
from typing import Any

import fleet_pb2
import fleet_pb2_grpc
from cpu import Cpu

import lbclient

LAME_DUCK_QUIET = 0.3  # seconds; clients hear of a lame duck within a round trip


class Fleet(fleet_pb2_grpc.FleetServicer):
    def __init__(self, name: str, cpu: Cpu) -> None:
        self._name = name
        self._cpu = cpu
        self._requests = 0

    async def Work(self, request: Any, context: Any) -> Any:
        await self._cpu.run(request.cost)
        self._requests += 1
        return fleet_pb2.WorkReply(backend=self._name)

    async def Usage(self, request: Any, context: Any) -> Any:
        busy, elapsed = self._cpu.usage()
        return fleet_pb2.UsageReply(
            busy=busy,
            elapsed=elapsed,
            cores=self._cpu.cores,
            speed=self._cpu.speed,
            requests=self._requests,
        )


def watch_stdin() -> None:
    """Ends the process when whoever started it is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        os._exit(1)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="backend")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--smoothing", type=float, default=1.0)
    options = parser.parse_args()

    cpu = Cpu(options.cores, options.speed)
    server = lbclient.server(
        config=lbclient.ServerConfig(
            utilization=cpu.utilization,
            runnable=lambda: cpu.runnable,
            smoothing=options.smoothing,
            max_load=0,  # it shows who balances better, not what a task sheds
            lame_duck_quiet=LAME_DUCK_QUIET,
        ),
        # Two servers on one port would share it unseen.
        options=[("grpc.so_reuseport", 0)],
    )
    fleet_pb2_grpc.add_FleetServicer_to_server(Fleet(options.name, cpu), server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), watch_stdin)
    await server.start()
    print("ready", flush=True)
    await lbclient.serve(server)


if __name__ == "__main__":
    asyncio.run(main())
