"""A unary-unary call that may have two attempts in flight: the first and its hedge.

`core.hedging` decides whether a hedge is sent. OK, or an error of the application, of
either attempt decides the call, and the other attempt is cancelled. An attempt that
fails otherwise leaves the call to the other one: what A6 calls a non-fatal status. What
follows after both is for `attempts`. A call fails only as its first attempt would have
failed, for a hedge must not make it worse.

Imported with the first method that is hedged.
"""

from asyncio import TimerHandle
from typing import Any, NamedTuple

from lbclient.client.attempt import Attempt
from lbclient.client.attempts import Next
from lbclient.client.backend import Backend
from lbclient.client.calls.wrapped import AttemptEnd, UnaryUnaryCall
from lbclient.core.hedging import HedgedMethod
from lbclient.grpc_seam import Trailers, end_beside, final_status

SENT, WON, LOST = "sent", "won", "lost"


class _Hedge(NamedTuple):
    attempt: Attempt
    inner: Any
    end: AttemptEnd


class HedgedCall(UnaryUnaryCall):
    """`hedge` says what became of the hedge: SENT, WON or LOST; "" if there was none.

    `_beside` is the hedge while the first attempt is in flight, too.
    """

    hedge = ""
    _timer: TimerHandle | None = None
    _beside: _Hedge | None = None
    _is_measured = False  # how long the first attempt took, or was it not the first

    def __init__(self, method: HedgedMethod, *arguments: Any, **options: Any) -> None:
        self._hedged = method
        super().__init__(*arguments, **options)

    # --- the hedging delay ----------------------------------------------------------

    def start(self, backend: Backend, now: float) -> None:
        super().start(backend, now)
        if self.attempts.tried or self._inner is None:
            self._is_measured = True
            return
        delay = self._hedged.delay
        if delay is None or (
            self._deadline is not None and now + delay >= self._deadline
        ):
            return
        self._timer = self._balancer.loop.call_later(delay, self._delay_over)

    def _delay_over(self) -> None:
        self._timer = None
        balancer, first = self._balancer, self._lbclient
        hedging, now = balancer.hedging, balancer.clock()
        if hedging is None or balancer.is_stopped:
            return
        retry = hedging.decide(
            self._hedged,
            balancer.counters.sent + 1,
            is_throttled=balancer.throttling.is_active,
            is_waiting=bool(balancer.pending.waiters),
            is_other=balancer.has_other(first.backend, self.counts),
        )
        if retry is None:
            return
        backend = balancer.pick(now, self.counts, (first.backend,))
        if backend is None or backend is first.backend:
            hedging.take_back()  # the connections to the others are lost
            return
        left = None if self._deadline is None else self._deadline - now
        self.attempts.hedge(first, retry)
        attempt, inner, siblings = self.attempts.start(backend, left, 0.0, now, True)
        backend.load.begin()
        balancer.counters.hedges += 1
        self.hedge = SENT
        self._lbclient = first._replace(number=attempt.number)  # of two, for `info`
        end = AttemptEnd(balancer, attempt, self._finder(), siblings)
        self._beside = _Hedge(attempt, inner, end)
        end.beside = self._attempt_end.beside = self._one_over
        inner.add_done_callback(end)

    # --- two attempts ---------------------------------------------------------------

    def _one_over(
        self, end: AttemptEnd, inner: Any, code: int, trailers: Trailers
    ) -> bool:
        """One of two attempts is over. Returns whether the call is not over by it."""
        hedge, attempts = self._beside, self.attempts
        if hedge is None:  # the other one has decided the call
            attempts.lost(end.attempt)
            return True
        self._beside = None
        is_hedge = end is hedge.end
        if attempts.is_decided(end.attempt, inner, code, trailers, is_hedge):
            loser = self._inner if is_hedge else hedge.inner
            if is_hedge:
                self._measure(self._balancer.clock())
                self._go_on_with(hedge)
            end_beside(loser)
            return False
        attempts.failed_beside(end.attempt, inner, code, trailers)
        if is_hedge:
            self.hedge = LOST
        else:
            self._is_measured = True
            self._go_on_with(hedge)
        self._attempt_end.beside = None
        return True

    def _go_on_with(self, hedge: _Hedge) -> None:
        self._lbclient, self._inner, self._attempt_end = hedge

    def _measure(self, now: float) -> None:
        if not self._is_measured:
            self._is_measured = True
            self._hedged.observe(now - self._lbclient.sent_at)

    def attempt_over(self, then: Next | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._hedged.answered_in_time()
        inner, is_won = self._inner, False
        if inner is not None and then is None and not final_status(inner)[0]:
            self._measure(self._balancer.clock())
            is_won = self._lbclient.is_hedge
        if self.hedge == SENT:
            self.hedge = WON if is_won else LOST
            if is_won and self._balancer.hedging is not None:
                self._balancer.hedging.won += 1
        super().attempt_over(then)

    def cancel(self) -> bool:
        hedge, self._beside = self._beside, None
        if hedge is not None:
            self._attempt_end.beside = None
            hedge.inner.cancel()
        return super().cancel()
