"""A backend that answers, but much later than usual, while the others do not.

Such a gray failure shows in no status and in no utilization: a slow disk, a lossy link,
a pool of threads of which most are stuck. The backend would keep its share.

Some answers of each backend are timed, ten a second at most. The lateness of an answer
is its latency relative to what is usual of its backend. It is compared with the
lateness of answers of all backends: `share` is the share of these that are half as late
or later. Each backend has a cusum for each method, a logarithm, to which an answer
adds

    -log(share) / 2 - log 2

So an answer that is as usual lowers it by up to log 2, and chance adds at most 0 in the
mean: exp(cusum) is a test martingale (Shafer et al. 2011). As the sum does not fall
below 0 it is a CUSUM test, as for errors in `outliers`. Reports count, too: a backend
that holds three times as many requests for its rate as usual is late for all clients,
and then a late answer counts five times.

A backend at its capacity is late as well; weights and counts of requests correct that.
So a backend is ejected only if it is no busier than the others, and these have room for
its requests.
"""

from collections.abc import Container
from dataclasses import dataclass
from itertools import islice
from math import exp, log
from typing import Generic, NamedTuple

from lbclient.core.backends.pool import Pool
from lbclient.core.counting.median import median
from lbclient.core.model import LoadReport
from lbclient.core.outliers.usual_latencies import UsualLatencies
from lbclient.core.protocols import N


@dataclass(frozen=True, slots=True)
class LatencyTuning:
    """The numbers of latency outliers. Ours; tests/sim/test_gray.py plays them."""

    # Seconds from one timed answer of a backend to the next: answers that come at once,
    # after a pause of a process, count as one. `period_each` more for each backend.
    period: float = 0.1
    period_each: float = 0.005
    first: int = 5  # answers of a backend before one is judged
    memory: int = 300  # answers, one a second, of what is usual of a backend
    quick: int = 20  # answers that count at once, however many a second
    # Answers that are added to those of a backend, as long as those of all backends
    # take: few answers tell little of what is usual.
    prior: float = 2.0
    tolerated: float = log(2.0)  # lateness that is no evidence
    known: float = 30.0  # answers of all backends before one is judged
    bar: float = log(1e5)  # of the cusum; chance passes it once in 100,000 answers
    fewest: int = 3  # late answers that are enough
    agreement: float = 5.0  # times the evidence, once the backend's reports agree:
    rise: float = 3.0  # it holds so many times as many requests for its rate ...
    held: float = 1.5  # ... and so many at least
    # A backend that is seldom called has no known rise. Instead it must hold so many
    # times as many requests as the others, and have been ready for so many seconds.
    many: float = 3.0
    warm: float = 30.0
    enough: int = 20  # others, of hundreds
    last: int = 8  # answers, one of which tells whether a late one was overtaken
    recent: float = 0.5  # gain, of the last answers and reports
    slow: float = log(3.0)  # mean lateness of a backend that is ejected, at least
    is_usual: float = 0.1  # share of a trial call that went well
    # The others' part: answers since the cusum was 0, and how many may be late.
    others: int = 5
    others_late: float = 0.3
    lasts: float = 1.0  # seconds since the cusum was 0
    least_backends: int = 3  # with two, it is not known which one has changed
    most_ejected: int = 5  # one of so many backends may be ejected
    # A backend is busy if it gets so many `more` requests than usual; above this
    # utilization; or above that of the others times `busier` and a little. The others
    # have room while they stay below it.
    more: float = 1.3  # its rate, over the usual one, in relation to others
    crowded: float = 1.5  # the requests of others, over what is usual of them
    busy: float = 0.9
    full: float = 0.95  # the others: then a late backend is needed
    busier: float = 1.5
    little: float = 0.1


TUNING = LatencyTuning()
LEVEL = 1000  # answers, of the mean of all backends


class Lateness(NamedTuple):
    """Why a backend is ejected: how long its last answers took, what is usual of it,
    and what is usual of the others, in seconds (geometric means)."""

    own: float
    usual: float
    others: float


