"""One endpoint that we talk to: its connection, its health, and the I/O for both.

What any of it means is decided in `lifecycle`, and what follows for the channel by
its balancer; a backend watches, tells, and does as it is ordered. It has one task,
`follow`, which the balancer starts and cancels.
"""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from contextlib import suppress
from random import Random

import grpc

from lbclient import wire
from lbclient.demand import Attention
from lbclient.grpc_seam import lighten, step
from lbclient.health.check import check, reason_of
from lbclient.health.udp import Prober, Watch, locate
from lbclient.health.watch import HealthWatch
from lbclient.lifecycle import Lifecycle, Order, Step
from lbclient.load import Load
from lbclient.model import Endpoint, LoadReport, State, TaskState, Verdict
from lbclient.pace import Pace
from lbclient.protocols import Clock
from lbclient.tasks import leaving_no_trace

logger = logging.getLogger(__name__)

Dial = Callable[[Endpoint], grpc.aio.Channel]
Observe = Callable[["Backend", State, str], None]

READY = grpc.ChannelConnectivity.READY
OVER = grpc.ChannelConnectivity.SHUTDOWN

FAREWELL = 60.0  # seconds; a frozen task may yet answer the calls on the old one

# A connection that is lost ends its streams within a millisecond, or a few of a loop
# that is busy; streams that outlive that are those of one that said GOAWAY.
LAST_WORDS = 0.05  # seconds

LOOK_TIMEOUT = 5.0  # seconds, as for an attempt to connect


