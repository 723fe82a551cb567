"""Asks each worker of a task at its own port whether it is one, as channels do."""

import argparse
import asyncio
from typing import NamedTuple

from lbclient import wire
from lbclient.cli.operate import peer
from lbclient.core.backends.task_workers import ToldWorkers, at


class WorkersSeen(NamedTuple):
    """How many workers of a task serve, of how many, and the own ports at which none of
    them answered."""

    serving: int
    places: int
    unreached: tuple[int, ...] = ()


NO_WORKERS = WorkersSeen(0, 0)  # of a task of one process


def told_at(address: str, workers: ToldWorkers | None) -> tuple[int, ...]:
    """The own ports behind an address, 0 for a worker that does not serve."""
    port = address.rpartition(":")[2]
    return () if workers is None else workers.at(int(port) if port.isdecimal() else 0)


def counted(own: tuple[int, ...]) -> WorkersSeen:
    return WorkersSeen(sum(map(bool, own)), len(own))


async def ask_workers(
    address: str, workers: ToldWorkers | None, given: argparse.Namespace
) -> WorkersSeen:
    """Asks all at once; `given.timeout` is for each."""
    own = told_at(address, workers)
    ports = [port for port in own if port]
    group = 0 if workers is None else workers.group
    answers = await asyncio.gather(
        *(_is_worker(at(address, port), group, given) for port in ports)
    )
    unreached = [
        port for port, is_one in zip(ports, answers, strict=True) if not is_one
    ]
    return counted(own)._replace(unreached=tuple(unreached))


async def _is_worker(address: str, group: int, given: argparse.Namespace) -> bool:
    until = asyncio.get_running_loop().time() + given.timeout
    async with peer.reach(address, given, until) as server:
        reply = await server.call(wire.CHECK_METHOD)
    health = wire.parse_health(reply) if isinstance(reply, bytes) else None
    told = None if health is None else health.workers
    return told is not None and told.group == group
