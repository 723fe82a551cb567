"""The working half of a channel: picks backends for calls and settles attempts.

`backends` finds, connects and watches them in the background; `pending` has the calls
that wait, `call_ends` counts those that end without an attempt. Decisions are those of
`core`. None of them imports this file. All state changes are synchronous.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, cast

from lbclient.background.tasks import is_fatal
from lbclient.client.backend_context import Dial
from lbclient.client.backends.backend import Backend
from lbclient.client.backends.backends import Backends
from lbclient.client.calls import call_throttling
from lbclient.client.calls.call_ends import CallEnds
from lbclient.client.calls.call_keys import call_keys
from lbclient.client.calls.decline_marks import DeclineMarks
from lbclient.client.calls.retry_policies import hedging_of, retry_policy_of
from lbclient.client.channel_context import ChannelContext
from lbclient.client.channel_pickers import ChannelPickers
from lbclient.client.failed_picks import FailedPicks
from lbclient.client.loop_lag import LoopLag
from lbclient.client.observers import Observers
from lbclient.client.pending import Pending
from lbclient.client.recent_picks import RecentPicks
from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import named
from lbclient.core.model import LoadReport, Outcome, TaskState, Verdict, new_outcome
from lbclient.core.protocols import Picker, PickerFactory, Resolver, Subset
from lbclient.core.retries.retry import Decision
from lbclient.core.statistics.counters import Counters
from lbclient.core.throttles.throttling import Throttling
from lbclient.grpc_seam import DEADLINE_EXCEEDED, is_ready
from lbclient.wire.codes import STATUS_OF_NUMBER
from lbclient.wire.local_errors import REASONS

if TYPE_CHECKING:
    from lbclient.client.calls.attempt import Attempt

SERVED, ABANDONED = Verdict.SERVED, Verdict.ABANDONED
FAILED, REJECTED = Verdict.FAILED, Verdict.REJECTED
LAME_DUCK = TaskState.LAME_DUCK  # an enum looks its members up in Python up to 3.11
# While a channel closes: seconds between two looks whether calls are in flight, and
# looks at which none is. Between a declined attempt and the next, none is for a moment.
LOOK_EVERY, IDLE_LOOKS = 0.01, 2


class Balancer:
    """The working half of a channel. Bound to the event loop that it is made in."""

    def __init__(
        self,
        context: ChannelContext,
        resolver: Resolver,
        subset: Subset,
        picker: Picker,
        dial: Dial,
        spillover: PickerFactory | None = None,
        observers: Observers | None = None,
    ) -> None:
        """`spillover` makes the picker once endpoints have several priorities."""
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.label = context.label
        self.config = config = context.config
        self.clock = clock = context.clock
        self.observers = Observers() if observers is None else observers
        self.call_keys = call_keys(self.label, config, picker)
        self.counters = Counters(STATUS_OF_NUMBER, REASONS)
        self.failed_picks = FailedPicks(self.label)
        self.backends = backends = Backends(
            context,
            resolver,
            subset,
            dial,
            self.counters,
            has_ready=lambda: self.pending.has_ready(),
            changed=self._backends_changed,
        )
        self.connections = backends.connections
        self.call_ends = CallEnds(self.counters, clock, backends.outliers)
        self.pool, self.outliers = backends.pool, backends.outliers
        self.pending = Pending(
            self.pool,
            self.outliers,
            config,
            backends.idleness.waking,
            clock,
            choose=self._choose,
            trouble=lambda: backends.discovery.trouble,
        )
        self.pickers = ChannelPickers(
            context, picker, spillover, backends, self._on_loop
        )
        # Of calls that name none; None: they are sent without one.
        level = config.criticality
        self.criticality = None if level is None else named("criticality", level)
        self.throttling = Throttling(
            context.rng, config.throttle, lambda: (one.load for one in self.pool.ready)
        )
        self.retry_policy = retry_policy_of(config, context.rng)
        self.hedging = hedging_of(config, self.retry_policy)
        self.decline_marks: DeclineMarks | None = None  # on most channels
        if config.late_binding:
            self.decline_marks = DeclineMarks(self.pool, self.throttling)
        self.picks = RecentPicks(clock, self.outliers)
        self.rng = context.rng
        self._rest = context.rest
        self.loop_lag = LoopLag(context.tasks, clock, self.pool)

    # --- picks ---------------------------------------------------------------

    def pick(
        self, now: float, counts: dict[int, int], hints: CallHints | None = None
    ) -> Backend | None:
        """The backend for a call that is sent now; None: it must wait or fail.

        `counts` are the statuses of the call's method, by number. Each method has a
        dict of its own, whose id stands for the method in `Outliers`. `hints` are for
        a policy that sees calls.
        """
        # Who waits goes first, or they wait together. (The dict's own truth is C.)
        return None if self.pending.waiters else self._choose(now, counts, hints)

    def _choose(  # noqa: C901  # the hot path, written out
        self, now: float, counts: dict[int, int], hints: CallHints | None
    ) -> Backend | None:
        pickers = self.pickers
        picker = pickers.current if hints is None else pickers.for_call(hints)
        if self._rest.is_on or not self.loop_lag.is_on:
            self._end_rest(now)
        lost = 0
        while ready := self.pool.ready:
            try:
                if self.outliers.count:
                    found = self.outliers.pick(picker, id(counts), now)
                    if found is None and not self.outliers.allowed(id(counts)):
                        return None
                    backend = cast("Backend", found)
                else:
                    backend = picker.pick(ready, now)
                is_connected = is_ready(backend.channel)
            except BaseException as error:  # of a picker that is not ours, perhaps
                if is_fatal(error) or picker is self.failed_picks:
                    raise
                self.failed_picks.raised(error, now)
                picker = self.failed_picks
                continue
            if is_connected:
                if pickers.probing.wanted:
                    pickers.probing.ask()
                if self.picks.recent is not None:
                    has_failed = picker is self.failed_picks
                    self.picks.chosen(backend, id(counts), now, picker, has_failed)
                return backend
            lost += 1
            self.backends.lost(backend, is_second=lost == 2)
            if self.pool.ready is ready:  # it was none of them, and would be for ever
                self.failed_picks.returned(backend, now)
                picker = self.failed_picks
        return None

    def _end_rest(self, now: float) -> None:
        """A call begins, after a while without any."""
        if self._rest.is_on:
            self._rest.end()
        if not self.loop_lag.is_on:
            self.loop_lag.start(now)

    # --- attempts ------------------------------------------------------------

    def settle_served(self, attempt: "Attempt", report: LoadReport | None) -> None:
        """An attempt ended with OK, and this report; once for each.

        grpc.aio runs a call's done callbacks once, however it ends, by response, error,
        deadline or cancellation. A streaming call must not be dropped half-read for
        that to hold; `calls.streams` sees to it.
        """
        now = self.clock()
        outcome = new_outcome((SERVED, now - attempt.sent_at, report, None, True))
        self.settle(attempt, outcome, 0, None, now)

    def first_message(self, attempt: "Attempt") -> None:
        """The first message of a stream is there."""
        now = self.clock()
        took = now - attempt.sent_at
        self.counters.first_message.observe(took)
        attempt.backend.load.hear_first(took)
        if self.pickers.answers.is_wanted:
            self.pickers.answers.first_message(attempt, took, now)

    def settle(  # noqa: C901  # the hot path, written out
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
            self._on_loop(self.settle, attempt, outcome, code, then, now)
            return
        if code == DEADLINE_EXCEEDED and self.loop_lag.kept_back(attempt.sent_at, now):
            outcome = outcome._replace(verdict=ABANDONED)  # the client's own fault
        learned = outcome
        if (
            self.outliers.watching
            or (code and outcome.is_answer)
            or now >= backend.load.timed_at
        ):
            detection = self.backends.outlier_detection
            learned = detection.learned(attempt, outcome, code, now)
        if (hints := attempt.hints) is not None and hints.is_resumable:
            # How long a stream was open says nothing of how fast its backend is, and
            # one without a message leaves the mean as it is.
            first = backend.load.first_message or backend.load.latency
            learned = learned._replace(latency=first)
        if learned.verdict is FAILED or learned.verdict is REJECTED:
            backend.condition.last_failure = code, now
        backend.load.finish(learned, now)
        self.counters.attempt_over(attempt.counts, code, outcome.latency, then)
        if (observed := attempt.observed) is not None:
            took = outcome.latency + attempt.waited
            observed.attempt_over(code, took, outcome.verdict, then, now)
        if attempt.hints is not None and self.pickers.answers.is_wanted:
            self.pickers.answers.over(attempt, None if code else outcome.latency, now)
        if (
            code == DEADLINE_EXCEEDED
            and outcome.verdict is not ABANDONED
            and (then is None or then.delay is None)
        ):
            self.connections.miss_deadline(backend)
        if self.picks.recent is not None:
            self.picks.finished(backend, outcome, now)
        throttling = self.throttling
        if throttling.is_active or (outcome.refusal is not None and throttling.is_on):
            call_throttling.observe(throttling, attempt, outcome, now)
        report = outcome.report
        if report is not None and (
            report.task_id != backend.reported.task_id or report.state is LAME_DUCK
        ):
            backend.reported.hear_answer(report, attempt.sent_at, now)
        if self.connections.draining or self.pending.waiters:
            self._left(backend)

    def forget(self, attempt: "Attempt", tried: int) -> None:
        """Undoes the bookkeeping of an attempt that was cancelled before it was sent.

        `tried` is the number of backends that its call was sent to before.
        """
        if get_ident() != self.thread:
            self._on_loop(self.forget, attempt, tried)
            return
        self.call_ends.not_sent(attempt, was_sent=tried > 0)
        if attempt.hints is not None and self.pickers.answers.is_wanted:
            self.pickers.answers.over(attempt, None, self.clock())
        self._left(attempt.backend)

    def _left(self, backend: Backend) -> None:
        """A call is not there any more."""
        # One that is collected, or cancelled, between two runs of the loop ends there,
        # where nothing can begin: a probe needs a task.
        if not self.loop.is_running():
            self._on_loop(self._left, backend)
            return
        self.connections.call_left(backend)
        if self.pending.waiters:
            self.pending.serve()

    def _on_loop(self, do: Callable[..., None], *arguments: object) -> None:
        """A collection in another thread can end a call there."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(do, *arguments)

    # --- backends ------------------------------------------------------------

    def _backends_changed(self) -> None:
        self.pickers.follow()
        if self.pending:
            self.pending.serve()

    def abort(self) -> None:
        """Ends without waiting what nobody is left for; calls in flight go on."""
        self._stop()
        self.backends.abort()

    def _stop(self) -> None:
        self.pending.cancel()
        self.pickers.close()
        self.loop_lag.stop()

    async def close(self, grace: float | None) -> None:
        """Cancels the waiting calls now and those in flight after `grace`; or at once,
        if whoever closes the channel is cancelled, and so does not come back."""
        try:
            if grace and self.decline_marks is not None:
                self.pending.cancel()
                grace = await self._all_answered(grace)
            self._stop()
            await self.backends.close(grace)
        except BaseException:
            self._stop()
            self.backends.close_at_once()
            raise

    async def _all_answered(self, grace: float) -> float:
        """Waits until no call is in flight; returns what is left of `grace`.

        A call that is declined is to be sent again, which it cannot be on connections
        that are closing.
        """
        until, idle_looks = self.loop.time() + grace, 0
        while idle_looks < IDLE_LOOKS and (left := until - self.loop.time()) > 0.0:
            is_idle = not any(one.load.in_flight for one in self.pool.nodes.values())
            idle_looks = idle_looks + 1 if is_idle else 0
            await asyncio.sleep(min(left, LOOK_EVERY))
        return max(0.0, until - self.loop.time())
