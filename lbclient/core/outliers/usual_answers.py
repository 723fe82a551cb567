"""How often a method answers with each status: the baseline of outlier detection.

They are the healthier half, so that a fault of several backends does not become usual
before they are ejected. `outliers` tells the rule that this is for, and its source.
"""

from math import inf
from typing import Generic

from lbclient.core.outliers.answer_record import AnswerRecord
from lbclient.core.protocols import N

# Times the others' share of a status. Keys differ between backends: three times the
# NOT_FOUND of the others is usual, and a share that is estimated is no exact one.
FACTOR = 5.0
LEAST = 0.05  # share that is usual, at least; then five errors in a row pass the bar
UNSEEN = 0.5  # share that is usual, at most, of a status that none of the others gave
COMPARED = 50  # backends of the healthier half, at most: an error costs so many looks
SORT_AFTER = 0.25  # seconds until who is healthier is looked at again, at most


class UsualAnswers(Generic[N]):
    """Computes what share of each status is usual for a method. Owned by a
    `MethodWatch`, which writes the `records` that it reads."""

    def __init__(self, records: dict[N, AnswerRecord[N]]) -> None:
        self._records = records
        self._healthier: list[AnswerRecord[N]] = []
        self._half = 0
        self._kinds = 1  # of statuses other than OK, that the healthier half gives
        self._sort_at = -inf
        self._answers = 0  # of all backends, when it was sorted last

    def share(self, record: AnswerRecord[N], status: int) -> tuple[float, float, float]:
        """What share of this status is usual, and how often the others gave it.

        A share of 1.0 or more is no evidence against the backend. The other two numbers
        are the others' calls that ended in this status, and all their calls.
        """
        count = of = recent = of_recent = 0.0
        left = self._half
        for other in self._healthier:
            if other is record:
                continue
            if not left:
                break
            left -= 1
            count += other.long.errors.get(status, 0.0)
            of += other.long.total
            recent += other.recent.errors.get(status, 0.0)
            of_recent += other.recent.total
        # As if there had been one more with it, and one without: of few answers
        # nothing can be told. All may have begun to fail a moment ago: so the more of
        # the two shares.
        share = max((count + 1.0) / (of + 2.0), recent / of_recent if recent else 0.0)
        usual = FACTOR * self._kinds * share
        if count < 0.5:
            usual = min(usual, UNSEEN)
        return max(usual, LEAST), count, of

    def sort(self, answers: int, now: float) -> bool:
        """Finds the healthier half of the backends; False if it did so a moment ago.

        `answers` is how many there ever were to this method.
        """
        is_recent = answers - self._answers < len(self._records) // 2
        if now < self._sort_at and is_recent:
            return False
        self._sort_at, self._answers = now + SORT_AFTER, answers
        known = [each for each in self._records.values() if each.long.total]
        known.sort(key=lambda each: each.recent.error_share())
        half = len(known) // 2  # of the others, rounded up
        step = 1 + half // COMPARED
        # One more, for who is among them is not compared with itself.
        self._healthier = known[: half + 1 : step]
        self._half = max(1, half // step)
        kinds = {
            status
            for each in self._healthier
            for status, count in each.long.errors.items()
            if count >= 0.5
        }
        self._kinds = max(1, len(kinds))
        return True

    def forget(self, node: N) -> None:
        """Compares nobody any more with a backend that has left."""
        self._healthier = [each for each in self._healthier if each.node is not node]

    def __repr__(self) -> str:
        return f"<{len(self._healthier)} of {len(self._records)} compared with>"
