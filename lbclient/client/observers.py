"""What metrics and traces are told of each call, each attempt and each message.

One seam for both: `metrics.export` has times kept, see `core.statistics.call_times`,
and `metrics.opentelemetry.trace` has spans made. A call without observers pays a
comparison with None; messages are told if somebody asks for them (`measuring`).
"""

from collections.abc import Callable
from threading import RLock
from typing import Any, Protocol

from lbclient.core.counting.call_counts import Method
from lbclient.core.model import Verdict
from lbclient.core.retries.retry import Decision
from lbclient.core.statistics.call_times import ONE_RESPONSE, CallTimes, Trace

Codec = Callable[[Any], Any]

# fmt: off


class ObservedAttempt(Protocol):
    """A direct call, for one observer: told of its attempt's end, which is the call's
    own if there is no other attempt.

    `measures`: its response is told, too.
    """

    @property
    def measures(self) -> bool: ...

    def attempt_over(self, code: int, took: float, verdict: Verdict,
                     then: Decision | None, now: float) -> None:
        """After `took` seconds, the wait included. `then` is as in `balancer.settle`:
        None, or a decision without a delay, ends the call."""

    def of_one(self, sent_at: float) -> "ObservedCall":
        """The observer of this call, sent then, whose attempt has failed: this one may
        be that of many."""


class ObservedCall(ObservedAttempt, Protocol):
    """One call, for one observer: told on the channel's thread, of each attempt's
    beginning and end, of the messages between, and of the call's own end if that is not
    its last attempt's.

    `measures`: of messages those of its active `attempt`; 0: there is none.
    """

    @property
    def attempt(self) -> int: ...

    def attempt_begins(self, address: str, number: int, waited: float, now: float,
                       metadata: Any) -> Any:
        """Returns the metadata that the attempt is sent with; `number` is from 1, and
        `waited` the seconds of looking for the backend at `address`."""

    def request_sent(self, size: int, awaited: list[Any]) -> None:
        """The single request of a direct call; the call is among those `awaited` when
        its response is."""

    def for_hedge(self) -> "ObservedCall":
        """The observer of the call's hedge, which begins while its first attempt runs.

        `then.is_left_to_other` of an attempt: its end is not the end of the call."""

    def message_sent(self, size: int) -> None:
        """A request of so many bytes was handed to gRPC in an attempt."""

    def message_received(self, size: int) -> None:
        """A response of so many bytes came in an attempt, before decoding."""

    def over(self, code: int, now: float) -> None:
        """The call ended otherwise than by an attempt."""


# fmt: on


class CallObserver(Protocol):
    def begin(self, method: Method, now: float) -> ObservedCall:
        """A call begins. Asked in its caller's context."""

    def begin_sent(
        self,
        method: Method,
        now: float,
        address: str,
        metadata: Any,
        size: int,
        awaited: list[Any],
    ) -> tuple[ObservedAttempt, Any]:
        """A direct call begins: `begin`, `attempt_begins` and `request_sent` in one.

        Returns its observer, and the metadata that it is sent with."""
        call = self.begin(method, now)
        metadata = call.attempt_begins(address, 1, 0.0, now, metadata)
        if call.measures:
            call.request_sent(size, awaited)
        return call, metadata


class Observers:
    """Holds the observers of calls and attempts: metrics and traces. Owned by a
    channel, whose balancer reads `current` at each call."""

    def __init__(self) -> None:
        self.current: CallObserver | None = None
        self.times: CallTimes | None = None
        self._all: tuple[CallObserver, ...] = ()
        self._measures = False

    def add(self, observer: CallObserver, *, measures: bool = False) -> None:
        """`measures`: it wants to be told of messages, too."""
        self._all = (*self._all, observer)
        self._measures |= measures
        self._combine()

    def _combine(self) -> None:
        one = self._all[0] if len(self._all) == 1 else _Several(self._all)
        waits = self._measures and one is not self.times
        self.current = Awaiting(one) if waits else one

    def has(self, kind: type) -> bool:
        return any(isinstance(one, kind) for one in self._all)

    def keep_times(
        self, find_trace: Callable[[], Trace | None], measures: bool = False
    ) -> CallTimes:
        """Keeps times from now on; a second call changes nothing. `measures`: sizes,
        too."""
        if self.times is None:
            self.times = CallTimes(find_trace, RLock())
            self.add(self.times)
        if measures and not self.times.measures:
            self.times.measures = self._measures = True
            self._combine()
        return self.times

    def __repr__(self) -> str:
        return f"<{len(self._all)} observers>"


class _Several(CallObserver):
    def __init__(self, observers: tuple[CallObserver, ...]) -> None:
        self._observers = observers

    def begin(self, method: Method, now: float) -> ObservedCall:
        return _SeveralCalls(tuple(one.begin(method, now) for one in self._observers))


