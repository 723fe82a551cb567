"""Adjusts an attempt's outcome by what other backends answer."""

from typing import NamedTuple

from lbclient.core.load import ERROR_MEMORY, Load
from lbclient.core.model import Outcome, Verdict

SERVED, FAILED, ABANDONED = Verdict.SERVED, Verdict.FAILED, Verdict.ABANDONED


class Judgement(NamedTuple):
    """Of an answer that is not OK: whether it is a failure of the backend, or may be
    one, as nothing is known that speaks for it; or whether the others give it about as
    often. And how long an OK takes on average, 0.0 where there was none yet."""

    is_failure: bool
    is_doubtful: bool
    is_usual: bool
    latency: float


class Against(NamedTuple):
    """What speaks against a backend: a status, to how many of how many calls it gave
    it of late, and the others did."""

    status: int
    own: float
    of_own: float
    others: float
    of_others: float


def compared(
    outcome: Outcome, judgement: Judgement | None, load: Load
) -> tuple[Outcome, float]:
    """What is learned from an attempt whose status was compared with others'; and how
    many seconds too soon it ended, see `Load.owe`.

    What is a failure or a refusal by its status alone stays that. What may be one
    counts as an error for whoever goes by requests, and is forgiven if it was none.
    """
    verdict, latency, report, _, _ = outcome
    if judgement is None or verdict not in (SERVED, ABANDONED):
        return outcome, 0.0
    if judgement.is_failure:
        return Outcome(FAILED, latency, report), 0.0
    # Not its own latency, which would make it look fast, but that of an OK.
    learned = latency
    if judgement.latency:
        learned = max(latency, judgement.latency)
    elif not judgement.is_usual:
        learned = load.latency  # of which this says nothing
    owed = ERROR_MEMORY if judgement.is_doubtful else max(0.0, learned - latency)
    return Outcome(SERVED, learned, report), owed


class Shares:
    """How often a backend gave which status, the past fading with each answer."""

    __slots__ = ("_kept", "errors", "total")

    def __init__(self, memory: float) -> None:
        self._kept = 1.0 - 1.0 / memory
        self.total = 0.0
        self.errors: dict[int, float] = {}

    def add(self, status: int) -> None:
        kept, errors = self._kept, self.errors
        self.total = self.total * kept + 1.0
        if errors:
            for each in errors:
                errors[each] *= kept
        if status:
            errors[status] = errors.get(status, 0.0) + 1.0

    def error_share(self) -> float:
        return sum(self.errors.values()) / self.total if self.total else 0.0

    def __repr__(self) -> str:
        return f"<{sum(self.errors.values()):.0f} errors of {self.total:.0f}>"