class LatencyRecord:
    """How long one backend takes to answer one method. Owned by a `MethodLatencies`.

    `usual` and `recent` are means of logs of latencies.
    """

    __slots__ = (
        "_held", "_last", "_rate", "_usual_at", "_usual_held", "_usual_rate", "answers",
        "count", "cusum", "cusum_began_at", "has_held", "late", "others_before",
        "recent", "usual",
    )  # fmt: skip

    def __init__(self) -> None:
        self.answers = self.late = 0  # ever
        self.cusum_began_at = 0.0
        self.others_before = 0, 0  # their answers and late ones by then
        self.restart()

    def restart(self) -> None:
        """Forgets what is usual: the backend may be another task now."""
        self.count = 0  # of answers in `usual`
        self.usual = self.recent = 0.0
        self.cusum = 0.0
        self._last: tuple[tuple[float, bool], ...] = ()  # when sent, whether slow
        self.has_held = False  # many requests, for its rate, since it is suspected
        self._usual_at = 0.0
        self._held = self._rate = 0.0  # of late, as reported
        self._usual_held = self._usual_rate = 0.0

    def learn_usual(self, logarithm: float, now: float) -> None:
        """Takes the latency of an answer that is not late, or no later than others'."""
        if self.count > TUNING.quick and now < self._usual_at:
            return
        self._usual_at = now + 1.0
        self.count = min(self.count + 1, TUNING.memory)
        gain = 1.0 / self.count
        self.usual += gain * (logarithm - self.usual)
        self._usual_held += gain * (self._held - self._usual_held)
        self._usual_rate += gain * (self._rate - self._usual_rate)

    def hear(self, logarithm: float, report: LoadReport | None) -> None:
        """Takes how long an answer took, and the report that came with it."""
        gain = TUNING.recent if self.count else 1.0
        self.recent += gain * (logarithm - self.recent)
        if report is not None:
            self._rate += gain * (report.qps - self._rate)
            if report.active is not None:
                self._held += gain * (report.active - self._held)

    def remember(self, sent_at: float, *, is_slow: bool) -> None:
        self._last = (*self._last[1 - TUNING.last :], (sent_at, is_slow))

    def is_overtaken(self, sent_at: float) -> bool:
        """Whether most calls that were sent later, and are answered already, were not
        slow: then a late answer is late for its request's sake."""
        later = [is_slow for at, is_slow in self._last if at > sent_at]
        return 2 * sum(later) < len(later)

    def rise(self) -> float:
        """Its rate of late over what is usual of it; 0.0: unknown."""
        return self._rate / self._usual_rate if self._usual_rate else 0.0

    def crowd(self) -> float:
        """How many requests it has of late over what is usual of it."""
        return (self._held + 0.5) / (self._usual_held + 0.5)

    def holds_many(self) -> bool:
        """Whether it has many more requests than usual, for its rate."""
        usual = (self._usual_held + 0.5) * self._rate
        is_more = self._held * self._usual_rate >= TUNING.rise * usual
        return is_more and self._held >= TUNING.held

    def __repr__(self) -> str:
        return f"<{exp(self.recent):.3f} s, usually {exp(self.usual):.3f} s>"


