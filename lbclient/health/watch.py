"""Follows one backend's health over its connection, by the best means it offers.

`lbclient.v1.BackendHealth` tells state and load. A server that is not ours is asked
for its state by `grpc.health.v1`'s unary `Check`, now and then, and sends its load by
ORCA's out-of-band stream; one that offers neither is taken to be serving as long as it
is connected.

A stream holds a slot of the connection, and in a server of threads a thread. So each
`Check` to a server that is not ours also tells whether our streams are in the way of
calls: if it is not answered the streams are ended (see `stream_permit`).

A server may have no room for another stream. Then it is asked for a stream again and
again, with pauses that grow, and what it says with each refusal, or when it is asked
once, is its state meanwhile. That is no silence: it owes no reports.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Protocol

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.health.check import PASSING, ask_serving, check, serving_state
from lbclient.health.stream_permit import StreamPermit, patience
from lbclient.model import LoadReport, TaskState
from lbclient.tasks import is_cancelled
from lbclient.text import printable
from lbclient.v1 import compat_pb2, health_pb2

logger = logging.getLogger(__name__)


class Tell(Protocol):
    """Where what is learned goes; `reason` where the task did not say it itself."""

    def __call__(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None: ...


NO_SERVICE = "it is connected and has no health service"
NO_ROOM = "it answers, and has no room for a health stream"
ASKED = "polled by unary health checks: streams blocked calls"
SWITCHED_OFF = "it is connected, and health checks are off (health)"
LONGEST_PAUSE = 60.0  # seconds; after a refusal, of pauses that double
REOPEN_AFTER = (
    0.05  # seconds before a stream to another task of several; doubles each time
)
MOST_TASKS = 5  # that say in a row that they do not serve, until that is believed
LEAST_PAUSE = 0.1  # seconds between two questions to a server that is not ours
LONGEST_ANSWER = 5.0  # seconds; of a server that is not ours, with no stream open


class NotOfferedError(Exception):
    """The server answers, but does not know this kind of health check."""


class TaskNotServing(Exception):
    """Of several tasks behind this address one is not serving: others may be."""


class RefusedError(Exception):
    """The server has no room for the stream; `report` is what it says of itself."""

    def __init__(self, method: str, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{method}: {printable(error.details() or '')}")
        self.report = wire.find_report(error.trailing_metadata())


class HealthWatch:
    """One backend's, over one connection. `udp_port` is what it last told of that.

    `is_ours` once it spoke as our servers do, which report every so often. As long as
    a stream of it is open, `is_broken` is not set: what is lost is lost with all.
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
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`traffic` tells how many calls are in flight, and how many were ever
        answered; `kind` is `ChannelConfig.health`; `is_shared` tells whether several
        tasks answer there, and `ended` is told that none owes reports for now."""
        self.udp_port = 0
        self.floor = 0.0
        self.is_ours = False
        self.is_broken = asyncio.Event()
        self.is_broken.set()
        self._channel = channel
        self._tell = tell
        self._permit = permit
        self._traffic = traffic
        self._kind = kind
        self._is_shared = is_shared
        self._ended = ended
        self._tasks_skipped = 0  # streams in a row that were left for another task's
        self._is_due = asyncio.Event()  # the next question to a server not ours
        self._every = 0.0  # seconds between them
        self._has_load = asyncio.Event()
        # What is told once there is room for calls beside the streams; None: there is.
        self._pending_states: list[tuple[TaskState, str]] | None = None
        self.spoke_at = -inf  # by a stream
        self._open = 0  # streams that have spoken
        self._has_served = False
        self._has_complained = False
        self._refusals = 0  # in a row, of streams of ours

    def ask_every(self, interval: float) -> None:
        """From now on, if it is not ours; at once if that is more often than before."""
        if interval < self._every:
            self._is_due.set()
        self._every = interval

    def ask_now(self) -> None:
        """A call missed its deadline: are streams of ours in the way?"""
        if self._open:
            self._is_due.set()

    async def follow(self, interval: float, pause: float) -> None:
        """Tells every state and report; ends `pause` after a stream of ours broke.

        A server of ours tells state and report together, every `interval`. Others are
        asked as often, and for them it never ends.
        """
        self._every = interval
        if self._kind == "off":
            self._tell(TaskState.SERVING, None, SWITCHED_OFF)
            await asyncio.Event().wait()
        if not self._permit.may_stream(_now()):
            await self._ask_only(pause)
            return
        began_at = _now()
        try:
            await self._backend_health(interval)
        except RefusedError as refusal:
            is_serving = await self._ask_instead(refusal, pause)
            # Who is not serving is asked often: nobody else tells when that ends.
            most = 16 if is_serving else 3
            pause = _longer(pause, min(self._refusals, most))
            self._refusals += 1
        except TaskNotServing:
            pass
        except NotOfferedError:
            await self._follow_other(pause, patience(_now() - began_at, pause))
        if self._is_shared() and not self._refusals:
            # Another task can answer at once.
            self._ended()
            pause = min(REOPEN_AFTER * 2.0 ** min(self._tasks_skipped, 16), pause)
            self._tasks_skipped += 1
        await asyncio.sleep(pause)

    # --- without streams, and servers that are not ours ---------------------------

    async def _ask_only(self, pause: float) -> None:
        """Where streams cost too much, until they may be tried again."""
        while not self._permit.may_stream(_now()):
            answer = await check(self._channel, LONGEST_ANSWER, self._has_served)
            if isinstance(answer, str):
                await asyncio.sleep(pause)
                continue
            self._has_served = self._has_served or answer.state is TaskState.SERVING
            self.is_ours = self.is_ours or answer.report is not None
            self._tell(answer.state, None, "" if self.is_ours else ASKED)
            if answer.report is not None:
                self._tell(None, answer.report)
            await self._wait_for_turn([])

    async def _follow_other(self, pause: float, bound: float) -> None:
        """Asks for its state again and again, with streams beside that or without.

        `bound` is how long an answer may take while a stream is open.
        """
        async with asyncio.TaskGroup() as group:
            # Before the first question, which tells whether there is room for them.
            self._pending_states = []  # until then no call comes
            orca = group.create_task(self._orca(self._every, pause))
            streams, watch = [orca], None
            if self._kind == "watch":
                watch = group.create_task(self._serving_status(pause))
                streams.append(watch)
            await asyncio.sleep(0)
            state = await self._ask_other(streams, bound, pause)
            await asyncio.wait(  # for the load, which is told before the state
                [orca, group.create_task(self._has_load.wait())],
                timeout=bound,
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._release_states()
            while True:
                if watch is None or watch.done():
                    self._tell_other(state)
                if state is None and all(stream.done() for stream in streams):
                    await asyncio.Event().wait()  # there is nobody to ask
                await self._wait_for_turn(streams)
                state = await self._ask_other(streams, bound, pause)

    def _tell_or_hold(self, state: TaskState, reason: str = "") -> None:
        if self._pending_states is None:
            self._tell(state, None, reason)
        elif state is TaskState.SERVING:
            self._pending_states = [(state, reason)]
        else:
            self._pending_states = []
            self._tell(state, None, reason)

    def _release_states(self) -> None:
        held, self._pending_states = self._pending_states, None
        for state, reason in held or ():
            self._tell(state, None, reason)
        self._has_load.set()

    async def _wait_for_turn(self, streams: list[asyncio.Task[None]]) -> None:
        """Until the next question is due. Not while calls wait, but for streams, which
        may be what they wait for."""
        while True:
            self._is_due.clear()
            _, before = self._traffic()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await asyncio.sleep(LEAST_PAUSE)
                    await self._is_due.wait()
            in_flight, answered = self._traffic()
            is_beside = any(not stream.done() for stream in streams)
            if is_beside or not in_flight or answered != before:
                return

    async def _ask_other(
        self, streams: list[asyncio.Task[None]], bound: float, pause: float
    ) -> TaskState | None:
        """Its state; None if it offers none. Ends streams that are in the way."""
        are_in_question = False
        while True:
            is_beside = any(not stream.done() for stream in streams)
            timeout = bound if is_beside else LONGEST_ANSWER
            began_at = _now()
            try:
                state = await ask_serving(self._channel, timeout, self._has_served)
            except grpc.aio.AioRpcError as error:
                is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if not is_beside or not is_late:
                    # Refused, perhaps, as the streams that were ended still count.
                    await asyncio.sleep(LEAST_PAUSE if are_in_question else pause)
                elif _now() - began_at < 2 * timeout:  # else it was us who stood still
                    await self._end_streams(streams)
                    are_in_question = True
                continue
            if are_in_question:
                self._permit.suspend(_now())
            serves = state is None or state is TaskState.SERVING
            self._tasks_skipped = 0 if serves else self._tasks_skipped + 1
            if not serves and self._is_shared() and self._tasks_skipped <= MOST_TASKS:
                await asyncio.sleep(REOPEN_AFTER)  # and ask another task
                continue
            return state

    async def _end_streams(self, streams: list[asyncio.Task[None]]) -> None:
        open_ones = [stream for stream in streams if not stream.done()]
        for stream in open_ones:
            stream.cancel()
        if open_ones:
            await asyncio.wait(open_ones)
        in_flight, _ = self._traffic()
        said = self._permit.record_ended(len(open_ones), in_flight, _now())
        logger.info("health: %s; they are ended", said)

    def _tell_other(self, state: TaskState | None) -> None:
        if state is None:
            self._tell(TaskState.SERVING, None, NO_SERVICE)
            return
        self._has_served = self._has_served or state is TaskState.SERVING
        self._tell(state, None)

    # --- streams ------------------------------------------------------------------

    async def _read(
        self, method: str, request: bytes, take: Callable[[bytes], None]
    ) -> None:
        """Hands on the raw messages of a server stream until it ends or breaks."""
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        watch = self._channel.unary_stream(method)
        call = watch(request)
        is_open = False
        try:
            while isinstance(message := await call.read(), bytes):  # not EOF
                if not is_open:
                    is_open = True
                    self._opened(1)
                self.spoke_at = _now()
                take(message)
        except grpc.aio.AioRpcError as error:
            details = printable(error.details() or "")
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not is_open:
                raise RefusedError(method, error) from None
            if error.code() not in PASSING:
                raise NotOfferedError(f"{method}: {details}") from None
            logger.debug("%s ended: %s", method, details)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            logger.debug("%s ended: its channel was closed", method)
        finally:
            call.cancel()
            if is_open:
                self._opened(-1)

    def _complain(self, message: bytes) -> None:
        """Once: a backend could fill the log."""
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        logger.log(level, "a health report does not parse: %r", message[:80])

    def _opened(self, more: int) -> None:
        self._open += more
        if self._open:
            self.is_broken.clear()
        else:
            self.is_broken.set()

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
            answer = await check(self._channel, timeout, self._has_served)
            if isinstance(answer, str):
                return True
            health = answer
        is_serving = health.state is TaskState.SERVING
        self._has_served = self._has_served or is_serving
        # Apart: with a state and a report it would owe us another.
        self._tell(health.state, None, NO_ROOM if is_serving else "")
        if health.report is not None:
            self._tell(None, health.report)
        return is_serving

    async def _backend_health(self, interval: float) -> None:
        def take(message: bytes) -> None:
            if (health := wire.parse_health(message)) is not None:
                self.is_ours = True
                self._refusals = 0
                if health.state is not TaskState.SERVING and self._is_shared():
                    if health.report is not None:
                        self._tell(None, health.report)
                    if self._tasks_skipped < MOST_TASKS:
                        raise TaskNotServing
                else:
                    self._tasks_skipped = 0
                self.udp_port, self.floor = health.udp_port, health.report_floor
                self._tell(health.state, health.report)
            elif self.is_ours:
                self._complain(message)
            else:
                # A server that answers anything: a proxy, or a catch-all handler.
                raise NotOfferedError(f"{wire.WATCH_METHOD}: {message[:80]!r}")

        request = health_pb2.HealthRequest(report_interval=interval)
        try:
            await self._read(wire.WATCH_METHOD, request.SerializeToString(), take)
        except NotOfferedError as error:
            if not self.is_ours:
                raise
            logger.debug("the health watch broke: %s", error)  # it is offered

    async def _serving_status(self, pause: float) -> None:
        def take(message: bytes) -> None:
            try:
                status = compat_pb2.ServingReply.FromString(message).status
            except DecodeError:
                said = f"{wire.SERVING_WATCH_METHOD}: {message[:80]!r}"
                raise NotOfferedError(said) from None
            if status == compat_pb2.ServingReply.SERVICE_UNKNOWN:
                # It speaks of single services only.
                said = f"{wire.SERVING_WATCH_METHOD}: nothing of the server"
                raise NotOfferedError(said)
            state = serving_state(status, self._has_served)
            self._has_served = self._has_served or state is TaskState.SERVING
            self._tell_or_hold(state)

        request = compat_pb2.ServingRequest().SerializeToString()
        refusals = 0
        try:
            while True:
                try:
                    await self._read(wire.SERVING_WATCH_METHOD, request, take)
                    refusals = 0
                except RefusedError as refusal:
                    await self._ask_instead(refusal, pause)
                    refusals += 1
                await asyncio.sleep(_longer(pause, refusals))
        except NotOfferedError as error:
            logger.debug("no health service: %s", error)
            self._tell_or_hold(TaskState.SERVING, NO_SERVICE)

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
                    await self._read(wire.ORCA_METHOD, request, take)
                    refusals = 0
                except RefusedError as refusal:
                    logger.debug("refused: %s", refusal)
                    refusals += 1
                await asyncio.sleep(_longer(pause, refusals))
        except NotOfferedError as error:
            logger.debug("no out-of-band load reports: %s", error)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _longer(pause: float, refusals: int) -> float:
    """The pause after so many refusals in a row."""
    return max(pause, min(pause * 2.0 ** min(refusals, 16), LONGEST_PAUSE))
