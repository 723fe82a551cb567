"""Outlier ejection: a backend leaves the picks of a method that it alone fails.

No status is good or bad by itself. What a backend answers to a method is compared with
what the others answer to it: a status that they do not give is evidence against the
backend, one that they give about as often is not. So a service that is not registered,
an expired certificate and a wrong port look the same, and a method that mostly ends
NOT_FOUND looks well.

The comparison is a cumulative-sum test (CUSUM, Page 1954). For each method a backend
has a cusum, the logarithm of a product that is never less than 1. An OK halves the
product; a status multiplies it by

    1/2 + 1 / (2 usual),    usual = FACTOR x kinds x the others' share of that status

where `kinds` is how many statuses other than OK the others give. While a backend's own
shares are below what is usual, the mean of such a factor is at most 1. If the others'
shares were known exactly, chance alone would then take the product past 100,000 less
than once in 100,000 answers (Lorden 1971). For a backend that fails all calls with a
status of its own five answers are enough once the others gave a hundred without it,
and some twenty where they gave as few.

The others are the healthier half of those that are ready: of several bad backends none
hides another, and none of them sets the standard because it answers so fast.

The words: *evidence* is what one answer adds to a cusum. A *record* has a backend's
answers to a method and its cusum. A *judgement* says what one answer means for the
backend, given its record. An *ejection* follows once a cusum reaches the bar.

It costs nothing while all is well: counts are kept for a method from its first answer
that is not OK, until there was none for a minute.
"""

from collections.abc import Callable
from itertools import islice
from math import inf
from random import Random
from typing import Generic

from lbclient.core.backends.pool import Pool
from lbclient.core.counting.call_counts import Method
from lbclient.core.model import Outcome, State
from lbclient.core.outliers.answer_record import Ejection
from lbclient.core.outliers.method_latencies import MethodLatencies
from lbclient.core.outliers.method_outliers import MethodWatch, most_ejected
from lbclient.core.outliers.outlier_judgement import Judgement
from lbclient.core.protocols import N, Picker

QUIET = 60.0  # seconds without an error until a method's counts are dropped
UNUSED = 600.0  # seconds without an answer until they are, even with ejections
PERIOD = 0.1  # seconds from one timed answer of a backend to the next, at least
REVIEW = 10.0  # seconds between two looks for counts to drop
MOST_NEWS = 100  # ejections kept in `news`
MOST_TUPLES = 100  # of allowed backends that are kept, one for each set of ejected
METHODS = 100  # with counts; about 25 kB a backend, which is less than its connection
DEADLINE_EXCEEDED = 4  # of gRPC's status codes
TIMED = 0, DEADLINE_EXCEEDED  # statuses whose latency is the backend's
UNARY = "unary_unary"  # of other kinds the duration also depends on the client


