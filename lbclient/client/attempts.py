"""All attempts of one call: whether and when the next comes, where, and what is told.

Every call that fails has one object of this kind, whether it was begun on grpc.aio's
own call object (`calls.direct`) or on one of ours (`calls.wrapped`). Only `retry`
decides; here is what it decides by, and what follows.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc

from lbclient.client.attempt import (
    Attempt,
    ending_of,
    new_attempt,
    settle_failed,
    was_sent,
)
from lbclient.client.calls.request_stream import Requests
from lbclient.core.criticality import Criticality
from lbclient.core.retry import Decision, Retry
from lbclient.core.text import printable
from lbclient.core.verdict import Ending
from lbclient.grpc_seam import (
    UNAVAILABLE,
    Trailers,
    error_of,
    final_status,
    has_begun,
    tell,
)
from lbclient.wire import ATTEMPT_KEY, propagation
from lbclient.wire.method_config import is_idempotent, max_attempts

if TYPE_CHECKING:
    from lbclient.client.backend import Backend
    from lbclient.client.balancer import Balancer

logger = logging.getLogger(__name__)


class Method(Protocol):
    """What the attempts of a call want of its method."""

    @property
    def path(self) -> str: ...

    @property
    def wrapper(self) -> Callable[..., Any]:
        """The kind of call object that goes on with the attempts."""

    def on(self, backend: "Backend") -> Any:
        """grpc.aio's own method object on one backend."""

    def counts(self, balancer: "Balancer") -> dict[int, int]: ...


class Failed(NamedTuple):
    """An attempt that failed, and why there was another after it, or was not."""

    address: str
    error: grpc.aio.AioRpcError | None  # None where only the call can tell
    reason: str

    def __str__(self) -> str:
        said, error = "failed", self.error
        if error is not None:
            said = f"{error.code().name}, {printable(error.details() or '')!r}"
        return f"{self.address}: {said}: {self.reason}"


