"""Weighted least loaded: the fewest requests for its weight, from all clients.

There are two loops. The slow one, `Equalizer`, sets weights with which all backends
report the same utilization. The fast one sends each request where this sum is least:

    (own + others + 1) / weight + recent errors

`own` are this client's requests in flight. `others` are all other requests that the
backend had at its last report. They fade from this number to the mean of all backends
within the time that a request takes. If a few requests take much longer than most, and
so make up most of those in flight, their remaining time is used instead.

Where there is little to do the "+ 1" is replaced by taking turns, see `turn_taking`.

Errors count as requests, so that a backend that fails immediately does not look idle.
They are limited to what keeps requests away. After a failure of all backends each has
hundreds of errors, and their differences would decide for a minute: one of three
backends got all requests. For the same reason errors are not divided by weights, which
change meanwhile.

A proxy or cache may deliver old counts, which are not believed, see `old_counts`.

Reports may end while answers still come, see `missed_reports`. From then on the backend
counts as one that does not report.

A client that sends too few requests to know the load sends probes, see `probe_worth`.

Who does not tell is taken to be as busy as another one, see `silent_backends`. Who got
next to no picks gets the next ones, see `starved`.

Up to `all_at_once` backends are looked at together, a few times a second, and their
scores are kept in a list. Of more of them a few are looked at now and then, see
`rounds`: so no pick takes long, and none longer where there are more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random

from lbclient.core.load import FORGOTTEN_AFTER, Load
from lbclient.core.model import LoadReport, Verdict
from lbclient.core.protocols import N, Node
from lbclient.pickers.candidate import ABSENT, Candidate
from lbclient.pickers.equalizer import Equalizer
from lbclient.pickers.means import TUNING as MEANS
from lbclient.pickers.newcomers import Newcomers
from lbclient.pickers.objective import Objective
from lbclient.pickers.old_counts import TUNING as OLD_COUNTS
from lbclient.pickers.options import between
from lbclient.pickers.overview import Overview, weigh
from lbclient.pickers.probe_worth import MOST_WANTED, ProbeWorth
from lbclient.pickers.rounds import Rounds
from lbclient.pickers.silent_backends import SilentBackends
from lbclient.pickers.slow_start import SLOW_START, SlowStart


@dataclass(frozen=True, slots=True)
class PickingTuning:
    """The numbers of `WeightedLeastLoaded`. Ours, found by simulation: `lbclient sim`
    plays them, with `benchmarks.picks` for what a pick costs."""

    ageing_step: float = 0.125  # of the horizon; what is told may look older by so much
    most_errors: float = 3.0  # times (mean requests + 1); who has them is picked last
    # Horizons, until a report is old; asking by then took 0.7 probes a request in
    # S10_sparse.
    stale: float = 2.0

    # Turns of an idle backend are made up for one by one only where all are looked at
    # together. At 8,000 calls a second 100 cost a client as much as in a heap, at 100 a
    # second a pick of them takes 16 us instead of 5, by `benchmarks.picks`.
    all_at_once: int = 128  # backends; of more the oldest news wait ...
    most_news: int = 128  # ... for the next pick, if more than this are new


TUNING = PickingTuning()
HEADROOM = 0.15  # of the busiest; at 0.85 equal utilization is all but the best
PROBE_RATE = 10.0  # a second and client; ours: a client of 200 requests/s adds 5 %
AS_MANY = 0.05  # requests; less is rounding, or what a ranking leaves
FAR_BEHIND = 1e9  # requests, for a moment, of one that is not to be found

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
    of 1 to 7.4, and a backend that lies gets 2.7 shares at most. It gets wider, up to
    three times, where it holds nearly all backends and large ones answer sooner.
    `blackout`: seconds until reports of a ready backend count; 10, as in gRFC A58, cost
    4 % errors on a cold start. `expiration`: seconds after which a report is ignored,
    as in A58.
    `update_period`: seconds between two steps. `slow_start`: seconds until a newcomer
    has its full weight. `probe_rate`: the most probes a second; 0: none. `favor_fast`:
    0 makes utilization equal; above it, to 1, fast machines are busier than slow ones
    while there is room, which shortens latency; see docs/concepts.md#even-or-fast.
    `headroom`: no backend is to be busier than 1 - headroom because of that.
    """

    rule = (
        "A call goes to the backend with the least (in flight + active of other "
        "clients + 1) / weight + recent errors, where weights make utilization equal; "
        "backends with little to do take turns, and one that has just become ready "
        "gets fewer at first."
    )

    __slots__ = (
        "_age_at",
        "_began_at",
        "_built_for",
        "_candidates",
        "_due",
        "_faded",
        "_known",
        "_overview",
        "_picked",
        "_probe_worth",
        "_refresh_at",
        "_rng",
        "_rounds",
        "_scores",
        "_silent",
        "_step_at",
        "_update_period",
        "_written",
        "probes",
    )

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
        favor_fast: float = 0.0,
        headroom: float = HEADROOM,
    ) -> None:
        self._rng = rng
        self._probe_worth = ProbeWorth(between("probe_rate", probe_rate, 0.0, 1000.0))
        self._silent = SilentBackends(rng)
        self.probes: list[Node] = []
        favor_fast = between("favor_fast", favor_fast, 0.0, 1.0)
        headroom = between("headroom", headroom, 0.0, 0.9)
        equalizer = Equalizer(
            between("gain", gain, 0.0, 2.0),
            between("bound", bound, 0.0, 3.0),
            between("blackout", blackout, 0.0, 3600.0),
            between("expiration", expiration, 0.1, 86400.0),
            Objective(favor_fast, headroom) if favor_fast else None,
        )
        window = between("slow_start", slow_start, 0.0, 3600.0)
        self._overview = Overview(equalizer, Newcomers(SlowStart(window)))
        self._update_period = between("update_period", update_period, 0.1, 3600.0)
        self._built_for: Sequence[Node] = ()
        self._candidates: list[Candidate] = []  # parallel to it
        self._scores: list[float] = []  # parallel too, so that to pick is to find a min
        self._rounds: Rounds | None = None  # of many, which have their scores
        self._known: dict[Load, Candidate] = {}  # these and those that left lately
        self._written: list[Load] = []
        self._due: list[Candidate] = []  # the next picks are theirs
        self._began_at = inf
        self._step_at = -inf
        self._refresh_at = -inf
        self._age_at = -inf
        self._faded = 1.0  # exp((epoch - now) / horizon), by steps of the clock
        self._picked = 0  # ever

    def pick(self, ready: Sequence[N], now: float) -> N:
        if ready is not self._built_for:
            self._follow(ready, now)
        if now >= self._age_at:
            self._age_all(ready, now)
        if self._written:
            self._take_news(now)
        scores = self._scores
        if self._rounds is None and not self._due:
            index = scores.index(min(scores))
        else:
            index = self._next_index(now)
        chosen = self._candidates[index]
        if chosen.turns < self._overview.turns.owed:
            index = self._spread_turns(index, now)
            chosen = self._candidates[index]
        # The request that follows counts at once; `finish` puts right what did not.
        chosen.turns += chosen.turn
        more = chosen.more
        chosen.base += more
        scores[index] += more
        self._picked += 1
        if self._probe_worth.is_on:
            self._ask(ready, now)
        return ready[index]

    def _next_index(self, now: float) -> int:
        if not self._due:
            return self._least(now)
        chosen = self._due.pop()
        if chosen.slot == ABSENT:
            self._picked -= 1  # for nobody's credit
        return chosen.index

    def _spread_turns(self, index: int, now: float) -> int:
        """Whom to pick instead of one that has missed many turns, if these are made up
        for too fast: the next one that has no more requests."""
        candidate, overview = self._candidates[index], self._overview
        if candidate.slot == ABSENT:
            return index
        count, latency = len(self._candidates), overview.means.latency
        if overview.turns.is_early(candidate, latency, self._picked, count):
            other = self._next_with_no_more(index, now)
            if other is not None:
                return other
        candidate.made_up_at = self._picked
        return index

    def _next_with_no_more(self, index: int, now: float) -> int | None:
        """Who is next after one, if that has no more requests but for turns.

        If it has more for its errors alone, it is next when it has missed as many turns
        as they count; until then one without errors is, if there is one.
        """
        candidates, most = self._candidates, self._load_score(index, now) + AS_MANY
        other = self._next_but(index, now)
        following = candidates[other]
        more = self._load_score(other, now) - most
        errors = self._errors(following.load, now)
        if more < min(errors, following.paid):
            return other
        if more >= errors:
            return None
        following.paid += self._overview.turns.cost
        if self._rounds is not None:
            return None
        scores = [
            score if score - each.turns < most else inf
            for score, each in zip(self._scores, candidates, strict=True)
        ]
        scores[index] = inf
        least = min(scores)
        return scores.index(least) if least < inf else None

    def _load_score(self, index: int, now: float) -> float:
        """Its score without turns."""
        candidate = self._candidates[index]
        if self._rounds is None:
            return self._scores[index] - candidate.turns
        return self._rounds.ranking.score(candidate, now) - candidate.turns

    def _next_but(self, index: int, now: float) -> int:
        """The index of the lowest score of the others."""
        if self._rounds is None:
            scores = self._scores
            score, scores[index] = scores[index], inf
            other = self._least(now)
            scores[index] = score
            return other
        candidate, ranking = self._candidates[index], self._rounds.ranking
        base, candidate.base = candidate.base, candidate.base + FAR_BEHIND
        other = ranking.least(now)
        candidate.base = base
        ranking.put(candidate, now)
        return other

    def _least(self, now: float) -> int:
        """The index of the lowest score."""
        if self._rounds is None:
            return self._scores.index(min(self._scores))
        return self._rounds.ranking.least(now)

    def probed(self, node: Node, report: LoadReport | None, now: float) -> None:
        """Does nothing: the node's load has the report already."""

    def weights(self, ready: Sequence[N], now: float) -> Sequence[float]:
        shares = self._overview.newcomers.shares(ready, now)
        return _scaled(self._overview.equalizer.weights(ready), shares)

    def _ask(self, ready: Sequence[Node], now: float) -> None:
        """Is the next one as idle as we think? No pick waits for the answer."""
        index = self._least(now)
        told_at = self._candidates[index].reported_at
        is_old = now - told_at > TUNING.stale * self._overview.means.horizon
        if is_old and len(self.probes) < MOST_WANTED and self._probe_worth.spend(now):
            self.probes.append(ready[index])

    # --- news -----------------------------------------------------------------------

    def _take_news(self, now: float) -> None:
        """Looks at the loads that were written since the last pick, and only those."""
        if self._rounds is not None:
            self._take_latest_news(self._rounds, now)
            return
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

    def _take_latest_news(self, rounds: Rounds, now: float) -> None:
        """Does the same among many: for the latest only, if there are many."""
        written = self._written
        for _ in range(min(len(written), TUNING.most_news)):
            load = written.pop()
            load.is_written = False
            candidate = self._known.get(load)
            if candidate is None:
                continue
            if load.reported_at != candidate.reported_at or load.report is None:
                self._learn(candidate)
                rounds.reported(candidate, now)
            if candidate.others is None:
                others = self._overview.means.others
                self._silent.draw(candidate, self._candidates, others, now)
            self._rescore(candidate, now)
            rounds.ranking.put(candidate, now)

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
                all_there = active if report.active is None else report.active
                counts = self._overview.old_counts
                if counted > 2 * all_there + OLD_COUNTS.margin:
                    counts.doubt(candidate)
                now = load.reported_at
                if now >= counts.deaf_until and now >= candidate.doubted_until:
                    candidate.others = active - counted if counted > 0 else active
        if known is not None and candidate.others is None:
            candidate.extra = 0.0  # as the mean, until a lot is drawn for it

    def _rescore(self, candidate: Candidate, now: float) -> None:
        """Computes a score from what is known. What others have fades towards the
        mean, from when it was told."""
        load, overview = candidate.load, self._overview
        means, weight = overview.means, candidate.weight
        busy = overview.turns.busy
        candidate.base = (load.in_flight + busy) / weight + candidate.turns
        if load.erred_at > now - FORGOTTEN_AFTER:
            candidate.base += self._errors(load, now)
        others = candidate.others
        if others is None:
            return
        told_at = candidate.reported_at
        extra = others / weight - means.others
        if self._rounds is not None:
            candidate.extra, candidate.told_at = extra, told_at
            return
        age = ((told_at if told_at < now else now) - means.epoch) / means.horizon
        candidate.extra = extra * exp(age)

    def _errors(self, load: Load, now: float) -> float:
        """What its errors count, in requests."""
        overview = self._overview
        most = TUNING.most_errors * (1.0 + overview.means.requests)
        return min(most, load.recent_errors(now) * overview.turns.error)

    # --- what changes slowly ----------------------------------------------------------

    def _age_all(self, ready: Sequence[Node], now: float) -> None:
        newcomers, means = self._overview.newcomers, self._overview.means
        if newcomers.members:
            newcomers.give_credit(self._picked)
        if self._rounds is not None:
            self._look_at_part(self._rounds, now)
            return
        if now >= self._refresh_at:
            self._refresh(ready, now)
        if self._silent.members:
            self._silent.draw_for_all()
        faded = self._faded = exp((means.epoch - now) / means.horizon)
        scores = self._scores
        for index, each in enumerate(self._candidates):
            scores[index] = each.base + each.extra * faded
        if newcomers.members:
            scored = []
            for each in newcomers.members:
                scored.append((each, scores[each.index]))
                scores[each.index] = inf
            self._due += self._overview.due_newcomers(scored, min(scores))
        self._age_at = min(self._refresh_at, now + TUNING.ageing_step * means.horizon)

    def _refresh(self, ready: Sequence[Node], now: float) -> None:
        """Brings up to date what changes slowly: members, weights, means, fading."""
        known, overview = self._candidates, self._overview
        turns, newcomers = overview.turns, overview.newcomers
        overview.update_means(known, 1.0, MEANS.gain)
        missed = overview.look_for_missed(known, now)
        if now >= self._step_at:
            overview.equalizer.step(newcomers.grown(ready, now), now, missed)
            self._step_at = now + self._update_period
            self._forget_absent()
            if overview.starved.has_enough(self._picked, len(known)):
                self._due += overview.starved.find(known)
        # Turns count by their mean, which doubles soon where there were few.
        longest = min(MEANS.refresh_period, now - self._began_at)
        pause = max(MEANS.shortest_horizon, longest)
        self._refresh_at = min(self._step_at, now + pause)
        overview.begin_epoch(self._picked, len(known), now)
        self._probe_worth.update(overview.means)
        weigh(known, overview.equalizer.weights(ready))
        turns.average(known)
        newcomers.look(ready, now, turns.mean)
        turns.fade(self._known.values(), now)
        for candidate in self._known.values():  # the absent too: the epoch is new
            candidate.extra = 0.0
            self._rescore(candidate, now)
        self._silent.look(known)

    def _look_at_part(self, rounds: Rounds, now: float) -> None:
        """Does the same for some of many."""
        self._due += rounds.look(self._picked, now, self._rescore)
        self._probe_worth.update(self._overview.means)
        if rounds.has_begun and len(self._known) > len(self._candidates):
            self._forget_absent()
        self._age_at = rounds.look_at

    def _forget_absent(self) -> None:
        self._known = {candidate.load: candidate for candidate in self._candidates}

    # --- who is there -----------------------------------------------------------------

    def _follow(self, ready: Sequence[Node], now: float) -> None:
        """Takes new members. Cheap where all are known: full ones leave and return."""
        overview, newcomers = self._overview, self._overview.newcomers
        if newcomers.members:
            newcomers.give_credit(self._picked)
        known = self._known
        if not all(node.load in known for node in ready):
            self._welcome(ready, now)
            self._refresh_at = now  # for their weights
        for candidate in self._candidates:
            candidate.index = candidate.slot = ABSENT
        before = len(self._candidates) or len(ready)
        overview.turns.scale(len(ready) / before)
        self._candidates = [known[node.load] for node in ready]
        for index, candidate in enumerate(self._candidates):
            candidate.index = index
        self._scores = [0.0] * len(self._candidates)
        newcomers.follow(self._candidates, self._picked, now)
        if newcomers.members:
            self._refresh_at = now  # their shares depend on who else is there
        self._due = [each for each in self._candidates if each in self._due]
        self._age_at = now  # for their scores
        self._built_for = ready
        self._begin_rounds(ready, now)

    def _begin_rounds(self, ready: Sequence[Node], now: float) -> None:
        """Begins to look at parts where there are too many to look at all of them."""
        before, self._rounds = self._rounds, None
        if len(ready) <= TUNING.all_at_once:
            if before is not None:
                self._refresh_at = now  # for one epoch
            return
        overview, candidates = self._overview, self._candidates
        self._rounds = Rounds(overview, ready, candidates, self._update_period, now)
        if before is None:
            overview.equalizer.end_round(ready, now)
        self._rounds.begin(now, self._rescore)

    def _welcome(self, ready: Sequence[Node], now: float) -> None:
        """Lets newcomers start level: they have no turns to catch up with.

        Chance breaks the first ties, so that many clients do not march in step.
        """
        known = self._known
        if not known:
            self._began_at = now
        self._overview.starved.begin_again(self._picked)
        count = len(known) or 1
        mean = sum(candidate.turns for candidate in known.values()) / count
        for node in ready:
            if node.load not in known:
                turns = mean + 1e-3 * self._rng.random()
                candidate = Candidate(node.load, turns, self._rng.random())
                candidate.looked_at = now
                known[node.load] = candidate
                self._learn(candidate)
                node.load.tell(self._written)

    def __repr__(self) -> str:
        return (
            f"<weighted least loaded over {len(self._candidates)}, "
            f"{self._overview.turns.busy:.0%} busy, "
            f"horizon {self._overview.means.horizon * 1000:.0f} ms>"
        )


def _scaled(weights: list[float], shares: list[float]) -> list[float]:
    """Each weight times its share, mean 1 as before."""
    if min(shares) == 1.0:
        return weights
    scaled = [weight * share for weight, share in zip(weights, shares, strict=True)]
    mean = sum(scaled) / len(scaled)
    return [weight / mean for weight in scaled]
