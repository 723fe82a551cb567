"""Some clients of the large fleet in one process, each with a channel of its own.

The first argument is a JSON list of them: {"target": ..., "number": 7, "customer":
"web", "subset_size": 12}, or {"target": ...} alone for a stock channel of grpc.aio,
as a batch job in any language has. All connect at once.

Takes orders on stdin, one JSON object a line: {"rate": {"web": 2.0}, "cost": 0.5,
"seconds": 10} sends so many calls a second from each client of that customer, and says
how they ended. Ends when stdin is closed.
"""

import asyncio
import json
import os
import sys
from random import Random
from typing import Any

import fleet_pb2
import fleet_pb2_grpc
import grpc
from large_ends import STOCK, Ends, gather

import lbclient

DEADLINE = 4.0  # seconds
MAX_IN_FLIGHT = 500  # calls of a client; arrivals above it are skipped

ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'


def open_channel(who: dict[str, Any]) -> Any:
    if "number" not in who:
        # The environment's proxy would get even calls to this machine.
        options = [
            ("grpc.service_config", ROUND_ROBIN),
            ("grpc.enable_http_proxy", 0),
            # Channels of one process would share connections; processes do not.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return grpc.aio.insecure_channel(who["target"], options)
    config = lbclient.ChannelConfig(
        task_index=who["number"],
        subset_size=who["subset_size"],
        max_subset_size=who["subset_size"],  # or who sends much would take more
        customer=who["customer"],
    )
    return lbclient.insecure_channel(who["target"], config=config)


class Client:
    def __init__(self, who: dict[str, Any]) -> None:
        self.customer = who.get("customer", STOCK)
        self._channel = open_channel(who)
        self._channel.get_state(try_to_connect=True)
        self._stub: Any = fleet_pb2_grpc.FleetStub(self._channel)
        self._rng = Random(who.get("number"))

    async def send(self, rate: float, cost: float, seconds: float) -> Ends:
        """Open loop: calls at random times, however slow the answers are."""
        loop = asyncio.get_running_loop()
        ends, calls = Ends(), set[asyncio.Task[None]]()
        due, until = loop.time(), loop.time() + seconds
        while (due := due + self._rng.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, due - loop.time()))
            if len(calls) < MAX_IN_FLIGHT:
                calls.add(task := asyncio.create_task(self._call(cost, ends)))
                task.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
        return ends

    async def _call(self, cost: float, ends: Ends) -> None:
        started_at = asyncio.get_running_loop().time()
        try:
            await self._stub.Work(fleet_pb2.WorkRequest(cost=cost), timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            ends.codes[error.code().name] += 1
        else:
            ends.codes["OK"] += 1
            ends.latencies.append(asyncio.get_running_loop().time() - started_at)


async def main() -> None:
    clients = [Client(who) for who in json.loads(sys.argv[1])]
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    print(json.dumps({"ready": len(clients)}), flush=True)
    while line := await orders.readline():
        order = json.loads(line)
        sending = [one for one in clients if one.customer in order["rate"]]
        ends = await asyncio.gather(
            *(
                one.send(order["rate"][one.customer], order["cost"], order["seconds"])
                for one in sending
            )
        )
        told = [
            {client.customer: end.told()}
            for client, end in zip(sending, ends, strict=True)
        ]
        said = {name: end.told() for name, end in gather(told).items()}
        print(json.dumps(said), flush=True)
    os._exit(0)  # whoever gave the orders is gone


if __name__ == "__main__":
    asyncio.run(main())
