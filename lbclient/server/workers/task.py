"""Serves a task by several workers: what `lbclient.serve` does with `workers`."""

from collections.abc import Callable
from typing import Any

import grpc.aio

from lbclient.server.warmup import Warmup, check
from lbclient.server.workers.count import worker_count
from lbclient.server.workers.factory import check_make_server
from lbclient.server.workers.messages import Assignment, MakeServer
from lbclient.server.workers.shared_port import SharedPort, check_port
from lbclient.server.workers.supervisor import Supervisor


async def serve_by_workers(
    make_server: MakeServer | grpc.aio.Server | str,
    warmup: Warmup | None,
    workers: object,
    host: str = "[::]",
    port: int | None = None,
    log_level: str | None = None,
    ready: Callable[[str, int], None] = lambda address, count: None,
    made: Callable[[Any], object] | None = None,
    ended: Callable[[int], None] = lambda pid: None,
    describe: Callable[[], bytes] | None = None,
    started: Callable[[Supervisor], object] = lambda supervisor: None,
) -> None:
    """Returns when all workers have left. `ready` is told the address and the number of
    workers, once; `ended` each process that has. `made` is called in each worker with
    its server, `describe` when it is asked for what a page shows. `started` is told of
    the supervisor, which asks. Raises ConfigError, and RuntimeError where workers
    cannot start."""
    found = check_make_server(make_server)
    check(warmup)
    count = worker_count(workers)
    shared = None
    if port is not None:
        check_port(port)
        shared = SharedPort(host, port)
    address = None if shared is None else shared.address

    def assign(number: int, group: int, slot: int) -> Assignment:
        return Assignment(
            found,
            warmup,
            number,
            group,
            slot,
            count,
            address,
            log_level,
            made,
            describe,
        )

    def tell(listening: tuple[str, ...]) -> None:
        ready(", ".join(listening), count)

    try:
        supervisor = Supervisor(count, assign, tell, ended)
        started(supervisor)
        await supervisor.run()
    finally:
        if shared is not None:
            shared.close()
