"""The server under test, in a process of its own.

Says its port. For each order it says, whatever its loop is busy with, how many requests
it has refused with an answer, how many without, and what one of the latter takes.
"""

import asyncio
import os
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import grpc

import lbclient
from benchmarks.harness.processes import say
from benchmarks.harness.servers import listen
from benchmarks.overload import handlers
from benchmarks.overload.without import MECHANISMS
from lbclient.server.overload.gate import Gate
from lbclient.server.overload.refusal_status import UNANSWERED, UNSEEN
from lbclient.server.overload.shedding import Shedding

BARE, OURS, WITHOUT = "grpcio", "lbclient", "without "
REFUSES = "refuses all"  # to see what a refusal takes
DROPS = "drops all"  # and what it takes without an answer


def server_of(kind: str, made: handlers.Made) -> Any:
    if kind == BARE:
        return grpc.aio.server(migration_thread_pool=made.threads)
    if kind.startswith(WITHOUT):
        MECHANISMS[kind.removeprefix(WITHOUT)]()
    settings: dict[str, Any] = {}
    if made.runnable is not None:
        # The emulated processor is one, however many the machine has.
        cores = len(os.sched_getaffinity(0))
        settings = {"runnable": made.runnable, "max_load": 8.0 / cores}
    if kind in {REFUSES, DROPS}:
        settings["signals"] = {"full": lambda: 1e6}
        shedding: Any = Shedding
        shedding.is_flood = lambda *_: kind == DROPS
    config = lbclient.ServerConfig(**settings) if settings else None
    return lbclient.server(migration_thread_pool=made.threads, config=config)


def answer_questions(gate: Gate | None) -> None:
    """In a thread, which reads counts that change one by one."""
    for _ in sys.stdin:
        by_reason = {} if gate is None else gate.refused
        counts = {reason: sum(of.values()) for reason, of in by_reason.items()}
        counts.pop(UNSEEN, None)
        unanswered = counts.pop(UNANSWERED, 0)
        each = 0.0 if gate is None else gate.core.intake.drop_seconds
        say((sum(counts.values()), unanswered, each))
    os._exit(0)


async def serve(kind: str, handler: str, cgroup: str) -> None:
    if cgroup:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    made = handlers.make(handler)
    server = server_of(kind, made)
    port = await listen(server, {handlers.PATH: made.behavior})
    gate: Any = None if kind == BARE else server._gate
    say(port)
    Thread(target=answer_questions, args=(gate,), daemon=True).start()
    await asyncio.Event().wait()
