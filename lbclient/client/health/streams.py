"""The streams of health and load on one connection: read, counted, and told apart.

A stream that was begun takes one of the connection's streams. It has spoken once its
first message came.

A stream that sends more than is of use is ended, and begun again after a moment: its
first message is then the last value. To read it slowly would not do: flow control lets
64 KiB of small messages through, which would be read minutes late.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from math import inf

import grpc

from lbclient import wire
from lbclient.background.flag import Flag
from lbclient.background.tasks import is_cancelled
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.refused_services import Refusals
from lbclient.client.health.statuses import (
    NOT_OFFERED_CODES,
    PASSING,
    UNHEARD,
    status_of,
)
from lbclient.core.backoff import Backoff
from lbclient.core.counting.allowance import Allowance
from lbclient.core.text import printable
from lbclient.grpc_seam import answer_of, without_interceptors
from lbclient.log import Log

logger = Log(__name__)

# A connection that is lost ends its streams within a millisecond, or a few of a loop
# that is busy; streams that outlive that are those of one that said GOAWAY.
STREAM_END_GRACE = 0.05  # seconds

# Messages a second of one method's streams that are read, and how many at once. One of
# lbclient's servers reports 10 times a second at most. A client that stood still for
# 20 s finds what came meanwhile.
RATE, BURST = 20.0, 200.0
FLOOD_PAUSE = 0.25  # seconds until a stream that sent more is begun again

LONGEST_PAUSE = 60.0  # seconds; after a refusal, of pauses that double


class FloodError(Exception):
    """A stream sends more than is of use."""


class NotOfferedError(Exception):
    """The server answers, but does not know this kind of health check."""


class TaskNotServing(Exception):
    """One of several tasks behind this address is not serving; others may be."""


class RefusedError(Exception):
    """The server has no room for the stream; `report` is what it says of itself."""

    def __init__(self, method: str, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{method}: {printable(error.details() or '')}")
        self.report = wire.find_report(error.trailing_metadata())


class Streams:
    """Reads health and load streams on one connection, and counts them. Owned by a
    health watch. `begun` streams are not over; `open` streams have sent a message.

    `is_broken` is set while no stream is open.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        refusals: Refusals,
        backoff: HealthBackoff,
        unheard: Callable[[], None],
    ) -> None:
        """`unheard` is told when a stream ends over a connection that lives, with a
        status as of a proxy that reaches nobody."""
        self.begun = 0
        self.open = 0
        self.spoke_at = -inf  # by the loop's time
        self.is_broken = Flag()
        self.is_broken.set()
        self._channel = channel
        self._refusals = refusals
        self._backoff = backoff
        self._unheard = unheard
        self._offered = set[str]()  # methods that have spoken
        self._reads = defaultdict[str, Allowance](lambda: Allowance(BURST, RATE))

    async def follow(
        self, method: str, request: bytes, take: Callable[[bytes], None]
    ) -> bool:
        """Hands on the raw messages of a stream until it ends or breaks.

        Returns whether there was one. Raises RefusedError and NotOfferedError. A method
        that has spoken is offered: then a status is one more way to break.
        """
        while True:
            try:
                return await self._follow(method, request, take)
            except FloodError:
                logger.debug("%s sends too much; it is begun again", method)
                await asyncio.sleep(FLOOD_PAUSE)

    async def _follow(
        self, method: str, request: bytes, take: Callable[[bytes], None]
    ) -> bool:
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        stream = without_interceptors(self._channel.unary_stream(method))
        await self._backoff.wait_turn()
        call = stream(request)
        self.begun += 1
        has_spoken = False
        try:
            while isinstance(message := await self._read(call, method), bytes):
                if not has_spoken:
                    has_spoken = True
                    self._refusals.answered(method)
                    self._backoff.answered()
                    self._count(1)
                self.spoke_at = asyncio.get_running_loop().time()
                take(message)
                self._offered.add(method)
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), printable(error.details() or "")
            if not has_spoken:
                self._note(method, error)
            if not has_spoken and code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise RefusedError(method, error) from None
            is_unknown = code in NOT_OFFERED_CODES and not has_spoken
            if is_unknown or (method not in self._offered and code not in PASSING):
                raise NotOfferedError(f"{method}: {details}") from None
            logger.debug("%s ended: %s", method, details, reason=details)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            logger.debug("%s ended: its channel was closed", method)
        finally:
            call.cancel()
            self.begun -= 1
            if has_spoken:
                self._count(-1)
        return has_spoken

    async def _read(
        self, call: grpc.aio.UnaryStreamCall[bytes, bytes], method: str
    ) -> object:
        if not self._reads[method].take(asyncio.get_running_loop().time()):
            raise FloodError
        return await answer_of(call, call.read())

    def _note(self, method: str, error: grpc.aio.AioRpcError) -> None:
        """A stream ended before its first message. One of ours that has no room for it
        tells its state with that."""
        self._backoff.ended(error.code())
        has_told = wire.find_report(error.trailing_metadata()) is not None
        if error.code() in NOT_OFFERED_CODES or has_told:
            self._refusals.answered(method)
        elif self._channel.get_state() is grpc.ChannelConnectivity.READY:
            # Else it ended with its connection.
            self._refusals.refused(method, status_of(error))
            if error.code() in UNHEARD:
                self._unheard()

    def _count(self, more: int) -> None:
        self.open += more
        if self.open:
            self.is_broken.clear()
        else:
            self.is_broken.set()

    def __repr__(self) -> str:
        return f"<{self.begun} streams, {self.open} have spoken>"


def longer(pause: float, refusals: int) -> float:
    """The pause after so many refusals in a row."""
    return Backoff(pause, max(pause, LONGEST_PAUSE)).after(1 + refusals)


def longer_for(is_serving: bool, pause: float, refusals: int) -> float:
    """The same for a backend's state. One that does not serve is asked often: nobody
    else tells when that ends."""
    return longer(pause, refusals if is_serving else min(refusals, 3))
