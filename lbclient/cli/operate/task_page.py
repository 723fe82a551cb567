"""One page of all workers: the supervisor asks each for what a page shows of it."""

import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from lbclient.admin import pages
from lbclient.admin.history import History
from lbclient.admin.http import Site
from lbclient.admin.siblings import Siblings
from lbclient.admin.snapshot import MOST_CHANNELS, snapshot
from lbclient.cli.operate.task_site import port_of, served
from lbclient.server.workers.supervisor import Supervisor

# Numbers of servers and channels of one process in the page; a process has fewer.
APART = 1_000_000

HOST = "127.0.0.1"

LISTS = ("channels", "servers", "untold")


def describe() -> bytes:
    """What a page shows of this process, for a message to the supervisor."""
    return zlib.compress(json.dumps(snapshot(), separators=(",", ":")).encode())


def together(workers: list[tuple[int, int, bytes]]) -> dict[str, Any]:
    """The supervisor's own snapshot with the channels and servers of its workers, as
    each described itself last: by number, process and description."""
    found = snapshot()
    for _, pid, data in workers:
        if not data:
            continue  # it has not been asked before
        told = json.loads(zlib.decompress(data))
        for name in LISTS:
            found[name] += [
                one | {"number": pid * APART + one["number"]} for one in told[name]
            ]
        for name in ("channels_left_out", "servers_left_out"):
            found[name] += told[name]
        found["unused_tables"] = [*{*found["unused_tables"], *told["unused_tables"]}]
    found["channels_left_out"] += max(0, len(found["channels"]) - MOST_CHANNELS)
    del found["channels"][MOST_CHANNELS:]
    return found


@asynccontextmanager
async def shown_at(
    port: object,
) -> AsyncIterator[Callable[[Supervisor], None] | None]:
    """Serves the page; gives what is to be told of the supervisor. None: nobody wants a
    page. It is for this machine only, as that of `lbclient.admin.page`.

    Raises ConfigError for what is no port, and RuntimeError where it is taken.
    """
    if port is None:
        yield None
        return
    number = port_of("page", port)
    supervisors: list[Supervisor] = []

    def described() -> dict[str, Any]:
        return together(supervisors[0].described() if supervisors else [])

    site = Site(pages(History(), Siblings(HOST), described), {"localhost", HOST})
    async with served("page", site, HOST, number):
        yield supervisors.append
