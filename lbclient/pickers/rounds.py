"""Looks at many candidates by parts, so that no pick takes long; a round is all parts.

A part is judged by the means of the last round, or of its last part. Scores are in a
heap, see `ranking`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lbclient.core.protocols import Node
from lbclient.pickers.candidate import ABSENT, Candidate
from lbclient.pickers.means import TUNING as MEANS
from lbclient.pickers.overview import Overview, weigh
from lbclient.pickers.ranking import Ranking

Rescore = Callable[[Candidate, float], None]  # computes its score, as of now


@dataclass(frozen=True, slots=True)
class RoundsTuning:
    """How much is done at once: 50 us at most, by `benchmarks.picks`."""

    part: int = 16  # backends that are looked at together
    looks: float = 0.25  # backends for each pick, at 2 us each
    fewest_looks: float = 32.0  # a second, in any case: all of 1,000 in half a minute


TUNING = RoundsTuning()


class Rounds:
    """The rounds of one picker's many candidates. Made anew where `ready` is another.

    `ranking` has the scores, which the picker may change. The next look is due at
    `look_at`; the last one `has_begun` a round, or has not.
    """

    __slots__ = (
        "_candidates",
        "_next",
        "_overview",
        "_ready",
        "_step_after",
        "has_begun",
        "look_at",
        "ranking",
    )

    def __init__(
        self,
        overview: Overview,
        ready: Sequence[Node],
        candidates: list[Candidate],
        step_after: float,
        now: float,
    ) -> None:
        """`candidates` are parallel to `ready`. `step_after` is in seconds: from one
        step of a backend's weight to the next."""
        self._overview = overview
        self._ready = ready
        self._candidates = candidates
        self._step_after = step_after
        self._next = 0  # who is looked at next
        self.has_begun = False
        self.look_at = now
        self.ranking = Ranking(candidates, overview.means.horizon)

    def begin(self, now: float, rescore: Rescore) -> None:
        """Ranks all of them for the first time."""
        overview = self._overview
        overview.newcomers.look(self._ready, now, overview.turns.mean)
        weigh(self._candidates, overview.equalizer.weights_of(self._ready))
        self._rank(self._candidates, now, rescore)

    def reported(self, candidate: Candidate, now: float) -> None:
        """A new report may move its weight."""
        if now >= candidate.step_at and candidate.index != ABSENT:
            candidate.step_at = now + self._step_after
            if self._overview.newcomers.is_grown(candidate.load):
                node = self._ready[candidate.index]
                candidate.weight = self._overview.equalizer.step_one(node, now)

    def look(self, picked: int, now: float, rescore: Rescore) -> list[Candidate]:
        """Brings up to date what changes slowly, for the next part.

        Returns whose the next picks are. `picked` counts all picks that ever were.
        """
        known, overview = self._candidates, self._overview
        means, turns = overview.means, overview.turns
        first, last = self._next, self._next + TUNING.part
        part, nodes = known[first:last], self._ready[first:last]
        passed, recent = now - means.epoch, turns.picks_since(picked)
        periods = min(100.0, passed / MEANS.refresh_period)
        gain = 1.0 - (1.0 - MEANS.gain) ** periods
        overview.update_means(part, len(part) / len(known), gain)
        self._step(part, nodes, now)
        starved = overview.starved
        due = starved.find(part) if starved.is_checking else []
        overview.begin_epoch(picked, len(known), now)
        self.ranking.horizon = means.horizon
        turns.mean += turns.cost * recent / len(known)
        weigh(part, overview.equalizer.weights_of(nodes))
        turns.fade(part, now)
        self._rank(part, now, rescore)
        self._next = last if last < len(known) else 0
        self.has_begun = first == 0
        if not self._next:
            overview.equalizer.end_round(self._ready, now)
        elif self.has_begun:
            self._begin_round(picked, now)
        due += self._due_newcomers(now)
        often = recent / passed if passed > 0.0 else 0.0
        looks = max(TUNING.fewest_looks, TUNING.looks * often)
        looks = min(len(known) / MEANS.refresh_period, looks)
        self.look_at = now + TUNING.part / looks
        return due

    def _step(self, part: list[Candidate], nodes: Sequence[Node], now: float) -> None:
        """Moves the weights of a part."""
        overview = self._overview
        missed = overview.look_for_missed(part, now)
        grown = [node for node in nodes if overview.newcomers.is_grown(node.load)]
        overview.equalizer.step_part(grown, now, missed)
        overview.equalizer.sum_up(nodes, begins=self._next == 0)

    def _rank(self, part: list[Candidate], now: float, rescore: Rescore) -> None:
        for candidate in part:
            rescore(candidate, now)
            self.ranking.put(candidate, now)

    def _begin_round(self, picked: int, now: float) -> None:
        """What takes long, but not with the end of a round, which takes as long."""
        known, overview = self._candidates, self._overview
        starved = overview.starved
        starved.is_checking = starved.has_enough(picked, len(known))
        overview.turns.average(known)
        if overview.newcomers.look(self._ready, now, overview.turns.mean):
            for each in known:
                self.ranking.put(each, now)

    def _due_newcomers(self, now: float) -> list[Candidate]:
        members = self._overview.newcomers.members
        if not members:
            return []
        scored = [(each, self.ranking.score(each, now)) for each in members]
        return self._overview.due_newcomers(scored, self.ranking.lowest(now))

    def __repr__(self) -> str:
        return f"<rounds of {len(self._candidates)}, {self._next} looked at>"
