"""How calls of the large fleet ended, by customer: what its clients tell as JSON."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

STOCK = "stock"  # the customer's place of a client that is no lbclient's


@dataclass(slots=True)
class Ends:
    """How the calls of a customer ended."""

    codes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.codes.total()

    @property
    def served(self) -> float:
        return self.codes["OK"] / max(1, self.calls)

    @property
    def refused(self) -> int:
        """Out of quota: by a backend, or by the channel, which knows by then."""
        return self.codes["RESOURCE_EXHAUSTED"]

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0

    def told(self) -> dict[str, Any]:
        return {"codes": self.codes, "latencies": self.latencies}


def gather(said: Iterable[dict[str, Any]]) -> dict[str, Ends]:
    """Adds up what several clients, or processes of them, have told."""
    ends: dict[str, Ends] = {}
    for by_customer in said:
        for customer, one in by_customer.items():
            end = ends.setdefault(customer, Ends())
            end.codes.update(one["codes"])
            end.latencies += one["latencies"]
    return ends
