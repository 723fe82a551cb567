"""The waiting of a call: for a backend, or for the pause before its next attempt."""

import asyncio
from contextvars import Context, copy_context
from typing import Any

import grpc

from lbclient.client.backends.backend import Backend
from lbclient.client.balancer import Balancer
from lbclient.client.calls.attempts import Attempts
from lbclient.core.call_hints import CallHints
from lbclient.core.criticality import Criticality
from lbclient.core.resumable import OnMove
from lbclient.core.uncopied import Uncopied
from lbclient.wire.local_errors import DeadlineWhileWaiting


class WaitingCall(Uncopied):
    """A call that may wait in its balancer's queue, or pause beside it.

    It waits while it has neither `_inner` nor `_error`. `start` ends the wait once a
    backend takes the call; `fail` ends it with an error, if there is no backend for the
    call or its deadline passes. Who waits for either waits for `_wait_over`, which is
    None while nobody has had to.
    """

    _inner: Any = None  # grpc.aio's call; here, as `__del__` reads it after any error
    _error: BaseException | None = None
    _wait_over: asyncio.Event | None = None
    _expiry: asyncio.TimerHandle | None = None
    _pause: asyncio.TimerHandle | None = None
    _context: Context | None = None  # since it waited for the first time
    _waits_since: float
    _waited_until: float
    _deadline: float | None
    _balancer: Balancer
    attempts: Attempts
    criticality: Criticality
    counts: dict[int, int]
    wait_for_ready: bool

    def start(self, backend: Backend, now: float) -> None:
        """Sends the call to this backend."""
        raise NotImplementedError

    def cancel(self) -> bool:
        raise NotImplementedError

    def fail(self, error: grpc.aio.AioRpcError) -> None:
        """Ends the call without sending it, or sending it again."""
        raise NotImplementedError

    @property
    def hints(self) -> CallHints | None:
        return self.attempts.hints

    @property
    def on_move(self) -> OnMove | None:
        return self.attempts.on_move

    def _find_backend_in(self, delay: float) -> None:
        balancer = self._balancer
        self._wait_over = asyncio.Event()
        self._waits_since = balancer.clock()
        self._pause = balancer.loop.call_later(delay, self._pause_over)
        balancer.pending.pause(self)

    def _pause_over(self) -> None:
        self._pause = None
        self._balancer.pending.resume(self)
        self._find_backend(self._balancer.clock())

    def _find_backend(self, now: float) -> None:
        self._waits_since = now
        if self._deadline is not None and now >= self._deadline:
            self._expire()
            return
        attempts = self.attempts
        if attempts.tried:
            backend = attempts.pick(now, attempts.tried)
        else:  # what `attempts.pick` does for a first attempt
            backend = self._balancer.pick(now, self.counts, attempts.hints)
        if backend is None:
            self._wait(now)
        else:
            self.start(backend, now)

    def _wait(self, now: float) -> None:
        """Queues the call until a backend can take it, or its deadline."""
        balancer = self._balancer
        self._wait_over = self._wait_over or asyncio.Event()
        if self._context is None:  # one without variables is false
            self._context = copy_context()
        balancer.pending.join(self)
        if self._deadline is not None and self._error is None:
            # The wait ends at the deadline even if nobody holds the call.
            left = max(0.0, self._deadline - now)
            self._expiry = balancer.loop.call_later(left, self._expire)

    def _expire(self) -> None:
        self._wait_over = self._wait_over or asyncio.Event()
        balancer = self._balancer
        balancer.pending.leave(self)
        waited = balancer.clock() - self._waits_since
        self.fail(
            DeadlineWhileWaiting.because(
                f"Deadline Exceeded after waiting {waited:.3f} s:"
                f" {balancer.pending.situation()}"
            )
        )

    def _end_wait(self) -> None:
        if self._pause is not None:
            self._balancer.pending.resume(self)
        for timer in (self._expiry, self._pause):
            if timer is not None:
                timer.cancel()
        self._expiry = self._pause = None
        assert self._wait_over is not None
        self._waited_until = self._balancer.clock()
        self._wait_over.set()

    def waited(self) -> float:
        """Seconds that the call has waited for a backend."""
        is_waiting = self._inner is None and self._error is None
        until = self._balancer.clock() if is_waiting else self._waited_until
        return until - self._waits_since