class MethodLatencies(Generic[N]):
    """How long backends take to answer one method. Owned by `Outliers`."""

    def __init__(self, pool: Pool[N], now: float) -> None:
        self._pool = pool
        self.observed_at = now
        self._usual = UsualLatencies()
        self._records: dict[N, LatencyRecord] = {}
        self._answers = self._late = 0
        self._level, self._count = 0.0, 0  # mean log of all that is usual

    def observe(
        self,
        node: N,
        latency: float,
        report: LoadReport | None,
        sent_at: float,
        now: float,
    ) -> Lateness | None:
        """Learns how long an answer took. Returns what is to be held against its
        backend, if it is to be ejected."""
        record = self._records.get(node)
        if record is None:
            record = self._records[node] = LatencyRecord()
        self.observed_at = now
        logarithm = log(max(latency, 1e-6))
        record.hear(logarithm, report)
        if record.count < TUNING.first and not self._is_known_ill(node, report, now):
            self._learn(record, logarithm, now)
            return None
        distance = logarithm - self._usual_of(record)
        if distance <= 0.0 and not record.cusum:
            self._count_usual(record, distance, logarithm, sent_at, now)
            return None
        evidence = self._evidence(record, distance)
        is_late = evidence > 0.0
        is_overtaken = is_late and record.is_overtaken(sent_at)
        if is_overtaken:
            evidence = 0.0
        else:
            record.remember(sent_at, is_slow=distance > TUNING.tolerated)
        if evidence > 0.0 and not record.cusum:
            record.cusum_began_at = now
            record.others_before = self._of_others(record)
        self._answers += 1
        self._late += is_late
        record.answers += 1
        record.late += is_late
        # A failure does not become usual, but what befalls all does.
        is_common = not self._are_others_well(record)
        if is_common or is_overtaken or not (is_late and record.cusum):
            self._usual.add(distance)
        if not is_late or is_common:
            self._learn(record, logarithm, now)
        cusum = record.cusum + evidence
        record.cusum = min(max(0.0, cusum), TUNING.bar)
        record.has_held = record.has_held and record.cusum > 0.0
        return self._lateness(node, record) if self._is_proven(record, now) else None

    def _count_usual(
        self,
        record: LatencyRecord,
        distance: float,
        logarithm: float,
        sent_at: float,
        now: float,
    ) -> None:
        """Counts an answer that says nothing against a backend that nobody suspects.

        Half are, and to ask how many came later takes as long as all else here.
        """
        record.remember(sent_at, is_slow=False)
        record.answers += 1
        self._answers += 1
        self._usual.add(distance)
        self._learn(record, logarithm, now)

    def _is_known_ill(self, node: N, report: LoadReport | None, now: float) -> bool:
        """Whether a backend that this client seldom called, and that is not cold, holds
        many more requests than the others, for its rate and for its utilization.

        A slow machine has them for its rate, a large one for its utilization.
        """
        ready_at = node.load.ready_at
        if report is None or ready_at is None or now < ready_at + TUNING.warm:
            return False
        if not report.active or report.active < TUNING.held:
            return False
        some = islice(self._pool.ready, TUNING.enough)
        others = [each.load.report for each in some if each is not node]
        reports = [each for each in others if each is not None and each.active]
        if not reports:
            return False
        by_rate = median(each.qps / (each.active or 1) for each in reports)
        by_use = median(each.utilization / (each.active or 1) for each in reports)
        few = report.active / TUNING.many
        return report.qps <= by_rate * few and report.utilization <= by_use * few

    def _learn(self, record: LatencyRecord, logarithm: float, now: float) -> None:
        self._count = min(self._count + 1, LEVEL)
        self._level += (logarithm - self._level) / self._count
        record.learn_usual(logarithm, now)

    def _usual_of(self, record: LatencyRecord) -> float:
        """As long as its own answers take, or longer where these are few.

        A backend that is far away is compared with itself from the first.
        """
        if not record.count:
            return self._level
        weight = TUNING.prior / (TUNING.prior + record.count)
        return record.usual + weight * max(0.0, self._level - record.usual)

    def _evidence(self, record: LatencyRecord, distance: float) -> float:
        if self._usual.total < TUNING.known:
            return 0.0
        share = self._usual.share_beyond(distance - TUNING.tolerated)
        evidence = -0.5 * log(share) - log(2.0)
        if evidence > 0.0:
            # Later other clients may have left it, and it holds few.
            record.has_held = record.has_held or record.holds_many()
            if record.has_held:
                evidence *= TUNING.agreement
        return min(evidence, TUNING.bar / TUNING.fewest)

    def _of_others(self, record: LatencyRecord) -> tuple[int, int]:
        return self._answers - record.answers, self._late - record.late

    def _are_others_well(self, record: LatencyRecord) -> bool:
        """Since the cusum was 0, as far as they have answered."""
        answers, late = self._of_others(record)
        before, late_before = record.others_before
        return late - late_before <= TUNING.others_late * (answers - before)

    def _is_proven(self, record: LatencyRecord, now: float) -> bool:
        return (
            record.cusum >= TUNING.bar
            and now - record.cusum_began_at >= TUNING.lasts
            and self._answers - record.answers
            >= record.others_before[0] + TUNING.others
            and self._are_others_well(record)
        )

    def _lateness(self, node: N, record: LatencyRecord) -> Lateness | None:
        """None: it is not that much later, or requests wait for it, or for the others,
        as there are more than usual."""
        others = [one for each, one in self._records.items() if each is not node]
        rises = [rise for one in others if (rise := one.rise())] or [1.0]
        if record.rise() > TUNING.more * median(rises):
            return None
        if others and median(one.crowd() for one in others) > TUNING.crowded:
            return None
        known = [one.usual for one in others if one.count >= TUNING.first]
        level = median(known) if known else record.usual
        at_least = max(self._usual_of(record), level) + max(0.0, self._usual.mean)
        if record.recent < at_least + TUNING.slow:
            return None
        return Lateness(exp(record.recent), exp(record.usual), exp(level))

    def may_do_without(self, node: N, ejected: Container[N]) -> bool:
        """Whether a backend that is late is no busier than others, and those that are
        not `ejected` have room for its requests."""
        left = [each for each in self._pool.ready if each not in ejected]
        if len(left) < TUNING.least_backends:
            return False
        own = node.load.utilization()
        others = [each.load.utilization() for each in left if each is not node]
        told = [utilization for utilization in others if utilization]
        if not own or not told:
            return False  # whether it is busy is not known
        most = median(told) * TUNING.busier + TUNING.little
        more = own / len(others)
        return own <= min(most, TUNING.busy) and (
            sum(told) / len(told) + more <= TUNING.busy
        )

    def are_full(self, ejected: Container[N]) -> bool:
        """Whether those that are not `ejected` have no room by now."""
        left = [each for each in self._pool.ready if each not in ejected]
        return sum(each.load.utilization() for each in left) > TUNING.full * len(left)

    def is_usual(self, node: N, latency: float) -> bool:
        """Whether a trial call of an ejected backend did not take longer than those of
        others do."""
        record = self._records.get(node)
        if record is None or record.count < TUNING.first:
            return True
        distance = log(max(latency, 1e-6)) - self._usual_of(record)
        late = self._usual.share_beyond(distance - TUNING.tolerated)
        return late >= TUNING.is_usual

    def let_in(self, node: N) -> None:
        """It is ejected no longer: half of what it took is enough now."""
        if record := self._records.get(node):
            record.cusum = TUNING.bar / 2
            record.recent = record.usual

    def period(self, node: N) -> float:
        """Seconds until the next answer of a backend is timed."""
        record = self._records.get(node)
        if record is not None and record.cusum:
            return TUNING.period
        return max(TUNING.period, TUNING.period_each * len(self._pool.nodes))

    def restart(self, node: N) -> None:
        if record := self._records.get(node):
            record.restart()

    def forget(self, node: N) -> None:
        self._records.pop(node, None)

    def __repr__(self) -> str:
        late = sum(one.cusum > 0.0 for one in self._records.values())
        return f"<{late} of {len(self._records)} late, {self._usual!r}>"
