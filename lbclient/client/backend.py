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
from typing import Protocol

import grpc

from lbclient import wire
from lbclient.background.tasks import is_fatal, leaving_no_trace
from lbclient.client.connect_pacer import Pace
from lbclient.client.former_connections import FormerConnections
from lbclient.client.health.check import check, reason_of
from lbclient.client.health.udp import Prober, Watch, locate
from lbclient.client.health.watch import HealthWatch
from lbclient.core.demand import Attention
from lbclient.core.lifecycle import Lifecycle, Order, Step
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, LoadReport, State, TaskState, Verdict
from lbclient.core.protocols import Clock
from lbclient.core.shared_address import SharedAddress
from lbclient.core.stream_permit import StreamPermit
from lbclient.grpc_seam import PINGED, Options, give_up, lighten, step

logger = logging.getLogger(__name__)

Observe = Callable[["Backend", State, str], None]


class Dial(Protocol):
    """Makes an inner channel; `more` are options beyond those of all of them."""

    def __call__(self, endpoint: Endpoint, more: Options = ...) -> grpc.aio.Channel: ...


READY = grpc.ChannelConnectivity.READY
OVER = grpc.ChannelConnectivity.SHUTDOWN

# What an answer to a health check that tells no state leaves as it is.
TASK_STATE = {
    State.STARTING: TaskState.STARTING,
    State.LAME_DUCK: TaskState.LAME_DUCK,
}

# A connection that is lost ends its streams within a millisecond, or a few of a loop
# that is busy; streams that outlive that are those of one that said GOAWAY.
LAST_WORDS = 0.05  # seconds

LOOK_TIMEOUT = 5.0  # seconds, as for an attempt to connect

# An answer may take so many times as long as the connecting did. TCP and HTTP/2 take
# two round trips, TLS one or two more; a question takes one for each health service.
ANSWER_PER_CONNECT = 3


