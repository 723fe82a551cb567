"""Counts the requests that came to a server, by criticality and by who decided."""

from lbclient.core.criticality import DEFAULT, Criticality


class ArrivalCounts:
    """Counts what came and how it was let in. Owned by the gate, which writes it.

    Of the requests that arrived admission knows of the first `asked`; later ones came
    in calm, without a decision. `decided` are those whose metadata was read, by
    criticality, `let_by` health checks and the like.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.decided = [0] * len(Criticality)
        self.let_by = 0

    def by_criticality(self, arrived: int) -> list[int]:
        """Counts by criticality of all that arrived, without those that were let by."""
        counts = self.decided.copy()
        counts[DEFAULT] += arrived - self.let_by - sum(counts)
        return counts

    def __repr__(self) -> str:
        return f"<{sum(self.decided)} decided, {self.let_by} let by>"
