"""The state of outlier detection for one method: answers by backend, ejections.

`outliers` tells the rule, and its source.
"""

from collections.abc import Callable
from math import inf, log
from random import Random
from typing import Generic

from lbclient.core.backends.pool import Pool
from lbclient.core.backoff import Backoff
from lbclient.core.counting.call_counts import Method
from lbclient.core.counting.ewma import DecayingCount
from lbclient.core.load import ERROR_MEMORY, LATENCY_GAIN
from lbclient.core.model import State
from lbclient.core.outliers.answer_record import AnswerRecord, Ejection
from lbclient.core.outliers.method_latencies import TUNING as LATENCY
from lbclient.core.outliers.method_latencies import Lateness, MethodLatencies
from lbclient.core.outliers.outlier_judgement import Against, Judgement
from lbclient.core.outliers.usual_answers import UsualAnswers
from lbclient.core.protocols import N

BAR = log(1e5)  # a backend whose cusum reaches it is ejected
# From here on an error counts as a failure. A backend that is let back in begins here.
FAILURE_BAR = BAR / 2
OK = log(0.5)  # what an OK adds to it

# Both must pass before an ejection, because in a fleet-wide fault fast failures arrive
# before slow OKs.
OTHERS_OK = 5  # of other backends; one or two were perhaps sent before the fault
MIN_TIME = 0.5  # seconds since the cusum was 0, in which slow OKs arrive, too

FIRST_ANSWERS = 1.0  # answers; errors beyond these, with no OK yet, count as unproven

TRIALS = Backoff(1.0, 30.0, jitter=0.25)  # until a trial call, or after one that failed
# Of a late backend each trial call takes long, so there are few of them.
LATE_TRIALS = Backoff(20.0, 60.0, jitter=0.25)
MOST_TRIALS = 3  # that must go well in a row; as many as it was ejected of late
LOOK_AT_OTHERS = 1.0  # seconds from one look to the next, while some are ejected
LOOK_AGAIN = 0.1  # seconds; where trials are due, but the backends are lost or full


def most_ejected(pool: Pool[N]) -> int:
    """How many backends may be ejected for one method: half of the ready ones.

    Backends that are full are ready, too.
    """
    return pool.counts[State.READY] // 2


