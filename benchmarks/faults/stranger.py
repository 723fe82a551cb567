"""A client that has never heard of lbclient, in a process of its own."""

import asyncio
import json
import sys
import threading
from collections import Counter
from time import monotonic, sleep
from typing import Any

import grpc

from benchmarks.faults.task import METHOD

DEADLINE = 20.0  # seconds; for what is never answered


def options(policy: str) -> list[tuple[str, Any]]:
    config: dict[str, Any] = {"loadBalancingConfig": [{policy: {}}]}
    return [
        ("grpc.service_config", json.dumps(config)),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


async def call_aio(policy: str, target: str, rate: float) -> Counter[str]:
    ended: Counter[str] = Counter()
    is_over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))

    async def send() -> None:
        try:
            await call(b"echo", timeout=DEADLINE)
            ended["OK"] += 1
        except grpc.aio.AioRpcError as error:
            ended[f"{error.code().name}: {error.details()}"] += 1

    async with grpc.aio.insecure_channel(target, options=options(policy)) as channel:
        call: Any = channel.unary_unary(METHOD)
        begun, began_at = 0, monotonic()
        async with asyncio.TaskGroup() as group:
            while not is_over.done():
                while begun < (monotonic() - began_at) * rate:
                    begun += 1
                    group.create_task(send())
                await asyncio.sleep(1 / rate)
    return ended


def call_sync(policy: str, target: str, rate: float) -> Counter[str]:
    ended: Counter[str] = Counter()
    is_over = threading.Event()

    def follow_input() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=follow_input, daemon=True).start()
    with grpc.insecure_channel(target, options=options(policy)) as channel:
        call: Any = channel.unary_unary(METHOD)
        calls: list[Any] = []
        began_at = monotonic()
        while not is_over.is_set():
            while len(calls) < (monotonic() - began_at) * rate:
                calls.append(call.future(b"echo", timeout=DEADLINE))
            sleep(1 / rate)
        for one in calls:
            error = one.exception()
            ended[f"{one.code().name}: {one.details()}" if error else "OK"] += 1
    return ended


def count_calls(kind: str, policy: str, target: str, rate: float) -> Counter[str]:
    """Calls the Echo method so often a second, without any health check, until standard
    input ends; returns the number of calls by status."""
    if kind == "sync":
        return call_sync(policy, target, rate)
    return asyncio.run(call_aio(policy, target, rate))
