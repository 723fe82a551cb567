"""Calls that may have two attempts in flight: the first and its hedge.

`attempts` decides, by `core.retries.hedging`, whether, when and where a hedge is sent;
here are the timer and the two inner calls. OK, or an error of the application, of
either attempt decides a call, and so do response headers of a stream; the other attempt
is cancelled. An attempt that fails otherwise leaves the call to the other one: what
gRFC A6 calls a non-fatal status. A hedge makes no call fail that its first attempt
would have answered.

Imported with the first method that is hedged.
"""

from asyncio import Task, TimerHandle, sleep
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import ref

from lbclient.client.backends.backend import Backend
from lbclient.client.calls.attempt import Attempt
from lbclient.client.calls.attempts import Attempts, Next
from lbclient.client.calls.sending import AttemptEnd, SendingCall
from lbclient.client.calls.streams import UnaryStreamCall
from lbclient.client.calls.wrapped import Call, UnaryUnaryCall
from lbclient.core.retries.hedging import HedgedMethod
from lbclient.grpc_seam import Trailers, cancel_loser, final_status

SENT, WON, LOST = "sent", "won", "lost"
STATUS_COMES = 0.005  # seconds after an attempt that failed is said to have no headers


class _HedgeInFlight(NamedTuple):
    attempt: Attempt
    inner: Any
    end: AttemptEnd


