"""SESSIONS conversations on a fleet of engines at TARGET, by PICKER.

Each session follows its events on a long stream, which moves when the fleet grows, and
asks again and again with the whole conversation before: the blocks of a prompt are its
keys, the longest prefix first. With REPORT=1 it says at its end, as JSON, what it saw.
Prometheus reads port METRICS_PORT.
"""

import asyncio
import json
import os
import signal
import socket
from contextlib import suppress
from random import Random
from typing import Any

import grpc
from prometheus_client import start_http_server

import lbclient
from lbclient import ChannelConfig, metrics

TURNS, GROWS = 8, (2, 5)  # prompts of a conversation, and blocks that each adds
THINKS, TOKENS, TIMEOUT = 2.0, 20, 30.0
BACKENDS = 50  # with metrics of their own


class Session:
    """One user: `hits` of `blocks` were there, `firsts` are seconds until the first
    token. `lost` events were missing on the stream, or came twice."""

    def __init__(self, channel: Any, name: str) -> None:
        self._name = name
        self._rng = Random(name)
        self._generate = channel.unary_stream("/inference.Engine/Generate")
        self._seen = b"0"  # the number of the last event
        follow = channel.unary_stream("/inference.Engine/Follow")
        self._follow = lambda last: follow(last or self._seen)
        self.blocks = self.hits = self.failed = self.lost = 0
        self.firsts: list[float] = []

    async def follow(self) -> None:
        while True:
            try:
                async for event in lbclient.resumed(self._follow):
                    self.lost += abs(int(event) - int(self._seen) - 1)
                    self._seen = event
            except grpc.aio.AioRpcError as error:  # its engine died
                print(f"{error.code().name}: {error.details()}", flush=True)
                await asyncio.sleep(THINKS)

    async def talk(self) -> None:
        for conversation in range(1_000_000):
            blocks: list[str] = []
            for _ in range(TURNS):
                await asyncio.sleep(self._rng.expovariate(1 / THINKS))
                for _ in range(self._rng.randint(*GROWS)):
                    blocks.append(f"{self._name}/{conversation}/{len(blocks)}")
                try:
                    await self._ask(blocks)
                except grpc.aio.AioRpcError as error:
                    self.failed += 1
                    print(f"{error.code().name}: {error.details()}", flush=True)

    async def _ask(self, blocks: list[str]) -> None:
        request = json.dumps({"blocks": blocks, "tokens": TOKENS}).encode()
        loop = asyncio.get_running_loop()
        began_at, first = loop.time(), None
        # A block's name tells all that is before it, so it is the key of the prefix.
        with lbclient.key(*reversed(blocks)):
            call = self._generate(request, timeout=TIMEOUT)
        async for message in call:
            if first is None:
                first = loop.time() - began_at
                self.firsts.append(first)
                self.hits += json.loads(message)["hits"]
                self.blocks += len(blocks)


async def run() -> None:
    start_http_server(int(os.environ.get("METRICS_PORT", "9464")))
    config = ChannelConfig(
        picker=os.environ.get("PICKER", "cache_aware"),
        subset="whole",
        resolve_interval=2.0,
    )
    target, task = os.environ["TARGET"], f"{socket.gethostname()}-{os.getpid()}"
    async with lbclient.insecure_channel(
        target, config=config, name="engines"
    ) as channel:
        metrics.export(channel, backends=BACKENDS)
        await channel.channel_ready()
        count = int(os.environ.get("SESSIONS", "20"))
        names = [f"{task}-{n}" for n in range(count)]
        sessions = [Session(channel, name) for name in names]
        try:
            async with asyncio.TaskGroup() as tasks:
                for session in sessions:
                    tasks.create_task(session.follow())
                    tasks.create_task(session.talk())
        finally:
            if os.environ.get("REPORT"):
                print(json.dumps(report(sessions, channel.statistics())), flush=True)


def report(sessions: list[Session], seen: Any) -> dict[str, Any]:
    return {
        "blocks": sum(session.blocks for session in sessions),
        "hits": sum(session.hits for session in sessions),
        "failed": sum(session.failed for session in sessions),
        "lost": sum(session.lost for session in sessions),
        "firsts": [first for session in sessions for first in session.firsts],
        "moves": seen.stream_moves,
        "started": {one.address: one.started for one in seen.backends},
    }


async def main() -> None:
    running = asyncio.create_task(run())
    # The first process of a container ignores signals that it has no handler for.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
