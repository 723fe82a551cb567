"""Servers for `lbclient serve`: each answers with the number of its process."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc

import lbclient
from lbclient.config import ServerConfig
from lbclient.server import Server
from tests.hosts import add_methods, unary_unary

WHO = "/test.Workers/Who"
SLOW = "/test.Workers/Slow"
LONG = "/test.Workers/Long"
BURN = "/test.Workers/Burn"
QUOTA = "/test.Workers/Quota"


async def who(_request: bytes, _context: Any) -> bytes:
    return str(os.getpid()).encode()


async def slow(request: bytes, _context: Any) -> bytes:
    await asyncio.sleep(float(request))
    return str(os.getpid()).encode()


async def long(request: bytes, context: Any) -> bytes:
    """A slow one that says when it begins."""
    sys.stderr.write("a long call begins\n")
    return await slow(request, context)


async def burn(request: bytes, _context: Any) -> bytes:
    end = time.process_time() + float(request)
    while time.process_time() < end:
        pass
    return str(os.getpid()).encode()


def make_server() -> Server:
    """As any program would make it; workers need nothing of it."""
    server = lbclient.server()
    handlers = {WHO: unary_unary(who), SLOW: unary_unary(slow), BURN: unary_unary(burn)}
    handlers[LONG] = unary_unary(long)
    add_methods(server, handlers)
    return server


def with_limit() -> Server:
    """Of eight requests at a time."""
    server = lbclient.server(maximum_concurrent_rpcs=8)
    add_methods(server, {WHO: unary_unary(who), SLOW: unary_unary(slow)})
    return server


def make_sync_server() -> grpc.Server:
    """As `lbclient.sync_server` makes it, with a quota that takes the supervisor."""
    config = ServerConfig(default_quota=5.0, cpu_factor=1.0)
    server = lbclient.sync_server(ThreadPoolExecutor(8), config=config)
    add_sync_methods(server)
    return server


def make_plain_sync_server() -> grpc.Server:
    """One that knows nothing of lbclient."""
    server = grpc.server(ThreadPoolExecutor(8))
    add_sync_methods(server)
    return server


def add_sync_methods(server: grpc.Server) -> None:
    def who_sync(_request: bytes, _context: Any) -> bytes:
        return str(os.getpid()).encode()

    def slow_sync(request: bytes, _context: Any) -> bytes:
        time.sleep(float(request))
        return str(os.getpid()).encode()

    add_methods(server, {WHO: unary_unary(who_sync), SLOW: unary_unary(slow_sync)})


def with_quota() -> Server:
    """Of half a CPU second a second for each customer. It tells what it may give."""
    config = ServerConfig(default_quota=0.5, cpu_factor=1.0)
    server = lbclient.server(config=config)

    async def quota(_request: bytes, _context: Any) -> bytes:
        seen = server.statistics().quotas
        own = [os.getpid(), seen.tasks, seen.shares.get("shop", 0.0)]
        return json.dumps(own).encode()

    add_methods(server, {BURN: unary_unary(burn), QUOTA: unary_unary(quota)})
    return server


async def with_own_port() -> Server:
    server = make_server()
    server.add_insecure_port(f"127.0.0.1:{os.environ['SHARED_PORT']}")
    return server


@asynccontextmanager
async def with_end() -> AsyncIterator[Server]:
    yield make_server()
    sys.stdout.write("closed after the server\n")


def fails_once_reloaded() -> Server:
    """Until the file is there."""
    if os.path.exists(os.environ["BROKEN"]):
        raise LookupError("no such model")
    return make_server()


def leaves_an_orphan() -> Server:
    """A process whose parent ends first."""
    subprocess.run(["sh", "-c", "sleep 1 >/dev/null 2>&1 & true"], check=True)
    return make_server()


def forks_a_child() -> Server:
    """Which lives on, with all that the worker had open."""
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)
    return make_server()


class OwnError(Exception):
    """One that cannot be made again from its words."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one}, {other}")


def raises_its_own() -> None:
    raise OwnError("no model", "no cache")


def returns_none() -> None:
    pass


number = 7
