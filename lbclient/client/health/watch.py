"""Follows one backend's health over its connection, by the best means it offers.

`lbclient.v1.BackendHealth` tells state and load. A server that is not ours is asked
for its state by `grpc.health.v1`'s unary `Check`, now and then, and sends its load by
ORCA's out-of-band stream; one that offers neither is taken to be serving as long as it
is connected.

A stream takes a stream of the connection from calls, and in a server of threads a
thread. So a `Check` beside it also tells whether our streams are in the way of calls:
if it is not answered the streams are ended (see `stream_permit`). A server of ours is
checked so where calls wait and none is answered.

A server may have no room for another stream. Then it is asked for a stream again and
again, with pauses that grow, and what it says with each refusal, or when it is asked
once, is its state meanwhile. That is no silence: it owes no reports.
"""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Protocol

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.background.tasks import leaving_no_trace
from lbclient.client.health.check import (
    NoState,
    ask,
    ask_serving,
    check,
    serving_reason,
    serving_state,
)
from lbclient.client.health.streams import (
    NotOfferedError,
    RefusedError,
    Streams,
    TaskNotServing,
)
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.stream_permit import LONGEST_ANSWER, CheckPatience, StreamPermit
from lbclient.v1 import compat_pb2, health_pb2

logger = logging.getLogger(__name__)


