"""Lets a channel's subset grow with its share of the traffic, and shrink again."""

import logging
from collections.abc import Callable

from lbclient.background.tasks import Alarm
from lbclient.client.common import Common
from lbclient.client.connections import Connections
from lbclient.core.subset_size import SubsetSize

logger = logging.getLogger("lbclient.balancer")  # as documented, for the whole channel

PAUSE = 10.0  # seconds between two looks; servers smooth reports over 2 s

# A fleet that has little to do needs no more connections.
LEAST_UTILIZATION = 0.2


class SubsetGrowth:
    """Owned by a balancer, which calls `look_soon` when backends may be ready."""

    def __init__(
        self, common: Common, connections: Connections, calls: Callable[[], int]
    ) -> None:
        """`calls` counts those that are over."""
        config = common.config
        self._connections = connections
        self._calls = calls
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
        pool, now, calls = self._connections.pool, self._clock(), self._calls()
        elapsed, sent = now - self._counted_at, calls - self._counted
        self._counted, self._counted_at = calls, now
        reports = [one.load.report for one in pool.ready if one.load.report is not None]
        if reports and elapsed > 0.0 and 2 * len(reports) >= len(pool.ready):
            used = sum(one.load.utilization() for one in pool.ready) / len(reports)
            is_needed = used >= LEAST_UTILIZATION
            before = self._size.size
            rate = sent / elapsed if is_needed else 0.0
            size = self._size.observe(rate, [one.qps for one in reports], now)
            if size != before:
                logger.info(
                    "%s: the subset has %d backends instead of %d, for %.0f requests/s",
                    self._label,
                    size,
                    before,
                    sent / elapsed,
                )
                self._connections.resize(size)
        if pool.ready:
            self.look_soon()

    def close(self) -> None:
        self._look.clear()

    def __repr__(self) -> str:
        return repr(self._size)
