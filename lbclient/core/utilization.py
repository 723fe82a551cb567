"""Which of the metrics that backends report is their utilization (gRFC A114).

By default the application's own, else the CPU's. A channel may name others, such as
`named_metrics.pool`: then it is the largest of these.
"""

import re
from collections.abc import Callable, Sequence
from operator import attrgetter

from lbclient.core.model import LoadReport

# "Only the following fields are supported".
METRIC = re.compile(
    r"(application|cpu|mem)_utilization|(named_metrics|utilization)\..+", re.DOTALL
)


def utilization_by(names: Sequence[str]) -> Callable[[LoadReport], float]:
    """Reads the utilization of a report; 0.0 is unknown.

    "If checking custom metrics did not determine a valid utilization value, fall back":
    a backend that tells none of them counts with what it tells by default, and not as
    idle.

    >>> by = utilization_by(["named_metrics.pool", "mem_utilization"])
    >>> by(LoadReport(0.5, metrics={"named_metrics.pool": 0.3, "mem_utilization": 0.2}))
    0.3
    >>> by(LoadReport(0.5)), by(LoadReport())
    (0.5, 0.0)
    """
    if not names:
        return attrgetter("utilization")

    def read(report: LoadReport) -> float:
        told = report.metrics
        return max(told.get(name, 0.0) for name in names) or report.utilization

    return read
