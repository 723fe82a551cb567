"""Taking turns: what a pick costs a backend, by how little there is to do.

Among idle backends only the weights would decide, and noise in the weights would become
a ranking: 100 clients with few requests each had a max/mean of 1.18 in simulation. So
the less there is to do, the more the "+ 1" of a score is replaced by taking turns,
which gave 1.01 to 1.03:

    busy + (1 - busy) * recent picks / mean recent picks

where 1 - busy = 1 / (1 + mean requests per backend)^2, the power that did best at loads
of up to 0.3. Where backends are half busy, turns override counts that are worth more,
though there may be few requests, as on machines of one core. So the power grows with
the mean utilization, to 5 at 0.4 and 8 above 0.5. Of who tells no utilization, or one
that is too low, it stays 2. Each pick adds its part to the `turns` of a backend, whose
difference to the mean fades.

A slow backend misses turns while others have more to do: it has a request, and they are
picked. It is owed these turns, or shares would not be as weights say. But it must not
catch up at once: of three backends the slow one got 31 to 99 calls in a row, of a user
who was alone by then. So turns are made up for at one pick in three, of two backends in
two, while there are others that have no more requests: at more for a larger weight, and
the slower a backend is, the later. Its weight may be of a load before, while it was
less used.

An error counts as one request, which at a steady rate is what a backend's turns of 5 s
count. After a burst turns count next to nothing until these have faded, and one error
kept a lone caller away for thousands of them, 20 s. So where picks come more seldom
than before, what an error counts is less too, as far as turns decide.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from lbclient.pickers.candidate import Candidate
from lbclient.pickers.means import Means


@dataclass(frozen=True, slots=True)
class TurnTakingTuning:
    """What a turn counts. Ours, found by simulation: `lbclient sim` plays them.

    `power` of mean requests + 1 while idle, `power_in_use` while not. A utilization is
    between, and decides by a power of its own, `steepness`: a smaller one would take
    from turns at 0.2, where nothing else balances 300 clients of few requests.
    """

    power: float = 2.0
    power_in_use: float = 8.0
    half_used: float = 0.4  # utilization; half way between the two powers
    steepness: int = 8
    memory: float = 5.0  # seconds; 3 did as well, 1 had a larger spread
    # Picks, to one that makes up for turns; with more a backend that turned slow gets
    # too few to be ejected soon. Of few backends fewer picks: at so many shares, or at
    # so many times less of them as it is slower than the mean.
    make_up_every: float = 3.0
    catch_up: float = 1.5
    # Turns behind the mean, from which on that holds: some are missed by chance. With 4
    # an idle backend was picked six times in a row.
    most_owed: float = 2.0
    least_idle: float = 1e-4  # so that turns are not lost while they count for nothing
    # Picks come more seldom if those of so many seconds do by this factor; less is
    # chance. An error costs a lone caller of two about as much after a burst as before.
    lately: float = 1.0
    fallen: float = 2.0


TUNING = TurnTakingTuning()


class TurnTaking:
    """What a turn costs. Owned by a picker, which alone calls the methods.

    `cost` is what each pick adds to a score, times weight. `busy` is what replaces it,
    and `idle` what a turn is worth to newcomers, who have had none. `error` is what an
    error counts, in requests. `mean` is that of the candidates' turns; who has less
    than `owed` missed many.
    """

    __slots__ = (
        "_counted", "_lately", "_recent", "_updated_at", "busy", "cost", "error",
        "idle", "mean", "owed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.busy = 0.0
        self.idle = 1.0
        self.cost = 1.0
        self.error = 1.0
        self.mean = 0.0
        self.owed = 0.0
        self._counted = 0  # picks, when last updated
        self._recent = 0.0  # picks, each fading over `memory`
        self._lately = 0.0  # over `lately`
        self._updated_at = 0.0

    def update(self, means: Means, picked: int, count: int, now: float) -> None:
        """Takes what there is to do for `count` backends; `picked` counts all picks."""
        passed, picks = now - self._updated_at, self.picks_since(picked)
        self._recent = self._recent * exp(-passed / TUNING.memory) + picks
        self._lately = self._lately * exp(-passed / TUNING.lately) + picks
        self._updated_at, self._counted = now, picked
        full = (means.used / TUNING.half_used) ** TUNING.steepness
        steeper = TUNING.power_in_use - TUNING.power
        power = TUNING.power + steeper * full / (1.0 + full)
        self.busy = 1.0 - 1.0 / (1.0 + means.requests) ** power
        self.idle = 1.0 / (1.0 + means.requests) ** TUNING.power
        idle = max(TUNING.least_idle, 1.0 - self.busy)
        self.cost = idle / max(1.0, self._recent / count)
        often = TUNING.fallen * self._lately / TUNING.lately
        before = self._recent / TUNING.memory
        rest = often / before if often < before else 1.0
        self.error = self.busy + (1.0 - self.busy) * rest

    def picks_since(self, picked: int) -> int:
        """How many of all picks came since the last update."""
        return picked - self._counted

    def scale(self, factor: float) -> None:
        """There are so many times as many backends, for as many picks each."""
        self._recent *= factor
        self._lately *= factor

    def average(self, candidates: list[Candidate]) -> None:
        self.mean = sum([each.turns for each in candidates]) / len(candidates)

    def fade(self, part: Iterable[Candidate], now: float) -> None:
        """Brings turns nearer to the mean. Those that were taken when a turn cost more,
        or less, count as much as one now."""
        mean, cost = self.mean, self.cost
        self.owed = mean - TUNING.most_owed * cost
        for candidate in part:
            kept = exp((candidate.looked_at - now) / TUNING.memory)
            kept *= cost / candidate.turn_cost
            candidate.turns = mean + (candidate.turns - mean) * kept
            candidate.paid *= kept
            candidate.turn_cost = cost
            candidate.turn = cost / candidate.weight
            candidate.more = (1.0 + cost) / candidate.weight
            candidate.looked_at = now

    def is_early(
        self, candidate: Candidate, latency: float, picked: int, count: int
    ) -> bool:
        """Whether one of `count` that makes up for its turns did so too lately to do so
        again. `latency` is their mean, `picked` counts all picks."""
        pause = count / (TUNING.catch_up * candidate.weight)
        if latency and candidate.load.latency > latency:
            pause *= candidate.load.latency / latency
        return picked - candidate.made_up_at < min(TUNING.make_up_every, pause)

    def __repr__(self) -> str:
        return f"<{self.busy:.0%} busy, {self.cost:.3f} a turn>"