class Tell(Protocol):
    """Where what is learned goes; `reason` where the task did not say it itself.

    Returns whether the state is believed. It is not if the address fronts several
    tasks and only one of them says so: then another task is to be asked.
    """

    def __call__(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> bool: ...


NO_SERVICE = "it is connected and has no health service"
CHECK_FAILED = "it is connected, and fails health checks with a status"
NO_ROOM = "it answers, and has no room for a health stream"
ASKED = "polled by unary health checks: streams blocked calls"
SWITCHED_OFF = "it is connected, and health checks are off (health)"
LONGEST_PAUSE = 60.0  # seconds; after a refusal, of pauses that double
# Seconds before a stream to another task of several; doubles each time.
REOPEN_AFTER = 0.05
LEAST_PAUSE = 0.1  # seconds between two questions to a server that is not ours
# Seconds between two checks beside a stream of ours while the same calls wait.
RAREST_CHECK = 30.0


class HealthWatch:
    """One backend's, over one connection. `udp_port` is what it last told of that.

    `is_ours` once it spoke as our servers do, which report every so often.
    `floor` is the time between two reports, in seconds, that it last held us to.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        tell: Tell,
        permit: StreamPermit,
        traffic: Callable[[], tuple[int, int]],
        kind: str = "auto",
        is_shared: Callable[[], bool] = lambda: False,
        owes_nothing: Callable[[], None] = lambda: None,
    ) -> None:
        """`traffic` tells how many calls are in flight, and how many were ever
        answered; `kind` is `ChannelConfig.health`; `is_shared` tells whether several
        tasks answer there, and `owes_nothing` is told that no reports are due now."""
        self.udp_port = 0
        self.floor = 0.0
        self.is_ours = False
        self.streams = Streams(channel)
        self._channel = channel
        self._tell = tell
        self._permit = permit
        self._traffic = traffic
        self._kind = kind
        self._is_shared = is_shared
        self._owes_nothing = owes_nothing
        self._patience = CheckPatience()
        self._is_other = False  # it answers, and has no health service of ours
        self._known: TaskState | None = None  # the state that it told last
        self._tasks_skipped = 0  # in a row, as they did not serve
        self._is_due = asyncio.Event()  # the next question
        self._every = 0.0  # seconds between two questions to a server not ours
        self._has_load = asyncio.Event()
        # States held back until the first Check is answered; None: states are told at
        # once.
        self._pending_states: list[tuple[TaskState, str]] | None = None
        self._has_ended_streams = False  # they were in the way of a Check
        self._has_complained = False
        self._refusals = 0  # in a row, of streams of ours
        # Calls that wait at a server of ours, as `look` saw them last.
        self._answered = self._stalled = 0
        self._stalled_at = -inf
        self._check_pause = 0.0

    def ask_every(self, interval: float) -> None:
        """From now on, if it is not ours; at once if that is more often than before."""
        if interval < self._every and not self.is_ours:
            self._is_due.set()
        self._every = interval

    def ask_now(self) -> None:
        """A call missed its deadline: are streams of ours in the way?"""
        if self.streams.open:
            self._is_due.set()

    def look(self) -> None:
        """Now and then: asks a server of ours beside its stream where calls wait.

        While the same calls wait it is asked ever more seldom: they may just be long.
        """
        if not self.is_ours:
            return
        (in_flight, answered), now = self._traffic(), _now()
        if answered != self._answered or not in_flight:
            self._answered, self._stalled = answered, 0
            self._stalled_at, self._check_pause = now, self._every
        elif in_flight > self._stalled:
            self._check_pause = self._every
        if in_flight and now >= self._stalled_at + self._check_pause:
            self._stalled, self._stalled_at = in_flight, now
            self._check_pause = min(2 * self._check_pause, RAREST_CHECK)
            self.ask_now()

    async def follow(self, interval: float, pause: float) -> None:
        """Tells every state and report; ends `pause` after streams broke or were ended.

        A server of ours tells state and report together, every `interval`. Others are
        asked as often.
        """
        self._every = interval
        self._has_ended_streams = False
        if self._kind == "off":
            self._tell(TaskState.SERVING, None, SWITCHED_OFF)
            await asyncio.Event().wait()
        if not self._permit.may_stream(_now()):
            await self._ask_without_streams(pause)
            return
        began_at, is_other = _now(), False
        try:
            await self._follow_ours(interval, pause)
        except RefusedError as refusal:
            is_serving = await self._ask_instead(refusal, pause)
            # Who is not serving is asked often: nobody else tells when that ends.
            most = 16 if is_serving else 3
            pause = _longer(pause, min(self._refusals, most))
            self._refusals += 1
        except TaskNotServing:
            pass
        except NotOfferedError:
            self._is_other = is_other = True
        if is_other:
            # Not above: as long as an error is handled its frames keep the call, which
            # keeps the connection open.
            self._patience.start(_now() - began_at, pause)
            await self._follow_other(pause)
        if self._is_shared() and not self._refusals and not self._has_ended_streams:
            # Another task can answer at once.
            self._owes_nothing()
            pause = self._pause_for_another_task(pause)
        await asyncio.sleep(pause)

    # --- unary checks, beside streams or without --------------------------------

    async def _ask_without_streams(self, pause: float) -> None:
        """Where streams block calls, until they may be tried again."""
        refusals = 0
        while not self._permit.may_stream(_now()):
            try:
                answer = await self._ask(LONGEST_ANSWER)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(pause)
                continue
            is_believed = self._tell_answer(answer, ASKED)
            if answer is NoState.NOT_OFFERED:
                await asyncio.sleep(self._permit.expires_at - _now())
                return
            refusals = refusals + 1 if answer is NoState.REFUSED else 0
            await self._wait_after(is_believed, refusals, pause)

    async def _follow_other(self, pause: float) -> None:
        """Asks for its state again and again, with streams beside that.

        Ends when the streams were ended as they were in the way.
        """
        async with asyncio.TaskGroup() as group:
            # Before the first question, which tells whether there is room for them.
            self._pending_states = []  # until then no call comes
            orca = group.create_task(self._orca(self._every, pause))
            has_load = group.create_task(_wait_for(self._has_load))
            streams, watch = [orca], None
            if self._kind == "watch":
                watch = group.create_task(self._serving_status(pause))
                streams.append(watch)
            await asyncio.sleep(0)
            answer = await self._ask_beside(streams, pause)
            await asyncio.wait(  # for the load, which is told before the state
                [orca, has_load],
                timeout=self._patience.seconds,
                return_when=FIRST_COMPLETED,
            )
            has_load.cancel()
            self._release_states()
            refusals = 0
            while True:
                is_believed = True
                if watch is None or watch.done():
                    is_believed = self._tell_answer(answer)
                if self._has_ended_streams:
                    break
                if answer is NoState.NOT_OFFERED and all(s.done() for s in streams):
                    await asyncio.Event().wait()  # there is nobody to ask
                refusals = refusals + 1 if answer is NoState.REFUSED else 0
                await self._wait_after(is_believed, refusals, pause)
                answer = await self._ask_beside(streams, pause)
            for stream in streams:
                stream.cancel()

    async def _check_beside_ours(
        self, stream: asyncio.Task[None], pause: float
    ) -> None:
        """Asks a server of ours beside its stream, whenever `ask_now` wants it."""
        while not self._has_ended_streams:
            await self._is_due.wait()
            self._is_due.clear()
            answer = await self._ask_beside([stream], pause)
            # As long as the stream is open it tells the state.
            if self._has_ended_streams and isinstance(answer, wire.Health):
                self._learn(answer)

    async def _ask(self, timeout: float) -> wire.Health | NoState:
        """Raises AioRpcError if there is no answer."""
        by = ask_serving if self._is_other and not self.is_ours else ask
        return await by(self._channel, timeout, self._known)

    async def _ask_beside(
        self, streams: list[asyncio.Task[None]], pause: float
    ) -> wire.Health | NoState:
        """Its answer. Ends streams that are in the way, and suspends them if that is
        proved: by an answer that comes quickly once they are ended."""
        is_ended = is_slow = False
        while True:
            is_beside = self.streams.begun > 0
            timeout, began_at = self._timeout(is_beside), _now()
            try:
                answer = await self._ask(timeout)
            except grpc.aio.AioRpcError as error:
                # A server can answer DEADLINE_EXCEEDED at once: that is not late.
                is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if not is_late or _now() - began_at < timeout / 2:
                    # Refused, perhaps, as the streams that were ended still count.
                    await asyncio.sleep(LEAST_PAUSE if is_ended else pause)
                elif not is_beside:
                    is_slow = True
                elif self._are_in_the_way(began_at, timeout):
                    is_ended = await self._end_streams(streams) or is_ended
                continue
            took = _now() - began_at
            if not is_ended:
                self._patience.answered(took)
            elif not is_slow and took < self._patience.seconds:
                self._permit.suspend(_now())
            elif not is_slow:
                self._patience.answered_late(took)
            return answer

    def _timeout(self, is_beside: bool) -> float:
        """Of a Check. Beside a stream of ours until that has spoken, too, which it does
        every so often: so much is known of the connection."""
        if not is_beside:
            return LONGEST_ANSWER
        if not self.is_ours:
            return self._patience.seconds
        return self._patience.seconds + 1.25 * max(self._every, self.floor)

    def _are_in_the_way(self, began_at: float, timeout: float) -> bool:
        """Whether a Check that was not answered says so of the streams beside it."""
        if _now() - began_at >= 2 * timeout:
            return False  # it was us who stood still
        # Where a stream of ours is silent, too, the server is frozen, or the connection
        # is dead.
        return not self.is_ours or self.streams.spoke_at > began_at

    async def _end_streams(self, streams: list[asyncio.Task[None]]) -> bool:
        """Returns whether one of them was open."""
        count, (in_flight, _) = self.streams.begun, self._traffic()
        if not count:
            return False
        self._has_ended_streams = True
        running = [stream for stream in streams if not stream.done()]
        for stream in running:
            stream.cancel()
        if running:
            await asyncio.wait(running)
        if self.is_ours:
            self._owes_nothing()
        said = self._permit.record_ended(count, in_flight, _now())
        logger.info("health: %s; they are ended", said)
        return True

    async def _wait_after(self, is_believed: bool, refusals: int, pause: float) -> None:
        """Until the next question is due; `refusals` are statuses in a row that told
        no state."""
        if not is_believed:
            await asyncio.sleep(self._pause_for_another_task(pause))
        elif refusals:
            # Who does not serve is asked often: nobody else tells when that ends.
            most = 16 if self._known in (None, TaskState.SERVING) else 3
            await asyncio.sleep(_longer(pause, min(refusals - 1, most)))
        else:
            await self._wait_for_turn()

    async def _wait_for_turn(self) -> None:
        """A Check without streams is put off while more and more calls wait, for a few
        seconds at most. Beside streams it is not: they may be what calls wait for."""
        give_up_at = _now() + self._every + LONGEST_ANSWER
        while True:
            self._is_due.clear()
            in_flight_before, answered_before = self._traffic()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await asyncio.sleep(LEAST_PAUSE)
                    await self._is_due.wait()
            in_flight, answered = self._traffic()
            is_stuck = in_flight > in_flight_before and answered == answered_before
            if self.streams.begun or not is_stuck or _now() >= give_up_at:
                return

    def _pause_for_another_task(self, pause: float) -> float:
        """Before another task of a shared address is asked."""
        self._tasks_skipped += 1
        return min(REOPEN_AFTER * 2.0 ** min(self._tasks_skipped - 1, 16), pause)

    def _tell_answer(self, answer: wire.Health | NoState, reason: str = "") -> bool:
        """Tells a unary answer; returns whether it is believed. `reason` is for a
        server of others that serves."""
        serving = TaskState.SERVING
        if answer is NoState.NOT_OFFERED:
            self._known = None if self._known is None else serving
            return self._tell(serving, None, NO_SERVICE)
        if answer is NoState.REFUSED:
            if self._known is None:
                return self._tell(serving, None, CHECK_FAILED)
            return self._tell(self._known, None)  # it lives, and that is all
        self.is_ours = self.is_ours or answer.report is not None
        is_plain = self.is_ours or answer.state is not serving
        return self._learn(answer, "" if is_plain else reason)

    def _learn(self, health: wire.Health, reason: str = "") -> bool:
        """State and report apart: together they would owe us another report."""
        is_believed = self._tell(health.state, None, reason or health.reason)
        if is_believed:
            self._known = health.state
        if health.state is TaskState.SERVING:
            self._tasks_skipped = 0
        if health.report is not None:
            self._tell(None, health.report)
        return is_believed

    def _tell_or_hold(self, state: TaskState, reason: str = "") -> bool:
        if self._pending_states is None:
            return self._tell(state, None, reason)
        if state is TaskState.SERVING:
            self._pending_states = [(state, reason)]
            return True
        self._pending_states = []
        return self._tell(state, None, reason)

    def _release_states(self) -> None:
        pending, self._pending_states = self._pending_states, None
        for state, reason in pending or ():
            self._tell(state, None, reason)
        self._has_load.set()

    # --- streams ------------------------------------------------------------------

    def _complain(self, message: bytes) -> None:
        """Once: a backend could fill the log."""
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        logger.log(level, "a health report does not parse: %r", message[:80])

    async def _ask_instead(self, refusal: RefusedError, timeout: float) -> bool:
        """Whoever refuses a stream is there, and may say how it is.

        Returns whether it serves.
        """
        logger.debug("refused: %s", refusal)
        report = refusal.report
        if report is not None and report.state is not None:
            self.is_ours = True
            health = wire.Health(report.state, report)
        else:
            answer = await check(self._channel, timeout, self._known)
            if isinstance(answer, str):
                return True
            health = answer
        is_serving = health.state is TaskState.SERVING
        self._learn(health, NO_ROOM if is_serving else "")
        return is_serving

    async def _follow_ours(self, interval: float, pause: float) -> None:
        """The stream of a server of ours, with checks beside it while calls wait."""
        stream = leaving_no_trace(self._backend_health(interval))
        checks = leaving_no_trace(self._check_beside_ours(stream, pause))
        try:
            await asyncio.wait((stream, checks), return_when=FIRST_COMPLETED)
            if self._has_ended_streams or checks.done():
                await checks  # which has ended the stream, and may still be asking
            else:
                stream.result()
        finally:
            await _end(stream, checks)
            # An error of theirs has this frame in its traceback: no circle, which would
            # keep their calls, and these the connection, until it is collected.
            del stream, checks

    async def _backend_health(self, interval: float) -> None:
        def take(message: bytes) -> None:
            if (health := wire.parse_health(message)) is not None:
                self.is_ours = True
                self._refusals = 0
                self.udp_port, self.floor = health.udp_port, health.report_floor
                is_serving = health.state is TaskState.SERVING
                if self._tell(health.state, health.report):
                    self._known = health.state
                if is_serving:
                    self._tasks_skipped = 0
                elif self._is_shared():
                    raise TaskNotServing  # believed or not: another one may serve
            elif self.is_ours:
                self._complain(message)
            else:
                # A server that answers anything: a proxy, or a catch-all handler.
                raise NotOfferedError(f"{wire.WATCH_METHOD}: {message[:80]!r}")

        request = health_pb2.HealthRequest(report_interval=interval)
        try:
            await self.streams.read(
                wire.WATCH_METHOD, request.SerializeToString(), take
            )
        except NotOfferedError as error:
            if not self.is_ours:
                raise
            logger.debug("the health watch broke: %s", error)  # it is offered

    async def _serving_status(self, pause: float) -> None:
        request, refusals = compat_pb2.ServingRequest().SerializeToString(), 0
        method, take = wire.SERVING_WATCH_METHOD, self._take_serving_status
        try:
            while True:
                again = pause
                try:
                    has_spoken = await self.streams.read(method, request, take)
                    refusals = 0 if has_spoken else refusals + 1
                except RefusedError as refusal:
                    await self._ask_instead(refusal, pause)
                    refusals += 1
                except TaskNotServing:
                    again = self._pause_for_another_task(pause)
                await asyncio.sleep(_longer(again, refusals))
        except NotOfferedError as error:
            logger.debug("no health service: %s", error)
            self._tell_or_hold(TaskState.SERVING, NO_SERVICE)

    def _take_serving_status(self, message: bytes) -> None:
        method = wire.SERVING_WATCH_METHOD
        try:
            status = compat_pb2.ServingReply.FromString(message).status
        except DecodeError:
            raise NotOfferedError(f"{method}: {message[:80]!r}") from None
        if status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
            # It speaks of single services only.
            raise NotOfferedError(f"{method}: nothing of the server")
        state = serving_state(status, self._known)
        if self._tell_or_hold(state, serving_reason(status)):
            self._known = state
        if state is TaskState.SERVING:
            self._tasks_skipped = 0
        elif self._is_shared():
            raise TaskNotServing

    async def _orca(self, interval: float, pause: float) -> None:
        def take(message: bytes) -> None:
            if (report := wire.parse_report(message)) is not None:
                self._tell(None, report)
                self._has_load.set()

        seconds, rest = divmod(interval, 1)
        request = compat_pb2.LoadReportRequest(
            report_interval=Duration(seconds=int(seconds), nanos=int(rest * 1e9))
        ).SerializeToString()
        refusals = 0
        try:
            while True:
                try:
                    has_spoken = await self.streams.read(
                        wire.ORCA_METHOD, request, take
                    )
                    refusals = 0 if has_spoken else refusals + 1
                except RefusedError as refusal:
                    logger.debug("refused: %s", refusal)
                    refusals += 1
                await asyncio.sleep(_longer(pause, refusals))
        except NotOfferedError as error:
            logger.debug("no out-of-band load reports: %s", error)


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would log that nobody has looked


def _now() -> float:
    return asyncio.get_running_loop().time()


def _longer(pause: float, refusals: int) -> float:
    """The pause after so many refusals in a row."""
    return max(pause, min(pause * 2.0 ** min(refusals, 16), LONGEST_PAUSE))
