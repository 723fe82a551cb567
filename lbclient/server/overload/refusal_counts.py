"""How many requests were refused, by reason and criticality."""

from lbclient.core.criticality import Criticality, current_or_default
from lbclient.server.overload.refusal_status import REASONS


class RefusalCounts:
    """Counts refused requests by reason and criticality. Owned by the gate. Written on
    its loop's thread, read in any."""

    def __init__(self) -> None:
        self._counts = {reason: [0] * len(Criticality) for reason in REASONS}
        self._for_load = [0] * len(Criticality)

    def count(
        self,
        reason: str,
        criticality: Criticality | None = None,
        is_for_load: bool = True,
    ) -> None:
        """Counts a refusal. None: the criticality is that of the current context."""
        if criticality is None:
            criticality = current_or_default()
        self._counts[reason][criticality] += 1
        if is_for_load:
            self._for_load[criticality] += 1

    def for_load(self) -> list[int]:
        """Refusals for the task's load, by criticality.

        Those for a quota, or for a deadline that had passed or was too short, are not
        in it.
        """
        return self._for_load.copy()

    def of(self, reason: str) -> int:
        return sum(self._counts[reason])

    def total(self) -> int:
        return sum(map(sum, self._counts.values()))

    def read(self) -> dict[str, dict[str, int]]:
        return {
            reason: {one.name: counts[one] for one in Criticality}
            for reason, counts in self._counts.items()
        }

    def __repr__(self) -> str:
        return f"<{self.total()} refused>"
