"""Who loses its place to whom, of the requests that wait for grpcio in a flood."""

from typing import Any

from lbclient.core.criticality import Criticality


class Ranks:
    """The criticalities of requests that wait and may be dropped. Owned by the intake,
    used on its loop's thread only."""

    def __init__(self) -> None:
        self._of: dict[Any, Criticality] = {}  # by request, as they came
        self._counts = [0] * len(Criticality)

    def add(self, request: Any, criticality: Criticality) -> None:
        self._of[request] = criticality
        self._counts[criticality] += 1

    def remove(self, request: Any) -> None:
        """It waits no more. Does nothing for a request that was not added."""
        criticality = self._of.pop(request, None)
        if criticality is not None:
            self._counts[criticality] -= 1

    def first_below(
        self, criticality: Criticality
    ) -> tuple[Any, Criticality] | tuple[None, None]:
        """The one that came first of the least critical, if it is less critical than
        that. Its place is the best of theirs, but where one that came later has taken a
        place in front.
        """
        for one in Criticality:
            if one >= criticality:
                break
            if self._counts[one]:
                return next(of for of in self._of.items() if of[1] is one)
        return None, None

    def clear(self) -> None:
        self._of.clear()
        self._counts = [0] * len(Criticality)

    def __len__(self) -> int:
        return len(self._of)

    def __repr__(self) -> str:
        pairs = zip(Criticality, self._counts, strict=True)
        return f"<{', '.join(f'{count} {one.name}' for one, count in pairs if count)}>"
