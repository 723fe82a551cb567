"""Calls a hundred times a second at most, and prints what became of it.

    call.py TARGET HEALTH_INTERVAL PAUSE

Speaks with the test by lines:

    it says       when
    ready         all backends are ready
    out           none of the addresses that the test named as lost was ready any more,
                  and then calls were made for two health intervals
    (the report)  each of them has answered once more, or a while has passed

The test's first line names the addresses, and its second says that they are reachable
again. The report has of each call its number, who answered and the error; the number of
the next call when the test spoke and when the addresses were out; and each backend's
state at the end.
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
DEADLINE = 1.0  # seconds, of each call


class Caller:
    def __init__(self, channel: lbclient.Channel, pause: float) -> None:
        self.channel = channel
        self.pause = pause
        self.stub = pb_grpc.SearchStub(channel)
        self.sent = 0
        self.ended: list[tuple[int, str, str]] = []  # number, who answered, error

    def states(self) -> dict[str, str]:
        backends = self.channel.statistics().backends
        return {b.address: f"{b.state}: {b.reason}" for b in backends}

    def all_ready(self, addresses: list[str]) -> bool:
        states = self.states()
        return all(states[address].startswith("ready") for address in addresses)

    def any_ready(self, addresses: list[str]) -> bool:
        states = self.states()
        return any(states[address].startswith("ready") for address in addresses)

    def answered_since(self, number: int) -> set[str]:
        return {who for sent, who, _ in self.ended if sent >= number}

    async def call(self, number: int) -> None:
        try:
            answer = await self.stub.Search(pb.Query(), timeout=DEADLINE)
            self.ended.append((number, answer.text, ""))
        except grpc.aio.AioRpcError as error:
            self.ended.append((number, "", f"{error.code().name}: {error.details()}"))

    async def call_on(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self.call(self.sent))
        self.sent += 1
        await asyncio.sleep(self.pause)


def next_line() -> "asyncio.Task[str]":
    return asyncio.create_task(asyncio.to_thread(sys.stdin.readline))


async def main(target: str, health_interval: float, pause: float) -> None:
    config = lbclient.ChannelConfig(health_interval=health_interval, seed=1)
    async with lbclient.insecure_channel(target, config=config) as channel:
        caller = Caller(channel, pause)
        while not (states := caller.states()) or not caller.all_ready([*states]):
            channel.get_state(try_to_connect=True)
            await asyncio.sleep(0.01)
        line = next_line()
        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:
            while not line.done():
                await caller.call_on(group)
            lost, lost_at = line.result().split(), caller.sent
            until = time.monotonic() + PATIENCE
            while caller.any_ready(lost) and time.monotonic() < until:
                await caller.call_on(group)
            out_at = caller.sent
            for _ in range(round(2 * health_interval / pause)):
                await caller.call_on(group)
            line = next_line()
            print("out", flush=True)
            while not line.done():
                await caller.call_on(group)
            healed_at = caller.sent
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and not (
                {*lost} <= caller.answered_since(healed_at)
            ):
                await caller.call_on(group)
        report = {
            "calls": caller.ended,
            "lost_at": lost_at,
            "out_at": out_at,
            "healed_at": healed_at,
            "states": caller.states(),
        }
    print(json.dumps(report), flush=True)


asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
