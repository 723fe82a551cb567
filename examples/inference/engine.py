"""A modelled inference engine: computes prompts one by one, and streams answers.

A prompt is a list of blocks, and what the engine has in memory of its beginning costs
nothing. `Follow` is a session's long stream of events, which a client can resume.
Prometheus reads port METRICS_PORT. SIGTERM makes the engine a lame duck.
"""

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import grpc
from prometheus_client import Counter, start_http_server

import lbclient
from lbclient import metrics

BLOCKS = int(os.environ.get("BLOCKS", "150"))  # in memory
BLOCK_TAKES = float(os.environ.get("BLOCK_TAKES", "0.03"))  # seconds, to compute one
TOKEN_TAKES, WRITERS = 0.02, 32  # seconds, and answers that are written at a time
EVENT_EVERY = 1.0  # seconds

asked = Counter("inference_blocks", "Blocks of prompts: were they there?", ["hit"])
streams = Counter("inference_follows", "Streams of events that were opened.")


class Engine:
    """`queued` prompts wait or are computed; `writing` answers are being written."""

    def __init__(self) -> None:
        self.queued = self.writing = 0
        self._turn = asyncio.Lock()
        self._memory: OrderedDict[str, None] = OrderedDict()

    async def read(self, blocks: list[str]) -> int:
        """Computes a prompt in its turn; returns how many blocks were there."""
        self.queued += 1
        try:
            async with self._turn:
                hits = 0
                while hits < len(blocks) and blocks[hits] in self._memory:
                    hits += 1
                await asyncio.sleep(BLOCK_TAKES * (len(blocks) - hits))
                for block in reversed(blocks):  # so that the beginning is kept longest
                    self._memory[block] = None
                    self._memory.move_to_end(block)
                while len(self._memory) > BLOCKS:
                    self._memory.popitem(last=False)
        finally:
            self.queued -= 1
        asked.labels("yes").inc(hits)
        asked.labels("no").inc(len(blocks) - hits)
        return hits

    async def generate(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        wanted = json.loads(request)
        hits = await self.read(wanted["blocks"])
        self.writing += 1
        try:
            for token in range(wanted["tokens"]):
                yield json.dumps({"token": token, "hits": hits}).encode()
                await asyncio.sleep(TOKEN_TAKES)
        finally:
            self.writing -= 1

    async def follow(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        """Numbers of events, from the one after the request's."""
        streams.inc()
        number = int(request)
        while True:
            number += 1
            yield b"%d" % number
            await asyncio.sleep(EVENT_EVERY)

    def utilization(self) -> float:
        return min(1.0, self.queued / 4 + self.writing / WRITERS)


async def main() -> None:
    engine = Engine()
    config = lbclient.ServerConfig(
        utilization=engine.utilization,
        utilization_replaces=True,
        named_metrics={
            "queue_length": lambda: float(engine.queued),
            "running": lambda: float(engine.writing),
        },
    )
    server = lbclient.server(config=config)
    make: Any = grpc.unary_stream_rpc_method_handler
    methods = {"Generate": make(engine.generate), "Follow": make(engine.follow)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("inference.Engine", methods),)
    )
    server.add_insecure_port(f"0.0.0.0:{os.environ.get('PORT', '50051')}")
    metrics.export(server)
    start_http_server(int(os.environ.get("METRICS_PORT", "9464")))
    await lbclient.serve(server)


if __name__ == "__main__":
    asyncio.run(main())