class Attempts:
    """Owned by its call. Has what the call sends, as often as it takes, until it is
    over.

    `tried` are the backends that had it, and `last_error` what the last of them said,
    None if the call was not retried; `was_closed`: the channel, when one failed.
    """

    def __init__(
        self,
        balancer: "Balancer",
        method: Method,
        message: Any,
        criticality: Criticality,
        options: dict[str, Any],
        counts: dict[int, int] | None = None,
    ) -> None:
        self.balancer = balancer
        self.requests = message if isinstance(message, Requests) else None
        self.criticality = criticality
        self.counts = method.counts(balancer) if counts is None else counts
        self.tried: tuple[Backend, ...] = ()
        self.last_error: grpc.aio.AioRpcError | None = None
        self.was_closed = False
        self._retry: Retry | None = None
        self._history: tuple[Failed, ...] = ()
        self._message = message
        self._options = options
        self._method: Method | None = method  # None: the call is over

    # --- where the next goes -----------------------------------------------------

    def pick(self, now: float) -> "Backend | None":
        """Where to send it now; None: it must wait."""
        if self.tried:
            return self.balancer.pick_another(self.tried, now, self.counts)
        return self.balancer.pick(now, self.counts)

    def start(self, backend: "Backend", left: float | None) -> Any:
        """A grpc.aio call on a backend, with so many seconds left.

        It fails fast: to wait for this backend is no use while there are others.
        """
        assert self._method is not None
        requests, options = self.requests, self._options
        if self._retry is not None and (number := self._retry.attempt):
            options = {**options, "metadata": _numbered(options["metadata"], number)}
        begin = partial(self._method.on(backend), timeout=left, **options)
        if requests is None:
            return begin(self._message)
        return requests.within(lambda: begin(requests.attempt()))

    def begun(self, backend: "Backend", waited: float, now: float) -> Attempt:
        """What the call that `start` gave is marked with."""
        number, metadata = len(self.tried) + 1, self._options.get("metadata")
        of_call = (self.criticality, self.counts, metadata)
        return new_attempt((backend, waited, number, now, *of_call))

    # --- whether and when it comes -------------------------------------------------

    def failed(
        self,
        attempt: Attempt,
        call: Any,
        code: int,
        trailers: Trailers,
        left: float | None,
        is_repeatable: bool = True,
    ) -> float | None:
        """Learns from an attempt that failed, with so many seconds left.

        In how many seconds the next is due; None: the call is over. Not `is_repeatable`
        is a call whose caller has seen, or given, what cannot be repeated.
        """
        balancer, decision = self.balancer, None
        self.was_closed = balancer.is_stopped
        ending = ending_of(attempt, call, code, trailers)
        is_open = is_repeatable and not self.was_closed and self._method is not None
        if is_open and ending.may_be_retried():
            decision = self._decide(attempt, call, ending, trailers, left)
        delay = None if decision is None else decision.delay
        settle_failed(balancer, attempt, call, ending, trailers, delay is None)
        if delay is not None:
            self.tried = (*self.tried, attempt.backend)
        return delay

    def _decide(
        self,
        attempt: Attempt,
        call: Any,
        ending: Ending,
        trailers: Trailers,
        left: float | None,
    ) -> Decision:
        """When it is sent again, and why or why not, which is remembered."""
        balancer, backend = self.balancer, attempt.backend
        retry = self._retry = self._retry or self._new_retry()
        before = retry.attempt
        is_sent = was_sent(attempt, call, ending.code, trailers)
        error = error_of(call)
        failure = ending.failure(is_sent, is_answered=has_begun(call))
        allowed = balancer.allowed(attempt.counts)
        is_other = len(allowed) > 1 or backend not in (allowed or (backend,))
        if (
            is_sent
            and balancer.throttle is not None
            and not retry.why_not(failure)
            and balancer.refusal(self.criticality, balancer.clock()) is not None
        ):
            # To the throttle it is a request like any other.
            decision = Decision(None, "throttled: the backends refuse too much")
        else:
            decision = retry.decide(failure, left, is_other)
            if decision.delay and not balancer.waiting.has_room_to_pause():
                decision = Decision(None, "too many calls wait already")
        address, reason = backend.endpoint.address, decision.reason
        logger.debug("%s: %s", address, reason)
        self._history = (*self._history, Failed(address, error, reason))
        if decision.delay is not None:
            balancer.retries += retry.attempt - before
            balancer.resends += not is_sent
            if retry.attempt:
                self.last_error = error
        return decision

    def _new_retry(self) -> Retry:
        """What decides on the later attempts of a call whose first one failed."""
        assert self._method is not None
        config, path = self.balancer.config, self._method.path
        return self.balancer.new_retry(
            max_attempts(path, config.max_attempts),
            is_idempotent(path, config.idempotent),
        )

    @property
    def are_over(self) -> bool:
        return self._method is None

    def end(self) -> None:
        """Lets go of what only an attempt needs: the channel, and the requests."""
        self._method = self._message = None
        if self.requests is not None:
            self.requests.drop()

    # --- what is told --------------------------------------------------------------

    def give_up(self, attempt: Attempt, call: Any) -> grpc.aio.AioRpcError | None:
        """The error of a call that is over as we ended its last attempt."""
        if len(self._history) < attempt.number:
            self._history = (*self._history, self._last_words(attempt, call))
        return error_of(call)

    def history(self, attempt: Attempt | None, call: Any) -> tuple[str, ...]:
        """A line on each attempt that failed; the last one, if it is over, by `call`.

        Not the last one either if the call was sent and went well.
        """
        told = tuple(map(str, self._history))
        if attempt is None or len(told) >= attempt.number or not _has_failed(call):
            return told
        return (*told, str(self._last_words(attempt, call)))

    def _last_words(self, attempt: Attempt, call: Any) -> Failed:
        """Of an attempt after which nobody thought of another."""
        code, _ = final_status(call)
        why = "the channel was closed" if self.was_closed else "it had begun"
        if code != UNAVAILABLE:
            why = "only what is UNAVAILABLE or refused is tried again"
        if self.balancer.outliers.was_trial(
            id(attempt.counts), attempt.backend, attempt.sent_at
        ):
            why = f"it was a trial call, to an ejected backend; {why}"
        return Failed(attempt.backend.endpoint.address, error_of(call), why)

    def explain(self, error: BaseException, attempt: Attempt | None, call: Any) -> None:
        """Tells the error that the caller gets, and the request that is served with it.

        In its notes is a line on each attempt, and on streams of ours that were ended
        if the call may have waited for them.
        """
        known = attempt is not None and isinstance(error, grpc.aio.AioRpcError)
        in_the_way = _in_the_way(attempt, error) if attempt is not None else ()
        if in_the_way:
            said = (*map(str, self._history), *in_the_way)
        else:
            said = self.history(attempt if known else None, call)
        tell(error, said)
        retry = self._retry
        propagation.learn(error, was_retried=retry is not None and retry.attempt > 0)


def _numbered(metadata: Any, attempt: int) -> grpc.aio.Metadata:
    """The caller's metadata, which stays as it is, and the number of the attempt."""
    pairs = [pair for pair in metadata or () if pair[0] != ATTEMPT_KEY]
    return grpc.aio.Metadata(*pairs, (ATTEMPT_KEY, str(attempt)))


def _has_failed(call: Any) -> bool:
    return call is not None and call.done() and bool(final_status(call)[0])


def _in_the_way(attempt: Attempt, error: BaseException) -> tuple[str, ...]:
    """A line on streams of ours that were ended, if the call may have waited."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return ()
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return ()
    said = attempt.backend.permit.error_note(get_running_loop().time())
    return (f"{attempt.backend.endpoint.address}: {said}",) if said else ()
