"""Keeps what a backend told over one connection: states, load, and which task it is.

A state is told on to whoever watches, which may not believe it: where an address fronts
several tasks, one of them says little of the others.
"""

from collections.abc import Callable
from typing import Protocol

from lbclient import wire
from lbclient.background.flag import Flag
from lbclient.client.health.check import NoState, serving_reason, serving_state
from lbclient.client.health.refused_services import CHECKS, Refusals
from lbclient.client.health.streams import TaskNotServing
from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.backoff import Backoff
from lbclient.core.model import LoadReport, TaskState

NO_SERVICE = "it is connected and has no health service"
# Seconds before a stream to another task of several; doubles each time.
REOPEN_AFTER = 0.05

SERVING = TaskState.SERVING


class TellState(Protocol):
    """Where what is learned goes; `reason` where the task did not say it itself.

    Returns whether the state is believed. It is not if the address fronts several
    tasks and only one of them says so: then another task is to be asked.
    """

    def __call__(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> bool: ...


class ConnectionHealth:
    """Records what a backend says over one connection, and passes it on. Owned by a
    health watch.

    `state` is the last state that was believed. `is_ours` is set once it spoke as
    lbclient's servers do, which report at intervals; `is_other` once it answered and
    has no health service of lbclient's. `udp_port`, `udp_session`, `clients` (connected
    to it), `cost_rise`, `workers` (of its task), `task_id` (of its reports) and `floor`
    (the shortest interval of reports, in seconds) are what one of lbclient's servers
    said last. `has_load` is set
    once another server told a load, or when its load is no longer waited for.
    """

    def __init__(
        self, tell: TellState, is_shared: Callable[[], bool], refusals: Refusals
    ) -> None:
        """`is_shared` tells whether several tasks answer at the address."""
        self.state: TaskState | None = None
        self.is_ours = False
        self.is_other = False
        self.udp_port = 0
        self.clients: int | None = None
        self.cost_rise: float | None = None
        self.udp_session: wire.UdpSession | None = None
        self.workers: ToldWorkers | None = None
        self.task_id = 0
        self.floor = 0.0
        self.has_load = Flag()
        self._tell = tell
        self.is_shared = is_shared
        self._refusals = refusals
        self._tasks_skipped = 0  # in a row, as they did not serve
        # States held back until the first check is answered; None: states are told at
        # once.
        self._held: list[tuple[TaskState, str]] | None = None

    # --- by a server of ours --------------------------------------------------

    def take_health(self, health: wire.Health) -> None:
        """State and report together, by a stream. Raises TaskNotServing."""
        self.is_ours = True
        self.udp_port, self.floor = health.udp_port, health.report_floor
        self.clients, self.cost_rise = health.clients, health.cost_rise
        self.workers = health.workers
        self._note_task(health)
        # Only the first report of a stream has it.
        self.udp_session = health.udp_session or self.udp_session
        is_believed = self._tell(health.state, health.report)
        self._note(health.state, is_believed)

    def learn(self, health: wire.Health, reason: str = "") -> bool:
        """State and report apart: together they would owe us another report.

        Returns whether the state is believed.
        """
        self._refusals.answered(*CHECKS)
        self._refusals.log(is_known=True)
        self.workers = health.workers or self.workers
        self._note_task(health)
        is_believed = self._tell(health.state, None, reason or health.reason)
        if is_believed:
            self.state = health.state
        if health.state is SERVING:
            self._tasks_skipped = 0
        if health.report is not None:
            self._tell(None, health.report)
        return is_believed

    def _note_task(self, health: wire.Health) -> None:
        if health.report is not None:
            self.task_id = health.report.task_id

    # --- by any server --------------------------------------------------------

    def take_answer(self, answer: wire.Health | NoState, reason: str = "") -> bool:
        """Tells the answer to a check; returns whether it is believed. `reason` is for
        a server of others that serves."""
        if isinstance(answer, NoState):
            return self._take_no_state(answer)
        if answer.is_own and answer.report is not None:
            self.is_ours = True
        is_plain = self.is_ours or answer.state is not SERVING
        return self.learn(answer, "" if is_plain else reason)

    def _take_no_state(self, answer: NoState) -> bool:
        if answer.is_offered:
            self._refusals.refused(wire.SERVING_CHECK_METHOD, answer.status)
        else:
            self._refusals.answered(*CHECKS)
            self.state = None if self.state is None else SERVING
        self._refusals.log(is_known=self.state is not None)
        if answer.is_offered and self.state is not None:
            return self._tell(self.state, None)  # it lives, and that is all
        return self._tell(SERVING, None, self._without_state(answer.status))

    def _without_state(self, status: str = "") -> str:
        """Why it is taken to be serving."""
        if refused := self._refusals.of_health():
            return f"it is connected, and its health checks are {refused}"
        return f"{NO_SERVICE}: {status}" if status else NO_SERVICE

    def take_report(self, report: LoadReport) -> None:
        self._tell(None, report)
        self.has_load.set()

    def take_status(self, status: int) -> None:
        """That of grpc.health.v1, by a stream. Raises TaskNotServing."""
        state = serving_state(status, self.state)
        is_believed = self._tell_or_hold(state, serving_reason(status))
        self._note(state, is_believed)

    def assume_serving(self, reason: str = "") -> None:
        """Tells SERVING for a connected backend that does not report a state."""
        self._tell_or_hold(SERVING, reason or self._without_state())

    def _note(self, state: TaskState, is_believed: bool) -> None:
        if is_believed:
            self.state = state
        if state is SERVING:
            self._tasks_skipped = 0
        elif self.is_shared():
            raise TaskNotServing  # believed or not: another one may serve

    # --- states that are held back --------------------------------------------

    def hold_states(self) -> None:
        """Holds back a stream's SERVING until `release_states`."""
        self._held = []

    def release_states(self) -> None:
        held, self._held = self._held, None
        for state, reason in held or ():
            self._tell(state, None, reason)
        self.has_load.set()

    def _tell_or_hold(self, state: TaskState, reason: str) -> bool:
        if self._held is None:
            return self._tell(state, None, reason)
        if state is SERVING:
            self._held = [(state, reason)]
            return True
        self._held = []
        return self._tell(state, None, reason)

    # --------------------------------------------------------------------------

    def pause_for_another_task(self, longest: float) -> float:
        """Seconds before another task of a shared address is asked."""
        self._tasks_skipped += 1
        return Backoff(REOPEN_AFTER, longest).after(self._tasks_skipped)

    def __repr__(self) -> str:
        said = "nothing" if self.state is None else self.state.name.lower()
        return f"<{'ours' if self.is_ours else 'not ours'}, it says {said}>"
