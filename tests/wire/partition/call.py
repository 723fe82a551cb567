"""Calls a hundred times a second, and prints what became of it.

    call.py TARGET HEALTH_INTERVAL

Ends when each address of a line of standard input has answered once more, or a while
after that. Prints when each call was sent (the clock of time.monotonic), who answered
and the error, and the state of each backend at the end.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import grpc

import lbclient

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc

PATIENCE = 60.0  # seconds

calls: list[tuple[float, str, str]] = []


async def call(stub: pb_grpc.SearchStub) -> None:
    sent_at = time.monotonic()
    try:
        answer = await stub.Search(pb.Query(), timeout=1.0)
        calls.append((sent_at, answer.text, ""))
    except grpc.aio.AioRpcError as error:
        calls.append((sent_at, "", f"{error.code().name}: {error.details()}"))


async def main(target: str, health_interval: float) -> None:
    config = lbclient.ChannelConfig(health_interval=health_interval, seed=1)
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = pb_grpc.SearchStub(channel)
        while [b.state for b in channel.statistics().backends].count("ready") < 8:
            channel.get_state(try_to_connect=True)
            await asyncio.sleep(0.01)
        told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:

            async def call_on() -> None:
                group.create_task(call(stub))
                await asyncio.sleep(0.01)

            while not told.done():
                await call_on()
            before, until = len(calls), time.monotonic() + PATIENCE
            while time.monotonic() < until and not (
                {*told.result().split()} <= {who for _, who, _ in calls[before:]}
            ):
                await call_on()
        backends = channel.statistics().backends
    states = {b.address: f"{b.state}: {b.reason}" for b in backends}
    print(json.dumps({"calls": calls, "states": states}))


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
