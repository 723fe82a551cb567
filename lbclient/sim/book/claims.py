"""A claim of a text, compared with what was computed here."""

from dataclasses import dataclass
from enum import StrEnum

ANY = 1e6  # as the upper bound of a value that may be as large as it likes


class Finding(StrEnum):
    HOLDS = "holds"
    DEPARTS = "departs"  # known and explained: our value is not the text's
    FAILS = "FAILS"  # neither as the text has it nor as we explain it


@dataclass(frozen=True, slots=True)
class Claim:
    """Our value beside the text's, and the bounds within which ours is as expected.

    `where` is the source; `says` the claim in our words, or a short quote. `text` is
    the text's own value; empty where it has words or a picture only. `why` is the
    reason for the bounds. `departs` says why our value is not the text's where that is
    known; the bounds are then those of our value.

    A value that is a text, such as a list, has to be `low` exactly.
    """

    where: str
    says: str
    value: float | str
    low: float | str
    high: float | str
    text: str = ""
    why: str = ""
    departs: str = ""

    @property
    def holds(self) -> bool:
        """Whether our value is within the bounds, those of a departure included."""
        value, low, high = self.value, self.low, self.high
        if isinstance(value, str) or isinstance(low, str) or isinstance(high, str):
            return value == low
        return low <= value <= high

    @property
    def finding(self) -> Finding:
        if not self.holds:
            return Finding.FAILS
        return Finding.DEPARTS if self.departs else Finding.HOLDS

    @property
    def ours(self) -> str:
        if isinstance(self.value, str):
            return self.value
        return f"{self.value:,.0f}" if self.value >= 1e4 else f"{self.value:.4g}"

    @property
    def within(self) -> str:
        """The bounds in words."""
        if isinstance(self.low, str) or self.low == self.high:
            return "exactly"
        if self.high == ANY:
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


def same(
    where: str,
    says: str,
    value: object,
    text: object,
    *,
    but: object = "",
    departs: str = "",
) -> Claim:
    """A claim without chance: the text's value, or `but` with its reason."""
    low = str(but) or str(text)
    return Claim(where, says, str(value), low, low, str(text), departs=departs)
