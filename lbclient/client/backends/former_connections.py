"""The connections of one backend that were given up for new ones.

Their calls stay on them for a while, as they may yet be answered, and then end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from lbclient.core.load import Load
from lbclient.core.protocols import Clock
from lbclient.grpc_seam import give_up, has_calls

# How long calls may stay on a connection that was given up for a new one: a frozen task
# of ours may yet answer them. In health intervals, and in seconds at most; by default
# 60 s. A server that is not ours owes us no word, and a connection that was replaced as
# a second one is answered may just be full of long calls. Such calls are left until
# the core finds that nothing acknowledges them (`grpc_seam.inner_options`).
REPLACED_INTERVALS = 30
REPLACED_PERIOD = 60.0

# Seconds until a connection is looked at that may have no calls: by then the streams
# that watched its health have ended. If it has some, it is looked at again when it has
# been given up for twice as long, and at last when its time is over.
UNUSED_AFTER = 0.1
ROUNDING = 0.001  # seconds by which a timer may come too early, by the clock


@dataclass(slots=True)
class FormerConnection:
    """A connection that another one replaced. `is_left_to_core`: nothing says that it
    is dead, so its calls stay on it."""

    why: str
    given_up_at: float
    is_left_to_core: Callable[[], bool]
    timer: asyncio.TimerHandle


class FormerConnections:
    """Keeps replaced connections open for a while, so that their calls can be answered,
    and then ends them. Owned by a backend."""

    def __init__(
        self,
        address: str,
        health_interval: float,
        load: Load,
        clock: Clock,
    ) -> None:
        self._address = address
        self._period = min(REPLACED_PERIOD, REPLACED_INTERVALS * health_interval)
        self._load = load
        self._clock = clock
        self._former: dict[grpc.aio.Channel, FormerConnection] = {}

    def __len__(self) -> int:
        return len(self._former)

    def add(
        self,
        channel: grpc.aio.Channel,
        why: str,
        is_left_to_core: Callable[[], bool],
    ) -> None:
        """`is_left_to_core` is asked when its time is over. One without calls goes as
        soon as that is noticed."""
        # Not by a grace period: a channel whose close is cut short is never closed.
        timer = self._look_later(channel, UNUSED_AFTER)
        former = FormerConnection(why, self._clock(), is_left_to_core, timer)
        self._former[channel] = former

    def _look_later(
        self, channel: grpc.aio.Channel, seconds: float
    ) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, self._look, channel)

    def _look(self, channel: grpc.aio.Channel) -> None:
        former = self._former[channel]
        age = self._clock() - former.given_up_at
        left = self._period - age
        is_used = has_calls(channel, default=self._load.in_flight > 0)
        if is_used and left > ROUNDING:
            seconds = min(max(age, UNUSED_AFTER), left)
        elif is_used and former.is_left_to_core():
            seconds = self._period
        else:
            self.end(channel)
            return
        former.timer = self._look_later(channel, seconds)

    def end(self, channel: grpc.aio.Channel) -> None:
        """Ends the calls that are still on it, as UNAVAILABLE."""
        former = self._former.pop(channel)
        former.timer.cancel()
        ago = self._clock() - former.given_up_at
        give_up(
            channel,
            f"{self._address}: {former.why}; its connection was given up {ago:.1f} s "
            "ago, and has not answered this call since",
        )

    def end_all(self) -> None:
        for channel in list(self._former):
            self.end(channel)

    def release(self) -> list[grpc.aio.Channel]:
        """All of them, which the caller closes."""
        channels = list(self._former)
        for former in self._former.values():
            former.timer.cancel()
        self._former.clear()
        return channels

    def __repr__(self) -> str:
        return f"<{len(self)} given up at {self._address}>"
