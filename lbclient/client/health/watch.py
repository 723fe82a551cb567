"""Follows one backend's health over its connection: our protocol, grpc.health.v1, ORCA.

`lbclient.v1.BackendHealth` tells state and load. A server that is not ours is asked
for its state by `grpc.health.v1`'s unary `Check`, now and then, and sends its load by
ORCA's out-of-band stream; one that offers neither is taken to be serving as long as it
is connected. Where streams block calls any server is asked by unary checks alone.
"""

import asyncio
from collections.abc import Callable

import grpc

from lbclient.client.health.check_turns import CheckTurns, Traffic
from lbclient.client.health.connection_health import ConnectionHealth, TellState
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.own_stream import OwnStream
from lbclient.client.health.refused_services import Refusals
from lbclient.client.health.repeated_checks import RepeatedChecks
from lbclient.client.health.standard_streams import StandardStreams
from lbclient.client.health.stream_checks import StreamChecks
from lbclient.client.health.streams import NotOfferedError, Streams
from lbclient.core.backends.stream_permit import StreamPermit

SWITCHED_OFF = "it is connected, and health checks are off (health)"


class HealthWatch:
    """Watches the health of one backend over one connection. Only read `health` and
    `streams`.

    `turns` has it checked, at once or at another pace.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        tell: TellState,
        permit: StreamPermit,
        traffic: Traffic,
        kind: str,
        is_shared: Callable[[], bool],
        owes_nothing: Callable[[], None],
        refusals: Refusals,
        backoff: HealthBackoff,
        unheard: Callable[[], None],
    ) -> None:
        """`kind` is `ChannelConfig.health`; `is_shared` tells whether several tasks
        answer there, and `owes_nothing` is told that no reports are due now. `unheard`
        is as of `Streams`."""
        self.health = ConnectionHealth(tell, is_shared, refusals)
        self.streams = Streams(channel, refusals, backoff, unheard)
        self.turns = CheckTurns(self.health, self.streams, traffic)
        self._checks = StreamChecks(
            channel,
            self.health,
            self.streams,
            self.turns,
            permit,
            owes_nothing,
            backoff,
        )
        self._own_stream = OwnStream(
            self.health, self.streams, self.turns, self._checks
        )
        standard = StandardStreams(self.health, self.streams, self._checks)
        self._repeated = RepeatedChecks(self.health, standard, self.turns, self._checks)
        self._kind = kind
        self._owes_nothing = owes_nothing

    async def follow(self, interval: float, pause: float) -> None:
        """Tells every state and report; ends `pause` after streams broke or were ended.

        A server of ours tells state and report together, every `interval`. Others are
        asked as often.
        """
        health, checks = self.health, self._checks
        self.turns.every = interval
        checks.has_ended_streams = False
        if self._kind == "off":
            health.assume_serving(SWITCHED_OFF)
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        if not checks.permit.may_stream(loop.time()):
            await self._repeated.follow_without_streams(pause)
            return
        began_at, is_other = loop.time(), False
        try:
            pause = await self._own_stream.follow(interval, pause)
        except NotOfferedError:
            is_other = True
        if is_other:
            health.is_other = True
            # Not above: as long as an error is handled its frames keep the call, which
            # keeps the connection open.
            checks.patience.start(loop.time() - began_at, pause)
            await self._repeated.follow(self._kind == "watch", pause)
        if (
            health.is_shared()
            and not self._own_stream.refusals
            and not checks.has_ended_streams
        ):
            # Another task can answer at once.
            self._owes_nothing()
            pause = health.pause_for_another_task(pause)
        await asyncio.sleep(pause)

    def __repr__(self) -> str:
        return f"<{self.health!r}, {self.streams!r}>"
