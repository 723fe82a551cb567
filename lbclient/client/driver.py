"""Does the steps that a backend's lifecycle decides on, and keeps its timer."""

import asyncio
from collections.abc import Callable

from lbclient.background.tasks import is_fatal
from lbclient.core.backends.connection_state import Step
from lbclient.core.backends.lifecycle import Lifecycle
from lbclient.core.load import Load
from lbclient.core.protocols import Clock


class Driver:
    """Carries out the steps that a backend's lifecycle decides on, and keeps its timer.
    Owned by a backend. Whoever tells `lifecycle` something passes the resulting step to
    `take`.

    The timer rings only between `start` and `stop`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        load: Load,
        clock: Clock,
        carry_out: Callable[[Step], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail` gets what came of a ring that failed."""
        self.lifecycle = lifecycle
        self._load = load
        self._clock = clock
        self._carry_out = carry_out
        self._fail = fail
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at: float | None = None

    def start(self) -> None:
        self._is_running = True
        self.set_timer()

    def stop(self) -> None:
        self._is_running = False
        self.set_timer()

    def take(self, step: Step) -> None:
        self._carry_out(step)
        self.set_timer()

    def set_timer(self) -> None:
        """After each change of what time is to bring about."""
        due = self.lifecycle.due_at() if self._is_running else None
        if self._timer is not None:
            if self._rings_at == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)
            self._rings_at = due

    def _ring(self) -> None:
        self._timer = None
        try:
            self.take(self.lifecycle.tick(self._clock(), self._load.reported_at))
        except BaseException as error:
            if is_fatal(error) or not self._is_running:
                raise
            self._fail(error)

    def __repr__(self) -> str:
        rings_at = self._rings_at if self._timer else None
        return f"<{self.lifecycle!r}, rings at {rings_at}>"
