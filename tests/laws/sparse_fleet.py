"""A fleet of clients that send little, in virtual time, seeded.

Poisson arrivals; backends of one capacity each, with a bucket of one second's depth.
What they refuse they tell in each answer, in a health report a minute to each client,
and at once when they recover. A client has what channels have: `Throttling`, and a
`Load` for each of its backends.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from random import Random

from lbclient.core.criticality import DEFAULT, Criticality
from lbclient.core.load import Load
from lbclient.core.model import LoadReport, Outcome, Verdict
from lbclient.core.overload.refused_shares import RefusedShares
from lbclient.core.refusal import Refusal
from lbclient.core.throttles.throttling import Throttling

LATENCY = 0.05
REPORT_EVERY = 60.0  # seconds; a channel that is called seldom asks for no more
SAMPLE_EVERY = 0.1  # seconds, as servers do


class Backend:
    """`stray` is the share that it refuses once it is well, and `lie` what it says
    that it refuses, whatever it does. `is_mute`: it tells nothing."""

    def __init__(self, capacity: float, rng: Random) -> None:
        self.capacity = capacity
        self.is_well = False
        self.stray = 0.0
        self.lie: float | None = None
        self.is_mute = False
        self._rng = rng
        self._tokens = 0.0
        self._filled_at = 0.0
        self._counts = [[0] * len(Criticality), [0] * len(Criticality)]
        self._shares = RefusedShares()

    def accepts(self, now: float) -> bool:
        self._fill(now)
        if self.is_well:
            accepts = self._rng.random() >= self.stray
        else:
            accepts = self._tokens >= 1.0
            self._tokens -= accepts
        self._counts[0][DEFAULT] += 1
        self._counts[1][DEFAULT] += not accepts
        return accepts

    def _fill(self, now: float) -> None:
        most = max(1.0, self.capacity)
        filled = self._tokens + (now - self._filled_at) * self.capacity
        self._tokens, self._filled_at = min(most, filled), now

    def sample(self, now: float) -> bool:
        """Whether there is news that all are told."""
        self._fill(now)
        is_calm = self.is_well or self._tokens >= self.capacity / 2
        arrived, refused = self._counts
        self._shares.sample(now, arrived, refused, 0, is_calm)
        return self._shares.is_news

    def report(self) -> LoadReport:
        if self.is_mute:
            return LoadReport(0.5)
        shares = [round(share, 2) for share in self._shares.shares()]
        if self.lie is not None:
            shares = [self.lie] * len(Criticality)
        return LoadReport(0.5, refused=tuple(shares))


class Client:
    def __init__(self, backends: list[Backend], k: float, rng: Random) -> None:
        self.loads = {backend: Load() for backend in backends}
        self.throttling = Throttling(rng, k, self.loads.values)

    def admits(self, now: float) -> bool:
        throttling = self.throttling
        return not throttling.is_active or not throttling.refusal(DEFAULT, "", now)

    def finish(
        self, backend: Backend, accepted: bool, report: LoadReport, now: float
    ) -> None:
        verdict = Verdict.SERVED if accepted else Verdict.REJECTED
        refusal = None if accepted else Refusal.OVERLOADED
        outcome = Outcome(verdict, LATENCY, report, refusal, accepted)
        self.loads[backend].finish(outcome, now)
        if self.throttling.is_active or refusal is not None:
            self.throttling.observe(DEFAULT, outcome, "", now)


class Second:
    def __init__(self) -> None:
        self.wanted = self.arrived = self.accepted = 0


class Fleet:
    """`run` plays it up to an instant; `seconds` has what each second saw."""

    def __init__(
        self,
        clients: int,
        rate: float,
        capacity: float,
        *,
        k: float = 2.0,
        backends: int = 4,
        subset: int = 4,
        seed: int = 1,
    ) -> None:
        """`rate` of each client, a second; `capacity` of all backends together."""
        self._rng = Random(seed)
        self.capacity = capacity
        self.backends = [
            Backend(capacity / backends, Random(f"{seed}/{i}")) for i in range(backends)
        ]
        self.clients = [
            Client(self._rng.sample(self.backends, subset), k, Random(f"{seed}/c{i}"))
            for i in range(clients)
        ]
        self.seconds: list[Second] = []
        self._rate = clients * rate
        self._now = self._sampled_at = 0.0
        self._under_way: deque[tuple[float, Client, Backend, bool, LoadReport]]
        self._under_way = deque()
        self._due: list[tuple[float, int, Client, Backend]] = []
        for number, client in enumerate(self.clients):
            for place, backend in enumerate(client.loads):
                at = self._rng.random() * REPORT_EVERY
                order = number * backends + place
                heappush(self._due, (at, order, client, backend))

    def run(self, until: float) -> None:
        while True:
            now = self._now + self._rng.expovariate(self._rate)
            if now >= until:
                break
            self._now = now
            self._catch_up(now)
            while len(self.seconds) <= int(now):
                self.seconds.append(Second())
            self._request(self.seconds[int(now)], now)

    def _request(self, second: Second, now: float) -> None:
        client = self._rng.choice(self.clients)
        second.wanted += 1
        if client.admits(now):
            backend = self._rng.choice(list(client.loads))
            client.loads[backend].begin()
            accepted = backend.accepts(now)
            second.arrived += 1
            second.accepted += accepted
            answer = (now + LATENCY, client, backend, accepted, backend.report())
            self._under_way.append(answer)

    def _catch_up(self, now: float) -> None:
        while self._under_way and self._under_way[0][0] <= now:
            at, client, backend, accepted, report = self._under_way.popleft()
            client.finish(backend, accepted, report, at)
        while now - self._sampled_at >= SAMPLE_EVERY:
            self._sampled_at += SAMPLE_EVERY
            for backend in self.backends:
                if backend.sample(self._sampled_at):
                    self._push(backend, self._sampled_at)
        while self._due[0][0] <= now:
            at, order, client, backend = heappop(self._due)
            client.loads[backend].observe(backend.report(), at)
            heappush(self._due, (at + REPORT_EVERY, order, client, backend))

    def _push(self, backend: Backend, now: float) -> None:
        for client in self.clients:
            if backend in client.loads:
                client.loads[backend].observe(backend.report(), now)

    # --- what came of it -----------------------------------------------------------

    def arrived(self, begin: int, end: int) -> float:
        """Mean requests that arrived, in capacities."""
        return _mean(s.arrived for s in self.seconds[begin:end]) / self.capacity

    def accepted(self, begin: int, end: int) -> float:
        return _mean(s.accepted for s in self.seconds[begin:end]) / self.capacity

    def refused_here(self, begin: int, end: int) -> float:
        seconds = self.seconds[begin:end]
        arrived = _mean(second.arrived for second in seconds)
        return 1.0 - arrived / _mean(second.wanted for second in seconds)


def _mean(values: Iterable[int]) -> float:
    counted = list(values)
    return sum(counted) / len(counted)
