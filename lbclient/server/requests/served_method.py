"""State of one method in one server: its counts, costs and admission."""

from collections.abc import Callable
from typing import Any

from lbclient.core.overload.admission import Quickest
from lbclient.core.quotas.costs import Total
from lbclient.server.overload.gate import Gate
from lbclient.server.report.reporter import Reporter
from lbclient.server.report.request_tally import Counts, MethodTally, RequestTally

# Of a server. A generic handler may serve any name that a client invents.
MOST_METHODS = 1024


class ServedMethod(MethodTally):
    """What the requests of one method have in common, in one server.

    `serialize` is for what a handler writes itself.
    """

    __slots__ = (
        "charging",
        "cost",
        "gate",
        "reporter",
        "serialize",
        "tally",
        "threads",
    )

    def __init__(
        self,
        reporter: Reporter,
        gate: Gate,
        tally: RequestTally,
        counts: Counts,
        serialize: Callable[[Any], Any] | None = None,
        quickest: Quickest | None = None,
    ) -> None:
        super().__init__(counts, quickest, tally.measures)
        self.reporter = reporter
        self.gate = gate
        self.threads = gate.threads
        self.tally = tally
        self.charging = gate.charging
        costs = self.charging.costs
        self.cost: Total | None = None  # of all its requests together
        if costs is not None:
            self.cost = costs.of_method(tally.call_counts.method_of(counts))
        self.serialize = serialize
