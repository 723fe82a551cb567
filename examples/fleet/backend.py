"""One backend of the demo: a gRPC server whose work runs on an emulated processor.

The only lines that a server owes to lbclient are `lbclient.server` and
`lbclient.serve`; an application with no signals of its own needs no config either.
Says "ready" on stdout. Ends on SIGTERM, as a lame duck, or when stdin is closed.
"""

import argparse
import asyncio
import os
import sys

from cpu import Cpu
from fleet_pb2_grpc import add_FleetServicer_to_server
from servicer import Fleet

import lbclient

LAME_DUCK_QUIET = 0.3  # seconds; clients hear of a lame duck within a round trip


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
            utilization_replaces=True,  # the emulated processors are what it has
            runnable=lambda: cpu.runnable,
            smoothing=options.smoothing,
            max_load=0,  # it shows who balances better, not what a task sheds
            lame_duck_quiet=LAME_DUCK_QUIET,
        ),
        # Two servers on one port would share it unseen.
        options=[("grpc.so_reuseport", 0)],
    )
    add_FleetServicer_to_server(Fleet(options.name, cpu), server)
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), watch_stdin)
    await server.start()
    print("ready", flush=True)
    await lbclient.serve(server)


if __name__ == "__main__":
    asyncio.run(main())
