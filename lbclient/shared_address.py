"""Whether one address answers for several tasks: a proxy, a mesh, a virtual IP.

Each report names its task by a number that the task drew at its start. A number that
comes back after another one, on one connection, is that of one of several tasks. A task
that was restarted has a new connection, or a number that does not come back.

What one task says is then not true of the address. Its load is the mean of what the
tasks said of late, so that the address compares with addresses of single tasks.
"""

from math import inf
from typing import NamedTuple

from lbclient.model import LoadReport

MEMORY = 600.0  # seconds; for which an address counts as a front without new evidence
RECENT = 10.0  # seconds; older reports are in no mean
MOST = 64  # tasks that are told apart
MEAN_EVERY = 0.1  # seconds between two means, as servers sample their load


class Heard(NamedTuple):
    report: LoadReport
    at: float


class SharedAddress:
    """Owned by a backend. Numbers are of one connection, the verdict is not."""

    def __init__(self) -> None:
        self._first: dict[int, float] = {}  # when each was heard first, by task
        self._last: dict[int, Heard] = {}  # the oldest first, by task
        self._until = -inf
        self._grew_at = 0.0  # when a task was last heard for the first time
        self._mean: LoadReport | None = None
        self._mean_at = -inf

    def connected(self) -> None:
        """There is a new connection, perhaps to a new task."""
        self._first.clear()
        self._last.clear()

    def observe(self, report: LoadReport, sent_at: float, now: float) -> bool:
        """A report, in the answer to what was sent at `sent_at`; whether the address
        has just turned out to be a front."""
        task = report.task_id
        if not task:
            return False
        was_shared = self.is_shared(now)
        if task not in self._first:
            if len(self._first) >= MOST:
                self._first.pop(next(iter(self._first)))
            self._first[task] = self._grew_at = now
        elif len(self._first) > 1 and sent_at >= self._grew_at > self._first[task]:
            # Sent after another task had answered, and answered by an earlier one.
            self._until = now + MEMORY
        self._last.pop(task, None)
        self._last[task] = Heard(report, now)
        if len(self._last) > MOST:
            self._last.pop(next(iter(self._last)))
        return not was_shared and self.is_shared(now)

    def is_shared(self, now: float) -> bool:
        return now < self._until

    def tasks(self, now: float) -> int:
        """How many answered of late, at least two; 0: it is not known for a front."""
        if not self.is_shared(now):
            return 0
        return max(2, sum(now - each.at < RECENT for each in self._last.values()))

    def mean(self, now: float) -> LoadReport | None:
        """Of what the tasks said of late."""
        if now >= self._mean_at + MEAN_EVERY:
            recent = [h.report for h in self._last.values() if now - h.at < RECENT]
            self._mean, self._mean_at = _mean(recent), now
        return self._mean


def _mean(reports: list[LoadReport]) -> LoadReport | None:
    if not reports:
        return None
    count = len(reports)

    def told(numbers: list[int | None]) -> int | None:
        known = [number for number in numbers if number is not None]
        return round(sum(known) / len(known)) if known else None

    return LoadReport(
        utilization=sum(each.utilization for each in reports) / count,
        qps=sum(each.qps for each in reports) / count,
        eps=sum(each.eps for each in reports) / count,
        active=told([each.active for each in reports]),
        runnable=told([each.runnable for each in reports]),
        latency=sum(each.latency for each in reports) / count,
    )
