"""The attempts of one call, one at a time: whether and when the next comes, and where.

Every call that fails has one object of this kind, whether it was begun on grpc.aio's
own call object (`calls.direct`) or on one of ours (`calls.sending`). Only `retry`
decides; here is what it decides by, and what follows.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc

from lbclient import wire
from lbclient.client.calls import call_throttling
from lbclient.client.calls.attempt import Attempt, new_attempt
from lbclient.client.calls.attempt_outcome import outcome_of_failed, was_sent
from lbclient.client.calls.history import Failed, described, ended_streams, has_failed
from lbclient.client.calls.request_stream import Requests
from lbclient.client.recent_picks import ANOTHER
from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import Criticality
from lbclient.core.model import Outcome, State
from lbclient.core.refusal import Refusal
from lbclient.core.resumable import OnMove
from lbclient.core.retries.ending import ABANDONED, REJECTED, SERVED, Ending
from lbclient.core.retries.retry import Decision, Failure, Retry
from lbclient.core.routing.next_backend import two_others
from lbclient.grpc_seam import (
    CANCELLED,
    UNAVAILABLE,
    Trailers,
    error_of,
    has_begun,
    is_ready,
    tell,
)
from lbclient.log import Log
from lbclient.wire import ATTEMPT_KEY, CRITICALITY_KEY, propagation

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend
    from lbclient.client.balancer import Balancer
    from lbclient.client.observers import ObservedCall
    from lbclient.core.retries.hedging import HedgedMethod

logger = Log(__name__)

PICKED_AGAIN = Decision(0.0, "picked again", is_declined=True)
LEFT_TO_OTHER = Decision(0.0, "the other attempt decides", is_left_to_other=True)


class Method(Protocol):
    """What the attempts of a call want of its method."""

    @property
    def path(self) -> str: ...

    @property
    def may_be_declined(self) -> bool: ...

    @property
    def wrapper(self) -> Callable[..., Any]:
        """The kind of call object that goes on with the attempts."""

    @property
    def inner_methods(self) -> Mapping[grpc.aio.Channel, tuple[Any, ...]]:
        """`InnerMethods`."""

    def measured_on(self, channel: grpc.aio.Channel, call: "ObservedCall") -> Any:
        """What begins one attempt that tells its messages."""

    def counts(self, balancer: "Balancer") -> dict[int, int]: ...


class Next(NamedTuple):
    """When and where a call is sent: after a delay in seconds, if there is one, or at
    once, to the backend that was picked `at` that time; None: it waits for one."""

    delay: float
    backend: "Backend | None"
    at: float


class Attempts:
    """Sends one call to backends until it is served, fails for good or is ended. Owned
    by its call.

    `on_move` is called if the call is a stream that should move to another backend.
    `tried` are the backends that got the call. `last_error` is the error of the last
    attempt, None if the call was not retried. `was_closed`: the channel was closed when
    an attempt failed; `was_answered`: the last failure was the application's answer.
    """

    def __init__(
        self,
        balancer: "Balancer",
        method: Method,
        message: Any,
        criticality: Criticality,
        options: dict[str, Any],
        counts: dict[int, int] | None = None,
        observed: "ObservedCall | None" = None,
        hints: CallHints | None = None,
        on_move: OnMove | None = None,
    ) -> None:
        self.balancer = balancer
        self.hints = hints
        self.on_move = on_move
        self.requests = message if isinstance(message, Requests) else None
        self.criticality = criticality
        self.counts = method.counts(balancer) if counts is None else counts
        self.observed = observed
        self.tried: tuple[Backend, ...] = ()
        self.last_error: grpc.aio.AioRpcError | None = None
        self.was_closed = self.was_answered = False
        self._retry: Retry | None = None
        self._history: tuple[Failed, ...] = ()
        self._message = message
        self._options = options
        self._method: Method | None = method  # None: the call is over
        self._is_first_left = False  # its hedge has failed before it
        self._was_declined = False
        # Of one of two attempts that is over, until it is settled.
        self._known_outcome: tuple[Ending, Outcome] | None = None

    def start(
        self,
        backend: "Backend",
        left: float | None,
        waited: float,
        now: float,
        is_hedge: bool = False,
    ) -> tuple[Attempt, Any, Any]:
        """An attempt on a backend, and grpc.aio's call, with so many seconds left; also
        the calls on the same connection, of which it is one.

        It fails fast: to wait for this backend is no use while there are others.
        """
        assert self._method is not None
        observed, tries = self.observed, len(self.tried) + 1
        requests, options = self.requests, self._options
        criticality = self.criticality
        if is_hedge:
            observed = None if observed is None else observed.for_hedge()
            criticality, options = _less_critical(criticality, options)
        of_call = (
            criticality,
            self.counts,
            options.get("metadata"),
            observed,
            is_hedge,
            self.hints,
        )
        attempt = new_attempt((backend, waited, tries, now, *of_call))
        if self._retry is not None and (number := self._retry.attempt):
            options = {**options, "metadata": _numbered(options["metadata"], number)}
        if observed is not None:
            metadata, address = options.get("metadata"), backend.endpoint.address
            metadata = observed.attempt_begins(address, tries, waited, now, metadata)
            options = {**options, "metadata": metadata}
        marks = self.balancer.decline_marks
        if marks is not None and self._may_be_declined(waited, is_hedge):
            metadata = marks.marked(options.get("metadata"), backend)
            options = {**options, "metadata": metadata}
        begin, siblings, *_ = self._method.inner_methods[backend.channel]
        if observed is not None and observed.measures:
            begin = self._method.measured_on(backend.channel, observed)
        if requests is None:
            inner = begin(self._message, timeout=left, **options)
        else:
            inner = requests.begin(begin, left, options)
        siblings.add(inner)
        return attempt, inner, siblings

    def _may_be_declined(self, waited: float, is_hedge: bool) -> bool:
        """Whether the backend of this attempt may want another pick first.

        Not where the call has waited for a backend, nor where its key chooses one.
        """
        assert self._method is not None
        is_first = not (self.tried or waited or is_hedge)
        return is_first and self.hints is None and self._method.may_be_declined

    # --- two at a time -------------------------------------------------------------

    def hedge_delay(self, method: "HedgedMethod", left: float | None) -> float | None:
        """Seconds until the first attempt gets a hedge; None: it gets none."""
        delay = method.delay
        if self.tried or delay is None or (left is not None and delay >= left):
            return None
        return delay

    def hedge_backend(
        self, first: Attempt, method: "HedgedMethod", now: float
    ) -> "Backend | None":
        """The backend for a hedge that is sent now; None: none is sent."""
        balancer, hedging = self.balancer, self.balancer.hedging
        if hedging is None or balancer.backends.is_stopped:
            return None
        retry = hedging.decide(
            method,
            balancer.counters.sent + 1,
            is_throttled=balancer.throttling.is_active,
            is_waiting=bool(balancer.pending.waiters),
            is_other=self.has_other(first.backend),
        )
        if retry is None:
            return None
        tried = (first.backend,)
        backend = self.pick(now, tried)
        if backend is None or backend is first.backend:
            hedging.take_back()  # the connections to the others are lost
            return None
        self.tried, self._retry = tried, retry  # which decides on the attempts after it
        return backend

    def leaves_to_other(
        self,
        attempt: Attempt,
        call: Any,
        code: int,
        trailers: Trailers,
        is_committed: bool,
    ) -> bool:
        """Whether one of two attempts, which is over, leaves the call to the other one.

        It does if it failed so that it may be retried, and a hedge does unless its
        backend has answered. `is_committed`: the first one's answer has begun, and
        decides. What leaves the call is settled here.
        """
        balancer, is_hedge = self.balancer, attempt.is_hedge
        now = balancer.clock()
        is_decided = not code
        if code:
            ending, outcome = self._known_outcome = outcome_of_failed(
                attempt, call, code, trailers, now
            )
            is_answer = outcome.is_answer and outcome.verdict is SERVED
            is_decided = not ending.may_be_retried() and (is_answer or not is_hedge)
        if is_committed:
            is_decided = not is_hedge
        if is_decided:
            return False
        known, self._known_outcome = self._known_outcome, None
        _, outcome = known or outcome_of_failed(attempt, call, code, trailers, now)
        balancer.settle(attempt, outcome, code, LEFT_TO_OTHER, now)
        if outcome.verdict is REJECTED and outcome.refusal is not Refusal.QUOTA:
            balancer.counters.attempt_refused(int(is_hedge))
        address = attempt.backend.endpoint.address
        self.tried = (attempt.backend,)
        self._is_first_left = is_hedge
        self._history = (Failed(address, error_of(call), LEFT_TO_OTHER.reason),)
        return True

    def lost(self, attempt: Attempt) -> None:
        """Settles one of two attempts, which was cancelled as the other one answered:
        no failure of its backend."""
        balancer = self.balancer
        now = balancer.clock()
        outcome = Outcome(ABANDONED, now - attempt.sent_at, is_answer=False)
        balancer.settle(attempt, outcome, CANCELLED, LEFT_TO_OTHER, now)

    # --- whether and when it comes -------------------------------------------------

    def served(self, attempt: Attempt, trailers: Trailers) -> None:
        """Settles an attempt that ended with OK, and so the call."""
        self.end()
        self.balancer.settle_served(attempt, wire.find_report(trailers))

    def failed(
        self,
        attempt: Attempt,
        call: Any,
        code: int,
        trailers: Trailers,
        deadline: float | None,
        is_repeatable: bool = True,
    ) -> Next | None:
        """Settles an attempt that failed. The call's deadline is by the channel's
        clock: grpc.aio tells what is left by the time of day, which may be set.

        Returns when and where the next one goes; None: the call is over. Not
        `is_repeatable` is a call whose caller has seen, or given, what cannot be
        repeated.
        """
        balancer = self.balancer
        self.was_closed = balancer.backends.is_stopped
        may_go_on = is_repeatable and not self.was_closed and self._method is not None
        now = balancer.clock()
        number = 0
        if self._retry is not None and not self._is_first_left:
            number = self._retry.attempt
        self._is_first_left = False
        left = None if deadline is None else max(0.0, deadline - now)
        outcome, then = self._decide(
            attempt, call, code, trailers, left, may_go_on, now
        )
        balancer.settle(attempt, outcome, code, then, now)
        self.was_answered = outcome.is_answer and outcome.verdict is SERVED
        if outcome.verdict is REJECTED and outcome.refusal is not Refusal.QUOTA:
            balancer.counters.attempt_refused(number)
        if then is None or then.delay is None:
            self.end()
            return None
        self.tried = tried = (*self.tried, attempt.backend)
        if then.is_declined:
            return Next(0.0, self._pick_again(attempt.backend, now), now)
        # Asked now, it is not late: `Retry` has compared its delay with what is left.
        backend = None if then.delay else self.pick(now, tried)
        return Next(then.delay, backend, now)

    def _decide(
        self,
        attempt: Attempt,
        call: Any,
        code: int,
        trailers: Trailers,
        left: float | None,
        may_go_on: bool,
        now: float,
    ) -> tuple[Outcome, Decision | None]:
        """What a failed attempt teaches, and whether the call is sent again, and why.

        None where nothing is to decide; else it is remembered.
        """
        is_other = self.has_other(attempt.backend)
        known, self._known_outcome = self._known_outcome, None
        ending, outcome = known or outcome_of_failed(attempt, call, code, trailers, now)
        if not (may_go_on and ending.may_be_retried()):
            return outcome, None
        assert self._method is not None
        balancer, backend = self.balancer, attempt.backend
        if ending.is_declined():
            if not self._was_declined and balancer.decline_marks is not None:
                self._was_declined = True
                return outcome, self._picked_again(backend, call)
            # No server of ours does that twice, nor unasked.
            ending = ending._replace(refusal=Refusal.OVERLOADED)
            outcome = ending.outcome(outcome.latency)
        is_sent = bool(trailers) or code != UNAVAILABLE  # a handler spoke
        is_sent = is_sent or was_sent(attempt, call)
        error = error_of(call)
        failure = Failure(ending.refusal, is_sent, has_begun(call), ending.pushback)
        retry = self._retry
        if retry is None:
            # The calls that were sent, with this one: most of them never ask.
            sent = balancer.counters.sent + 1
            retry = balancer.retry_policy.begin(self._method.path, sent)
            self._retry = retry
        throttling = balancer.throttling
        is_throttled = None
        if throttling.is_active:
            is_throttled = partial(
                call_throttling.refusal, throttling, self.criticality, now
            )
        then = retry.decide(failure, left, is_other, is_throttled)
        if then.delay and not balancer.pending.has_room_to_pause():
            then = then.without_pause()
        address = backend.endpoint.address
        logger.debug(
            "%s: %s",
            address,
            then.reason,
            channel=balancer.label,
            backend=address,
            reason=then.reason,
        )
        self._history = (*self._history, Failed(address, error, then.reason))
        if then.delay is not None and retry.attempt:
            self.last_error = error
        return outcome, then

    def _picked_again(self, backend: "Backend", call: Any) -> Decision:
        """Remembers that the backend has declined the call."""
        address = backend.endpoint.address
        failed = Failed(address, error_of(call), PICKED_AGAIN.reason)
        self._history = (*self._history, failed)
        return PICKED_AGAIN

    def end(self) -> None:
        """Lets go of what only an attempt needs: the channel, and the requests."""
        self._method = self._message = None
        if self.requests is not None:
            self.requests.drop()

    # --- where it goes -------------------------------------------------------------

    def pick(self, now: float, tried: "tuple[Backend, ...]") -> "Backend | None":
        """The backend for an attempt that is sent now; None: it must wait or fail.

        None of those `tried` if there is another: where the picker insists, it is the
        less loaded of two others. Pickers that keep what they computed are left alone.
        """
        balancer, hints = self.balancer, self.hints
        if tried and hints is not None:
            hints = self.hints = hints._replace(tried=tried)
        backend = balancer.pick(now, self.counts, hints)
        if tried and backend in tried:
            others = two_others(tried, self._allowed(), balancer.rng)
            if others:
                backend = others[0]
                if balancer.picks.recent is not None:
                    balancer.picks.picked(backend, others, now, ANOTHER)
        return backend

    def _pick_again(self, declined: "Backend", now: float) -> "Backend | None":
        """The backend for a call that was declined: by the report that came with that
        it may be the same. If all are full by now it is, where the call had a place."""
        backend = self.pick(now, ())
        is_there = declined.state is State.READY and is_ready(declined.channel)
        return declined if backend is None and is_there else backend

    def has_other(self, backend: "Backend") -> bool:
        """Whether the call may go to another backend than this one."""
        allowed = self._allowed()
        return len(allowed) > 1 or (len(allowed) == 1 and allowed[0] is not backend)

    def _allowed(self) -> "tuple[Backend, ...]":
        """The ready backends that are not ejected for the method."""
        outliers = self.balancer.outliers
        if not outliers.count:
            return self.balancer.pool.ready
        return outliers.allowed(id(self.counts))

    # --- what is told --------------------------------------------------------------

    def give_up(self, attempt: Attempt, call: Any) -> grpc.aio.AioRpcError | None:
        """The error of a call that is over as we ended its last attempt."""
        if len(self._history) < attempt.number:
            self._history = (*self._history, self._describe(attempt, call))
        return error_of(call)

    def history(self, attempt: Attempt | None, call: Any) -> tuple[str, ...]:
        """A line on each attempt that failed; the last one, if it is over, by `call`.

        Not the last one either if the call was sent and went well.
        """
        told = tuple(map(str, self._history))
        if attempt is None or len(told) >= attempt.number or not has_failed(call):
            return told
        return (*told, str(self._describe(attempt, call)))

    def _describe(self, attempt: Attempt, call: Any) -> Failed:
        return described(attempt, call, self.balancer, self.was_closed)

    def explain(self, error: BaseException, attempt: Attempt | None, call: Any) -> None:
        """Tells the error that the caller gets, and the request that is served with it.

        In its notes is a line on each attempt, and on streams of ours that were ended
        if the call may have waited for them.
        """
        known = attempt is not None and isinstance(error, grpc.aio.AioRpcError)
        in_the_way = ended_streams(attempt, error) if attempt is not None else ()
        if in_the_way:
            said = (*map(str, self._history), *in_the_way)
        else:
            said = self.history(attempt if known else None, call)
        tell(error, said)
        retry = self._retry
        propagation.learn(error, was_retried=retry is not None and retry.attempt > 0)


def _less_critical(
    criticality: Criticality, options: dict[str, Any]
) -> tuple[Criticality, dict[str, Any]]:
    """Criticality and options one step lower, so that servers shed hedges first."""
    lower = Criticality(max(criticality - 1, Criticality.SHEDDABLE))
    pairs = options.get("metadata") or ()
    kept = [pair for pair in pairs if pair[0] != CRITICALITY_KEY]
    metadata = grpc.aio.Metadata(*kept, (CRITICALITY_KEY, lower.name))
    return lower, {**options, "metadata": metadata}


def _numbered(metadata: Any, attempt: int) -> grpc.aio.Metadata:
    """The caller's metadata, which stays as it is, and the number of the attempt."""
    pairs = [pair for pair in metadata or () if pair[0] != ATTEMPT_KEY]
    return grpc.aio.Metadata(*pairs, (ATTEMPT_KEY, str(attempt)))
