"""Draws lots for backends that do not tell how many requests other clients have there.

Each is taken to be as busy as another one that does tell. Were it as busy as the mean,
it would lose to whoever is idle by chance, and get nothing.
"""

from random import Random

from lbclient.pickers.candidate import Candidate


class SilentBackends:
    """Draws lots for the candidates that do not tell. Owned by a picker.

    Others may read `members`: those that do not tell, where some do.
    """

    __slots__ = ("_rng", "_telling", "members")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._telling: list[Candidate] = []
        self.members: list[Candidate] = []

    def look(self, candidates: list[Candidate]) -> None:
        """Takes note of who tells how many requests others have there."""
        self._telling = [each for each in candidates if each.others is not None]
        self.members = []
        if self._telling:
            self.members = [each for each in candidates if each.others is None]

    def draw_for_all(self) -> None:
        """Draws one for each that does not tell."""
        telling, random = self._telling, self._rng.random
        count = len(telling)
        for candidate in self.members:
            if candidate.others is None:  # it may have told since
                candidate.extra = telling[int(random() * count)].extra

    def draw(
        self,
        candidate: Candidate,
        candidates: list[Candidate],
        mean: float,
        now: float,
    ) -> None:
        """Draws one for this candidate, among many; `mean` is of others' requests."""
        other = candidates[int(self._rng.random() * len(candidates))]
        if other.others is not None:
            candidate.extra = other.others / other.weight - mean
            candidate.told_at = now

    def __repr__(self) -> str:
        return f"<{len(self.members)} that do not tell, {len(self._telling)} that do>"
