"""Weighted least loaded: the fewest requests for its weight, from all clients.

There are two loops. The slow one, `Equalizer`, sets weights with which all backends
report the same utilization. The fast one sends each request where this sum is least:

    (own + others + 1) / weight + recent errors

`own` are this client's requests in flight. `others` are all other requests that the
backend had at its last report. They fade from this number to the mean of all backends
within the time that a request takes. If a few requests take much longer than most, and
so make up most of those in flight, their remaining time is used instead.

Among idle backends only the weights would decide, and noise in the weights would become
a ranking: 100 clients with few requests each had a max/mean of 1.18 in simulation. So
the less there is to do, the more the "+ 1" is replaced by taking turns, which gave 1.01
to 1.03:

    busy + (1 - busy) * recent picks / mean recent picks

where 1 - busy = 1 / (1 + mean requests per backend)^2, the power that did best.

Errors count as requests, so that a backend that fails immediately does not look idle.
They are limited to what keeps requests away. After a failure of all backends each has
hundreds of errors, and their differences would decide for a minute: one of three
backends got all requests. For the same reason errors are not divided by weights, which
change meanwhile.

A proxy or cache may deliver old counts. Then all clients send to a backend that was
idle long ago: with counts that were 1 s old 15 % of the requests failed in simulation.
A count must be old if it is smaller than this client's own requests there. Counts of
such a backend are ignored for a minute, and all counts if two backends have old ones;
then own requests decide.

Reports may end while answers still come, see `missed_reports`. From then on the backend
counts as one that does not report.

A client that sends too few requests to know the load sends probes, see `probe_worth`.
"""

from collections.abc import Sequence
from math import exp, inf
from random import Random

from lbclient.core.load import FORGOTTEN_AFTER, Load
from lbclient.core.model import LoadReport, Verdict
from lbclient.core.protocols import N, Node
from lbclient.pickers.equalizer import Equalizer
from lbclient.pickers.newcomers import ABSENT, Candidate, Newcomers
from lbclient.pickers.options import between
from lbclient.pickers.probe_worth import MOST_WANTED, ProbeWorth
from lbclient.pickers.slow_start import SLOW_START, SlowStart

MEAN_GAIN = 0.2  # of what was told in a refresh period, in the mean of others' requests
# Of the mean time that requests found there will yet take, E[x^2] / 2 E[x]: half of it
# did as well as all in S4_heavy@0.5, and is below the mean latency but where a few are
# very long, so that nothing else changes.
REMAINING = 0.5
SHORTEST_HORIZON = 0.005  # seconds; what is shorter than a round trip is noise
PICK_MEMORY = 5.0  # seconds; 3 s did as well in simulation, 1 s had larger spread
DOUBT = 60.0  # seconds; while nobody believes them old counts do not show
SUSPICION = 0.1, 1.0  # seconds from a count that is too low until the next
MARGIN = 3  # of our requests on their way, which no count can have; ours
REFRESH_PERIOD = 0.25  # seconds; errors fade by 2.5 % in it, picks by 5 %
FLOOR = 0.01  # of a fair share; less is noticed and made up for
AGEING_STEP = 0.125  # of the horizon; what is told may look older by so much
MOST_ERRORS = 3.0  # times (mean requests + 1); ours: who has them is picked last
STALE = 2.0  # mean latencies; asking by then took 0.7 probes a request in S10_sparse
PROBE_RATE = 10.0  # a second and client; ours: a client of 200 requests/s adds 5 %

SERVED = Verdict.SERVED  # a member is looked up in Python up to 3.11


