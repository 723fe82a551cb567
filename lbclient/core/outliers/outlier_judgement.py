"""Adjusts an attempt's outcome by what other backends answer."""

from typing import NamedTuple

from lbclient.core.load import ERROR_MEMORY, Load
from lbclient.core.model import Outcome, Verdict

SERVED, FAILED, ABANDONED = Verdict.SERVED, Verdict.FAILED, Verdict.ABANDONED


class Judgement(NamedTuple):
    """What an answer other than OK says of its backend, compared with the others.

    It is a failure of the backend; or unproven, as the backend has served nothing yet
    that speaks for it; or usual, as the others give it about as often. `latency` is the
    mean of the method's OKs in seconds, 0.0 if there was none yet.
    """

    is_failure: bool
    is_unproven: bool
    is_usual: bool
    latency: float


class Against(NamedTuple):
    """Why a backend is ejected: a status, and its recent share of the answers.

    The backend gave it to `own` of `of_own` calls, the others to `others` of
    `of_others`.
    """

    status: int
    own: float
    of_own: float
    others: float
    of_others: float


def compared(
    outcome: Outcome, judgement: Judgement, load: Load
) -> tuple[Outcome, float]:
    """Adjusts an outcome by the judgement of its status.

    Also returns by how many seconds the error was quicker than an OK, for `Load.owe`. A
    status that is a failure or a refusal by itself stays that. An unproven one counts
    as an error for pickers that go by requests, and is forgiven if it turns out to be
    none.
    """
    verdict, latency, report, _, _ = outcome
    if verdict not in (SERVED, ABANDONED):
        return outcome, 0.0
    if judgement.is_failure:
        return Outcome(FAILED, latency, report), 0.0
    # Not its own latency, which would make it look fast, but that of an OK.
    learned = latency
    if judgement.latency:
        learned = max(latency, judgement.latency)
    elif not judgement.is_usual:
        learned = load.latency  # of which this says nothing
    owed = ERROR_MEMORY if judgement.is_unproven else max(0.0, learned - latency)
    return Outcome(SERVED, learned, report), owed


class Shares:
    """How often a backend gave each status; older answers count less and less."""

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
