"""Lets a channel's subset grow with its share of the traffic, and shrink again."""

import logging

from lbclient.background.tasks import Alarm
from lbclient.client.backends.connections import Connections
from lbclient.client.channel_context import ChannelContext
from lbclient.core.backends.subset_size import PAUSE, SubsetSize
from lbclient.core.model import State, Verdict
from lbclient.log import Log

logger = Log("lbclient.balancer")  # as documented, for the whole channel

SERVED = Verdict.SERVED


class SubsetGrowth:
    """Sets the size of a channel's subset by its share of the traffic. Owned by a
    balancer, which calls `look_soon` when backends may be ready."""

    def __init__(self, context: ChannelContext, connections: Connections) -> None:
        config = context.config
        self._connections = connections
        self._label = context.label
        self._clock = context.clock
        self._size = SubsetSize(config.subset_size, config.max_subset_size)
        self._counted, self._counted_at = 0, context.clock()
        self._look = Alarm(context.tasks, self.look)
        self._rest = context.rest
        self._is_on = (
            config.subset != "whole" and config.max_subset_size > config.subset_size
        )
        if self._is_on:
            self._rest.looks.append(self._look_again)

    def look_soon(self) -> None:
        if self._is_on and not self._look.is_set():
            self._look.set(PAUSE)

    def look(self) -> None:
        # What was not served is in no report: calls that failed, or were given up.
        count, now = self._connections.attempts()[SERVED], self._clock()
        own, elapsed = count - self._counted, now - self._counted_at
        self._counted, self._counted_at = count, now
        pool = self._connections.pool
        ready = [one for one in pool.nodes.values() if one.state is State.READY]
        if elapsed > 0.0:
            rate, before = own / elapsed, self._size.size
            # Behind an address that several tasks share each speaks for itself alone.
            loads = [one.load for one in ready if not one.reported.is_shared()]
            size = self._size.observe(rate, loads, len(ready), len(pool.members), now)
            if size != before:
                self._resize(before, size, rate)
        # Without calls it shrinks, and then there is nothing to do.
        if ready and not (self._rest.is_on and self._size.is_least()):
            self.look_soon()

    def _look_again(self) -> None:
        if not self._look.is_set():
            self.look()

    def _resize(self, before: int, size: int, rate: float) -> None:
        logger.about(
            logging.INFO,
            "the subset has %d backends instead of %d, for %.0f requests/s",
            size,
            before,
            rate,
            channel=self._label,
            reason=f"{rate:.0f} requests/s",
        )
        self._connections.resize(size)

    def close(self) -> None:
        self._look.clear()

    def __repr__(self) -> str:
        return repr(self._size)
