"""A client of docker-compose.yml: open-loop load on TARGET, RATE calls a second.

Who pays for its calls is a setting of its channel, LBCLIENT_CHANNEL_CUSTOMER.
Errors are printed, and all is counted on port 9464. SIGTERM ends it at once.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
from prometheus_client import start_http_server

import lbclient
from lbclient import metrics

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))

from fleet_pb2 import WorkRequest
from fleet_pb2_grpc import FleetStub
from traffic import Traffic

MEAN_COST = 0.06  # CPU seconds on a core of speed 1
TIMEOUT = 5.0
MAX_IN_FLIGHT = 500  # calls; arrivals above it are skipped
BACKENDS = 50  # with metrics of their own


async def call(stub: Any, cost: float) -> None:
    try:
        await stub.Work(WorkRequest(cost=cost), timeout=TIMEOUT)
    except grpc.aio.AioRpcError as error:
        print(f"{error.code().name}: {error.details()}")


async def send() -> None:
    """Until cancelled, and then it waits for none of its calls."""
    traffic = Traffic(float(os.environ["RATE"]), MEAN_COST, False, Random())
    start_http_server(9464)
    loop = asyncio.get_running_loop()
    in_flight: set[asyncio.Task[None]] = set()
    async with (
        lbclient.insecure_channel(os.environ["TARGET"]) as channel,
        asyncio.TaskGroup() as calls,
    ):
        metrics.export(channel, backends=BACKENDS)
        await channel.channel_ready()  # all containers start at once
        stub = FleetStub(channel)
        due = loop.time()
        while True:
            due += traffic.gap()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if len(in_flight) < MAX_IN_FLIGHT:
                task = calls.create_task(call(stub, traffic.cost()))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)


async def main() -> None:
    sending = asyncio.create_task(send())
    # The first process of a container ignores signals that it has no handler for.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sending.cancel)
    with suppress(asyncio.CancelledError):
        await sending


if __name__ == "__main__":
    asyncio.run(main())
