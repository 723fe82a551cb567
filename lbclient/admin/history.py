"""Keeps a few numbers of each channel and server for the charts of the status page.

The page is opened after the trouble began, so they are kept while nobody looks at it.

Kept from when the page is first served, every 5 s and for a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lbclient.admin.snapshot import MOST_CHANNELS, MOST_SERVERS
from lbclient.client.kinds import is_channel
from lbclient.core.model import Verdict
from lbclient.core.statistics.registry import CHANNELS, SERVERS
from lbclient.log import Log
from lbclient.server.kinds import is_server

if TYPE_CHECKING:
    from lbclient.client.channel import Channel
    from lbclient.server import Server, SyncServer

logger = Log(__name__)

EVERY = 5.0  # seconds: a trouble of half a minute is six points of a chart
KEPT = 180  # samples: a quarter of an hour

Sample = tuple[float | None, ...]
Samples = dict[int, deque[Sample]]  # by the number of the channel or server


class History:
    """Records a few numbers of each channel and server, for charts. Owned by the page
    that is served; `keep` runs as long as the page."""

    def __init__(self) -> None:
        self._channels: Samples = {}
        self._servers: Samples = {}
        self._failed = set[tuple[str, str]]()  # kinds of failures that were logged

    def __repr__(self) -> str:
        channels, servers = len(self._channels), len(self._servers)
        return f"<history of {channels} channels and {servers} servers>"

    async def keep(self) -> None:
        while True:
            self.sample(time.time())
            await asyncio.sleep(EVERY)

    def sample(self, now: float) -> None:
        channels = {n: c for n, c in CHANNELS.present() if is_channel(c)}
        servers = {n: s for n, s in SERVERS.present() if is_server(s)}
        self._add(self._channels, channels, MOST_CHANNELS, now, of_channel)
        self._add(self._servers, servers, MOST_SERVERS, now, of_server)

    def _add(
        self,
        samples: Samples,
        present: Mapping[int, Any],
        most: int,
        now: float,
        read: Callable[[Any], Sample | None],
    ) -> None:
        for number in samples.keys() - present.keys():
            del samples[number]
        for number in list(present)[:most]:
            try:
                values = read(present[number])
            except Exception as error:  # the others are told of as ever
                self._log(present[number], error)
                continue
            if values is not None:
                kept = samples.setdefault(number, deque(maxlen=KEPT))
                kept.append((round(now, 3), *values))

    def _log(self, source: object, error: Exception) -> None:
        """Logs each kind of failure once: a failure may go on for ever."""
        kind = type(source).__name__, type(error).__name__
        if kind not in self._failed:
            self._failed.add(kind)
            words = "%r could not be described"
            logger.error(words, source, exc_info=error, reason=error)

    def told(self) -> dict[str, dict[int, list[Sample]]]:
        """As JSON has it: of each its samples, the oldest first."""
        return {
            "channels": {n: list(kept) for n, kept in self._channels.items()},
            "servers": {n: list(kept) for n, kept in self._servers.items()},
        }


def of_channel(channel: Channel) -> Sample | None:
    """Attempts so far and errors of these; calls in flight and waiting; the highest and
    the lowest utilization. None: it has not been used yet."""
    balancer = channel._balancer
    if balancer is None:
        return None
    loads = [backend.load for backend in list(balancer.pool.nodes.values())]
    finished = sum(sum(load.counts.values()) for load in loads)
    errors = sum(
        load.counts[Verdict.FAILED] + load.counts[Verdict.REJECTED] for load in loads
    )
    in_flight = sum(load.in_flight for load in loads)
    told = [used for load in loads if (used := load.utilization())]
    highest, lowest = (max(told), min(told)) if told else (None, None)
    return finished, errors, in_flight, len(balancer.pending), highest, lowest


def of_server(server: Server | SyncServer) -> Sample | None:
    """Requests so far and errors of these; active ones, and the utilization."""
    seen = server.statistics()
    done = sum(seen.requests.values())
    errors = done - seen.requests.get("OK", 0)
    return done, errors, seen.active, seen.utilization
