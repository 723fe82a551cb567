"""Keeps the state and load that a backend reported, by health checks or in answers."""

import logging
from collections.abc import Callable

from lbclient import wire
from lbclient.client.driver import Driver
from lbclient.client.health.refused_services import Refusals
from lbclient.core.backends.condition import Condition
from lbclient.core.backends.shared_address import SharedAddress
from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.load import Load
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.protocols import Clock
from lbclient.log import Log
from lbclient.wire.datagram import Seal

logger = Log(__name__)


class Reported:
    """Records what the tasks at a backend's address report. Owned by a backend. Others
    read its fields; only its methods write them.

    `is_ours` is what a health stream last said of the server, `clients` is the number
    of clients connected to it; None: unknown. `cost_rise`: by what factor requests cost
    the task more than usual, compared with the fleet. `udp_seal` is the session that
    the task gave this client for UDP; None: none. `task_id` is the task of the last
    report; -1: several tasks answer, so each report is read. `workers` are those of the
    task, as it last told, perhaps on a connection before; None: it told of none.
    `worker_id` is the task, or which of its workers, that answers on this connection;
    0: it has not told.
    `refusals` are of its health services.
    """

    def __init__(
        self,
        label: str,
        address: str,
        driver: Driver,
        load: Load,
        condition: Condition,
        clock: Clock,
        takes_sessions: bool,
        tell_workers: Callable[[ToldWorkers | None], None] = lambda _: None,
    ) -> None:
        """`label` is the channel's. `takes_sessions`: the channel has no secret of its
        own for UDP. `tell_workers` is told of the task's workers when they change;
        None: several tasks answer there, each with workers of its own."""
        self.is_ours = False
        self._udp_port = 0
        self.udp_seal: Seal | None = None
        self.clients: int | None = None
        self.cost_rise: float | None = None
        self.task_id = 0
        self.workers: ToldWorkers | None = None
        self.worker_id = 0
        self.shared_address = SharedAddress()
        self.refusals = Refusals(address)
        self._label = label
        self._address = address
        self._lifecycle, self._take = driver.lifecycle, driver.take
        self._load = load
        self._condition = condition
        self._clock = clock
        self._takes_sessions = takes_sessions
        self._tell_workers = tell_workers
        self._connected_at = 0.0

    def is_shared(self) -> bool:
        """Whether several tasks answer there."""
        return self.shared_address.is_shared(self._clock())

    @property
    def udp_port(self) -> int:
        """Where the server answers health checks by UDP; 0: nowhere.

        Nor where several tasks answer: a probe would go to any of them, or to none.
        """
        return 0 if self.is_shared() else self._udp_port

    def connected(self) -> None:
        """There is a new connection, perhaps to a new task."""
        self._connected_at = self._clock()
        self.clients = self.cost_rise = None
        self.worker_id = 0
        self.shared_address.connected()
        self.task_id = -1 if self.is_shared() else 0
        self.refusals.clear()

    def disconnected(self) -> None:
        """The connection is gone, and who has the next one may be of another task.
        Watched from afar, what it refuses stays so."""
        self.workers = None
        if not self._lifecycle.is_away():
            self.refusals.clear()

    def forget_clients(self) -> None:
        """Drops the number of clients, once it has been used, until the next report."""
        self.clients = None

    # --- over the connection --------------------------------------------------

    def hear(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> bool:
        """Takes a task's state and load from a health report. Without a state, `reason`
        says why there is none.

        Returns whether the state is believed.
        """
        if report is not None:
            self._learn(report, self._clock(), self._clock())
        is_believed = state is None or self._believes(state)
        if state is not None and is_believed:
            has_report, now = report is not None, self._clock()
            self._take(self._lifecycle.health_reported(state, has_report, now, reason))
        if report is not None:
            self._load.observe(self._of_address(report), self._clock())
        return is_believed

    def hear_workers(
        self, told: ToldWorkers | None, worker_id: int = 0, is_ours: bool = False
    ) -> None:
        """Takes what the server says of its task's workers, before its state, and which
        of them it is. NO_WORKERS: it says that it has none. None: nothing yet; if it
        `is_ours`, it will."""
        self.worker_id = worker_id
        self.is_ours = self.is_ours or is_ours
        if told is not None and told != self.workers and not self.is_shared():
            self.workers = told
            self._tell_workers(told)

    def note_server(
        self,
        is_ours: bool,
        udp_port: int,
        udp_session: wire.UdpSession | None = None,
        clients: int | None = None,
        cost_rise: float | None = None,
    ) -> None:
        """What the health stream has told of the server until now."""
        self.is_ours = is_ours
        if is_ours:
            self._note_udp(udp_port, udp_session)
            is_shared = self.is_shared()
            self.clients = None if is_shared else clients
            self.cost_rise = None if is_shared else cost_rise

    def _note_udp(self, port: int, session: wire.UdpSession | None) -> None:
        self._udp_port, self.udp_seal = port, None
        # A secret of the channel's is what servers must know to be believed, and who
        # gives sessions does not know it.
        if session is not None and self._takes_sessions:
            self._udp_port, self.udp_seal = session

    def hear_answer(self, report: LoadReport, sent_at: float, now: float) -> None:
        """Takes the report in an answer to a call, where it is news: of another task
        than the last one, or of a lame duck."""
        if sent_at >= self._connected_at:
            self._learn(report, sent_at, now)
        if self.is_shared():
            self._load.observe(self._of_address(report), now)
        elif report.state is TaskState.LAME_DUCK and sent_at >= self._condition.since:
            # What was sent before may tell of the task before.
            self._take(self._lifecycle.lame_duck_in_trailer(now))

    def _learn(self, report: LoadReport, sent_at: float, now: float) -> None:
        is_news = self.shared_address.observe(report, sent_at, now)
        self.task_id = -1 if self.shared_address.is_shared(now) else report.task_id
        if is_news:
            words, address = "several tasks share this address", self._address
            logger.about(logging.INFO, words, channel=self._label, backend=address)
            self.workers = None
            self._tell_workers(None)

    def _of_address(self, report: LoadReport) -> LoadReport:
        """The report of the address: one task's, or the mean of several tasks'."""
        now = self._clock()
        if not self.shared_address.is_shared(now):
            return report
        return self.shared_address.mean(now) or report

    def _believes(self, state: TaskState) -> bool:
        """The one filter for what a task says over the connection, or beside it."""
        return self.shared_address.believes(state, self._clock())

    # --- beside it, and without one -------------------------------------------

    def believed(self, health: wire.Health) -> tuple[TaskState, str]:
        """Returns the state and reason in the answer to a health check. If the state is
        not believed, returns SERVING: at least the address answers."""
        if self._believes(health.state):
            return health.state, health.reason
        return TaskState.SERVING, ""

    def answered(self, health: wire.Health) -> tuple[TaskState, str]:
        """As `believed`, of an answer over the backend's connection: it also tells
        which worker has that, perhaps before a stream does."""
        if health.report is not None and not self.worker_id:
            self.worker_id = health.report.task_id
        return self.believed(health)

    def seen(self, health: wire.Health, now: float) -> None:
        """Takes the UDP port and the load from the answer of a backend without a
        connection."""
        self._note_udp(health.udp_port, health.udp_session)
        if health.report is not None:
            self._load.observe(health.report, now)

    def hear_by_udp(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        """As `hear`; without a state nobody answers there."""
        if state is None:
            self._take(self._lifecycle.udp_unanswered(self._clock()))
        else:
            self._take(self._lifecycle.udp_answered(state))
        if report is not None:
            self._load.observe(report, self._clock())

    def __repr__(self) -> str:
        whose = "ours" if self.is_ours else "not ours"
        return f"<{self._address}: {whose}, UDP port {self.udp_port}>"
