"""What is known of one backend for one method: its answers, and its ejection.

Both classes only hold data: `method_outliers` decides, and writes them.
"""

from math import inf
from typing import Generic

from lbclient.core.backoff import Backoff
from lbclient.core.counting.ewma import DecayingCount
from lbclient.core.outliers.method_latencies import Lateness
from lbclient.core.outliers.outlier_judgement import Against, Shares
from lbclient.core.protocols import N

MEMORY = 300.0  # answers of a backend that give the usual shares of statuses
RECENT = 20.0  # answers of a backend that give its shares now
HISTORY = 300.0  # seconds; then an ejection counts a third
PATIENCE = 30.0  # seconds that a trial call may take


class Ejection:
    """Why and since when a backend gets no calls of a method, and its trial calls.
    Owned by its record."""

    __slots__ = (
        "against", "ended_connection", "failed_at", "last_at", "needed", "period",
        "since", "started", "trial_at", "trials", "tried_at", "well",
    )  # fmt: skip

    def __init__(
        self,
        against: Against | Lateness,
        trials: Backoff,
        period: float,
        needed: int,
        now: float,
    ) -> None:
        self.against = against
        self.trials = trials
        self.since = self.last_at = now  # `last_at` is of the last trial, if any
        self.period = period
        self.needed = needed  # trial calls that must go well in a row
        self.well = 0  # trial calls that went well since one failed
        self.trial_at = inf  # when the next trial call is due
        self.tried_at: float | None = None  # since when a trial call is in flight
        self.started = 0  # requests ever sent to the backend, before that
        self.failed_at = -inf  # when a trial call last failed
        self.ended_connection = False  # whether the connection ended with that

    @property
    def is_late(self) -> bool:
        """Whether it is ejected because its answers come late."""
        return isinstance(self.against, Lateness)

    def due_at(self) -> float:
        """When a trial call is due, or when the one in flight is not waited for any
        longer."""
        return self.trial_at if self.tried_at is None else self.tried_at + PATIENCE

    def __repr__(self) -> str:
        if isinstance(self.against, Lateness):
            return "<ejected as it is late>"
        return f"<ejected for status {self.against.status}>"


class AnswerRecord(Generic[N]):
    """What one backend answered to one method. Owned by its `MethodWatch`.

    `cusum` sums the evidence against the backend, as in `outliers`.
    """

    __slots__ = (
        "answers", "cusum", "cusum_began_at", "ejection", "ejections", "has_served",
        "held", "long", "node", "oks", "others_before", "recent",
    )  # fmt: skip

    def __init__(self, node: N) -> None:
        self.node = node
        self.ejection: Ejection | None = None
        self.ejections = DecayingCount(HISTORY)
        self.answers = self.oks = 0
        self.cusum_began_at = -inf
        self.others_before = 0, 0  # their answers and OKs by then
        self.begin(0.0)

    def begin(self, cusum: float) -> None:
        """Starts over with this cusum, as if the backend had never answered."""
        self.long = Shares(MEMORY)
        self.recent = Shares(RECENT)
        self.held: dict[int, DecayingCount] = {}  # against it, by status
        self.has_served = False
        self.cusum = cusum

    def reconnect(self) -> None:
        """Forgets what the backend served, as it may be another task now.

        The cusum stays: a backend that ends its connection with each error would
        never be ejected otherwise.
        """
        self.long = Shares(MEMORY)
        self.has_served = False

    def add(self, status: int) -> None:
        self.answers += 1
        self.oks += not status
        self.long.add(status)
        self.recent.add(status)

    def __repr__(self) -> str:
        return f"<{self.node.endpoint.address}: {self.recent!r}, {self.ejection!r}>"