class MethodWatch(Generic[N]):
    """The answers to one method by backend, and the ejections. Owned by `Outliers`.

    `note` is called for each backend that is ejected, and with None for each that is
    let back in.
    """

    def __init__(
        self,
        method: Method,
        pool: Pool[N],
        rng: Random,
        note: Callable[[Method, N, Ejection | None], None],
    ) -> None:
        self.method = method
        # By which trial calls of late backends are judged; None: none was ejected.
        self._latencies: MethodLatencies[N] | None = None
        self._pool = pool
        self._rng = rng
        self._note = note
        self.records: dict[N, AnswerRecord[N]] = {}
        self.ejected: dict[N, Ejection] = {}  # in order of ejection
        self.latency = 0.0  # mean of its OKs, in seconds
        self.answers = self.oks = 0
        self.last_error_at = self.answered_at = -inf
        self._look_at = -inf  # whether the others have room for those that are late
        self._due_at = inf  # the first of the ejections', or earlier
        self._left_out: frozenset[N] | None = None  # those ejected, once asked for
        self._usual = UsualAnswers(self.records)

    def answered(
        self, node: N, status: int, latency: float, sent_at: float, now: float
    ) -> Judgement | None:
        """Learns from an answer. Returns None for OK."""
        record = self.records.get(node)
        if record is None:
            record = self.records[node] = AnswerRecord(node)
        self.answered_at = now
        self.answers += 1
        record.add(status)
        if self.ejected and now >= self._look_at:
            self._let_in_late_if_needed(now)
        if status:
            self.last_error_at = now
            return self._erred(record, status, sent_at, now)
        self.oks += 1
        gain = LATENCY_GAIN if self.latency else 1.0
        self.latency += gain * (latency - self.latency)
        record.has_served = True
        record.cusum = max(0.0, record.cusum + OK)
        if record.ejection is not None:
            is_well = not self._is_late(record, latency)
            self._tried(record, record.ejection, is_well, sent_at, now)
        return None

    def _is_late(self, record: AnswerRecord[N], latency: float) -> bool:
        """Whether it is ejected as it is late, and its trial call was late again."""
        ejection, latencies = record.ejection, self._latencies
        if ejection is None or latencies is None or not ejection.is_late:
            return False
        return not latencies.is_usual(record.node, latency)

    def _erred(
        self, record: AnswerRecord[N], status: int, sent_at: float, now: float
    ) -> Judgement:
        if self._usual.sort(self.answers, now):
            self._let_in_usual(now)
        usual, others, of_others = self._usual.share(record, status)
        is_unusual = usual < 1.0 and len(self._pool.nodes) > 1
        if not record.cusum:
            record.cusum_began_at = now
            record.others_before = self._of_others(record)
        cusum = record.cusum + log(0.5 + 0.5 / usual)
        record.cusum = min(max(0.0, cusum), BAR)
        if record.ejection is not None:
            self._tried(record, record.ejection, not is_unusual, sent_at, now)
        elif is_unusual and self._is_proven(record, now) and self._has_room():
            own, of_own = record.recent.errors[status], record.recent.total
            against = Against(status, own, of_own, others, of_others)
            self._eject(record, against, TRIALS, now)
        is_proven = record.ejection is not None or record.cusum >= FAILURE_BAR
        is_all = not record.has_served and record.recent.total > FIRST_ANSWERS
        is_failure = is_unusual and is_proven
        is_unproven = is_unusual and is_all and not is_proven
        held = record.held
        if is_failure or is_unproven:
            if status not in held:
                held[status] = DecayingCount(ERROR_MEMORY)
            held[status].add(now)
        elif not is_unusual and status in held:
            # At first nobody knew that the others give it, too.
            record.node.load.forgive(held.pop(status).read(now), now)
        return Judgement(is_failure, is_unproven, not is_unusual, self.latency)

    def _of_others(self, record: AnswerRecord[N]) -> tuple[int, int]:
        """How many answers, and how many OKs, the other backends ever gave."""
        return self.answers - record.answers, self.oks - record.oks

    def _is_proven(self, record: AnswerRecord[N], now: float) -> bool:
        """Whether the cusum suffices for an ejection, and the others are well.

        A fleet-wide fault hits one backend first, so the others must have given OKs
        since the cusum was 0, or no answers at all.
        """
        if record.cusum < BAR:
            return False
        answers, oks = self._of_others(record)
        before, oks_before = record.others_before
        is_long_enough = now - record.cusum_began_at >= MIN_TIME
        are_well = oks - oks_before >= OTHERS_OK and is_long_enough
        return are_well or answers == before

    # --- ejections -------------------------------------------------------------

    def _has_room(self) -> bool:
        """Whether one more may be ejected: at most half of the ready ones are."""
        ejected = sum(node.state is State.READY for node in self.ejected)
        return ejected < most_ejected(self._pool)

    def eject_late(
        self, node: N, against: Lateness, latencies: MethodLatencies[N], now: float
    ) -> None:
        """Ejects a backend that answers late, unless several are ejected already."""
        self._latencies = latencies
        record = self.records.get(node)
        if record is None:
            record = self.records[node] = AnswerRecord(node)
        if record.ejection is not None:
            return
        late = sum(ejection.is_late for ejection in self.ejected.values())
        most = max(1, self._pool.counts[State.READY] // LATENCY.most_ejected)
        has_room = late < most and self._has_room()
        if has_room and latencies.may_do_without(node, self.ejected):
            self.answered_at = self.last_error_at = now
            self._eject(record, against, LATE_TRIALS, now)

    def _eject(
        self,
        record: AnswerRecord[N],
        against: Against | Lateness,
        trials: Backoff,
        now: float,
    ) -> None:
        record.ejections.add(now)
        times = max(1, round(record.ejections.read(now)))
        period = trials.after(times)
        # One answer alone may be quick by chance.
        needed = MOST_TRIALS if isinstance(against, Lateness) else times
        ejection = Ejection(against, trials, period, min(needed, MOST_TRIALS), now)
        record.ejection = self.ejected[record.node] = ejection
        self._left_out = None
        record.has_served = False
        self._note(self.method, record.node, ejection)
        self._try_in(ejection, period, now)

    def left_out(self) -> frozenset[N]:
        """The ejected backends; the same object until the ejections change."""
        if self._left_out is None:
            self._left_out = frozenset(self.ejected)
        return self._left_out

    def _try_in(self, ejection: Ejection, pause: float, now: float) -> None:
        self._try_at(ejection, now + TRIALS.varied(pause, self._rng))

    def _try_at(self, ejection: Ejection, at: float) -> None:
        ejection.tried_at, ejection.trial_at = None, at
        self._due_at = min(self._due_at, at)

    def _tried(
        self,
        record: AnswerRecord[N],
        ejection: Ejection,
        is_well: bool,
        sent_at: float,
        now: float,
    ) -> None:
        """Learns from a call that was sent after the ejection, usually a trial call."""
        if sent_at < ejection.since:
            return
        if not is_well:
            ejection.well, ejection.failed_at = 0, now
            ejection.period = ejection.trials.longer(ejection.period)
            self._try_in(ejection, ejection.period, now)
            return
        ejection.well += 1
        if ejection.well >= ejection.needed:
            self._let_in(record, now)
        else:
            self._try_at(ejection, now)

    def _let_in(self, record: AnswerRecord[N], now: float) -> None:
        if record.ejection is not None and record.ejection.is_late:
            record.begin(record.cusum)
            if self._latencies is not None:
                self._latencies.let_in(record.node)
        else:
            record.begin(FAILURE_BAR)
        record.ejection = None
        self._note(self.method, record.node, None)
        record.node.load.forgive(inf, now)  # it is to have its share again
        del self.ejected[record.node]
        self._left_out = None

    def _let_in_usual(self, now: float) -> None:
        """Lets in those whose status the others give, too, by now."""
        for node, ejection in list(self.ejected.items()):
            record, against = self.records[node], ejection.against
            if isinstance(against, Lateness):
                continue
            if self._usual.share(record, against.status)[0] >= 1.0:
                self._let_in(record, now)

    def trial(self, now: float) -> N | None:
        """The ejected backend that gets this call as its trial call, if one is due."""
        if now < self._due_at:
            return None
        tried = None
        for node, ejection in list(self.ejected.items()):
            if now < ejection.due_at() or not self._pool.takes(node):
                continue
            # A trial that is over, though nobody said how it ended, is made again.
            if ejection.tried_at is not None and node.load.in_flight:
                record = self.records[node]
                if ejection.is_late:
                    self._tried(record, ejection, False, ejection.last_at, now)
                else:
                    self._let_in(record, now)
                continue
            ejection.tried_at = ejection.last_at = now
            ejection.started = node.load.started
            tried = node
            break
        due = (ejection.due_at() for ejection in self.ejected.values())
        self._due_at = min(due, default=inf)
        if tried is None:
            self._due_at = max(self._due_at, now + LOOK_AGAIN)
        return tried

    def repeat_unsent(self, node: N, now: float) -> None:
        """Makes the next call the trial call if the picked one was never sent."""
        ejection = self.ejected.get(node)
        if (
            ejection is not None
            and ejection.tried_at is not None
            and node.load.started <= ejection.started
        ):
            self._try_at(ejection, now)

    def give_up(
        self, node: N, sent_at: float, now: float, is_late: bool = False
    ) -> None:
        """A call to the backend had no answer: as a trial call it showed nothing, but
        that it is late again if it was ejected for that, and its deadline passed."""
        ejection = self.ejected.get(node)
        if ejection is None or sent_at < ejection.since:
            return
        if ejection.is_late and is_late:
            self._tried(self.records[node], ejection, False, sent_at, now)
        else:
            self._try_in(ejection, ejection.period, now)

    def lose(self, node: N, now: float) -> None:
        """Notes that the backend's connection has ended."""
        ejection = self.ejected.get(node)
        if ejection is not None and now < ejection.failed_at + TRIALS.first:
            ejection.ended_connection = True
        self._let_in_late_if_needed(now)

    def _let_in_late_if_needed(self, now: float) -> None:
        """Late ones are better than too few that are quick, or than full ones."""
        self._look_at = now + LOOK_AT_OTHERS
        if self._latencies is None:
            return
        others = self._pool.counts[State.READY] - len(self.ejected)
        are_few = others < LATENCY.least_backends - 1
        if not are_few and not self._latencies.are_full(self.ejected):
            return
        for node, ejection in list(self.ejected.items()):
            if ejection.is_late:
                self._let_in(self.records[node], now)

    def restart(self, node: N, now: float) -> None:
        """Notes a new connection: the backend may be another task, and is tried soon.

        Not if the previous connection ended with the previous trial call.
        """
        record = self.records.get(node)
        if record is None:
            return
        record.reconnect()
        ejection = record.ejection
        if ejection is None:
            return
        if not ejection.ended_connection:
            ejection.well, ejection.period = 0, ejection.trials.first
            self._try_at(ejection, max(now, ejection.last_at + TRIALS.first))
        ejection.ended_connection = False

    def forget(self, node: N) -> bool:
        """Removes a backend that has left. Returns whether it was ejected."""
        self.records.pop(node, None)
        self._usual.forget(node)
        if self.ejected.pop(node, None) is None:
            return False
        self._left_out = None
        return True

    def __repr__(self) -> str:
        count = len(self.records)
        return f"<{self.method[1]}: {len(self.ejected)} of {count} ejected>"
