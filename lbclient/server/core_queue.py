"""The queue in gRPC's core: what it hands over, what waits there, and for how long."""

from lbclient.deadlines import Deadlines
from lbclient.queue_delay import QueueDelay
from lbclient.server.intake import Intake
from lbclient.server.unseen import Unseen


class CoreQueue:
    """Owned by the gate, used on its loop's thread only."""

    def __init__(self) -> None:
        self.intake = Intake()
        self.unseen = Unseen()
        self.delay = QueueDelay()
        self.deadlines = Deadlines()  # of requests that are about to be served
        self._taken = self._refused = 0  # as of the last sample
        self._sampled_at = 0.0

    def sample(self, now: float, refused: int) -> None:
        """Ten times a second. `refused`: how many requests were, ever."""
        taken, before = self.intake.taken, self._taken
        self.unseen.sample(now, taken, self.intake.was_behind())
        refused_now = refused - self._refused
        elapsed = now - self._sampled_at
        self._taken, self._refused, self._sampled_at = taken, refused, now
        if elapsed > 0.0:
            self.delay.sample(
                elapsed,
                waiting=self.unseen.waiting,
                taken=taken - before,
                let_in=max(0, taken - before - refused_now),
                left=self.deadlines.typical,
            )

    def __repr__(self) -> str:
        return f"<{self.unseen.waiting} wait, {self.delay!r}>"
