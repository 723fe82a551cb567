"""Weighted least loaded: the fewest requests for its weight, from all clients.

Two loops. The slow one, `Equalizer`, sets the weights so that all backends report
the same utilization. The fast one sends each request where

    (own + others + recent errors + 1) / weight

is least. `own` are our requests in flight, which we know. `others` are the rest of
those that the backend had when it last told us; they fade from there to what others
have on average, within about the time that a request takes.

Between idle backends that sum decides nothing but which weight is the largest, and
noise in the weights would become an order of rank: 100 clients with few requests each
had max/mean 1.18 in simulation. So the "+ 1" gives way to taking turns the less there
is to do; with turns it was 1.01 to 1.03:

    busy + (1 - busy) * recent picks / mean recent picks

where 1 - busy = 1 / (1 + mean requests per backend)^2, the power that did best.

A newcomer, see `slow_start`, is not in the comparison. It is picked once for so many
picks of the others as its share says, unless it is busier than they are.
"""

from collections.abc import Sequence
from math import exp, inf
from random import Random

from lbclient.load import FORGOTTEN_AFTER, Load
from lbclient.pickers.equalizer import Equalizer
from lbclient.pickers.options import between
from lbclient.pickers.slow_start import MOMENT, SLOW_START, SlowStart
from lbclient.protocols import N, Node

MEAN_GAIN = 0.2  # of what was told in a refresh period, in the mean of others' requests
SHORTEST_HORIZON = 0.005  # seconds; what is shorter than a round trip is noise
REPORT_LAG = 3.0  # seconds; servers smooth over 2 s what they report
PICK_MEMORY = 5.0  # seconds; 3 s did as well in simulation, 1 s had larger spread
REFRESH_PERIOD = 0.25  # seconds; errors fade by 2.5 % in it, picks by 5 %
FLOOR = 0.01  # of a fair share; less is noticed and made up for
AGEING_STEP = 0.125  # of the horizon; what is told may look older by so much
ABSENT = -1  # the index of one that is not ready


class Candidate:
    """What a backend's score is made of.

    score = base + extra * exp((epoch - now) / horizon), where epoch and horizon are
    the same for all: to age them all takes one exponential. Owned by the picker,
    written when the load has been.
    """

    __slots__ = (
        "base",
        "credit",
        "extra",
        "index",
        "load",
        "others",
        "picks",
        "reported_at",
        "share",
        "slot",
        "started",
        "weight",
    )

    def __init__(self, load: Load, picks: float) -> None:
        self.load = load
        self.picks = picks  # each fading over PICK_MEMORY
        self.index = ABSENT
        self.slot = ABSENT  # of its score: none also while it has a part of its share
        self.share = 1.0  # see `SlowStart`
        self.credit = 0.0  # picks that it may have, while that is below 1
        self.weight = 1.0
        self.base = 0.0
        self.extra = 0.0
        self.reported_at = -inf
        self.others: int | None = None  # requests of other clients, as last told
        self.started = load.started  # when last looked at by _find_starved


