"""Whether one address answers for several tasks: a proxy, a mesh, a virtual IP.

Each report names its task by a number that the task drew at its start. The evidence is
a change back, on one connection, to a number that was heard before another one. A task
that restarts draws a new number, and the old number does not come back.

The state of one task is not the state of a shared address: `believes` decides which
states count. Its load is the mean of the tasks' latest reports, so that the address
compares with addresses of single tasks.
"""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from lbclient.core.model import LoadReport, TaskState

MEMORY = 600.0  # seconds; how long an address counts as shared without new evidence
RECENT = 10.0  # seconds; older reports count neither in the mean nor as tasks
MOST = 64  # tasks that are told apart
MEAN_EVERY = 0.1  # seconds between two means, as servers sample their load
# How many times in a row a task has to say that it does not serve, with no task in
# between that serves, until that is believed of the whole address.
MOST_TASKS = 5


class Heard(NamedTuple):
    report: LoadReport
    at: float


class SharedAddress:
    """Detects whether several tasks answer at one address. Owned by a backend. The list
    of tasks is of one connection; the verdict outlives it."""

    def __init__(self) -> None:
        self._tasks: dict[int, Heard] = {}  # by number, the longest silent one first
        self._current = 0  # the number of the last task
        self._changed_at = -inf  # when `_current` was first heard after another task
        self._until = -inf
        self._not_serving = 0  # answers in a row of tasks that do not serve
        self._mean: LoadReport | None = None
        self._mean_at = -inf

    def connected(self) -> None:
        """There is a new connection, perhaps to a new task."""
        self._tasks.clear()
        self._current, self._changed_at = 0, -inf
        self._mean, self._mean_at = None, -inf

    def observe(self, report: LoadReport, sent_at: float, now: float) -> bool:
        """Takes the report in the answer to a request that was sent at `sent_at`.

        Returns whether the address has just turned out to be shared.
        """
        if report.state is TaskState.SERVING:
            self._not_serving = 0
        task = report.task_id
        if not task:
            return False
        was_shared = self.is_shared(now)
        is_known = task in self._tasks
        # A late answer to a request that was sent before the last change is no change.
        if task != self._current and (not is_known or sent_at >= self._changed_at):
            self._current, self._changed_at = task, now
            if is_known:
                self._until = now + MEMORY
        if not is_known and len(self._tasks) >= MOST:
            oldest = self._tasks.pop(next(iter(self._tasks)))
            if now - oldest.at < MEMORY:
                # More tasks by turns than are told apart; no task restarts so often.
                self._until = now + MEMORY
        self._tasks.pop(task, None)
        self._tasks[task] = Heard(report, now)
        return not was_shared and self.is_shared(now)

    def is_shared(self, now: float) -> bool:
        return now < self._until

    def believes(self, state: TaskState, now: float) -> bool:
        """Whether what one task says of itself holds for the address.

        SERVING always does. Another state does if there is a single task, and once
        several answers in a row say so. It counts answers, so ask once for each answer.
        """
        if state is TaskState.SERVING:
            self._not_serving = 0
            return True
        self._not_serving += 1
        return not self.is_shared(now) or self._not_serving > MOST_TASKS

    def tasks(self, now: float) -> int:
        """How many tasks answered within `RECENT`, up to `MOST`.

        0 if the address is not known to be shared.
        """
        if not self.is_shared(now):
            return 0
        return sum(now - each.at < RECENT for each in self._tasks.values())

    def mean(self, now: float) -> LoadReport | None:
        """The mean of the tasks' reports within `RECENT`; None if there is none."""
        if now >= self._mean_at + MEAN_EVERY:
            recent = [h.report for h in self._tasks.values() if now - h.at < RECENT]
            self._mean, self._mean_at = _mean(recent), now
        return self._mean


def _mean(reports: list[LoadReport]) -> LoadReport | None:
    """Each number is the mean of those tasks that tell it: what is missing is not 0."""
    if not reports:
        return None
    # The rates go with the utilization: weights are their quotient.
    rated = [each for each in reports if each.utilization] or reports
    count = len(rated)
    latencies = [each.latency for each in reports if each.latency]

    tells = any(each.runnable is not None for each in reports)

    def told(numbers: list[int | None]) -> int | None:
        known = [number for number in numbers if number is not None]
        return round(sum(known) / len(known)) if known else None

    return LoadReport(
        utilization=sum(each.utilization for each in rated) / count,
        qps=sum(each.qps for each in rated) / count,
        eps=sum(each.eps for each in rated) / count,
        active=told([each.active for each in reports]),
        runnable=told([_runnable(each) for each in reports]) if tells else None,
        latency=sum(latencies) / (len(latencies) or 1),
        metrics=_mean_metrics([each.metrics for each in reports]),
        refused=_mean_shares([one.refused for one in reports if one.refused]),
    )


def _runnable(report: LoadReport) -> int | None:
    """Who tells none has no requests that wait, as far as it knows."""
    return report.active if report.runnable is None else report.runnable


def _mean_metrics(told: list[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for metrics in told:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}


def _mean_shares(told: list[tuple[float, ...]]) -> tuple[float, ...] | None:
    if not told:
        return None
    return tuple(sum(shares) / len(told) for shares in zip(*told, strict=True))
