"""A backend of docker-compose.yml: its work runs on an emulated processor.

As slow as SPEED says, and measured by Prometheus on port 9464. SIGTERM makes it a
lame duck, which serves what is on the way and ends.
"""

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

from prometheus_client import start_http_server

import lbclient
from lbclient import metrics

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))

from cpu import Cpu
from fleet_pb2_grpc import add_FleetServicer_to_server
from servicer import Fleet

CORES = 2  # emulated


async def main() -> None:
    cpu = Cpu(CORES, float(os.environ.get("SPEED", "1")))
    config = replace(
        lbclient.ServerConfig.from_environment(),
        utilization=cpu.utilization,
        utilization_replaces=True,  # the emulated processors are what it has
        runnable=lambda: cpu.runnable,
    )
    server = lbclient.server(config=config)
    add_FleetServicer_to_server(Fleet(socket.gethostname(), cpu), server)
    server.add_insecure_port("0.0.0.0:50051")
    metrics.export(server)
    start_http_server(9464)
    await lbclient.serve(server)


if __name__ == "__main__":
    asyncio.run(main())
