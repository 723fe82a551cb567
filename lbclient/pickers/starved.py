"""Finds the backends that got next to no picks, for the next ones: have they recovered?

A backend whose score is bad for long, by its errors or by an old report, would never be
picked again, and so never show that it is well.
"""

from lbclient.pickers.candidate import Candidate

FLOOR = 0.01  # of a fair share; less is noticed and made up for


class Starved:
    """Looks for who got less than the floor. Owned by a picker.

    `is_checking` is for who looks at some at a time: it says if they are looked for.
    """

    __slots__ = ("_checked", "is_checking")

    def __init__(self) -> None:
        self._checked = 0  # picks, at the last look
        self.is_checking = False

    def has_enough(self, picked: int, count: int) -> bool:
        """Whether picks since the last look, of all that were ever, suffice to tell."""
        if picked - self._checked < count / FLOOR:
            return False
        self._checked = picked
        return True

    def begin_again(self, picked: int) -> None:
        """There are newcomers, which are not starved yet."""
        self._checked = picked

    def find(self, part: list[Candidate]) -> list[Candidate]:
        """Who was not called since this was asked last."""
        found = []
        for candidate in part:
            if candidate.load.started == candidate.started:
                found.append(candidate)
            candidate.started = candidate.load.started
        return found

    def __repr__(self) -> str:
        return f"<who is starved, as of {self._checked} picks>"