class Outliers(Generic[N]):
    """Ejects backends for methods that they alone fail. Owned by a channel's balancer,
    which tells it of every answer.

    `watching` has the methods with counts, by a key that the balancer chose; while it
    is empty it need not be told of answers with OK. `count` is the number of ejections
    now, by backend and method, and `total` that of all so far. `news` are the ejections
    since it was last emptied; None: a backend was let back in. `ejects_late`: backends
    are also ejected if their answers come much later than is usual of them.
    """

    def __init__(
        self, pool: Pool[N], rng: Random, *, ejects_late: bool = False
    ) -> None:
        self.watching: dict[int, MethodWatch[N]] = {}
        self.count = 0
        self.total = 0
        self.news: list[tuple[N, Method, Ejection | None]] = []
        self.pool = pool
        self._ejects_late = ejects_late
        # None: of a method whose answers are not timed.
        self._latencies: dict[int, MethodLatencies[N] | None] = {}
        self._rng = rng
        self._review_at = -inf
        self._tried: tuple[MethodWatch[N], N] | None = None  # by the last pick
        self._last_passed: tuple[N, ...] = ()  # to the picker
        self._allowed_for: tuple[N, ...] = ()  # the `ready` that `_allowed` is for
        self._allowed: dict[frozenset[N], tuple[N, ...]] = {}  # by who is ejected
        self._known: dict[tuple[N, ...], tuple[N, ...]] = {}  # each by itself

    # --- answers ---------------------------------------------------------------

    def watch(self, key: int, method: Method, now: float) -> None:
        """Keeps counts for a method from now on."""
        self._review(now)
        if len(self.watching) >= METHODS:
            watches = self.watching.items()
            oldest = min(
                watches, key=lambda it: (bool(it[1].ejected), it[1].last_error_at)
            )
            self._drop(oldest[0])
        self.watching[key] = MethodWatch(method, self.pool, self._rng, self._note)

    def judge(
        self,
        key: int,
        node: N,
        outcome: Outcome,
        status: int,
        sent_at: float,
        now: float,
        method_of_key: Callable[[], Method],
        *,
        chose_freely: bool = True,
    ) -> Judgement | None:
        """What the end of an attempt says of its backend; None: nothing, or it is OK.

        Watches the method from its first error on. The attempt is timed only if the
        picker `chose_freely`: if all calls with one key go to one backend, the key may
        be why they take long.
        """
        if status in TIMED and now >= node.load.timed_at:
            if chose_freely:
                self._time(key, node, outcome, sent_at, now, method_of_key)
            else:
                node.load.timed_at = now + PERIOD
        if not outcome.is_answer:
            is_late = status == DEADLINE_EXCEEDED
            self.given_up(key, node, sent_at, now, is_late=is_late)
            return None
        if status and key not in self.watching:
            self.watch(key, method_of_key(), now)
        return self.answered(key, node, status, outcome.latency, sent_at, now)

    def answered(
        self,
        key: int,
        node: N,
        status: int,
        latency: float,
        sent_at: float,
        now: float,
    ) -> Judgement | None:
        """What an answer says of the backend; None: nothing, or it is OK.

        Nothing where the method is not watched, or the backend is not ready, or was
        not since the call was sent: it may have been the task before.
        """
        watch = self.watching.get(key)
        if watch is None or not self._is_of(node, sent_at):
            return None
        if now >= self._review_at:
            self._review(now)
        return watch.answered(node, status, latency, sent_at, now)

    def _time(
        self,
        key: int,
        node: N,
        outcome: Outcome,
        sent_at: float,
        now: float,
        method_of_key: Callable[[], Method],
    ) -> None:
        """Compares how long an answer took with those of other backends."""
        if not self._ejects_late:
            node.load.timed_at = inf  # it is not asked for again
            return
        node.load.timed_at = now + PERIOD
        if key not in self._latencies:
            self._time_method(key, method_of_key(), now)
        latencies = self._latencies.get(key)
        if latencies is None or not self._is_of(node, sent_at):
            return
        late = latencies.observe(node, outcome.latency, outcome.report, sent_at, now)
        node.load.timed_at = now + latencies.period(node)
        if late is None:
            return
        if key not in self.watching:
            self.watch(key, method_of_key(), now)
        self.watching[key].eject_late(node, late, latencies, now)

    def _time_method(self, key: int, method: Method, now: float) -> None:
        """Begins to compare answers to a method, if it is unary and there is room."""
        if method[0] != UNARY:
            self._latencies[key] = None
            return
        timed = {k: one for k, one in self._latencies.items() if one is not None}
        if len(timed) >= METHODS:
            oldest = min(timed, key=lambda key: timed[key].observed_at)
            if now - timed[oldest].observed_at < UNUSED:
                return
            del self._latencies[oldest]
        self._latencies[key] = MethodLatencies(self.pool, now)

    def _is_of(self, node: N, sent_at: float) -> bool:
        """Whether a call that was sent then went to the task that is there now."""
        ready_at = node.load.ready_at
        if ready_at is None or sent_at < ready_at:
            return False
        return self.pool.nodes.get(node.endpoint.address) is node

    def given_up(
        self, key: int, node: N, sent_at: float, now: float, *, is_late: bool = False
    ) -> None:
        """Learns of a call that ended without an answer of the backend. It `is_late` if
        its deadline had passed."""
        if watch := self.watching.get(key):
            watch.give_up(node, sent_at, now, is_late)

    def _note(self, method: Method, node: N, ejection: Ejection | None) -> None:
        """Counts an ejection, or with None that a backend was let back in."""
        self.count += 1 if ejection else -1
        self.total += ejection is not None
        self.news.append((node, method, ejection))
        del self.news[:-MOST_NEWS]

    # --- picks -----------------------------------------------------------------

    def pick(self, picker: Picker, key: int, now: float) -> N | None:
        """Returns the picker's choice among the backends not ejected for this method.

        None if all of these are full. Now and then it returns an ejected backend for a
        trial call.
        """
        if self._tried is not None:
            # The trial call has been sent by now, or never will: its deadline passed,
            # or it went to another backend.
            (last_watch, last), self._tried = self._tried, None
            last_watch.repeat_unsent(last, now)
        ready = self.pool.ready
        watch = self.watching.get(key)
        if watch is None or not watch.ejected:
            self._last_passed = ready
            return picker.pick(ready, now)
        tried = watch.trial(now)
        if tried is not None:
            self._tried = watch, tried
            return tried
        allowed = self.allowed(key)
        if not allowed:
            return None
        if self._last_passed is ready and allowed is not ready:
            # The last call was of a method without ejections. Another tuple each time
            # would make the picker start over; most often it picks an allowed backend.
            node = picker.pick(ready, now)
            if node not in watch.ejected:
                return node
        self._last_passed = allowed
        return picker.pick(allowed, now)

    def allowed(self, key: int) -> tuple[N, ...]:
        """The backends that are ready and not ejected; empty if all of these are full.

        The same tuple until one of the two changes, also for another method for which
        the same backends are ejected.
        """
        ready = self.pool.ready
        watch = self.watching.get(key)
        if watch is None or not watch.ejected:
            return ready
        if ready is not self._allowed_for:
            self._forget_allowed(ready)
        left_out = watch.left_out()
        allowed = self._allowed.get(left_out)
        if allowed is None:
            if len(self._allowed) >= MOST_TUPLES:
                self._forget_allowed(ready)
            allowed = self._without(watch)
            allowed = self._known.setdefault(allowed, allowed)
            self._allowed[left_out] = allowed
        return allowed

    def _without(self, watch: MethodWatch[N]) -> tuple[N, ...]:
        """The ready backends, of which the ejected ones, half at most, are left out.

        Those ejected first are left out first.
        """
        present = (node for node in watch.ejected if node.state is State.READY)
        left_out = dict.fromkeys(islice(present, most_ejected(self.pool)))
        return tuple(node for node in self.pool.ready if node not in left_out)

    def _forget_allowed(self, ready: tuple[N, ...] = ()) -> None:
        self._allowed_for = ready
        self._allowed, self._known = {}, {ready: ready}

    def is_ejected(self, key: int, node: N) -> bool:
        watch = self.watching.get(key)
        return watch is not None and node in watch.ejected

    def was_trial(self, key: int, node: N, sent_at: float) -> bool:
        """Whether a call sent then was a trial call to an ejected backend."""
        watch = self.watching.get(key)
        ejection = None if watch is None else watch.ejected.get(node)
        return ejection is not None and sent_at == ejection.last_at > ejection.since

    def of(self, node: N) -> list[tuple[Method, Ejection]]:
        """The methods for which a backend is ejected. May be called from any thread."""
        return [
            (watch.method, ejection)
            for watch in list(self.watching.values())
            if (ejection := watch.ejected.get(node)) is not None
        ]

    # --- backends that come and go ---------------------------------------------

    def changed(self, node: N, now: float) -> None:
        """Learns of a backend's new state. A new connection may be another task."""
        self._forget_allowed()
        for watch in self.watching.values():
            if node.state is State.READY:
                watch.restart(node, now)
            else:
                watch.lose(node, now)
        if node.state is State.READY:
            for key, latencies in self._latencies.items():
                # The trial calls of an ejected one are compared with what was usual.
                if latencies is not None and not self.is_ejected(key, node):
                    latencies.restart(node)

    def forget(self, node: N) -> None:
        """Removes a backend that has left."""
        for watch in self.watching.values():
            self.count -= watch.forget(node)
        for latencies in self._latencies.values():
            if latencies is not None:
                latencies.forget(node)
        self._last_passed, self._tried = (), None
        self._forget_allowed()

    def _drop(self, key: int) -> None:
        self.count -= len(self.watching.pop(key).ejected)

    def _review(self, now: float) -> None:
        self._review_at = now + REVIEW
        for key, watch in list(self.watching.items()):
            if watch.ejected:
                is_over = now - watch.answered_at > UNUSED
            else:
                is_over = now - watch.last_error_at > QUIET
            if is_over:
                self._drop(key)

    def __repr__(self) -> str:
        return f"<{self.count} ejected, {len(self.watching)} methods watched>"
