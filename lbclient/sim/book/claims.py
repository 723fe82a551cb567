"""What a text claims, and what came of it here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """It holds if `value` is from `low` to `high`; `says` is ours, or a short quote."""

    where: str
    says: str
    value: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        return self.low <= self.value <= self.high
