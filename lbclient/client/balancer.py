"""The working half of a channel: wires its parts, picks backends and settles attempts.

The parts decide and do: `discovery`, `connections`, `idleness`, `connectivity`,
`pending` and `outlier_detection` here, `throttling` and `counters` in core. None of
them imports this file. All state changes are synchronous; tasks only wait.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from random import Random
from threading import get_ident
from typing import TYPE_CHECKING, Any

import grpc

from lbclient.background.tasks import Tasks, is_fatal
from lbclient.background.turns import Turns
from lbclient.client.backend import Backend
from lbclient.client.changes import Changes
from lbclient.client.common import Common
from lbclient.client.connections import Connections
from lbclient.client.connectivity import IDLE, TRANSIENT_FAILURE, Connectivity
from lbclient.client.discovery import Discovery
from lbclient.client.idleness import Idleness
from lbclient.client.observers import ObservedCall, Observers
from lbclient.client.outlier_detection import OutlierDetection
from lbclient.client.pending import Pending
from lbclient.client.probing import Probing
from lbclient.client.recent_picks import ANOTHER, TRIAL, RecentPicks
from lbclient.client.slowdowns import Slowdowns
from lbclient.client.subset_growth import SubsetGrowth
from lbclient.client.surroundings import Dial
from lbclient.config import ChannelConfig
from lbclient.core.counters import Counters
from lbclient.core.criticality import Criticality, named
from lbclient.core.events import Events
from lbclient.core.hedging import Hedging
from lbclient.core.model import LoadReport, Outcome, State, TaskState, Verdict
from lbclient.core.next_backend import two_others
from lbclient.core.outliers import Outliers
from lbclient.core.pool import LOST
from lbclient.core.protocols import Clock, Picker, PickerFactory, Resolver, Subset
from lbclient.core.quota import OTHERS
from lbclient.core.retry import BURST, Budget, Decision, Refusal, RetryPolicy
from lbclient.core.spillover import Spillover
from lbclient.core.throttling import Throttling
from lbclient.grpc_seam import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    REASONS,
    LocalRpcError,
    OutOfQuota,
    Throttled,
    is_ready,
)
from lbclient.log import Log
from lbclient.wire import find_customer
from lbclient.wire.codes import STATUS_OF_NUMBER
from lbclient.wire.method_config import is_idempotent

if TYPE_CHECKING:
    from lbclient.client.attempt import Attempt

logger = Log("lbclient.balancer")

SERVED, ABANDONED = Verdict.SERVED, Verdict.ABANDONED
FAILED, REJECTED = Verdict.FAILED, Verdict.REJECTED
QUOTA = Refusal.QUOTA
LAME_DUCK = TaskState.LAME_DUCK  # an enum looks its members up in Python up to 3.11


new_outcome: Callable[[tuple[object, ...]], Outcome]
# What a named tuple's own constructor does after a call in Python.
new_outcome = partial(tuple.__new__, Outcome)


class Balancer:
    """The working half of a channel. Bound to the event loop that it is made in."""

    def __init__(
        self,
        label: str,
        resolver: Resolver,
        subset: Subset,
        picker: Picker,
        dial: Dial,
        config: ChannelConfig,
        clock: Clock,
        rng: Random,
        spillover: PickerFactory | None = None,
        observers: Observers | None = None,
    ) -> None:
        """`spillover` makes the picker once endpoints have several priorities."""
        self.loop = asyncio.get_running_loop()
        self.observers = Observers() if observers is None else observers
        self.thread = get_ident()
        self.clock = clock
        self.config = config
        self.picker = picker
        self.tasks = Tasks(label, rng, channel=label)
        self._spillover = spillover
        self.probing = Probing(label, picker, clock)
        self.counters = Counters(STATUS_OF_NUMBER, REASONS)
        self.events = Events()
        turns = Turns(self.tasks)
        common = Common(label, config, self.tasks, turns, clock, rng, self.events)
        self.connections = Connections(
            common,
            subset,
            dial,
            self.counters,
            observe=self.observe,
            prober=lambda: self.idleness.prober(),
            returns=lambda backend: self.idleness.waking.update(backend),
            leaves=self._leaves,
        )
        self.pool = self.connections.pool
        self.outliers = Outliers(self.pool, rng)
        self.idleness = Idleness(
            common,
            self.connections,
            calls=self.counters.total,
            has_ready=lambda: self.pending.has_ready(),
        )
        self._outlier_detection = OutlierDetection(
            label,
            self.outliers,
            self.counters.by_method,
            self.idleness.wake_a_second,
            self.events,
        )
        self.slowdowns = Slowdowns(common, lambda: self.pool.ready)
        self._growth = SubsetGrowth(common, self.connections)
        self._changes = Changes(common, self._follow_up)
        self.discovery = Discovery(
            common, resolver, self.connections, self._changes.follow_up_soon
        )
        self.pending = Pending(
            self.pool,
            self.outliers,
            config,
            self.idleness.waking,
            clock,
            choose=self._choose,
            trouble=lambda: self.discovery.trouble,
        )
        self.connectivity = Connectivity(self.pool, self.discovery.has_answered)
        # Of calls that name none; None: they are sent without one.
        level = config.criticality
        self.criticality = None if level is None else named("criticality", level)
        self.throttling = Throttling(
            rng, config.throttle, lambda: (one.load for one in self.pool.ready)
        )
        self.retry_policy = RetryPolicy(
            # Enough for all that can be in flight on one backend when it dies.
            Budget(burst=max(BURST, config.active_limit)),
            rng,
            config.max_attempts,
            lambda path: is_idempotent(path, config.idempotent),
        )
        self.hedging: Hedging | None = None
        if config.hedging:
            self.hedging = Hedging(
                self.retry_policy,
                config.max_attempts,
                lambda path: is_idempotent(path, config.idempotent),
                config.hedging_budget,
                config.hedging_delay,
            )
        self.picks = RecentPicks(clock)
        self.label = label
        self._rng = rng
        self.is_stopped = False

    # --- calls ---------------------------------------------------------------

    def pick(
        self,
        now: float,
        counts: dict[int, int],
        tried: Collection[Backend] = (),
    ) -> Backend | None:
        """The backend for a call that is sent now; None: it must wait or fail.

        `counts` are those of its method, of which each has its own. Of those that
        `tried` it, none if there is another: where the policy insists, it is the less
        loaded of two others. Policies that keep what they computed are left alone.
        """
        # Who waits goes first, or they wait together. (The dict's own truth is C.)
        backend = None if self.pending.waiters else self._choose(now, counts)
        if tried and backend in tried:
            others = two_others(tried, self.allowed(counts), self._rng)
            if others:
                backend = others[0]
                if self.picks.recent is not None:
                    self.picks.picked(backend, others, now, ANOTHER)
        return backend

    def _choose(self, now: float, counts: dict[int, int]) -> Backend | None:
        lost = 0
        while ready := self.pool.ready:
            try:
                if self.outliers.count:
                    found = self.outliers.pick(self.picker, id(counts), now)
                    if found is None:
                        return None
                    backend = found
                else:
                    backend = self.picker.pick(ready, now)
                is_connected = is_ready(backend.channel)
            except BaseException as error:  # of a picker that is not ours, perhaps
                if is_fatal(error):
                    raise
                words = "%s: picker raised; falling back to round robin"
                logger.exception(words, self.label, channel=self.label, reason=error)
                backend = ready[self.counters.total() % len(ready)]
                is_connected = is_ready(backend.channel)
            if is_connected:
                if self.probing.wanted:
                    self.probing.ask()
                if self.picks.recent is not None:
                    is_trial = self.outliers.is_ejected(id(counts), backend)
                    because = TRIAL if is_trial else ""
                    allowed = self.allowed(counts)
                    self.picks.picked(backend, allowed, now, because, self.picker)
                return backend
            self.observe(backend, State.CONNECTING, "connection lost")
            lost += 1
            if lost == 2:
                self._look_for_lost()
        return None

    def _look_for_lost(self) -> None:
        """All at once: to find them one by one costs a new `ready` for each."""
        for backend in self.pool.ready:
            if not is_ready(backend.channel):
                self.observe(backend, State.CONNECTING, "connection lost")

    def allowed(self, counts: dict[int, int]) -> tuple[Backend, ...]:
        """Those ready backends that are not ejected for a method, by its counts."""
        if not self.outliers.count:
            return self.pool.ready
        return self.outliers.allowed(id(counts))

    def refusal(
        self, criticality: Criticality, now: float, metadata: Any = None
    ) -> Throttled | None:
        """Why a call is not worth sending. Asked only while somebody was refused.

        `metadata` says who pays; without, no customer is looked at.
        """
        throttling = self.throttling
        customer = find_customer(metadata) if throttling.has_customers else OTHERS
        held = throttling.refusal(criticality, customer, now)
        if held is None:
            return None
        return (OutOfQuota if held.is_quota else Throttled).because(held.why)

    def has_other(self, backend: Backend, counts: dict[int, int]) -> bool:
        """Whether a call may go elsewhere, by the counts of its method."""
        allowed = self.allowed(counts)
        return len(allowed) > 1 or (len(allowed) == 1 and allowed[0] is not backend)

    def settle_served(self, attempt: "Attempt", report: LoadReport | None) -> None:
        """An attempt ended with OK, and this report; once for each.

        grpc.aio runs a call's done callbacks once, however it ends, by response, error,
        deadline or cancellation. A streaming call must not be dropped half-read for
        that to hold; `calls` sees to it.
        """
        now = self.clock()
        outcome = new_outcome((SERVED, now - attempt.sent_at, report, None, True))
        self.settle(attempt, outcome, 0, None, now)

    def settle(
        self,
        attempt: "Attempt",
        outcome: Outcome,
        code: int,
        then: Decision | None,
        now: float,
    ) -> None:
        """The one door for what an attempt taught us.

        `code` is the number of its status, `then` the decision on the next attempt of
        its call; None: there is none to decide on.
        """
        backend = attempt.backend
        if get_ident() != self.thread:
            # A collection in another thread can end a call there.
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(
                    self.settle, attempt, outcome, code, then, now
                )
            return
        learned = outcome
        if self.outliers.watching or (code and outcome.is_answer):
            learned = self._outlier_detection.learned(attempt, outcome, code, now)
        if learned.verdict is FAILED or learned.verdict is REJECTED:
            backend.condition.call_failed(code, now)
        backend.load.finish(learned, now)
        self.counters.attempt_over(attempt.counts, code, outcome.latency, then)
        if (observed := attempt.observed) is not None:
            took = outcome.latency + attempt.waited
            observed.attempt_over(code, took, outcome.verdict.value, then, now)
        if code == DEADLINE_EXCEEDED and (then is None or then.delay is None):
            self.connections.miss_deadline(backend)
        if self.picks.recent is not None:
            self.picks.finished(backend, outcome, now)
        throttling = self.throttling
        if throttling.is_active or (outcome.refusal is not None and throttling.is_on):
            is_asked = throttling.has_customers or outcome.refusal is QUOTA
            customer = find_customer(attempt.metadata) if is_asked else OTHERS
            throttling.observe(attempt.criticality, outcome, customer, now)
        report = outcome.report
        if report is not None and (
            report.task_id != backend.reported.task_id or report.state is LAME_DUCK
        ):
            backend.reported.hear_answer(report, attempt.sent_at, now)
        if self.connections.draining or self.pending.waiters:
            self._left(backend)

    def forget(self, attempt: "Attempt", tried: int) -> None:
        """Undoes the bookkeeping of an attempt that was cancelled before it was sent.

        The attempt does not count for or against its backend. `tried` is the number of
        backends that its call was sent to before.
        """
        if get_ident() != self.thread:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.forget, attempt, tried)
            return
        attempt.backend.load.forget()
        if self.outliers.count:
            key, now = id(attempt.counts), self.clock()
            self.outliers.given_up(key, attempt.backend, attempt.sent_at, now)
        if (observed := attempt.observed) is not None:
            now, code = self.clock(), CANCELLED
            took = now - attempt.sent_at + attempt.waited
            observed.attempt_over(code, took, ABANDONED.value, None, now)
        self.count(grpc.StatusCode.CANCELLED, attempt.counts, was_sent=tried > 0)
        self._left(attempt.backend)

    def _left(self, backend: Backend) -> None:
        """A call is not there any more."""
        self.connections.call_left(backend)
        if self.pending.waiters:
            self.pending.serve()

    def count(
        self,
        code: grpc.StatusCode,
        counts: dict[int, int],
        was_sent: bool = False,
        observed: ObservedCall | None = None,
    ) -> None:
        """A call is over otherwise than by an attempt; `counts` are its method's."""
        number = code.value[0]
        self.counters.call_over(counts, number, was_sent)
        if observed is not None:
            observed.over(number, self.clock())

    def refuse(
        self,
        error: grpc.aio.AioRpcError,
        counts: dict[int, int],
        was_sent: bool,
        observed: ObservedCall | None = None,
    ) -> None:
        """A call ends with an error of our own, or with that of its last attempt."""
        if isinstance(error, LocalRpcError):
            self.counters.refuse(error.REASON)
        self.count(error.code(), counts, was_sent, observed)

    # --- backends ------------------------------------------------------------

    def observe(self, backend: Backend, state: State, reason: str) -> None:
        """The one door for what a backend's connection and health say."""
        now = self.clock()
        before = backend.state
        if not self.pool.observe(backend, state, now):
            return
        backend.condition.changed(state, reason, now)
        self.outliers.changed(backend, now)
        self._changes.log(backend, before)
        if self.connections.is_draining(backend):
            return  # nobody waits for it
        if state is State.CONNECTING:
            backend.want()  # a pick found it, a lame duck, without a connection
        self.idleness.update(backend)
        self._changes.follow_up_soon()

    def _leaves(self, backend: Backend) -> None:
        self.outliers.forget(backend)
        self.idleness.forget(backend)

    def _heed_priorities(self) -> None:
        """Without any there is nothing to do at a pick, so nothing is done."""
        if getattr(self.connections.subset, "has_priorities", False):
            make, self._spillover = self._spillover, None
            if make is not None and not isinstance(self.picker, Spillover):
                self.picker = make(Random(self._rng.getrandbits(64)))
                self.probing.serve(self.picker)

    def _follow_up(self, changed: Counter[State]) -> None:
        if self._spillover is not None:
            self._heed_priorities()
        if any(changed[state] for state in LOST):
            self.discovery.hint()
        if changed:
            self.connections.review_soon()
            self.idleness.look_soon()
            self.slowdowns.look_soon()
            self._growth.look_soon()
        self.connectivity.changed()
        if self.pending:
            self.pending.serve()

    def connect(self) -> None:
        """Wakes a backend if they all are inactive or refuse, as a call would."""
        if self.connectivity.state() in (IDLE, TRANSIENT_FAILURE):
            self.idleness.waking.wake(1)

    # --- tasks ---------------------------------------------------------------

    def _stop(self) -> None:
        self.is_stopped = True
        self.discovery.stop()
        self._changes.stop()
        self.connections.stop()
        self.idleness.close()
        self.slowdowns.close()
        self._growth.close()
        self.probing.close()

    def abort(self) -> None:
        """Ends without waiting what nobody is left for; calls in flight go on."""
        self._stop()
        self.tasks.cancel()
        self.pending.cancel()
        self.connections.drain_all()

    async def close(self, grace: float | None) -> None:
        """Cancels the waiting calls now and those in flight after `grace`."""
        self.pending.cancel()
        self._stop()
        await self.tasks.close()
        await self.connections.close(grace)
        self.connectivity.close()