class Backend:
    """A node of the pool. `state` is written by the pool, the rest by itself.

    There is a `channel` from the first step of `follow` on. An inactive backend's is
    closed.
    """

    channel: grpc.aio.Channel

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
        has_others: Callable[["Backend", bool], bool],
        health: str = "auto",
    ) -> None:
        self.endpoint = endpoint
        self.life = Lifecycle(health_interval, rng)
        self.reason = "new"
        self.since = clock()
        self.trouble = ""  # why the connection was last out
        self.troubled_at = 0.0
        # The status of the last call that is held against the backend, and when it was.
        self.failed_with = 0
        self.failed_at = 0.0
        self.load = Load()
        # Reports are asked for twice as often as silence is judged, so that one that
        # is late is no silence.
        self.attention = Attention(health_interval / 2, clock())
        self.is_ours = False  # its server, as far as a health stream told
        self.udp_port = 0  # where it answers health checks, as it last told
        self.permit = StreamPermit()
        self.shared_address = SharedAddress()
        self.task_id = (
            0  # of the last answer; -1: all are heard, as several tasks answer
        )
        self._health = health
        self._dial = dial
        self._observe = observe
        self._interval = health_interval
        self._clock = clock
        self._rng = rng
        self._pace = pace
        self._prober = prober
        self._has_others = has_others
        self._patience = health_interval  # for an answer over the connection
        self._former = FormerConnections(
            endpoint.address, health_interval, self.load, clock
        )
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None
        self._doing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked_every = health_interval / 2
        self._watch: HealthWatch | None = None
        self._is_asked = asyncio.Event()  # to CHECK
        self._asked_at = 0.0  # by the loop's time
        self._connected_at = 0.0
        self._is_to_look = asyncio.Event()
        self._is_kept = asyncio.Event()  # not draining
        self._is_kept.set()
        self._failure: BaseException | None = None  # of a timer

    @property
    def state(self) -> State:
        return self.life.state

    @state.setter
    def state(self, state: State) -> None:
        self.life.state = state

    def tells_refusals(self) -> bool:
        """Whether gRPC's words for a stream that its server refused are to be believed:
        where no handler says the same, or we have just caused it."""
        now = asyncio.get_running_loop().time()
        return self.is_ours or self.permit.has_just_ended(now)

    # --- what happens to it ---------------------------------------------------

    def hear(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> bool:
        """Takes the task's own word, from a health report, or why it has none.

        Returns whether the state is believed.
        """
        if report is not None:
            self._learn(report, self._clock(), self._clock())
        is_believed = state is None or self._believes(state)
        if state is not None and is_believed:
            has_report = report is not None
            self._take(self.life.heard(state, has_report, self._clock(), reason))
        if report is not None:
            self.load.observe(self._of_address(report), self._clock())
        if self._watch is not None:
            told = self._watch.told
            self.is_ours = told.is_ours
            if self.is_ours:
                # Behind one address for several tasks UDP goes nobody knows where.
                self.udp_port = 0 if self.is_shared() else told.udp_port
            self._expect_reports(self._watch)
        return is_believed

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

    def hear_answer(self, report: LoadReport, sent_at: float, now: float) -> None:
        """Takes the report in an answer to a call, where it is news: of another task
        than the last one, or of a lame duck."""
        if sent_at >= self._connected_at:
            self._learn(report, sent_at, now)
        if self.is_shared():
            self.load.observe(self._of_address(report), now)
        elif report.state is TaskState.LAME_DUCK and sent_at >= self.since:
            self._take(self.life.told_by_answer(now))  # else of the task before

    def _learn(self, report: LoadReport, sent_at: float, now: float) -> None:
        is_news = self.shared_address.observe(report, sent_at, now)
        self.task_id = -1 if self.shared_address.is_shared(now) else report.task_id
        if is_news:
            logger.info("%s: it fronts several tasks", self.endpoint.address)

    def is_shared(self) -> bool:
        """Whether several tasks answer there."""
        return self.shared_address.is_shared(self._clock())

    def _of_address(self, report: LoadReport) -> LoadReport:
        """One task's report, or of several tasks the mean of their reports."""
        now = self._clock()
        mean = (
            self.shared_address.mean(now)
            if self.shared_address.is_shared(now)
            else None
        )
        return report if mean is None else mean

    def _believes(self, state: TaskState) -> bool:
        """The one filter for what a task says over the connection, or beside it."""
        return self.shared_address.believes(state, self._clock())

    def _believed(self, health: wire.Health) -> tuple[TaskState, str]:
        """State and reason. Of an answer that is not believed: at least the address
        lives."""
        if self._believes(health.state):
            return health.state, health.reason
        return TaskState.SERVING, ""

    def _known(self) -> TaskState:
        """Its last state, for answers to health checks that tell none."""
        return TASK_STATE.get(self.state, TaskState.SERVING)

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
        self._keep_pace()
        if self._watch is not None:
            self._watch.turns.ask_now()
        served = self.load.counts[Verdict.SERVED]
        self._take(self.life.missed_deadline(served, has_others, now))

    def look(self, now: float) -> None:
        """How much it is called of late says how often it is to report, and calls that
        wait have it asked whether it is there."""
        load = self.load
        self.attention.look(load.started, load.in_flight, now)
        self._keep_pace()
        if self._watch is not None:
            self._watch.turns.look()
        self._take(self.life.look_at_calls(*self._traffic(), now))

    def _traffic(self) -> tuple[int, int]:
        """Calls in flight, and those that it ever answered."""
        counts = self.load.counts
        return self.load.in_flight, counts[Verdict.SERVED] + counts[Verdict.REJECTED]

    def _keep_pace(self) -> None:
        watch, every = self._watch, self.attention.every
        if watch is None or self._asking is None:
            return
        watch.turns.ask_every(every)
        if not watch.told.is_ours:
            return
        # A stream that is broken or refused is asked for again when its pause is over.
        if every != self._asked_every and not watch.streams.is_broken.is_set():
            self._asked_every = every
            self._asking.cancel()
            self._expect_reports(watch)

    def _expect_reports(self, watch: HealthWatch) -> None:
        """A server that has many streams reports less often than it is asked to."""
        interval = 2 * max(self._asked_every, watch.told.floor)
        if interval != self.life.interval:
            self.life.expect_every(interval, self._clock())
            self._set_alarm()

    def rest(self, now: float) -> None:
        """It is not called: no connection is kept for it."""
        idle = now - self.attention.used_at
        self._take(self.life.idle(idle, now, by_udp=self.udp_port > 0))

    def _take(self, decided: Step) -> None:
        # First what is to be done: to tell may lead to another decision.
        if decided.order is not None:
            self._obey(decided.order, decided.reason or self.reason)
        if decided.state is not None:
            self._observe(self, decided.state, decided.reason)
        elif decided.reason and decided.reason != self.reason:
            self.reason = decided.reason
            logger.info("%s: %s", self.endpoint.address, self.reason)
        self._set_alarm()

    def _obey(self, order: Order, reason: str) -> None:
        if order is Order.CHECK:
            self._is_asked.set()
            return
        if order is Order.LOOK:
            self._is_to_look.set()
            return
        self._is_asked.clear()
        self._is_to_look.clear()
        if self._doing is not None:
            self._doing.cancel()  # `follow` goes on with what is to be done now
        if order is Order.DISCONNECT:
            give_up(self.channel, f"{self.endpoint.address} was disconnected: {reason}")
            return
        watch, former = self._watch, self.channel
        if order is Order.REPLACE and watch and watch.streams.spoke_at > self._asked_at:
            # The stream lives, and beside it nothing was answered.
            now = asyncio.get_running_loop().time()
            self.permit.record_ended(1, self.load.in_flight, now)
            self.permit.suspend(now)
        self.channel = lighten(self._dial(self.endpoint))
        if order in (Order.REDIAL, Order.REPLACE):
            # One that may be dead is left to the calls that are still on it.
            may_be_full = order is Order.REPLACE
            self._former.add(former, reason, lambda: may_be_full or not self.is_ours)
            if self._is_kept.is_set():
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
        try:
            self._take(self.life.tick(self._clock(), self.load.reported_at))
        except BaseException as error:
            if is_fatal(error) or self._doing is None:
                raise
            # Then `follow` fails with it, and begins anew.
            self._failure = error
            self._doing.cancel()

    # --- what it does meanwhile -----------------------------------------------

    async def follow(self) -> None:
        """Connects, follows, connects again, or watches from afar; until cancelled.

        While it drains it follows the connection that it has, and makes no other.
        Raises what makes it fail, and can then be begun again.
        """
        try:
            while True:
                if not self.life.is_connected():
                    await self._is_kept.wait()
                self._redial_if_closed()
                job = self._from_afar() if self.life.is_away() else self._connected()
                self._doing = leaving_no_trace(job)
                self._set_alarm()
                await _until_ended(self._doing)
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
        finally:
            self._doing = None
            self._set_alarm()

    def _redial_if_closed(self) -> None:
        """At first, and where somebody else has closed the channel."""
        is_dialled = hasattr(self, "channel")
        if is_dialled and (self.life.is_away() or self.channel.get_state() is not OVER):
            return
        self.channel = lighten(self._dial(self.endpoint))
        if is_dialled:
            logger.warning("%s: its channel was closed", self.endpoint.address)
            self._take(self.life.lost())

    async def _connected(self) -> None:
        """One connection, from its making to its end."""
        await self._connect()
        if self.channel.get_state() is OVER:
            return
        self._take(self.life.connected(self._clock(), self._patience))
        self.attention.restart(self.load.started, self._clock())
        self._connected_at = self._clock()
        self.shared_address.connected()
        self.task_id = -1 if self.is_shared() else 0
        watch = self._watch = HealthWatch(
            self.channel,
            self.hear,
            self.permit,
            self._traffic,
            self._health,
            self.is_shared,
            self.life.owes_nothing,
        )
        jobs = (
            leaving_no_trace(self._follow_health(watch)),
            leaving_no_trace(self.channel.wait_for_state_change(READY)),
            leaving_no_trace(self._answer_doubts()),
            leaving_no_trace(self._look_beside()),
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
        """Whether streams, or calls, go on though the core wants another connection."""
        has_calls = self.load.in_flight > 0 and not self._former
        if watch.streams.is_broken.is_set() and not has_calls:
            return False
        # At once: calls may wait.
        self.channel.get_state(try_to_connect=self._is_kept.is_set())
        if watch.streams.is_broken.is_set():
            return await self._calls_outlive()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await watch.streams.is_broken.wait()
        return not watch.streams.is_broken.is_set()

    async def _calls_outlive(self) -> bool:
        for _ in range(10):
            if not self.load.in_flight:
                return False
            await asyncio.sleep(LAST_WORDS / 10)
        return self.load.in_flight > 0

    async def _connect(self) -> None:
        """The core connects, again and again with its own jittered backoff."""
        channel = self.channel
        if channel.get_state() is not READY:
            await self._pace.wait_turn()
        began_at = self._clock()
        while (connectivity := channel.get_state(try_to_connect=True)) is not READY:
            if connectivity is OVER:
                return  # which `follow` sees
            if connectivity is grpc.ChannelConnectivity.CONNECTING:
                began_at = self._clock()  # this attempt
            if (
                connectivity is grpc.ChannelConnectivity.TRANSIENT_FAILURE
                and self.state is not State.REFUSING
            ):
                reason = await self._why_refused()
                if channel.get_state() is not READY:
                    self._take(self.life.cannot_connect(reason))
                continue
            await channel.wait_for_state_change(connectivity)
        took = min(self._clock() - began_at, LOOK_TIMEOUT)  # the loop may stand still
        self._patience = max(self._interval, ANSWER_PER_CONNECT * took)

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
            every = self._asked_every = self.attention.every
            self._asking = leaving_no_trace(watch.follow(every, pause))
            await _until_ended(self._asking)

    async def _answer_doubts(self) -> None:
        late = 1.25 * self._patience
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            self._asked_at = asyncio.get_running_loop().time()
            began_at = self._clock()
            health = await check(self.channel, self._patience, self._known())
            if isinstance(health, str) and self._clock() - began_at > late:
                # It was us who stood still, perhaps before the question was sent.
                health = await check(self.channel, self._patience, self._known())
            if isinstance(health, str):
                self._take(self.life.checked(None, self._clock()))
            else:
                state, reason = self._believed(health)
                self._take(self.life.checked(state, self._clock(), reason))

    async def _look_beside(self) -> None:
        """Asks over a second connection whether the first one is worth waiting for."""
        while True:
            await self._is_to_look.wait()
            self._is_to_look.clear()
            if self._is_kept.is_set():  # else no other connection is wanted
                await self._look()

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
                await self._is_to_look.wait()
                self._is_to_look.clear()
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
        channel = self._dial(self.endpoint, PINGED)
        try:
            health = await check(channel, LOOK_TIMEOUT, self._known())
            is_there = isinstance(health, str) and await _stays_ready(channel)
        finally:
            step(channel.close())
        now = self._clock()
        if isinstance(health, str):
            has_others = self._has_others(self, is_there)
            self._take(self.life.not_seen(health, now, is_there, has_others))
            return
        is_away = self.life.is_away()
        state, reason = self._believed(health)
        self._take(self.life.seen(state, now, reason))
        if is_away:
            self.udp_port = health.udp_port
            if health.report is not None:
                self.load.observe(health.report, now)

    # --- its end --------------------------------------------------------------

    def drain(self) -> None:
        """It gets no new calls, and no new connection, but is watched until it is
        closed or kept."""
        self._is_kept.clear()
        if self._doing is not None and not self.life.is_connected():
            self._doing.cancel()

    def keep(self) -> None:
        """It is wanted after all, and goes on as it was."""
        self._is_kept.set()

    def close_now(self, reason: str = "it was drained") -> None:
        """Ends the connection, and as UNAVAILABLE the calls that are still on it."""
        self._former.end_all()
        if hasattr(self, "channel"):
            give_up(self.channel, f"{self.endpoint.address}: {reason}")

    async def close(self, grace: float | None) -> None:
        channels = self._former.release()
        if hasattr(self, "channel"):
            channels.append(self.channel)
        await asyncio.gather(*(channel.close(grace) for channel in channels))

    def __repr__(self) -> str:
        return (
            f"<{self.endpoint.address} {self.state.value}, "
            f"{self.load.in_flight} in flight>"
        )


async def _stays_ready(channel: grpc.aio.Channel) -> bool:
    """Whether it is connected; a call can end a moment before that is known."""
    if channel.get_state() is READY:
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await channel.wait_for_state_change(READY)
    return channel.get_state() is READY


async def _until_ended(job: asyncio.Task[None]) -> None:
    """Raises what made it end, but not that it was cancelled; ends it if we are.

    A CancelledError that nobody asked for is raised.
    """
    try:
        await asyncio.wait((job,))
    finally:
        if not job.done():
            job.cancel()
            await asyncio.wait((job,))
    if not (job.cancelled() and job.cancelling()):
        job.result()
