"""Reads the utilizations and named metrics of a load report, by gRFC A114's names."""

from collections.abc import Iterator, Mapping

from lbclient.v1 import load_pb2

# Names in a report. Of a report with more none is read: which ones would be left out
# would be chance. lbclient's servers send 16.
MOST = 100
LONGEST = 100  # characters of a name with its field; lbclient's servers use 40

# A larger number counts as missing, as an infinite one does: of some their sums or
# products are infinite, and then no number. Doubles count one by one up to here, and
# so bytes of memory up to 9 PB.
LARGEST = 2.0**53


class Metrics(Mapping[str, float]):
    """Reads the message when a metric is first asked for: to read maps takes longer
    than all else in a report, and few channels ask."""

    __slots__ = ("_found", "_message")

    def __init__(self, message: load_pb2.LoadReport) -> None:
        self._message: load_pb2.LoadReport | None = message
        self._found: dict[str, float] | None = None

    def read(self) -> dict[str, float]:
        message = self._message
        if message is not None:  # else it was read before, in whatever thread
            self._found = read_metrics(message)
            self._message = None
        assert self._found is not None
        return self._found

    def __getitem__(self, name: str) -> float:
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def __repr__(self) -> str:
        return repr(self.read())


def read_metrics(message: load_pb2.LoadReport) -> dict[str, float]:
    """The metrics above 0, as 0 means missing, of named metrics too."""
    used, named = message.utilization, message.named_metrics
    pairs = [
        ("application_utilization", message.application_utilization),
        ("cpu_utilization", message.cpu_utilization),
        ("mem_utilization", message.mem_utilization),
    ]
    if 0 < len(used) + len(named) <= MOST:
        pairs += [(f"utilization.{name}", value) for name, value in used.items()]
        pairs += [(f"named_metrics.{name}", value) for name, value in named.items()]
    return {
        name: value
        for name, value in pairs
        if 0.0 < value <= LARGEST and len(name) <= LONGEST
    }
