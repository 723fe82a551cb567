"""What is usual of a picker's candidates: mean latency, utilization and requests."""

from dataclasses import dataclass

from lbclient.pickers.candidate import Candidate


@dataclass(frozen=True, slots=True)
class MeansTuning:
    """How means are taken. Ours, found by simulation: `lbclient sim` plays them."""

    refresh_period: float = 0.25  # seconds; errors fade by 2.5 % in it, turns by 5 %
    # Of what was told in a refresh period, in the mean of others' requests: some 1.2 s
    # of reports.
    gain: float = 0.2
    # Of the mean time that requests found there will yet take, E[x^2] / 2 E[x]: half of
    # it did as well as all in S4_heavy@0.5, and is below the mean latency but where a
    # few are very long, so that nothing else changes.
    remaining: float = 0.5
    shortest_horizon: float = 0.005  # seconds; less than a round trip is noise


TUNING = MeansTuning()


class Means:
    """Means of all candidates. Owned by a picker, which alone calls the methods.

    `others` are requests of other clients for each unit of weight, `own` this client's
    requests on each backend, and `requests` are both. `used` is the utilization, 0.0 of
    who tells no requests. What was told of others fades within the `horizon`, counted
    from `epoch`.
    """

    __slots__ = (
        "epoch", "horizon", "latency", "others", "own", "remaining", "requests", "used",
    )  # fmt: skip

    def __init__(self) -> None:
        self.latency = 0.0  # seconds
        self.remaining = 0.0  # seconds that requests in flight yet take
        self.used = 0.0
        self.own = 0.0
        self.others = 0.0
        self.requests = 0.0
        self.horizon = TUNING.shortest_horizon  # seconds
        self.epoch = 0.0

    def update(
        self,
        part: list[Candidate],
        share: float,
        gain: float,
        deaf_until: float,
    ) -> None:
        """Takes news of some candidates, which are a `share` of all and count so much.

        Others' requests count by what was told since these were looked at, with this
        `gain`. Counts of before `deaf_until` are not believed.
        """
        latencies = [each.load.latency for each in part if each.load.latency]
        if latencies:
            total = sum(latencies)
            squares = sum(each.load.squared_latency for each in part)
            remaining = TUNING.remaining * squares / (2.0 * total)
            by = share if self.latency else 1.0
            self.latency += by * (total / len(latencies) - self.latency)
            self.remaining += by * (remaining - self.remaining)
        tells = [each.load for each in part if each.others is not None]
        used = sum(min(1.0, load.utilization()) for load in tells) / len(part)
        self.used += share * (used - self.used)
        own = sum(each.load.in_flight for each in part) / len(part)
        self.own += share * (own - self.own)
        self._update_others(part, gain, deaf_until)

    def _update_others(
        self, part: list[Candidate], gain: float, deaf_until: float
    ) -> None:
        mean = self.others
        # Capped, so that one absurd report cannot move the mean for long.
        cap = 2.0 * abs(mean) + 2.0
        told = [
            min(each.others / each.weight, cap)
            for each in part
            if each.others is not None and each.reported_at > each.looked_at
        ]
        if told:
            self.others += gain * (sum(told) / len(told) - mean)
        elif self.epoch >= deaf_until and not any(
            each.others is not None for each in part
        ):
            self.others -= gain * mean  # nobody tells any more

    def begin_epoch(self, now: float) -> None:
        """What others have is told as of now, and fades by the means of now."""
        self.epoch = now
        self.horizon = max(self.latency, self.remaining, TUNING.shortest_horizon)
        # Of our own some may wait, and not be told of: then others have less than none.
        self.requests = max(0.0, self.others + self.own)

    def __repr__(self) -> str:
        return f"<{self.requests:.2f} requests, {self.latency * 1000:.0f} ms each>"
