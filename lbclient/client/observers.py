"""What metrics and traces are told of each call and each attempt.

One seam for both: `metrics.export` has times kept (`lbclient.core.call_times`), and
`metrics.opentelemetry.trace` has spans made. A call without observers pays a comparison
with None.
"""

from collections.abc import Callable
from typing import Any, Protocol

from lbclient.core.call_counts import Method
from lbclient.core.call_times import CallTimes, Trace
from lbclient.core.retry import Decision

# fmt: off


class ObservedCall(Protocol):
    """One call, for one observer: told on the channel's thread, of each attempt's
    beginning and end, and of the call's own end if that is not its last attempt's."""

    def attempt_begins(self, address: str, number: int, waited: float, now: float,
                       metadata: Any) -> Any:
        """Returns the metadata that the attempt is sent with; `number` is from 1, and
        `waited` the seconds of looking for the backend at `address`."""

    def attempt_over(self, code: int, took: float, verdict: str,
                     then: Decision | None, now: float) -> None:
        """After `took` seconds, the wait included. `then` is as in `balancer.settle`:
        None, or a decision without a delay, ends the call."""

    def beside(self) -> "ObservedCall":
        """For the call's hedge, which begins and ends while its first attempt runs.

        `then.is_hedged` of an attempt that is over: the call is not over by it."""

    def over(self, code: int, now: float) -> None:
        """The call ended otherwise than by an attempt."""


# fmt: on


class CallObserver(Protocol):
    def begin(self, method: Method, now: float) -> ObservedCall:
        """A call begins. Asked in its caller's context."""


class Observers:
    """Holds the observers of calls and attempts: metrics and traces. Owned by a
    channel, whose balancer reads `current` at each call."""

    def __init__(self) -> None:
        self.current: CallObserver | None = None
        self.times: CallTimes | None = None
        self._all: tuple[CallObserver, ...] = ()

    def add(self, observer: CallObserver) -> None:
        self._all = (*self._all, observer)
        self.current = observer if len(self._all) == 1 else _Several(self._all)

    def has(self, kind: type) -> bool:
        return any(isinstance(one, kind) for one in self._all)

    def keep_times(self, find_trace: Callable[[], Trace | None]) -> CallTimes:
        """From now on; once more is never too much."""
        if self.times is None:
            self.times = CallTimes(find_trace)
            self.add(self.times)
        return self.times

    def __repr__(self) -> str:
        return f"<{len(self._all)} observers>"


class _Several:
    def __init__(self, observers: tuple[CallObserver, ...]) -> None:
        self._observers = observers

    def begin(self, method: Method, now: float) -> ObservedCall:
        return _SeveralCalls(tuple(one.begin(method, now) for one in self._observers))


class _SeveralCalls:
    __slots__ = ("_calls",)

    def __init__(self, calls: tuple[ObservedCall, ...]) -> None:
        self._calls = calls

    def attempt_begins(
        self, address: str, number: int, waited: float, now: float, metadata: Any
    ) -> Any:
        for call in self._calls:
            metadata = call.attempt_begins(address, number, waited, now, metadata)
        return metadata

    def attempt_over(
        self, code: int, took: float, verdict: str, then: Decision | None, now: float
    ) -> None:
        for call in self._calls:
            call.attempt_over(code, took, verdict, then, now)

    def beside(self) -> "_SeveralCalls":
        return _SeveralCalls(tuple(call.beside() for call in self._calls))

    def over(self, code: int, now: float) -> None:
        for call in self._calls:
            call.over(code, now)
