"""From a resolver's snapshots to the backend of the next call.

Wires resolver, subset, pool and picker, keeps the calls that wait their turn, and
owns every background task. All state changes are synchronous; tasks only wait.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from random import Random, SystemRandom
from threading import get_ident
from typing import TYPE_CHECKING, Any

import grpc

from lbclient.backend import Backend, Dial
from lbclient.config import ChannelConfig
from lbclient.criticality import Criticality, named
from lbclient.customers import Customers
from lbclient.demand import SEVERAL, Demand
from lbclient.errors import ResolveError
from lbclient.grpc_codes import STATUS_OF_NUMBER
from lbclient.grpc_seam import (
    REASONS,
    LocalRpcError,
    OutOfQuota,
    Throttled,
    is_ready,
)
from lbclient.handled import Handled
from lbclient.health.udp import Prober
from lbclient.histogram import Histogram
from lbclient.model import (
    Endpoint,
    Endpoints,
    Outcome,
    State,
    TaskState,
    Verdict,
)
from lbclient.pace import Pace
from lbclient.pool import LOST, Change, Limits, Pool
from lbclient.probing import Probing
from lbclient.protocols import Clock, Picker, Resolver, Subset
from lbclient.recent import Recent
from lbclient.resolvers.listing import listing
from lbclient.resolvers.polling import Hinted
from lbclient.retry import BURST, Budget, Retry
from lbclient.tasks import leaving_no_trace
from lbclient.throttle import Throttle
from lbclient.waiting import Waiting
from lbclient.wire import find_customer

if TYPE_CHECKING:
    from lbclient.attempt import Attempt

logger = logging.getLogger(__name__)

Connectivity = grpc.ChannelConnectivity

MANY = 1_000_000  # endpoints; no list is longer

# Whom a call wakes first.
BEST_FIRST = (State.INACTIVE, State.STARTING, State.LAME_DUCK, State.REFUSING)

DEADLINE_EXCEEDED: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
WAKE_NEXT = 0.25  # seconds; as between two attempts to connect in RFC 8305
THROTTLE_REVIEW = 10.0  # seconds between two looks at whether it is needed

REJECTED, ABANDONED = Verdict.REJECTED, Verdict.ABANDONED
LAME_DUCK = TaskState.LAME_DUCK  # an enum looks its members up in Python up to 3.11


class Balancer:
    """The working half of a channel. Bound to the event loop that it is made in."""

    def __init__(
        self,
        target: str,
        resolver: Resolver,
        subset: Subset,
        picker: Picker,
        dial: Dial,
        config: ChannelConfig,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.clock = clock
        self.config = config
        self.picker = picker
        self.probing = Probing(target, picker, clock)
        self.subset = subset
        self.pool: Pool[Backend] = Pool(
            self._make,
            subset,
            Limits(
                MANY if config.subset == "whole" else config.subset_size,
                config.active_limit,
                config.replace_after,
                config.settle_after,
                config.max_replacements,
            ),
            lambda backend: backend.life.is_away(),
            lambda backend: backend.life.is_expected_back(),
        )
        self.draining: dict[Backend, None] = {}
        self.waiting = Waiting(self.pool, config, self._wake_for_waiting)
        self.calls = dict.fromkeys(STATUS_OF_NUMBER, 0)  # by number: a cheaper hash
        self.handled = Handled(STATUS_OF_NUMBER)
        self.criticality = named("criticality", config.criticality)
        self.throttle: Throttle | None = None  # as long as nothing was refused of late
        self.customers: Customers | None = None  # likewise, for the quota of one
        self.throttled = 0
        self.refused = dict.fromkeys(REASONS, 0)  # calls that ended here
        self.propagates_deadline = config.propagate_deadline
        self._throttle_review = 0.0
        self.retries = 0  # of what was refused, or may have been executed
        self.resends = 0  # of what no server has taken
        # Enough for all that can be in flight on one backend when it dies.
        self._budget = Budget(burst=max(BURST, config.active_limit))
        self._unsent = self._deposited = 0  # of `calls`
        self.recent: Recent | None = None  # as long as somebody looks
        self._retired = dict.fromkeys(Verdict, 0)  # of backends that are closed
        self.latency = Histogram()
        self.waited, self.waited_seconds = 0, 0.0
        self.task_failures = 0
        self.resolved_at: float | None = None
        self.resolver_updates = 0
        self.resolver_error = ""
        self.target = target
        self._subset_told = self._algorithm = ""
        self._churn_told = False
        self.resolver = resolver
        self._dial = dial
        self._rng = rng
        self._pace = Pace(rng)
        self._hinted = Hinted()  # between an error of the resolver and its next try
        self._connectivity = Connectivity.CONNECTING
        self._connectivity_changes: dict[asyncio.Future[None], None] = {}
        self._believe_empty: asyncio.TimerHandle | None = None
        self._review: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._demand = Demand(config.idle_after, 0, clock())
        self._prober: Prober | None = None
        self.is_stopped = False
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._keep(resolver, self._follow_resolver)

    # --- calls ---------------------------------------------------------------

    def pick(self, now: float) -> Backend | None:
        """The backend for a call that is sent now; None: it must wait or fail."""
        # Who waits goes first, or they wait together. (The dict's own truth is C.)
        return None if self.waiting.waiters else self._choose(now)

    def _choose(self, now: float) -> Backend | None:
        while ready := self.pool.ready:
            try:
                backend = self.picker.pick(ready, now)
                is_connected = is_ready(backend.channel)
            except Exception:  # of a picker that is not ours, perhaps
                logger.exception("%s: the picker failed; taking turns", self.target)
                backend = ready[sum(self.calls.values()) % len(ready)]
                is_connected = is_ready(backend.channel)
            if is_connected:
                if self.probing.wanted:
                    self.probing.ask()
                if self.recent is not None:
                    self.recent.picked(backend, ready, now)
                return backend
            self.observe(backend, State.CONNECTING, "connection lost")
        return None

    def pick_another(self, tried: Collection[Backend], now: float) -> Backend | None:
        """The backend for a call that `tried` would not have: another, if there is one.

        Where the policy insists, it is the less loaded of two others (two choices do
        nearly as well as all; policies that keep what they computed are left alone).
        """
        backend = self.pick(now)
        if backend in tried:
            others = [other for other in self.pool.ready if other not in tried]
            if others:
                some = self._rng.sample(others, min(2, len(others)))
                backend = min(some, key=lambda other: other.load.in_flight)
                if self.recent is not None:
                    because = "another than the attempt before, the less loaded of two"
                    self.recent.picked(backend, some, now, because)
        return backend

    def refusal(
        self, criticality: Criticality, now: float, metadata: Any = None
    ) -> Throttled | None:
        """Why a call is not worth sending. Asked only while somebody was refused.

        `metadata` says who pays; without, no customer is looked at.
        """
        throttle = self.throttle
        if throttle is not None and not throttle.admits(criticality, now):
            self.throttled += 1
            counts = throttle.counts(criticality, now)
            whose = f"{criticality.name} requests"
            return Throttled.because(f"throttled: {_told(counts, whose)}")
        customers = self.customers
        if customers is None or not (name := find_customer(metadata)):
            return None
        if not customers.admits(name, criticality, now):
            counts = customers.counts(name, criticality, now)
            whose = f"{criticality.name} requests of {name!r}"
            return OutOfQuota.because(f"out of quota: {_told(counts, whose)}")
        return None

    def _weigh_customer(
        self, attempt: "Attempt", weighed: Verdict, is_quota: bool, now: float
    ) -> None:
        name = find_customer(attempt.metadata)
        if not name or not self.config.throttle:
            return  # it may be any of those who say nothing
        if is_quota:
            weighed = REJECTED
        elif weighed is REJECTED:
            weighed = ABANDONED  # by a task that has too much, whoever asks
        if self.customers is None:
            self.customers = Customers(self._rng, self.config.throttle)
        self.customers.finish(name, attempt.criticality, weighed, now)
        if not self.customers:
            self.customers = None

    def _weigh(self, criticality: Criticality, verdict: Verdict, now: float) -> None:
        if self.throttle is None:
            if not self.config.throttle:
                return
            self.throttle = Throttle(self._rng, self.config.throttle)
        self.throttle.finish(criticality, verdict, now)
        if now >= self._throttle_review:
            self._throttle_review = now + THROTTLE_REVIEW
            if not self.throttle.is_needed(now):
                self.throttle = None

    def new_retry(self, attempts: int, is_idempotent: bool) -> Retry:
        """What decides on the later attempts of a call whose first one failed."""
        # Counted now, with the one that asks, as most never do.
        sent = self._sent() + 1
        self._budget.deposit(sent - self._deposited)
        self._deposited = sent
        return Retry(self._budget, self._rng, attempts, is_idempotent)

    def settle(
        self,
        attempt: "Attempt",
        outcome: Outcome,
        code: int | None,
        now: float,
        weighed: Verdict,
        is_quota: bool = False,
    ) -> None:
        """The one door for what an attempt taught us; `code` if it was the last.

        `weighed` is what the throttle makes of it: of a refusal that is not for
        everybody, nothing. `is_quota`: it is for one customer.
        """
        backend = attempt.backend
        if get_ident() != self.thread:
            # A collection in another thread can end a call there.
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(
                    self.settle, attempt, outcome, code, now, weighed, is_quota
                )
            return
        self.pool.finish(backend, outcome, now)
        if code is not None:
            self.calls[code] += 1
            attempt.counts[code] += 1
            if code == DEADLINE_EXCEEDED:
                self._miss_deadline(backend)
        self.latency.observe(outcome.latency)
        if self.recent is not None:
            self._remember(backend, outcome, now)
        if self.throttle is not None or weighed is REJECTED:
            self._weigh(attempt.criticality, weighed, now)
        if self.customers is not None or is_quota:
            self._weigh_customer(attempt, weighed, is_quota, now)
        report = outcome.report
        if (
            report is not None
            and report.state is LAME_DUCK
            and backend.state is State.READY
            and attempt.sent_at >= backend.since  # else of the task before, perhaps
        ):
            self.observe(backend, State.LAME_DUCK, "it says lame duck")
        self._left(backend)

    def forget(self, attempt: "Attempt", tried: int) -> None:
        """It was cancelled before it was sent, after so many others of its call.

        So it says nothing of the backend.
        """
        if get_ident() != self.thread:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.forget, attempt, tried)
            return
        self.pool.forget(attempt.backend)
        self.count(grpc.StatusCode.CANCELLED, attempt.counts, was_sent=tried > 0)
        self._left(attempt.backend)

    def _left(self, backend: Backend) -> None:
        """A call is not there any more."""
        if self.draining and backend.load.in_flight == 0 and backend in self.draining:
            # Not here: this runs inside a callback of the channel to be closed.
            self.loop.call_soon(self._close_backend, backend)
        if self.waiting.waiters:
            self._serve_waiting()

    def look(self) -> Recent:
        """The last picks and latencies, which are kept from now on, for a minute."""
        self.recent = Recent.look(self.recent, self.clock())
        return self.recent

    def _remember(self, backend: Backend, outcome: Outcome, now: float) -> None:
        recent = self.recent
        if recent is None or recent.is_over(now):
            self.recent = None
        elif outcome.verdict is not ABANDONED:
            recent.finished(backend.endpoint.address, outcome.latency, now)

    def retries_left(self) -> float:
        """How many the budget has, if all that were earned are counted."""
        return self._budget.left(self._sent() - self._deposited)

    def _sent(self) -> int:
        """Calls that are over and were sent. What was not brings no retries: a client
        that is throttled would have a tenth of all that it wanted.
        """
        return sum(self.calls.values()) - self._unsent

    def attempts(self) -> dict[Verdict, int]:
        """How many have ended in each way."""
        total = dict(self._retired)
        for backend in (*self.pool.nodes.values(), *list(self.draining)):
            for verdict, count in backend.load.counts.items():
                total[verdict] += count
        return total

    def count(
        self, code: grpc.StatusCode, counts: dict[int, int], was_sent: bool = False
    ) -> None:
        """A call is over otherwise than by an attempt; `counts` are its method's."""
        self._unsent += not was_sent
        self.calls[code.value[0]] += 1
        counts[code.value[0]] += 1

    def refuse(
        self, error: grpc.aio.AioRpcError, counts: dict[int, int], was_sent: bool
    ) -> None:
        """A call ends with an error of our own, or with that of its last attempt."""
        if isinstance(error, LocalRpcError):
            self.refused[error.REASON] += 1
        self.count(error.code(), counts, was_sent)

    def _serve_waiting(self) -> None:
        now = self.clock()
        while self.waiting and self.pool.ready:
            backend = self._choose(now)
            # To choose can find a connection lost, and so come here once more.
            waiter = self.waiting.first()
            if backend is None or waiter is None:
                break
            self.waiting.leave(waiter)
            waiter.start(backend, now)
        if not self.pool.ready:
            self.waiting.dismiss_hopeless()

    # --- backends ------------------------------------------------------------

    def observe(self, backend: Backend, state: State, reason: str) -> None:
        """The one door for what a backend's connection and health say."""
        now = self.clock()
        before = backend.state
        if not self.pool.observe(backend, state, now):
            return
        backend.reason, backend.since = reason, now
        if state in LOST:
            backend.trouble, backend.troubled_at = reason, now
        logger.info(
            "%s: %s is %s (was %s): %s",
            self.target,
            backend.endpoint.address,
            state.value,
            before.value,
            reason,
        )
        if state in LOST:
            # The backend may live elsewhere now.
            self._hinted.hint()
            refresh = getattr(self.resolver, "refresh", None)
            if refresh is not None:
                self.loop.call_soon(refresh)
        if state is State.CONNECTING:
            backend.want()  # a pick found it, a lame duck, without a connection
        self._review_in(0.0)
        self._look_soon()
        self._changed()

    def _miss_deadline(self, backend: Backend) -> None:
        if self.pool.nodes.get(backend.endpoint.address) is backend:
            usable = (State.READY, State.INACTIVE)
            count = sum(node.state in usable for node in self.pool.nodes.values())
            backend.miss_deadline(has_others=count > 1)

    def _changed(self) -> None:
        connectivity = self.connectivity()
        if connectivity is not self._connectivity:
            self._connectivity = connectivity
            self._tell_connectivity()
        if self.waiting:
            self._serve_waiting()

    def _tell_connectivity(self) -> None:
        for change in list(self._connectivity_changes):
            if not change.done():
                change.set_result(None)

    def connectivity(self) -> Connectivity:
        """READY if one backend is; else connecting if one may become so."""
        if self._connectivity is Connectivity.SHUTDOWN:
            return Connectivity.SHUTDOWN
        nodes = self.pool.nodes.values()
        states = {node.state for node in nodes if not node.life.is_away()}
        if states & {State.READY, State.LAME_DUCK}:
            return Connectivity.READY
        known = bool(self.waiting.trouble)
        if not known or states & {State.CONNECTING, State.STARTING}:
            return Connectivity.CONNECTING
        if any(node.state is not State.REFUSING for node in nodes):
            return Connectivity.IDLE
        return Connectivity.TRANSIENT_FAILURE

    def connect(self) -> None:
        """Wakes a backend if they all are inactive or refuse, as a call would."""
        if self.connectivity() in (Connectivity.IDLE, Connectivity.TRANSIENT_FAILURE):
            self._wake(1)

    async def wait_connectivity_change(self, last: Connectivity) -> None:
        """Returns when it is another; also when the channel is closed."""
        while self._connectivity is last:
            change = self.loop.create_future()
            self._connectivity_changes[change] = None
            try:
                await change
            finally:
                self._connectivity_changes.pop(change, None)

    def _make(self, endpoint: Endpoint) -> Backend:
        for backend in self.draining:
            if backend.endpoint.address == endpoint.address:
                del self.draining[backend]  # it comes back with all that we know
                backend.heed(endpoint.lame_duck)
                return backend
        backend = Backend(
            endpoint,
            self._dial,
            self.observe,
            self.config.health_interval,
            self.clock,
            self._rng,
            self._pace,
            self._get_prober,
        )
        backend.heed(endpoint.lame_duck)
        return backend

    # --- inactive backends ---------------------------------------------------

    def _get_prober(self) -> Prober:
        if self._prober is None:
            secret = self.config.udp_secret
            # Nobody may guess nonces.
            self._prober = Prober(SystemRandom(), secret, self._gap)
        return self._prober

    def _gap(self) -> float:
        return self._demand.gap(self.clock())

    def _wake_for_waiting(self) -> None:
        """One connection for the calls that wait, more if they are many."""
        if self.is_stopped or self.pool.ready or not self._away():
            return
        waking = sum(node.life.is_waking() for node in self.pool.nodes.values())
        needed = 1 + len(self.waiting) // SEVERAL
        if waking < needed:
            self._wake(needed - waking)
            self._wake_more_later()

    def _wake_more_later(self) -> None:
        """One that does not answer, nor refuse, must not keep calls waiting."""
        if self._patience is None:
            self._patience = self.loop.call_later(WAKE_NEXT, self._wake_more)

    def _wake_more(self) -> None:
        self._patience = None
        if self.waiting and not self.pool.ready and not self.is_stopped:
            self._wake(1)
            self._wake_more_later()

    def _away(self) -> list[Backend]:
        return [node for node in self.pool.nodes.values() if node.life.is_away()]

    def _wake(self, count: int) -> None:
        """Connects the best that are away: those that are well, and least loaded."""

        def rank(backend: Backend) -> tuple[int, float, float]:
            report = backend.load.report
            # Rounded, as others with the same reports wake too: not all the same one.
            utilization = 1.0 if report is None else round(report.utilization, 1)
            state = BEST_FIRST.index(backend.state)
            return state, utilization, self._rng.random()

        for backend in sorted(self._away(), key=rank)[:count]:
            backend.want()

    def _look_soon(self) -> None:
        """Looks now and then what the connections are used for, while there are any."""
        if self._look is None and not self.is_stopped:
            delay = self.config.health_interval / 2
            self._look = self.loop.call_later(delay, self._look_at_use)

    def _look_at_use(self) -> None:
        self._look = None
        now = self.clock()
        present = [n for n in self.pool.nodes.values() if not n.life.is_away()]
        for backend in present:
            backend.look(now)
        if self.config.idle_after:
            self._follow_demand(present, now)
        if len(self._away()) < len(self.pool.nodes):
            self._look_soon()

    def _follow_demand(self, present: list[Backend], now: float) -> None:
        """Ends connections that nobody needs, opens some that calls are worth."""
        in_flight = sum(backend.load.in_flight for backend in present)
        least, most = self._demand.worth(sum(self.calls.values()) + in_flight, now)
        if len(present) < least:
            self._wake(least - len(present))
        if self._prober is not None:
            self._prober.hurry()
        too_many = max(0, len(present) - most)
        unused_since = now - self.config.idle_after
        idle = [b for b in present if b.attention.used_at <= unused_since]
        for backend in idle[:too_many]:
            if backend.load.in_flight == 0:
                backend.rest(now)

    # --- endpoints -----------------------------------------------------------

    async def _follow_resolver(self) -> None:
        """Watches the resolver for ever; stale endpoints beat no endpoints."""
        pause = 1.0
        while True:
            try:
                async for endpoints in self.resolver.watch():
                    self._resolved(listing(endpoints))
                    pause = 1.0
                self._unresolved("the resolver ended")
            except ResolveError as error:
                self._unresolved(str(error))
                if getattr(self.resolver, "paces_itself", False):
                    await asyncio.sleep(0)
                    continue
            except Exception as error:  # of a resolver that is not ours, perhaps
                logger.exception("%s: the resolver failed", self.target)
                self._unresolved(f"the resolver failed: {error!r}")
            # A quarter of jitter, doubling to the interval of a healthy resolver.
            await self._hinted.pause(pause * self._rng.uniform(0.75, 1.25))
            pause = min(pause * 2, max(1.0, self.config.resolve_interval))

    def _unresolved(self, error: str) -> None:
        logger.warning("%s: %s", self.target, error)
        self._disbelieve_empty()  # to fail is not to insist
        self.resolver_error = self.waiting.trouble = error
        self._changed()

    def _resolved(self, endpoints: Endpoints) -> None:
        self.resolver_updates += 1
        if not endpoints and self.pool.endpoints:
            self.resolver_error = "no endpoints; keeping the last ones"
            if self._believe_empty is None:
                logger.warning("%s: %s", self.target, self.resolver_error)
                self._believe_empty = self.loop.call_later(
                    self.config.empty_after, self._apply, endpoints
                )
            return
        self._disbelieve_empty()
        self._apply(endpoints)

    def _disbelieve_empty(self) -> None:
        if self._believe_empty is not None:
            self._believe_empty.cancel()
            self._believe_empty = None

    def _apply(self, endpoints: Endpoints) -> None:
        self._believe_empty = None
        self.resolver_error = "" if endpoints else "no endpoints"
        self.resolved_at = self.clock()
        self.waiting.trouble = f"{self.target} has no endpoints"
        self._tell_who_leaves(endpoints)
        try:
            change = self.pool.reconcile(endpoints, self.clock())
        except Exception:  # of a subset that is not ours, perhaps
            logger.exception("%s: the subset failed; keeping the last", self.target)
            return
        logger.info("%s: %d endpoints", self.target, len(endpoints))
        self._tell_subset()
        self._carry_out(change)
        self._review_in(0.0)
        self._changed()

    def _tell_who_leaves(self, endpoints: Endpoints) -> None:
        nodes = self.pool.nodes
        for endpoint in endpoints:
            if (backend := nodes.get(endpoint.address)) is not None:
                backend.heed(endpoint.lame_duck)

    def _review_in(self, delay: float) -> None:
        """Not at once: who observes may be inside a callback of what is to close."""
        if self._review is not None:
            self._review.cancel()
        if not self.is_stopped:
            self._review = self.loop.call_later(delay, self._review_pool)

    def _review_pool(self) -> None:
        self._review = None
        now = self.clock()
        self._carry_out(self.pool.review(now))
        if (due := self.pool.review_at(now)) is not None:
            self._review_in(due - now)

    def _carry_out(self, change: Change[Backend]) -> None:
        for backend in change.opened:
            self._keep(backend, backend.follow)
        for backend in change.drained:
            self._tasks.pop(backend).cancel()
            self._drain(backend)
        if any(change):
            logger.info(
                "%s: %d connections opened, %d drained, %d replacements",
                self.target,
                len(change.opened),
                len(change.drained),
                self.pool.replacements(),
            )

    def _tell_subset(self) -> None:
        if repr(self.subset) == self._subset_told:
            return
        self._subset_told = repr(self.subset)
        before, self._algorithm = self._algorithm, getattr(self.subset, "algorithm", "")
        level = logging.INFO if before in ("", self._algorithm) else logging.WARNING
        logger.log(level, "%s: subset is %s", self.target, self._subset_told)
        if getattr(self.subset, "goes_by_place", False) and not self._churn_told:
            self._churn_told = True
            logger.warning(
                "%s: backends go by place: %s", self.target, self._subset_told
            )

    def _drain(self, backend: Backend) -> None:
        self.draining[backend] = None
        if backend.load.in_flight == 0:
            self._close_backend(backend)

    def _close_backend(self, backend: Backend) -> None:
        if backend.load.in_flight == 0 and backend in self.draining:
            self._retire(backend)
            backend.close_now()

    def _retire(self, backend: Backend) -> None:
        del self.draining[backend]
        for verdict, count in backend.load.counts.items():
            self._retired[verdict] += count

    # --- tasks ---------------------------------------------------------------

    def _keep(self, key: object, follow: Any) -> None:
        self._tasks[key] = leaving_no_trace(self._kept(key, follow))

    async def _kept(self, key: object, follow: Any) -> None:
        """Runs a background job again should it ever fail: none dies in silence."""
        while True:
            try:
                await follow()
            except Exception:
                self.task_failures += 1
                logger.exception("%s: %r failed; starting it again", self.target, key)
            await asyncio.sleep(self._rng.uniform(0.5, 1.5))

    def _stop(self) -> None:
        self.is_stopped = True
        timers = (self._believe_empty, self._review, self._look, self._patience)
        for timer in timers:
            if timer is not None:
                timer.cancel()
        if self._prober is not None:
            self._prober.close()
        self.probing.close()
        for task in self._tasks.values():
            task.cancel()

    def abort(self) -> None:
        """Ends without waiting what nobody is left for; calls in flight go on."""
        self._stop()
        self.waiting.cancel()
        for backend in self.pool.reconcile((), self.clock()).drained:
            self._drain(backend)

    async def close(self, grace: float | None) -> None:
        """Cancels the waiting calls now and those in flight after `grace`."""
        self.waiting.cancel()
        self._stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        backends = (*self.pool.nodes.values(), *self.draining)
        await asyncio.gather(*(backend.close(grace) for backend in backends))
        for backend in list(self.draining):
            self._retire(backend)
        self._connectivity = Connectivity.SHUTDOWN
        self._tell_connectivity()


def _told(counts: tuple[int, int, int], whose: str) -> str:
    here, there, accepted = counts
    return (
        f"of {here + there + accepted} {whose} of late {accepted} were "
        f"accepted, {there} refused there, {here} here"
    )