class _Hedged(Call):
    """`hedge` says what became of the hedge: SENT, WON or LOST; "" if there was none.

    `_in_flight` is the hedge while the first attempt is in flight, too. Only the inner
    call keeps a unary call alive, and nothing keeps a stream.
    """

    hedge = ""
    _timer: TimerHandle | None = None
    _in_flight: _HedgeInFlight | None = None
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
        left = None if self._deadline is None else self._deadline - now
        delay = self.attempts.hedge_delay(self._hedged, left)
        if delay is not None:
            loop = self._balancer.loop
            self._timer = loop.call_later(delay, _delay_over, self._finder())

    def delay_over(self) -> None:
        self._timer = None
        if self._is_committed():
            return
        now = self._balancer.clock()
        backend = self.attempts.hedge_backend(self._lbclient, self._hedged, now)
        if backend is not None:
            self._start_hedge(backend, now)

    def _start_hedge(self, backend: Backend, now: float) -> None:
        left = None if self._deadline is None else self._deadline - now
        attempt, inner, siblings = self._send(backend, left, 0.0, now, True)
        balancer = self._balancer
        backend.load.begin()
        balancer.counters.hedge_sent()
        self.hedge = SENT
        # Of two attempts, for `lbclient.info`.
        self._lbclient = self._lbclient._replace(number=attempt.number)
        end = AttemptEnd(balancer, attempt, self._finder(), siblings)
        self._in_flight = _HedgeInFlight(attempt, inner, end)
        to_other = _leave_to_other_of(self._finder(), self.attempts)
        end.leave_to_other = self._attempt_end.leave_to_other = to_other
        inner.add_done_callback(end)

    # --- two attempts ---------------------------------------------------------------

    def leave_to_other(
        self, end: AttemptEnd, inner: Any, code: int, trailers: Trailers
    ) -> bool:
        """One of two attempts is over. Returns whether the other one decides."""
        hedge, attempts = self._in_flight, self.attempts
        if hedge is None:  # the other one has decided the call
            attempts.lost(end.attempt)
            return True
        attempt, is_hedge = end.attempt, end is hedge.end
        self._in_flight = None
        is_committed = self._is_committed()
        if not attempts.leaves_to_other(attempt, inner, code, trailers, is_committed):
            self._hedge_over(is_hedge)
            self._decided_by(hedge, is_hedge)
            return False
        if is_hedge:
            self.hedge = LOST
        else:
            self._is_measured = True
            self._go_on_with(hedge)
        self._attempt_end.leave_to_other = None
        return True

    def _decided_by(self, hedge: _HedgeInFlight, is_hedge: bool) -> None:
        """Cancels the other of the two attempts: its end is no news."""
        loser = self._inner if is_hedge else hedge.inner
        loser_end = self._attempt_end if is_hedge else hedge.end
        # Not by way of the call, which may be dropped before the loser has ended.
        loser_end.leave_to_other = _lost_of(self.attempts)
        if is_hedge:
            self._measure()
            self._go_on_with(hedge)
        cancel_loser(loser)

    def _go_on_with(self, hedge: _HedgeInFlight) -> None:
        self._lbclient, self._inner, self._attempt_end = hedge
        if self.attempts.on_move is not None:
            self._note_resumable()

    def _measure(self) -> None:
        """The first attempt, or its hedge in its place, has answered."""
        if self._timer is not None:
            self._disarm(self._timer)
        if not self._is_measured:
            self._is_measured = True
            self._hedged.observe(self._balancer.clock() - self._lbclient.sent_at)

    def _disarm(self, timer: TimerHandle) -> None:
        timer.cancel()
        self._timer = None
        self._hedged.answered_in_time()

    def _hedge_over(self, is_won: bool) -> None:
        if self.hedge != SENT:
            return
        self.hedge = WON if is_won else LOST
        if is_won and self._balancer.hedging is not None:
            self._balancer.hedging.hedge_won()

    def attempt_over(self, then: Next | None) -> None:
        if self._timer is not None:
            self._disarm(self._timer)
        inner, attempt, is_won = self._inner, self._lbclient, False
        if inner is not None and then is None:
            code, _ = final_status(inner)
            if not code:
                self._measure()
            # None: it was cancelled before it was sent.
            if attempt is not None and attempt.is_hedge:  # the first one has failed
                is_won = not code or self.attempts.was_answered
        self._hedge_over(is_won)
        super().attempt_over(then)

    def cancel(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        hedge, self._in_flight = self._in_flight, None
        if hedge is not None:
            self._attempt_end.leave_to_other = None
            hedge.inner.cancel()
        return super().cancel()


def _delay_over(find: Callable[[], SendingCall | None]) -> None:
    call = find()
    if isinstance(call, _Hedged):
        call.delay_over()


def _leave_to_other_of(
    find: Callable[[], SendingCall | None], attempts: Attempts
) -> Callable[[AttemptEnd, Any, int, Trailers], bool]:
    def leave(end: AttemptEnd, inner: Any, code: int, trailers: Trailers) -> bool:
        call = find()
        if isinstance(call, _Hedged):
            return call.leave_to_other(end, inner, code, trailers)
        if end.attempt.is_hedge:  # of a call that was dropped, which the first one ends
            attempts.lost(end.attempt)
        return end.attempt.is_hedge

    return leave


def _lost_of(attempts: Attempts) -> Callable[[AttemptEnd, Any, int, Trailers], bool]:
    def lost(end: AttemptEnd, inner: Any, code: int, trailers: Trailers) -> bool:
        attempts.lost(end.attempt)
        return True

    return lost


class HedgedCall(_Hedged, UnaryUnaryCall): ...


class HedgedStreamCall(_Hedged, UnaryStreamCall):
    """Two attempts until one of them has response headers, which a server sends with
    its first message at the latest: "committed", in gRFC A6."""

    _watching: tuple[Task[None], ...] = ()

    def start(self, backend: Backend, now: float) -> None:
        super().start(backend, now)
        if not self._is_measured:
            self._watch(self._inner)

    def _start_hedge(self, backend: Backend, now: float) -> None:
        super()._start_hedge(backend, now)
        assert self._in_flight is not None
        self._watch(self._in_flight.inner)

    def _watch(self, inner: Any) -> None:
        task = self._balancer.loop.create_task(_await_headers(ref(self), inner))
        self._watching = (*self._watching, task)

    def headers_came(self, inner: Any) -> None:
        hedge = self._in_flight
        if inner is self._inner:
            is_hedge = False
            self._measure()
        elif hedge is not None and inner is hedge.inner:
            is_hedge = not self._is_committed()
        else:
            return
        if hedge is None:
            return
        self._in_flight = None
        winner = hedge.end if is_hedge else self._attempt_end
        winner.leave_to_other = None
        self._hedge_over(is_hedge)
        self._decided_by(hedge, is_hedge)

    def _abandon(self) -> None:
        hedge = self._in_flight
        if hedge is not None:
            with suppress(RuntimeError):  # the loop is closed, and so is the call
                self._balancer.loop.call_soon_threadsafe(hedge.inner.cancel)
        super()._abandon()


async def _await_headers(
    find: Callable[[], HedgedStreamCall | None], inner: Any
) -> None:
    metadata: Any = ()
    with suppress(Exception):  # the end of the attempt tells
        metadata = await inner.initial_metadata()
    if not metadata and not inner.done():
        # An attempt that is refused has no headers. grpc.aio tells of none, as of empty
        # ones, a moment before it has the status.
        await sleep(STATUS_COMES)
    call = find()
    if call is not None and not inner.done():
        call.headers_came(inner)