class WeightedLeastLoaded:
    """The least loaded for its weight, by what backends and clients know together.

    Use it unless you know better: it follows slow machines, neighbours and other
    clients' load, and passes queues by. Without reports it is least-loaded. Not when
    utilization is reported wrongly by a factor that differs between backends:
    `bound` limits the harm, `LeastLoaded` has none.

    `gain`: of each step towards equal utilization; stable from 0.1 to 2.
    `bound`: weights stay within e^-bound to e^bound of their geometric mean; 1
    allows for speeds 1 to 7.4, and a backend that lies draws 2.7 shares at most.
    `blackout`: until a ready backend's reports count; 10 s, as in gRFC A58, cost
    4 % errors on a cold start. `expiration` is A58's. `slow_start`: seconds until a
    newcomer has all of its weight.
    """

    def __init__(
        self,
        rng: Random,
        *,
        gain: float = 0.3,
        bound: float = 1.0,
        blackout: float = 1.0,
        expiration: float = 180.0,
        update_period: float = 1.0,
        slow_start: float = SLOW_START,
    ) -> None:
        self._rng = rng
        self._slow_start = SlowStart(between("slow_start", slow_start, 0.0, 3600.0))
        self._equalizer = Equalizer(
            between("gain", gain, 0.0, 2.0),
            between("bound", bound, 0.0, 3.0),
            between("blackout", blackout, 0.0, 3600.0),
            between("expiration", expiration, 0.1, 86400.0),
        )
        self._update_period = between("update_period", update_period, 0.1, 3600.0)
        self._built_for: Sequence[Node] = ()
        self._candidates: list[Candidate] = []  # parallel to it
        self._scores: list[float] = []  # parallel too, so that to pick is to find a min
        self._known: dict[Load, Candidate] = {}  # these and those that left lately
        self._written: list[Load] = []
        self._due: list[Candidate] = []  # the next picks are theirs
        self._newcomers: list[Candidate] = []
        self._started = 0  # requests to all others, as last counted
        self._step_at = -inf
        self._refresh_at = -inf
        self._look_at = -inf
        self._age_at = -inf
        self._faded = 1.0  # exp((epoch - now) / horizon), by steps of the clock
        self._epoch = 0.0
        self._horizon = SHORTEST_HORIZON
        self._mean_others = 0.0  # requests for each unit of weight
        self._latency = 0.0
        self._busy = 0.0
        self._turn_cost = 1.0  # what each recent pick adds to a score, times weight

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._follow(ready, now)
        if now >= self._age_at:
            self._age_all(ready, now)
        if self._written:
            self._take_news(now)
        scores = self._scores
        index = self._due.pop().index if self._due else scores.index(min(scores))
        chosen = self._candidates[index]
        # The request that follows counts at once; `finish` puts right what did not.
        more = (1.0 + self._turn_cost) / chosen.weight
        chosen.picks += 1.0
        chosen.base += more
        scores[index] += more
        return ready[index]

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        shares = self._slow_start.shares(ready, now)
        return _scaled(self._equalizer.weights(ready), shares)

    def _take_news(self, now: float) -> None:
        """Looks at the loads that were written since the last pick, and only those."""
        for load in self._written:
            load.is_written = False
            candidate = self._known.get(load)
            if candidate is None:
                continue
            if load.reported_at != candidate.reported_at or load.report is None:
                self._learn(candidate)
            self._rescore(candidate, now)
            if candidate.slot != ABSENT:
                score = candidate.base + candidate.extra * self._faded
                self._scores[candidate.slot] = score
        self._written.clear()

    def _learn(self, candidate: Candidate) -> None:
        """Takes from a new report how many requests others have there."""
        load = candidate.load
        candidate.reported_at = load.reported_at
        report = load.report
        candidate.others = None
        if report is not None:
            active = report.active if report.runnable is None else report.runnable
            if active is not None:
                # The backend counted those of ours that it had: not what we sent since.
                counted = load.in_flight - load.sent_since_report
                candidate.others = active - counted if counted > 0 else active

    def _rescore(self, candidate: Candidate, now: float) -> None:
        """Computes a score from what is known. What others have fades towards the
        mean, from when it was told."""
        load = candidate.load
        weight = candidate.weight
        requests = load.in_flight + self._busy + candidate.picks * self._turn_cost
        if load.failed_at > now - FORGOTTEN_AFTER:
            requests += load.recent_errors(now)
        candidate.base = requests / weight
        others = candidate.others
        if others is None:
            candidate.extra = 0.0
            return
        told_at = candidate.reported_at
        age = ((told_at if told_at < now else now) - self._epoch) / self._horizon
        candidate.extra = (others / weight - self._mean_others) * exp(age)

    def _age_all(self, ready: Sequence[Node], now: float) -> None:
        if self._newcomers:
            self._give_credit()
        if now >= self._refresh_at:
            self._refresh(ready, now)
        faded = self._faded = exp((self._epoch - now) / self._horizon)
        self._scores = [each.base + each.extra * faded for each in self._candidates]
        if self._newcomers:
            self._admit_newcomers()
        self._age_at = min(self._refresh_at, now + AGEING_STEP * self._horizon)

    def _refresh(self, ready: Sequence[Node], now: float) -> None:
        """Brings up to date what changes slowly: members, weights, means, fading."""
        self._take_means()
        kept = exp((self._epoch - now) / PICK_MEMORY)
        for candidate in self._known.values():
            candidate.picks *= kept
        if now >= self._step_at:
            self._equalizer.step(self._grown(ready, now), now)
            self._step_at = now + self._update_period
            self._known = {candidate.load: candidate for candidate in self._candidates}
            self._find_starved()
        self._epoch = now
        self._refresh_at = min(self._step_at, now + REFRESH_PERIOD)
        self._horizon = max(self._latency, SHORTEST_HORIZON)
        count = len(ready)
        in_flight = sum(node.load.in_flight for node in ready) / count
        requests = max(0.0, self._mean_others) + in_flight
        self._busy = 1.0 - 1.0 / (1.0 + requests) ** 2
        self._set_weights(ready, now)
        mean_picks = sum(candidate.picks for candidate in self._candidates) / count
        self._turn_cost = (1.0 - self._busy) / max(1.0, mean_picks)
        for candidate in self._known.values():  # the absent too: the epoch is new
            self._rescore(candidate, now)

    def _take_means(self) -> None:
        """Of latency, and of others' requests by what was told since the last time."""
        known = self._candidates
        latencies = [each.load.latency for each in known if each.load.latency]
        if latencies:
            self._latency = sum(latencies) / len(latencies)
        mean = self._mean_others
        # Capped, so that one absurd report cannot move the mean for long.
        cap = 2.0 * abs(mean) + 2.0
        told = [
            min(each.others / each.weight, cap)
            for each in known
            if each.others is not None and each.reported_at > self._epoch
        ]
        if told:
            self._mean_others += MEAN_GAIN * (sum(told) / len(told) - mean)

    def _grown(self, ready: Sequence[Node], now: float) -> list[Node]:
        """Who is judged by utilization: a small share's is low as it should be."""
        shares = self._slow_start.shares(ready, now - REPORT_LAG)
        return [node for node, share in zip(ready, shares, strict=True) if share == 1.0]

    def _set_weights(self, ready: Sequence[Node], now: float) -> None:
        weights = self._equalizer.weights(ready)
        for candidate, weight in zip(self._candidates, weights, strict=True):
            candidate.weight = weight
        if self._newcomers or now >= self._look_at:
            self._set_shares(ready, now)

    def _set_shares(self, ready: Sequence[Node], now: float) -> None:
        self._look_at = now + MOMENT
        self._slow_start.look(ready, now)
        shares = self._slow_start.shares(ready, now)
        for candidate, share in zip(self._candidates, shares, strict=True):
            candidate.share = share
        self._find_newcomers()
        if self._newcomers:
            # As if it had had its turns: later there is nothing to catch up with.
            old = [each.picks for each in self._candidates if each.share == 1.0]
            for candidate in self._newcomers:
                candidate.picks = sum(old) / len(old)

    def _find_newcomers(self) -> None:
        """Has them picked by credit instead of by score.

        To divide by a smaller weight would not do: between backends with hardly a
        request the least weight is never picked.
        """
        self._newcomers = [each for each in self._candidates if each.share < 1.0]
        for candidate in self._candidates:
            candidate.slot = candidate.index if candidate.share == 1.0 else ABSENT
        self._started = self._count_started()

    def _count_started(self) -> int:
        return sum(each.load.started for each in self._candidates if each.share == 1.0)

    def _give_credit(self) -> None:
        """Of what others had since, in the mean, each newcomer has its share."""
        started, before = self._count_started(), self._started
        self._started = started
        others = len(self._candidates) - len(self._newcomers)
        for each in self._newcomers:
            more = each.share * each.weight * (started - before) / (others or 1)
            each.credit = min(1.0, each.credit) + more  # none is saved up

    def _admit_newcomers(self) -> None:
        """The next picks are theirs that have credit, and are no busier than others.

        As idle as the idlest, but for whose turn it is.
        """
        scores = self._scores
        known = [(each, scores[each.index]) for each in self._newcomers]
        for each, _ in known:
            scores[each.index] = inf
        limit = min(scores) + 1.0 - self._busy
        for each, score in known:
            while each.credit >= 1.0 and score <= limit:
                each.credit -= 1.0
                score += (1.0 + self._turn_cost) / each.weight
                self._due.append(each)

    def _follow(self, ready: Sequence[Node], now: float) -> None:
        """Takes new members. Cheap where all are known: full ones leave and return."""
        if self._newcomers:
            self._give_credit()
        known = self._known
        if not all(node.load in known for node in ready):
            self._welcome(ready)
            self._refresh_at = now  # for their weights
        for candidate in self._candidates:
            candidate.index = candidate.slot = ABSENT
        self._candidates = [known[node.load] for node in ready]
        for index, candidate in enumerate(self._candidates):
            candidate.index = index
        self._find_newcomers()
        if self._newcomers:
            self._refresh_at = now  # their shares depend on who else is there
        self._due = [each for each in self._candidates if each in self._due]
        self._look_at = now
        self._age_at = now  # for their scores
        self._built_for = ready

    def _welcome(self, ready: Sequence[Node]) -> None:
        """Lets newcomers start level: they have no picks to catch up with.

        Chance breaks the first ties, so that many clients do not march in step.
        """
        known = self._known
        mean = sum(candidate.picks for candidate in known.values()) / (len(known) or 1)
        for node in ready:
            if node.load not in known:
                picks = mean + 1e-3 * self._rng.random()
                candidate = known[node.load] = Candidate(node.load, picks)
                candidate.credit = self._rng.random()
                node.load.tell(self._written)

    def _find_starved(self) -> None:
        """Whoever got less than the floor gets the next picks: has it recovered?"""
        sent = sum(
            candidate.load.started - candidate.started for candidate in self._candidates
        )
        if sent < len(self._candidates) / FLOOR:
            return
        for candidate in self._candidates:
            if candidate.load.started == candidate.started:
                self._due.append(candidate)
            candidate.started = candidate.load.started

    def __repr__(self) -> str:
        return (
            f"<weighted least loaded over {len(self._candidates)}, "
            f"{self._busy:.0%} busy, horizon {self._horizon * 1000:.0f} ms>"
        )


def _scaled(weights: list[float], shares: list[float]) -> list[float]:
    """Each weight times its share, mean 1 as before."""
    if min(shares) == 1.0:
        return weights
    scaled = [weight * share for weight, share in zip(weights, shares, strict=True)]
    mean = sum(scaled) / len(scaled)
    return [weight / mean for weight in scaled]