class _SeveralCalls:
    __slots__ = ("_calls",)
    measures = False
    attempt = 0

    def __init__(self, calls: tuple[ObservedCall, ...]) -> None:
        self._calls = calls

    def attempt_begins(
        self, address: str, number: int, waited: float, now: float, metadata: Any
    ) -> Any:
        for call in self._calls:
            metadata = call.attempt_begins(address, number, waited, now, metadata)
        return metadata

    def attempt_over(
        self,
        code: int,
        took: float,
        verdict: Verdict,
        then: Decision | None,
        now: float,
    ) -> None:
        for call in self._calls:
            call.attempt_over(code, took, verdict, then, now)

    def of_one(self, sent_at: float) -> "_SeveralCalls":
        return self

    def for_hedge(self) -> "_SeveralCalls":
        return _SeveralCalls(tuple(call.for_hedge() for call in self._calls))

    def request_sent(self, size: int, awaited: list[Any]) -> None:
        raise AssertionError("several observers are told by an AwaitingCall")

    def message_sent(self, size: int) -> None:
        for call in self._calls:
            call.message_sent(size)

    def message_received(self, size: int) -> None:
        for call in self._calls:
            call.message_received(size)

    def over(self, code: int, now: float) -> None:
        for call in self._calls:
            call.over(code, now)


class Awaiting(CallObserver):
    """Has spans wait for the single response of a call that was served: grpc.aio ends
    the call before it deserializes that."""

    def __init__(self, observer: CallObserver) -> None:
        self._observer = observer

    def begin(self, method: Method, now: float) -> "AwaitingCall":
        return AwaitingCall(
            self._observer.begin(method, now), method[0] in ONE_RESPONSE
        )

    def __repr__(self) -> str:
        return f"<awaiting responses: {self._observer!r}>"


class AwaitingCall:
    """One call. The end of an attempt that was served is told after its response."""

    __slots__ = ("_awaited", "_call", "_end", "_has_one_response", "_has_response",
                 "attempt")  # fmt: skip
    measures = True

    def __init__(self, call: ObservedCall, has_one_response: bool) -> None:
        self._call = call
        self._has_one_response = has_one_response
        self._has_response = False
        self._awaited: list[Any] | None = None
        self.attempt = 0
        self._end: tuple[int, float, Verdict, Decision | None, float] | None = None

    def attempt_begins(
        self, address: str, number: int, waited: float, now: float, metadata: Any
    ) -> Any:
        self.attempt, self._has_response, self._awaited = number, False, None
        return self._call.attempt_begins(address, number, waited, now, metadata)

    def attempt_over(
        self,
        code: int,
        took: float,
        verdict: Verdict,
        then: Decision | None,
        now: float,
    ) -> None:
        if not code and self._has_one_response and not self._has_response:
            self._end = code, took, verdict, then, now
            if self._awaited is not None:
                self._awaited.append(self)
        else:
            self.attempt = 0
            self._call.attempt_over(code, took, verdict, then, now)

    def of_one(self, sent_at: float) -> "AwaitingCall":
        return self

    def for_hedge(self) -> "AwaitingCall":
        return AwaitingCall(self._call.for_hedge(), self._has_one_response)

    def request_sent(self, size: int, awaited: list[Any]) -> None:
        self._awaited = awaited
        self._call.message_sent(size)

    def message_sent(self, size: int) -> None:
        self._call.message_sent(size)

    def message_received(self, size: int) -> None:
        self._has_response = True
        self._call.message_received(size)
        if self._end is not None:
            end, self._end = self._end, None
            self._call.attempt_over(*end)

    def over(self, code: int, now: float) -> None:
        self.attempt = 0
        self._call.over(code, now)

    def __repr__(self) -> str:
        return f"<awaiting responses: {self._call!r}>"


# --- the messages of a call that measures ---------------------------------------
#
# Sizes are those of serialized messages, before compression and without gRPC's framing:
# what gRPC makes of them afterwards grpc.aio does not tell.


def measuring(
    call: ObservedCall, serializer: Codec | None, deserializer: Codec | None
) -> tuple[Codec, Codec]:
    """Codecs for the attempt that has begun. What it sends or receives when another one
    has begun is not told."""
    attempt = call.attempt

    def serialized(message: Any) -> Any:
        data = message if serializer is None else serializer(message)
        if attempt == call.attempt:
            call.message_sent(len(data))
        return data

    def deserialized(data: Any) -> Any:
        if attempt == call.attempt:
            call.message_received(len(data))
        return data if deserializer is None else deserializer(data)

    return serialized, deserialized


def expecting(deserializer: Codec | None) -> tuple[Codec, list[ObservedCall]]:
    """A deserializer for all direct calls of a method: no codec for each of them.

    grpc.aio calls it right after the call's end, so the response is the last one's of
    those that are awaited.
    """
    awaited: list[ObservedCall] = []

    def deserialized(data: Any) -> Any:
        if awaited:
            call = awaited[-1]
            awaited.clear()
            call.message_received(len(data))
        return data if deserializer is None else deserializer(data)

    return deserialized, awaited
