"""Lets a channel's subset grow with its share of the traffic, and shrink again."""

import logging
from collections.abc import Iterable

from lbclient.background.tasks import Alarm
from lbclient.client.backend import Backend
from lbclient.client.common import Common
from lbclient.client.connections import Connections
from lbclient.core.model import State, Verdict
from lbclient.core.subset_size import SubsetSize

logger = logging.getLogger("lbclient.balancer")  # as documented, for the whole channel

PAUSE = 10.0  # seconds between two looks; servers smooth reports over 2 s

# A fleet that has little to do needs no more connections.
LEAST_UTILIZATION = 0.2


SERVED = Verdict.SERVED


class SubsetGrowth:
    """Owned by a balancer, which calls `look_soon` when backends may be ready."""

    def __init__(self, common: Common, connections: Connections) -> None:
        config = common.config
        self._connections = connections
        self._label = common.label
        self._clock = common.clock
        self._size = SubsetSize(config.subset_size, config.max_subset_size)
        self._counted, self._counted_at = 0, common.clock()
        self._look = Alarm(common.tasks, self.look)
        self._is_on = (
            config.subset != "whole" and config.max_subset_size > config.subset_size
        )

    def look_soon(self) -> None:
        if self._is_on and not self._look.is_set():
            self._look.set(PAUSE)

    def look(self) -> None:
        # What was not served is in no report: calls that failed, or were given up.
        count, now = self._connections.attempts()[SERVED], self._clock()
        own, elapsed = count - self._counted, now - self._counted_at
        self._counted, self._counted_at = count, now
        pool = self._connections.pool
        if elapsed > 0.0 and (load := _load_of(pool.nodes.values())) is not None:
            served, utilization = load
            rate = own / elapsed if utilization >= LEAST_UTILIZATION else 0.0
            before = self._size.size
            size = self._size.observe(rate, served, len(pool.members), now)
            if size != before:
                self._resize(before, size, rate)
        if pool.counts[State.READY]:
            self.look_soon()

    def _resize(self, before: int, size: int, rate: float) -> None:
        logger.info(
            "%s: the subset has %d backends instead of %d, for %.0f requests/s",
            self._label,
            size,
            before,
            rate,
        )
        self._connections.resize(size)

    def close(self) -> None:
        self._look.clear()

    def __repr__(self) -> str:
        return repr(self._size)


def _load_of(backends: Iterable[Backend]) -> tuple[float, float] | None:
    """Requests a second that ready backends serve together, and their mean utilization.

    As by those that report both; None where fewer than half of them do. Behind an
    address that several tasks share each speaks for itself alone.
    """
    ready = [one for one in backends if one.state is State.READY]
    told = [
        (one.load.report.qps, one.load.utilization())
        for one in ready
        if one.load.report is not None
        and one.load.report.qps > 0.0
        and not one.reported.is_shared()
    ]
    if not told or 2 * len(told) < len(ready):
        return None
    rates, utilizations = zip(*told, strict=True)
    return sum(rates) * len(ready) / len(told), sum(utilizations) / len(told)
