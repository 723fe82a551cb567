"""What a picker knows of all its candidates together, and how it keeps that up to date.

It is the same for a few, looked at together, and for many, looked at by parts.
"""

from collections.abc import Sequence

from lbclient.core.load import Load
from lbclient.pickers.candidate import Candidate
from lbclient.pickers.equalizer import Equalizer
from lbclient.pickers.means import Means
from lbclient.pickers.newcomers import Newcomers
from lbclient.pickers.old_counts import OldCounts
from lbclient.pickers.starved import Starved
from lbclient.pickers.turn_taking import TurnTaking


class Overview:
    """Weights, means, turns, newcomers and doubts of one picker, which owns it."""

    __slots__ = ("equalizer", "means", "newcomers", "old_counts", "starved", "turns")

    def __init__(self, equalizer: Equalizer, newcomers: Newcomers) -> None:
        self.equalizer = equalizer
        self.newcomers = newcomers
        self.means = Means()
        self.turns = TurnTaking()
        self.old_counts = OldCounts()
        self.starved = Starved()

    def update_means(self, part: list[Candidate], share: float, gain: float) -> None:
        """Takes news of some candidates, see `Means.update`."""
        self.means.update(part, share, gain, self.old_counts.deaf_until)

    def look_for_missed(self, part: list[Candidate], now: float) -> set[Load]:
        """Whose reports have ended. What they said of others' requests is forgotten."""
        missed = set()
        for candidate in part:
            if candidate.report_gaps.look(candidate.load, candidate.answers, now):
                missed.add(candidate.load)
                candidate.others = None
        return missed

    def begin_epoch(self, picked: int, count: int, now: float) -> None:
        """Takes what there is to do for `count` backends; `picked` counts all picks."""
        self.means.begin_epoch(now)
        self.turns.update(self.means, picked, count, now)

    def due_newcomers(
        self, scored: list[tuple[Candidate, float]], least: float
    ) -> list[Candidate]:
        """Newcomers whose the next picks are. They come with their scores; `least` is
        the lowest score of the others."""
        turns = self.turns
        return self.newcomers.admit(scored, least + turns.idle, turns.cost)

    def __repr__(self) -> str:
        horizon = self.means.horizon * 1000
        return f"<{self.turns.busy:.0%} busy, horizon {horizon:.0f} ms>"


def weigh(candidates: Sequence[Candidate], weights: Sequence[float]) -> None:
    """Gives each candidate its weight; both are in the same order."""
    for candidate, weight in zip(candidates, weights, strict=True):
        candidate.weight = weight