class WeightedLeastLoaded:
    """Picks the backend with the fewest requests, of all clients, for its weight.

    This is the default, and right for most fleets: it adapts to slow machines, to noisy
    neighbours and to the load of other clients, and it avoids queues. Without reports
    it is least-loaded, and in the long run each backend has as many of this client's
    requests as any other. Do not use it if backends report wrong utilizations, by
    factors that differ: `bound` limits the damage, `LeastLoaded` does not use reports.

    `gain`: of each step towards equal utilization; stable from 0.1 to 2. `bound`:
    weights stay within e^-bound to e^bound of their geometric mean; 1 allows for speeds
    of 1 to 7.4, and a backend that lies gets 2.7 shares at most. `blackout`: seconds
    until reports of a ready backend count; 10, as in gRFC A58, cost 4 % errors on a
    cold start. `expiration`: seconds after which a report is ignored, as in A58.
    `update_period`: seconds between two steps. `slow_start`: seconds until a newcomer
    has its full weight. `probe_rate`: the most probes a second; 0: none.
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
        probe_rate: float = PROBE_RATE,
    ) -> None:
        self._rng = rng
        self._slow_start = SlowStart(between("slow_start", slow_start, 0.0, 3600.0))
        self._newcomers = Newcomers(self._slow_start)
        self._probe_worth = ProbeWorth(between("probe_rate", probe_rate, 0.0, 1000.0))
        self.probes: list[Node] = []
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
        self._telling: list[Candidate] = []  # how many requests others have there
        self._silent: list[Candidate] = []  # the rest, where some do tell
        self._began_at = inf
        self._step_at = -inf
        self._refresh_at = -inf
        self._age_at = -inf
        self._faded = 1.0  # exp((epoch - now) / horizon), by steps of the clock
        self._epoch = 0.0
        self._horizon = SHORTEST_HORIZON
        self._mean_others = 0.0  # requests for each unit of weight
        self._latency = 0.0
        self._remaining = 0.0
        self._busy = 0.0
        self._deaf_until = -inf  # to counts, which are old
        self._turn_cost = 1.0  # what each recent pick adds to a score, times weight
        self._most_errors = MOST_ERRORS

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
        if self._probe_worth.is_on:
            self._ask(ready, now)
        return ready[index]

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        """Its load has been told, and so are we."""

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        shares = self._slow_start.shares(ready, now)
        return _scaled(self._equalizer.weights(ready), shares)

    def _ask(self, ready: Sequence[Node], now: float) -> None:
        """Is the next one as idle as we think? No pick waits for the answer."""
        index = self._scores.index(min(self._scores))
        told_at = self._candidates[index].reported_at
        is_old = now - told_at > STALE * self._horizon
        if is_old and len(self.probes) < MOST_WANTED and self._probe_worth.spend(now):
            self.probes.append(ready[index])

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
        candidate.answers = load.counts[SERVED]
        report = load.report
        known, candidate.others = candidate.others, None
        if report is not None:
            active = report.active if report.runnable is None else report.runnable
            if active is not None:
                # The backend counted those of ours that it had: not what we sent since.
                counted = load.in_flight - load.sent_since_report
                if counted > 2 * active + MARGIN:
                    self._doubt(candidate)
                now = load.reported_at
                if now >= self._deaf_until and now >= candidate.doubted_until:
                    candidate.others = active - counted if counted > 0 else active
        if known is not None and candidate.others is None:
            candidate.extra = 0.0  # as the mean, until a lot is drawn for it

    def _doubt(self, candidate: Candidate) -> None:
        """Its count is old: not to be believed for a while; two, and none is.

        Not at the first sight: of many requests some meet by chance on their way.
        """
        now = candidate.reported_at
        passed = now - candidate.suspected_at
        if passed > SUSPICION[1]:
            candidate.suspected_at = now
        if not SUSPICION[0] <= passed <= SUSPICION[1]:
            return
        for each in self._candidates:
            if each.doubted_until > now and each is not candidate:
                self._deaf_until = now + DOUBT
        candidate.doubted_until = now + DOUBT

    def _rescore(self, candidate: Candidate, now: float) -> None:
        """Computes a score from what is known. What others have fades towards the
        mean, from when it was told."""
        load = candidate.load
        weight = candidate.weight
        requests = load.in_flight + self._busy + candidate.picks * self._turn_cost
        candidate.base = requests / weight
        if load.erred_at > now - FORGOTTEN_AFTER:
            candidate.base += min(self._most_errors, load.recent_errors(now))
        others = candidate.others
        if others is None:
            return
        told_at = candidate.reported_at
        age = ((told_at if told_at < now else now) - self._epoch) / self._horizon
        candidate.extra = (others / weight - self._mean_others) * exp(age)

    def _age_all(self, ready: Sequence[Node], now: float) -> None:
        if self._newcomers.members:
            self._newcomers.give_credit()
        if now >= self._refresh_at:
            self._refresh(ready, now)
        if self._silent:
            self._guess()
        faded = self._faded = exp((self._epoch - now) / self._horizon)
        scores = self._scores
        for index, each in enumerate(self._candidates):
            scores[index] = each.base + each.extra * faded
        if self._newcomers.members:
            idle = 1.0 - self._busy
            self._due += self._newcomers.admit(scores, idle, self._turn_cost)
        self._age_at = min(self._refresh_at, now + AGEING_STEP * self._horizon)

    def _guess(self) -> None:
        """Who does not tell is taken to be as busy as another one, by lot.

        As the mean it would lose to whoever is idle by chance, and get nothing.
        """
        telling, random = self._telling, self._rng.random
        count = len(telling)
        for candidate in self._silent:
            if candidate.others is None:  # it may have told since
                candidate.extra = telling[int(random() * count)].extra

    def _refresh(self, ready: Sequence[Node], now: float) -> None:
        """Brings up to date what changes slowly: members, weights, means, fading."""
        self._update_means()
        kept = exp((self._epoch - now) / PICK_MEMORY)
        for candidate in self._known.values():
            candidate.picks *= kept
        missed = self._look_for_missed(now)
        if now >= self._step_at:
            self._equalizer.step(self._newcomers.grown(ready, now), now, missed)
            self._step_at = now + self._update_period
            self._known = {candidate.load: candidate for candidate in self._candidates}
            self._find_starved()
        self._epoch = now
        # Turns count by their mean, which doubles soon where there were few.
        pause = max(SHORTEST_HORIZON, min(REFRESH_PERIOD, now - self._began_at))
        self._refresh_at = min(self._step_at, now + pause)
        self._horizon = max(self._latency, self._remaining, SHORTEST_HORIZON)
        count = len(ready)
        in_flight = sum(node.load.in_flight for node in ready) / count
        requests = max(0.0, self._mean_others) + in_flight
        self._busy = 1.0 - 1.0 / (1.0 + requests) ** 2
        self._most_errors = MOST_ERRORS * (1.0 + requests)
        self._probe_worth.update(self._latency, in_flight, requests)
        self._set_weights(ready, now)
        mean_picks = sum(candidate.picks for candidate in self._candidates) / count
        self._turn_cost = (1.0 - self._busy) / max(1.0, mean_picks)
        for candidate in self._known.values():  # the absent too: the epoch is new
            candidate.extra = 0.0
            self._rescore(candidate, now)
        self._telling = [each for each in self._candidates if each.others is not None]
        self._silent = [each for each in self._candidates if each.others is None]
        if not self._telling:
            self._silent = []

    def _look_for_missed(self, now: float) -> set[Load]:
        """Whose reports have ended. What they said of others' requests is forgotten."""
        missed = set()
        for candidate in self._candidates:
            if candidate.report_gaps.look(candidate.load, candidate.answers, now):
                missed.add(candidate.load)
                candidate.others = None
        return missed

    def _update_means(self) -> None:
        """Of latency, and of others' requests by what was told since the last time."""
        known = self._candidates
        latencies = [each.load.latency for each in known if each.load.latency]
        if latencies:
            self._latency = sum(latencies) / len(latencies)
            squares = sum(each.load.squared_latency for each in known)
            self._remaining = REMAINING * squares / (2.0 * sum(latencies))
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
        elif self._epoch >= self._deaf_until and not any(
            each.others is not None for each in known
        ):
            self._mean_others -= MEAN_GAIN * mean  # nobody tells any more

    def _set_weights(self, ready: Sequence[Node], now: float) -> None:
        weights = self._equalizer.weights(ready)
        for candidate, weight in zip(self._candidates, weights, strict=True):
            if candidate.others is None:
                # Turns to catch up with would look like a rate that is too high.
                candidate.picks *= weight / candidate.weight
            candidate.weight = weight
        self._newcomers.look(ready, now)

    def _follow(self, ready: Sequence[Node], now: float) -> None:
        """Takes new members. Cheap where all are known: full ones leave and return."""
        if self._newcomers.members:
            self._newcomers.give_credit()
        known = self._known
        if not all(node.load in known for node in ready):
            self._welcome(ready, now)
            self._refresh_at = now  # for their weights
        for candidate in self._candidates:
            candidate.index = candidate.slot = ABSENT
        self._candidates = [known[node.load] for node in ready]
        for index, candidate in enumerate(self._candidates):
            candidate.index = index
        self._scores = [0.0] * len(self._candidates)
        self._newcomers.follow(self._candidates, now)
        if self._newcomers.members:
            self._refresh_at = now  # their shares depend on who else is there
        self._due = [each for each in self._candidates if each in self._due]
        self._age_at = now  # for their scores
        self._built_for = ready

    def _welcome(self, ready: Sequence[Node], now: float) -> None:
        """Lets newcomers start level: they have no picks to catch up with.

        Chance breaks the first ties, so that many clients do not march in step.
        """
        known = self._known
        if not known:
            self._began_at = now
        mean = sum(candidate.picks for candidate in known.values()) / (len(known) or 1)
        for node in ready:
            if node.load not in known:
                picks = mean + 1e-3 * self._rng.random()
                candidate = Candidate(node.load, picks, self._rng.random())
                known[node.load] = candidate
                self._learn(candidate)
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
