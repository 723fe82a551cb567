"""Sets the interval of health reports by how often the backend is called."""

from collections.abc import Callable

import grpc

from lbclient.background.interruptible import Interruptible
from lbclient.client.backend_context import BackendContext
from lbclient.client.driver import Driver
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.streams import Streams
from lbclient.client.health.watch import HealthWatch
from lbclient.client.reported import Reported
from lbclient.core.backends.demand import ReportInterval
from lbclient.core.backends.stream_permit import StreamPermit
from lbclient.core.backends.task_workers import NO_WORKERS
from lbclient.core.load import Load
from lbclient.core.model import LoadReport, TaskState

# Of the pause before health is asked again: clients of one server do not come back
# together.
JITTER = 0.8, 1.2


class PacedWatch:
    """Watches a backend's health over one connection after the other, and sets how
    often it reports. Owned by a backend.

    `report_interval` sets the interval of reports.
    """

    def __init__(
        self,
        context: BackendContext,
        driver: Driver,
        reported: Reported,
        load: Load,
        report_interval: ReportInterval,
        permit: StreamPermit,
        backoff: HealthBackoff,
        may_others_answer: Callable[[], bool],
    ) -> None:
        """`may_others_answer` is as of `Connections`."""
        self._context = context
        self._driver = driver
        self._reported = reported
        self._load = load
        self._report_interval = report_interval
        self._permit = permit
        self._backoff = backoff
        self._may_others_answer = may_others_answer
        self._watch: HealthWatch | None = None
        self._asking = Interruptible()
        self._asked_every = report_interval.every

    # --- one connection -------------------------------------------------------

    def begin(self, channel: grpc.aio.Channel) -> Streams:
        """There is a new connection; returns the health streams on it."""
        self._report_interval.restart(self._load.started, self._context.clock())
        self._reported.connected()
        self._watch = HealthWatch(
            channel,
            self._hear,
            self._permit,
            self._load.traffic,
            self._context.health,
            self._reported.is_shared,
            self._driver.lifecycle.silence.owes_nothing,
            self._reported.refusals,
            self._backoff,
            self._unheard,
        )
        return self._watch.streams

    def end(self) -> None:
        """Ends the watch of a connection that is gone."""
        self._watch = None
        self._reported.disconnected()

    async def follow(self) -> None:
        """Begins again when a stream broke, and when `look` wants another pace."""
        watch, context = self._watch, self._context
        assert watch is not None
        while True:
            pause = context.health_interval / 2 * context.rng.uniform(*JITTER)
            every = self._asked_every = self._report_interval.every
            await self._asking.run(watch.follow(every, pause))

    def _hear(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> bool:
        if self._watch is not None:
            # First: whose state it is decides whether it counts.
            told = self._watch.health
            workers = told.workers
            is_all = told.is_ours and self._watch.streams.open > 0
            if workers is None and is_all and state is TaskState.SERVING:
                workers = NO_WORKERS  # what refuses a stream tells a state, and no more
            self._reported.hear_workers(workers, told.task_id, told.is_ours)
        is_believed = self._reported.hear(state, report, reason)
        if self._watch is not None:
            health = self._watch.health
            self._reported.note_server(
                health.is_ours,
                health.udp_port,
                health.udp_session,
                health.clients,
                health.cost_rise,
            )
            self._expect_reports(self._watch)
        return is_believed

    def _unheard(self) -> None:
        now, may_others_answer = self._context.clock(), self._may_others_answer()
        doubts = self._driver.lifecycle.doubts
        self._driver.take(doubts.stream_ended_unheard(now, may_others_answer))

    def has_spoken_since(self, moment: float) -> bool:
        """Whether a stream has said anything since; `moment` is by the loop's time."""
        return self._watch is not None and self._watch.streams.spoke_at > moment

    # --- its pace -------------------------------------------------------------

    def look(self, now: float) -> None:
        """Now and then: how much it is called of late says how often it is to report,
        and calls that wait have it asked whether it is there."""
        self._report_interval.observe(self._load.started, self._load.in_flight, now)
        self._keep_pace()
        if self._watch is not None:
            self._watch.turns.look()

    def hurry(self) -> None:
        """A call missed its deadline."""
        self._report_interval.hurry()
        self._keep_pace()
        if self._watch is not None:
            self._watch.turns.ask_now()

    def _keep_pace(self) -> None:
        watch, every = self._watch, self._report_interval.every
        if watch is None or not self._asking.has_begun():
            return
        watch.turns.ask_every(every)
        if not watch.health.is_ours:
            return
        # A stream that is broken or refused is asked for again when its pause is over.
        if every != self._asked_every and not watch.streams.is_broken.is_set():
            self._asked_every = every
            self._asking.interrupt()
            self._expect_reports(watch)

    def _expect_reports(self, watch: HealthWatch) -> None:
        """A server that has many streams reports less often than it is asked to."""
        interval = 2 * max(self._asked_every, watch.health.floor)
        silence = self._driver.lifecycle.silence
        if interval != silence.interval:
            silence.expect_every(interval, self._context.clock())
            self._driver.set_timer()

    def __repr__(self) -> str:
        return f"<asked every {self._asked_every:.1f} s: {self._watch}>"
