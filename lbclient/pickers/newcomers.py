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
from lbclient.pickers.candidate import ABSENT, Candidate
from lbclient.pickers.slow_start import MOMENT, SlowStart

REPORT_LAG = 3.0  # seconds; servers smooth over 2 s what they report


class Newcomers:
    """The candidates that are in slow start. Owned by a picker.

    Others may read `members`, which is nearly always empty.
    """

    __slots__ = (
        "_candidates", "_counted", "_look_at", "_slow_start", "_young", "members",
    )  # fmt: skip

    def __init__(self, slow_start: SlowStart) -> None:
        self._slow_start = slow_start
        self._candidates: list[Candidate] = []
        self.members: list[Candidate] = []
        self._young: set[Load] = set()
        self._counted = 0  # picks of others, when last counted
        self._look_at = -inf

    def follow(self, candidates: list[Candidate], picked: int, now: float) -> None:
        """There are other candidates from now on, or in another order. `picked`: of
        those that are no members, since the beginning."""
        self._candidates = candidates
        self._counted = picked
        self._find()
        self._look_at = now

    def look(self, ready: Sequence[Node], now: float, mean_turns: float) -> bool:
        """Brings shares up to date, now and then or while there are any newcomers.

        Returns whether there are or were some.
        """
        if not self.members and now < self._look_at:
            return False
        self._look_at = now + MOMENT
        self._slow_start.look(ready, now)
        shares = self._slow_start.shares(ready, now)
        before = len(self.members)
        if not before and not self._young and min(shares) == 1.0:
            return False
        for candidate, share in zip(self._candidates, shares, strict=True):
            candidate.share = share
        self._find()
        for candidate in self.members:
            # As if it had had its turns: later there is nothing to catch up with.
            candidate.turns = mean_turns
        if self.members or self._young:
            grown = {node.load for node in self.grown(ready, now)}
            self._young = {node.load for node in ready if node.load not in grown}
        return bool(self.members or before)

    def shares(self, ready: Sequence[Node], now: float) -> list[float]:
        """The share of each, 1.0 of those that are in no slow start."""
        return self._slow_start.shares(ready, now)

    def grown(self, ready: Sequence[Node], now: float) -> list[Node]:
        """Who is judged by utilization: a small share's is low as it should be."""
        shares = self._slow_start.shares(ready, now - REPORT_LAG)
        return [node for node, share in zip(ready, shares, strict=True) if share == 1.0]

    def is_grown(self, load: Load) -> bool:
        """The same for one of them, as of the last look."""
        return not self._young or load not in self._young

    def give_credit(self, picked: int) -> None:
        """Of what others had since, in the mean, each newcomer has its share."""
        more, self._counted = picked - self._counted, picked
        others = len(self._candidates) - len(self.members)
        for each in self.members:
            share = each.share * each.weight * more / (others or 1)
            each.credit = min(1.0, each.credit) + share  # none is saved up

    def admit(
        self, known: list[tuple[Candidate, float]], limit: float, turn_cost: float
    ) -> list[Candidate]:
        """Whose the next picks are: who has credit, and is no busier than others.

        Members come with their scores. `limit` is that of the idlest other, and what a
        turn is worth: whose turn it is does not count.
        """
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

    def __repr__(self) -> str:
        return f"<{len(self.members)} newcomers of {len(self._candidates)}>"
