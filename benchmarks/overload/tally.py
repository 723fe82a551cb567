"""What became of the calls of a load, added up as they end.

Of half a million refusals a list would take more of the processor than the load does.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.frames import DEADLINE, Call

CRITICALITIES = ("CRITICAL_PLUS", "CRITICAL", "SHEDDABLE")  # the highest first


@dataclass
class Counts:
    """Of one criticality, in the time that counts."""

    sent: int = 0
    ends: dict[str, int] = field(default_factory=dict)  # by refusal or status
    took: list[float] = field(default_factory=list)  # seconds, of those served


@dataclass
class Tally:
    """Counts the calls that were to be sent between `begin` and `end`."""

    begin: float
    end: float
    counts: dict[str, Counts] = field(
        default_factory=lambda: {name: Counts() for name in CRITICALITIES}
    )
    by_second: dict[str, int] = field(default_factory=dict)  # served, when they were
    lateness: dict[str, int] = field(default_factory=dict)  # ms: calls
    failed_at: float = 0.0  # when the last that was sent after `end` and failed was

    def add(self, call: Call) -> None:
        counts, code = self.counts[call.criticality], call.code
        if code == "OK" and call.latency > DEADLINE:
            code = "DEADLINE_EXCEEDED"  # which its client has not seen in time
        if self.begin <= call.at < self.end:
            counts.sent += 1
            late = str(int(call.lateness * 1e3))
            self.lateness[late] = self.lateness.get(late, 0) + 1
            how = call.refusal or code
            counts.ends[how] = counts.ends.get(how, 0) + 1
            if code == "OK":
                counts.took.append(call.latency)
        if code == "OK":
            second = str(int(call.at + call.lateness + call.latency))
            self.by_second[second] = self.by_second.get(second, 0) + 1
        elif call.at >= self.end:
            self.failed_at = max(self.failed_at, call.at)

    def latest(self, share: float) -> float | None:
        """Seconds that the load was late in sending, at this quantile."""
        left = share * sum(self.lateness.values())
        for late in sorted(map(int, self.lateness)):
            left -= self.lateness[str(late)]
            if left <= 0.0:
                return late / 1e3
        return None


def from_json(fields: dict[str, Any]) -> Tally:
    counts = {name: Counts(**of) for name, of in fields.pop("counts").items()}
    return Tally(**fields, counts=counts)


def total(parts: Iterable[Tally]) -> Tally:
    """What several processes that sent a part of the load each have counted."""
    first, *others = parts
    for other in others:
        for name, of in other.counts.items():
            own = first.counts[name]
            own.sent += of.sent
            own.ends = dict(Counter(own.ends) + Counter(of.ends))
            own.took += of.took
        first.by_second = dict(Counter(first.by_second) + Counter(other.by_second))
        first.lateness = dict(Counter(first.lateness) + Counter(other.lateness))
        first.failed_at = max(first.failed_at, other.failed_at)
    return first
