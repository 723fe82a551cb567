"""One client of the demo: open-loop load, through one lbclient channel a phase.

Takes orders on stdin, one JSON object a line: {"do": "begin", ...} starts a phase,
{"do": "end"} lets its calls finish and reports every one of them on stdout. Between
the two it tells twice a second what its channel thinks of the backends. Ends when
stdin is closed.
"""

import asyncio
import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import fleet_pb2
import fleet_pb2_grpc
import grpc
from traffic import Traffic

import lbclient
from lbclient import admin
from lbclient.pickers.weighted_round_robin import WeightedRoundRobin

DEADLINE = 30.0  # seconds; far above what a phase freezes a backend for
MAX_IN_FLIGHT = 1000  # calls; arrivals above it are skipped, and counted
MAX_CALLS = 100_000  # a phase; likewise
MAX_FAILURES = 20  # different ones that are kept word for word
TELL_EVERY = 0.5
Tell = Callable[[dict[str, Any]], None]


def channel_config(order: dict[str, Any]) -> lbclient.ChannelConfig:
    picker = order["picker"]
    if picker == "weighted_round_robin":
        # A58's blackout of 10 s is longer than a whole phase.
        picker = functools.partial(WeightedRoundRobin, blackout=order["blackout"])
    return lbclient.ChannelConfig(
        picker=picker,
        health_interval=order["health_interval"],
        subset_size=order["subset_size"],
        customer=order.get("customer"),
    )


class Phase:
    """The calls of one phase. `run` goes on until it is cancelled."""

    def __init__(self, order: dict[str, Any], tell: Tell) -> None:
        self._tell = tell
        self._channel = lbclient.insecure_channel(
            order["target"], config=channel_config(order)
        )
        self._stub: Any = fleet_pb2_grpc.FleetStub(self._channel)
        self._traffic = Traffic(
            order["rate"],
            order["mean_cost"],
            order["heavy_tail"],
            Random(order["seed"]),
        )
        self._clock = asyncio.get_running_loop().time
        self._in_flight: dict[asyncio.Task[None], None] = {}
        self._calls: list[tuple[float, float, str, str]] = []
        self._failures: Counter[str] = Counter()
        self._skipped = 0
        self._started: dict[str, int] = {}  # by backend, when last told
        self._told_at = self._clock()
        self._tasks = [
            asyncio.create_task(self._send_calls()),
            asyncio.create_task(self._keep_telling()),
        ]

    async def end(self) -> None:
        """Stops sending, waits for the calls in flight, reports all."""
        sending, telling = self._tasks
        await _cancel(sending)
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        await _cancel(telling)
        await self._channel.close()
        self._tell(
            {
                "calls": self._calls,
                "failures": dict(self._failures),
                "skipped": self._skipped,
            }
        )

    async def _send_calls(self) -> None:
        due = self._clock()
        while True:
            due += self._traffic.gap()
            cost = self._traffic.cost()
            # A late wake-up delays calls but drops none: the load is open loop.
            await asyncio.sleep(max(0.0, due - self._clock()))
            room = MAX_CALLS - len(self._calls)
            if len(self._in_flight) >= min(MAX_IN_FLIGHT, room):
                self._skipped += 1
                continue
            task = asyncio.create_task(self._call(cost))
            self._in_flight[task] = None
            task.add_done_callback(self._in_flight.pop)

    async def _call(self, cost: float) -> None:
        started_at = self._clock()
        call = self._stub.Work(fleet_pb2.WorkRequest(cost=cost), timeout=DEADLINE)
        code = "OK"
        try:
            await call
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            self._count_failure(f"{code}: {error.details()}")
        except Exception as error:  # nothing else may come from a call: it shall show
            code = type(error).__name__
            self._count_failure(repr(error))
        info = lbclient.info(call)
        sent_at = started_at + info.waited
        self._calls.append((sent_at, self._clock(), info.backend or "", code))

    def _count_failure(self, failure: str) -> None:
        if len(self._failures) < MAX_FAILURES or failure in self._failures:
            self._failures[failure] += 1

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY)
            now = self._clock()
            elapsed, self._told_at = now - self._told_at, now
            backends = {}
            for backend in self._channel.statistics().backends:
                sent = backend.started - self._started.get(backend.address, 0)
                self._started[backend.address] = backend.started
                backends[backend.address] = {
                    "state": backend.state,
                    "rate": sent / elapsed,
                    "weight": backend.weight,
                    "utilization": backend.utilization,
                    "in_flight": backend.in_flight,
                }
            self._tell({"backends": backends})


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


def tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


async def main() -> None:
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    async with admin.page(port=0) as url, asyncio.TaskGroup() as group:
        tell({"page": url})  # and so it is ready
        while line := await orders.readline():
            order = json.loads(line)
            if order["do"] == "begin":
                phase = Phase(order, tell)
            else:
                group.create_task(phase.end())
        os._exit(0)  # whoever gave the orders is gone


if __name__ == "__main__":
    asyncio.run(main())
