"""One endpoint that we talk to: its connection, its state, its health.

A backend does no more than watch and tell; its balancer decides what follows. It
has one task, `follow`, which the balancer starts and cancels.
"""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from lbclient import wire
from lbclient.grpc_seam import lighten, step
from lbclient.health import watch
from lbclient.load import Load
from lbclient.model import Endpoint, LoadReport, State, TaskState
from lbclient.pace import Pace
from lbclient.protocols import Clock
from lbclient.tasks import leaving_no_trace

logger = logging.getLogger(__name__)

Dial = Callable[[Endpoint], grpc.aio.Channel]
Observe = Callable[["Backend", State, str], None]

READY = grpc.ChannelConnectivity.READY

# After so many health intervals of silence a connection is given up for a new one. A
# healed network carries on with the old one only when TCP tries again, which after a
# minute's silence may take another.
REDIAL_INTERVALS = 3

FAREWELL = 60.0  # seconds; a frozen task may yet answer the calls on the old one

STATE_OF_TASK = {
    TaskState.STARTING: State.STARTING,
    TaskState.SERVING: State.READY,
    TaskState.LAME_DUCK: State.LAME_DUCK,
}


class Backend:
    """A node of the pool. `state` is written by the pool, the rest by itself."""

    def __init__(
        self,
        endpoint: Endpoint,
        dial: Dial,
        observe: Observe,
        health_interval: float,
        clock: Clock,
        rng: Random,
        pace: Pace,
    ) -> None:
        self.endpoint = endpoint
        self.state = State.CONNECTING
        self.reason = "new"
        self.since = clock()
        self.load = Load()
        self.channel = lighten(dial(endpoint))
        self._dial = dial
        self._given_up = asyncio.Event()
        self._former: dict[grpc.aio.Channel, asyncio.TimerHandle] = {}
        self._observe = observe
        self._interval = health_interval
        self._clock = clock
        self._rng = rng
        self._pace = pace
        self._silence: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None

    def hear(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        """Takes the task's own word, from a health report, or why it has none."""
        if state is not None:
            said = state.name.lower().replace("_", " ")
            self._observe(self, STATE_OF_TASK[state], reason or f"it says {said}")
        if report is not None:
            self.load.observe(report, self._clock())
        if state is not None and report is None:
            self._end_silence()  # not ours: it speaks only when something changes
        elif state is not None and self._silence is None:
            self._judge_silence_in(self._interval)

    def _end_silence(self) -> None:
        for timer in (self._silence, self._patience):
            if timer is not None:
                timer.cancel()
        self._silence = self._patience = None

    def _judge_silence_in(self, delay: float) -> None:
        self._end_silence()
        loop = asyncio.get_running_loop()
        due = self._clock() + delay
        self._silence = loop.call_later(delay, self._judge_silence, due)

    def _judge_silence(self, due: float) -> None:
        """Frozen, overloaded or cut off: no calls until its next word."""
        now = self._clock()
        silent = now - self.load.reported_at
        if silent < self._interval:
            self._judge_silence_in(self._interval - silent)
        elif now - due > self._interval / 4:
            # It was us who stood still; its word may lie unread.
            self._judge_silence_in(self._interval / 2)
        else:
            self._silence = None  # its next word starts the watch again
            self._observe(self, State.CONNECTING, f"silent for {silent:.1f} s")
            loop = asyncio.get_running_loop()
            left = (REDIAL_INTERVALS - 1) * self._interval
            self._patience = loop.call_later(left, self._given_up.set)

    async def follow(self) -> None:
        """Connects, follows, connects again; until cancelled."""
        while True:
            await self._connected()
            self._given_up.clear()
            jobs = (
                leaving_no_trace(self._follow_health()),
                leaving_no_trace(self.channel.wait_for_state_change(READY)),
                leaving_no_trace(self._wait_given_up()),
            )
            try:
                ended, _ = await asyncio.wait(jobs, return_when=FIRST_COMPLETED)
                for job in ended:
                    job.result()  # raises what made it end
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.wait(jobs)
            self._observe(self, State.CONNECTING, "connection lost")
            if self._given_up.is_set():
                self._dial_again()

    async def _wait_given_up(self) -> None:
        await self._given_up.wait()

    def _dial_again(self) -> None:
        """Leaves a connection that may be dead to the calls that are still on it."""
        former, self.channel = self.channel, lighten(self._dial(self.endpoint))
        # Not by a grace period: a channel whose close is cut short is never closed.
        loop = asyncio.get_running_loop()
        self._former[former] = loop.call_later(FAREWELL, self._leave, former)
        logger.info("%s: dialling again", self.endpoint.address)

    async def _connected(self) -> None:
        """The core connects, again and again with its own jittered backoff."""
        channel = self.channel
        if channel.get_state() is not READY:
            await self._pace.wait_turn()
        while (connectivity := channel.get_state(try_to_connect=True)) is not READY:
            if connectivity is grpc.ChannelConnectivity.SHUTDOWN:
                raise asyncio.CancelledError
            if (
                connectivity is grpc.ChannelConnectivity.TRANSIENT_FAILURE
                and self.state is not State.REFUSING
            ):
                reason = await self._why_refused()
                if channel.get_state() is not READY:
                    self._observe(self, State.REFUSING, reason)
                continue
            await channel.wait_for_state_change(connectivity)

    async def _why_refused(self) -> str:
        """The core tells its reason to a call that fails on it, and to nobody else."""
        check: Any = self.channel.unary_unary(wire.CHECK_METHOD)
        try:
            await check(b"", timeout=1.0)
        except grpc.aio.AioRpcError as error:
            details = error.details() or ""
            return f"cannot connect: {details.rpartition('last error: ')[2]}"
        return "cannot connect"

    async def _follow_health(self) -> None:
        # Twice as often as silence is judged, so that one late report is no silence.
        interval = self._interval / 2
        try:
            while True:
                pause = interval * (0.8 + 0.4 * self._rng.random())
                await watch.follow(self.channel, interval, pause, self.hear)
        finally:
            self._end_silence()

    def _leave(self, former: grpc.aio.Channel) -> None:
        self._former.pop(former).cancel()
        step(former.close())  # without grace it does not wait

    def close_now(self) -> None:
        """Ends the connection and the calls that are still on it."""
        for former in list(self._former):
            self._leave(former)
        step(self.channel.close())

    async def close(self, grace: float | None) -> None:
        channels = [self.channel, *self._former]
        for farewell in self._former.values():
            farewell.cancel()
        self._former.clear()
        await asyncio.gather(*(channel.close(grace) for channel in channels))

    def __repr__(self) -> str:
        return (
            f"<{self.endpoint.address} {self.state.value}, "
            f"{self.load.in_flight} in flight>"
        )
