"""Runs outlier detection for each attempt, and logs ejections."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lbclient.core.counting.call_counts import CallCounts
from lbclient.core.model import Outcome
from lbclient.core.outliers.outlier_judgement import compared
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.statistics.events import Events
from lbclient.log import Log
from lbclient.wire.codes import told_against

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend
    from lbclient.client.calls.attempt import Attempt

logger = Log("lbclient.balancer")  # as documented, for the whole channel

BACK = "no longer ejected"


class OutlierDetection:
    """Runs outlier detection for attempts, and logs ejections. Owned by a balancer,
    which passes every answer other than OK, and every attempt while `outliers` watch a
    method.

    `wants_another` is called if a failure has no other backend to be compared with.
    """

    def __init__(
        self,
        label: str,
        outliers: Outliers["Backend"],
        methods: CallCounts[int],
        wants_another: Callable[[], None],
        events: Events,
    ) -> None:
        self._label = label
        self._outliers = outliers
        self._methods = methods
        self._wants_another = wants_another
        self._events = events

    def learned(
        self, attempt: "Attempt", outcome: Outcome, code: int, now: float
    ) -> Outcome:
        """What an attempt teaches of its backend, judged by what others answer.

        What the table of statuses takes for a failure, or a refusal, stays one.
        """
        backend, counts, hints = attempt.backend, attempt.counts, attempt.hints
        judgement = self._outliers.judge(
            id(counts), backend, outcome, code, attempt.sent_at, now,
            partial(self._methods.method_of, counts),
            chose_freely=hints is None or not hints.keys,
        )  # fmt: skip
        if self._outliers.news and outcome.is_answer:
            self._tell_ejections(now)
        if judgement is None:
            return outcome
        if not judgement.is_usual:
            self._wants_another()
        learned, owed = compared(outcome, judgement, backend.load)
        if judgement.is_unproven:
            backend.condition.last_failure = code, now
        if owed:
            backend.load.owe(owed, now)
        return learned

    def _tell_ejections(self, now: float) -> None:
        news = self._outliers.news.copy()
        self._outliers.news.clear()
        for backend, (_, path), ejection in news:
            said = f"ejected: {told_against(ejection.against)}" if ejection else BACK
            address = backend.endpoint.address
            logger.info(
                "%s: %s for %r: %s",
                self._label,
                address,
                path,
                said,
                channel=self._label,
                backend=address,
                reason=said,
            )
            self._events.add(now, address, said, f"its answers to {path}")

    def __repr__(self) -> str:
        return repr(self._outliers)
