"""Newcomers among weighted candidates: picked by credit while they are in slow start.

The picker does not compare the score of a backend in slow start. Each pick of another
backend gives the newcomer credit, in proportion to its share. For a whole credit it is
picked once, unless it is busier than the others. A smaller weight would not work: among
nearly idle backends the one with the smallest weight is never picked.
"""

from collections.abc import Sequence
from math import inf

from lbclient.core.load import Load
from lbclient.core.protocols import Node
from lbclient.pickers.missed_reports import ReportGaps
from lbclient.pickers.slow_start import MOMENT, SlowStart

REPORT_LAG = 3.0  # seconds; servers smooth over 2 s what they report
ABSENT = -1  # the index of one that is not ready, or not compared


class Candidate:
    """A backend, and what its score consists of. Owned by the picker.

    score = base + extra * exp((epoch - now) / horizon). Epoch and horizon are the same
    for all candidates, so one exponential ages all scores. The picker updates a
    candidate after its load was written.
    """

    __slots__ = (
        "answers",
        "base",
        "credit",
        "doubted_until",
        "extra",
        "index",
        "load",
        "others",
        "picks",
        "report_gaps",
        "reported_at",
        "share",
        "slot",
        "started",
        "suspected_at",
        "weight",
    )

    def __init__(self, load: Load, picks: float, credit: float) -> None:
        self.load = load
        self.picks = picks  # each fading over PICK_MEMORY
        self.index = ABSENT
        self.slot = ABSENT  # of its score: none also while it has a part of its share
        self.share = 1.0  # see `SlowStart`
        self.credit = credit  # picks that it may have, while its share is below 1
        self.weight = 1.0
        self.base = 0.0
        self.extra = 0.0
        self.reported_at = -inf
        self.doubted_until = -inf  # its counts are old
        self.suspected_at = -inf
        self.others: int | None = None  # requests of other clients, as last told
        self.report_gaps = ReportGaps()
        self.answers = 0  # ever, when its last report came
        self.started = load.started  # when last looked at for a floor


class Newcomers:
    """The candidates that are in slow start. Owned by a picker.

    Others may read `members`, which is nearly always empty.
    """

    __slots__ = ("_candidates", "_look_at", "_slow_start", "_started", "members")

    def __init__(self, slow_start: SlowStart) -> None:
        self._slow_start = slow_start
        self._candidates: list[Candidate] = []
        self.members: list[Candidate] = []
        self._started = 0  # requests to all others, as last counted
        self._look_at = -inf

    def follow(self, candidates: list[Candidate], now: float) -> None:
        """There are other candidates from now on, or in another order."""
        self._candidates = candidates
        self._find()
        self._look_at = now

    def look(self, ready: Sequence[Node], now: float) -> None:
        """Brings shares up to date, now and then or while there are any newcomers."""
        if not self.members and now < self._look_at:
            return
        self._look_at = now + MOMENT
        self._slow_start.look(ready, now)
        shares = self._slow_start.shares(ready, now)
        for candidate, share in zip(self._candidates, shares, strict=True):
            candidate.share = share
        self._find()
        if self.members:
            # As if it had had its turns: later there is nothing to catch up with.
            old = [each.picks for each in self._candidates if each.share == 1.0]
            for candidate in self.members:
                candidate.picks = sum(old) / len(old)

    def grown(self, ready: Sequence[Node], now: float) -> list[Node]:
        """Who is judged by utilization: a small share's is low as it should be."""
        shares = self._slow_start.shares(ready, now - REPORT_LAG)
        return [node for node, share in zip(ready, shares, strict=True) if share == 1.0]

    def give_credit(self) -> None:
        """Of what others had since, in the mean, each newcomer has its share."""
        started, before = self._count_started(), self._started
        self._started = started
        others = len(self._candidates) - len(self.members)
        for each in self.members:
            more = each.share * each.weight * (started - before) / (others or 1)
            each.credit = min(1.0, each.credit) + more  # none is saved up

    def admit(
        self, scores: list[float], idle: float, turn_cost: float
    ) -> list[Candidate]:
        """Whose the next picks are: who has credit, and is no busier than others.

        As idle as the idlest, but for whose turn it is, which is worth `idle`. All of
        them leave the comparison.
        """
        known = [(each, scores[each.index]) for each in self.members]
        for each, _ in known:
            scores[each.index] = inf
        limit = min(scores) + idle
        due = []
        for each, score in known:
            while each.credit >= 1.0 and score <= limit:
                each.credit -= 1.0
                score += (1.0 + turn_cost) / each.weight
                due.append(each)
        return due

    def _find(self) -> None:
        self.members = [each for each in self._candidates if each.share < 1.0]
        for candidate in self._candidates:
            candidate.slot = candidate.index if candidate.share == 1.0 else ABSENT
        self._started = self._count_started()

    def _count_started(self) -> int:
        return sum(each.load.started for each in self._candidates if each.share == 1.0)

    def __repr__(self) -> str:
        return f"<{len(self.members)} newcomers of {len(self._candidates)}>"