class Backend:
    """A node of the pool. `state` is written by the pool, the rest by itself.

    An inactive backend's `channel` is closed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        dial: Dial,
        observe: Observe,
        health_interval: float,
        clock: Clock,
        rng: Random,
        pace: Pace,
        prober: Callable[[], Prober],
    ) -> None:
        self.endpoint = endpoint
        self.life = Lifecycle(health_interval, rng)
        self.reason = "new"
        self.since = clock()
        self.trouble = ""  # why the connection was last out
        self.troubled_at = 0.0
        self.failed_with = 0  # the status of the last call that the backend failed
        self.load = Load()
        self.channel = lighten(dial(endpoint))
        # Reports are asked for twice as often as silence is judged, so that one that
        # is late is no silence.
        self.attention = Attention(health_interval / 2, clock())
        self.is_ours = False  # its server, as far as a health stream told
        self.udp_port = 0  # where it answers health checks, as it last told
        self._dial = dial
        self._observe = observe
        self._interval = health_interval
        self._clock = clock
        self._rng = rng
        self._pace = pace
        self._prober = prober
        self._former: dict[grpc.aio.Channel, asyncio.TimerHandle] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None
        self._doing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._watch: HealthWatch | None = None
        self._is_asked = asyncio.Event()  # to CHECK or to LOOK

    @property
    def state(self) -> State:
        return self.life.state

    @state.setter
    def state(self, state: State) -> None:
        self.life.state = state

    # --- what happens to it ---------------------------------------------------

    def hear(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        """Takes the task's own word, from a health report, or why it has none."""
        if state is not None:
            has_report = report is not None
            self._take(self.life.heard(state, has_report, self._clock(), reason))
        if report is not None:
            self.load.observe(report, self._clock())
        if self._watch is not None:
            self.is_ours = self._watch.is_ours
            if self.is_ours:
                self.udp_port = self._watch.udp_port

    def hear_by_udp(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        """As `hear`; without a state nobody answers there."""
        if state is None:
            self._take(self.life.not_told(self._clock()))
        else:
            self._take(self.life.told(state))
        if report is not None:
            self.load.observe(report, self._clock())

    def heed(self, is_leaving: bool) -> None:
        """Takes the resolver's word that it is about to, or is not any more."""
        self._take(self.life.leaves(is_leaving))

    def want(self) -> None:
        """A call may come: connects if no connection was wanted until now."""
        self._take(self.life.wanted())

    def miss_deadline(self, has_others: bool) -> None:
        """A call on it ended by its deadline; others are ready, or not."""
        now = self._clock()
        self.attention.hurry()
        self._keep_pace(now)
        served = self.load.counts[Verdict.SERVED]
        self._take(self.life.missed_deadline(served, has_others, now))

    def look(self, now: float) -> None:
        """How much it is called of late says how often it is to report."""
        self.attention.look(self.load.started, self.load.in_flight, now)
        self._keep_pace(now)

    def _keep_pace(self, now: float) -> None:
        interval = 2 * self.attention.every
        is_ours = self._watch is not None and self._watch.is_ours
        if is_ours and interval != self.life.interval and self._asking is not None:
            self.life.expect_every(interval, now)
            self._asking.cancel()
            self._set_alarm()

    def rest(self, now: float) -> None:
        """It is not called: no connection is kept for it."""
        idle = now - self.attention.used_at
        self._take(self.life.idle(idle, now, by_udp=self.udp_port > 0))

    def _take(self, decided: Step) -> None:
        # First what is to be done: to tell may lead to another decision.
        if decided.order is not None:
            self._obey(decided.order)
        if decided.state is not None:
            self._observe(self, decided.state, decided.reason)
        self._set_alarm()

    def _obey(self, order: Order) -> None:
        if order in (Order.CHECK, Order.LOOK):
            self._is_asked.set()
            return
        self._is_asked.clear()
        if self._doing is not None:
            self._doing.cancel()  # `follow` goes on with what is to be done now
        if order is Order.DISCONNECT:
            step(self.channel.close())
            return
        former, self.channel = self.channel, lighten(self._dial(self.endpoint))
        if order is Order.REDIAL:
            # One that may be dead is left to the calls that are still on it. Not by a
            # grace period: a channel whose close is cut short is never closed.
            loop = asyncio.get_running_loop()
            self._former[former] = loop.call_later(FAREWELL, self._leave, former)
            logger.info("%s: dialling again", self.endpoint.address)

    def _set_alarm(self) -> None:
        due = None if self._doing is None else self.life.due_at()
        if self._alarm is not None:
            if self._alarm_at == due:
                return
            self._alarm.cancel()
            self._alarm = None
        if due is not None:
            delay = max(0.0, due - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)
            self._alarm_at = due

    def _ring(self) -> None:
        self._alarm = None
        self._take(self.life.tick(self._clock(), self.load.reported_at))

    # --- what it does meanwhile -----------------------------------------------

    async def follow(self) -> None:
        """Connects, follows, connects again, or watches from afar; until cancelled."""
        try:
            while True:
                job = self._from_afar() if self.life.is_away() else self._connected()
                self._doing = leaving_no_trace(job)
                self._set_alarm()
                await _until_ended(self._doing)
                if not self.life.is_away() and self.channel.get_state() is OVER:
                    break  # closed, and not by us
        finally:
            self._doing = None
            self._set_alarm()

    async def _connected(self) -> None:
        """One connection, from its making to its end."""
        await self._connect()
        self._take(self.life.connected())
        self.attention.restart(self.load.started, self._clock())
        watch = self._watch = HealthWatch(self.channel, self.hear)
        jobs = (
            leaving_no_trace(self._follow_health(watch)),
            leaving_no_trace(self.channel.wait_for_state_change(READY)),
            leaving_no_trace(self._answer_doubts()),
        )
        try:
            ended, _ = await asyncio.wait(jobs, return_when=FIRST_COMPLETED)
            for job in ended:
                job.result()  # raises what made it end
            said_goaway = await self._outlives(watch)
        finally:
            self._watch = None
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
        self._take(self.life.sent_goaway() if said_goaway else self.life.lost())

    async def _outlives(self, watch: HealthWatch) -> bool:
        """Whether streams go on though the core wants another connection."""
        if watch.is_broken.is_set():
            return False
        self.channel.get_state(try_to_connect=True)  # at once: calls may wait
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await watch.is_broken.wait()
        return not watch.is_broken.is_set()

    async def _connect(self) -> None:
        """The core connects, again and again with its own jittered backoff."""
        channel = self.channel
        if channel.get_state() is not READY:
            await self._pace.wait_turn()
        while (connectivity := channel.get_state(try_to_connect=True)) is not READY:
            if connectivity is OVER:
                raise asyncio.CancelledError
            if (
                connectivity is grpc.ChannelConnectivity.TRANSIENT_FAILURE
                and self.state is not State.REFUSING
            ):
                reason = await self._why_refused()
                if channel.get_state() is not READY:
                    self._take(self.life.cannot_connect(reason))
                continue
            await channel.wait_for_state_change(connectivity)

    async def _why_refused(self) -> str:
        """The core tells its reason to a call that fails on it, and to nobody else."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        ask = self.channel.unary_unary(wire.CHECK_METHOD)
        try:
            await ask(b"", timeout=1.0)
        except grpc.aio.AioRpcError as error:
            return reason_of(error)
        return "cannot connect"

    async def _follow_health(self, watch: HealthWatch) -> None:
        """Begins again when a stream broke, and when `look` wants another pace."""
        while True:
            pause = self._interval / 2 * (0.8 + 0.4 * self._rng.random())
            every = self.attention.every
            self._asking = leaving_no_trace(watch.follow(every, pause))
            await _until_ended(self._asking)

    async def _answer_doubts(self) -> None:
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            health = await check(self.channel, self._interval, has_served=True)
            state = None if isinstance(health, str) else health.state
            self._take(self.life.checked(state, self._clock()))

    # --- without a connection -------------------------------------------------

    async def _from_afar(self) -> None:
        """Asks by UDP where that is answered, and looks over TCP when told to."""
        asking: Watch | None = None
        try:
            if self.udp_port:
                asking = await self._ask_by_udp(None)
                if asking is None:
                    self._take(self.life.not_told(self._clock()))
            while True:
                await self._is_asked.wait()
                self._is_asked.clear()
                await self._look()
                asking = await self._ask_by_udp(asking)
        finally:
            if asking is not None:
                self._prober().unwatch(asking)

    async def _ask_by_udp(self, asking: Watch | None) -> Watch | None:
        """Where it is now: a name may lead, and a new task listen, elsewhere."""
        host = await locate(self.endpoint) if self.udp_port else None
        if asking is not None:
            is_lost = host is None and self.udp_port > 0  # for now, perhaps
            if is_lost or asking.place == (host, self.udp_port):
                self._prober().ask_again(asking)
                return asking
            self._prober().unwatch(asking)
        if host is None:
            return None
        return self._prober().watch(host, self.udp_port, self.hear_by_udp)

    async def _look(self) -> None:
        await self._pace.wait_turn()
        channel = self._dial(self.endpoint)
        try:
            health = await check(channel, LOOK_TIMEOUT, has_served=True)
        finally:
            step(channel.close())
        now = self._clock()
        if isinstance(health, str):
            self._take(self.life.not_seen(health, now))
            return
        self.udp_port = health.udp_port
        self._take(self.life.seen(health.state, now))
        if health.report is not None:
            self.load.observe(health.report, now)

    # --- its end --------------------------------------------------------------

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


async def _until_ended(job: asyncio.Task[None]) -> None:
    """Raises what made it end, but not that it was cancelled; ends it if we are."""
    try:
        await asyncio.wait((job,))
    finally:
        if not job.done():
            job.cancel()
            await asyncio.wait((job,))
    if not job.cancelled():
        job.result()
