"""Whether a failed attempt is retried, and when. A budget prevents retry storms.

There are three bounds. A request has three attempts: after three overloaded tasks it
would meet a fourth. A tenth of a client's requests may be retries: a fleet that refuses
everything then gets 1.1 times the load, not three times. And a server that refuses a
request may say that retrying is in vain. SRE book, ch. 21, "Deciding to Retry"; the
pushback is that of gRFC A6.

A request that no backend has seen is sent again (a "resend") at once; if there is no
other backend, from the second resend on after a pause.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple

from lbclient.core.refusal import Refusal

ATTEMPTS = 3  # SRE book, ch. 21
RATIO = 0.1  # likewise: retries a request
# Retries at once after a time without any. Ours: ten of those in flight on one backend.
BURST = 10
# Ours: a backend or two may go while a request is on its way to them; if five are gone
# the client probably cannot reach any.
RESENDS = 5
# Seconds, where there is no other backend to go to: enough for a queue to shrink, and
# for a connection that has few streams to have one again.
PAUSE, LONGEST_PAUSE = 0.05, 1.0

NEVER = -1.0  # a pushback
# Why no attempt follows a refusal that is the same everywhere.
_SAID_NOT_TO = "the backend said not to retry"
FINAL_REFUSALS = {
    Refusal.QUOTA: "the customer is out of quota everywhere",
    Refusal.DONT_RETRY: _SAID_NOT_TO,
}


class Failure(NamedTuple):
    """How an attempt failed. `pushback` is the pause before a retry that the server
    asks for, in seconds; negative: no retry.

    With neither refusal nor answer it may have been executed, or be executing still.
    """

    refusal: Refusal | None = None
    is_sent: bool = True  # False: for certain no backend has seen it
    is_answered: bool = False  # by the application, or its answer has begun
    pushback: float | None = None

    def is_never(self) -> bool:
        """Whether the pushback forbids a retry.

        Beside `overloaded` it is for stock clients, which keep no budget: see
        `lbclient.core.retries.stock_budget`.
        """
        if self.pushback is None or self.refusal is Refusal.OVERLOADED:
            return False
        return self.pushback < 0.0


class Decision(NamedTuple):
    """What follows a failed attempt, and the reason in words.

    `delay` is the pause before the next attempt in seconds, None: there is none. The
    next attempt is a resend if no backend has seen the request, else a retry, with the
    number `attempt` from 1. `is_left_to_other`: the call has another attempt, which is
    in flight or has answered. `is_declined`: the backend wanted another pick first; the
    next attempt is neither a resend nor a retry.
    """

    delay: float | None
    reason: str
    is_resend: bool = False
    attempt: int = 0
    is_left_to_other: bool = False
    is_declined: bool = False

    def without_pause(self) -> "Decision":
        """What to do instead where too many calls wait already."""
        if self.is_resend:
            at_once = "not sent: again at once, as too many calls wait already"
            return self._replace(delay=0.0, reason=at_once)
        return Decision(None, "too many calls wait already")


class Budget:
    """The retry budget of one client: each request adds 1, a retry takes 1 / ratio.

    It is a bucket, not a window: the bound holds over any stretch of time, and no clock
    is needed. It is empty at first, so of the first n requests at most n * ratio are
    retried, rounded up: it may be overdrawn by one retry, or a client that makes few
    requests would never have one.
    """

    __slots__ = ("_balance", "_cost", "_most")

    def __init__(self, ratio: float = RATIO, burst: int = BURST) -> None:
        self._cost = 1.0 / ratio if ratio else inf
        self._most = burst * self._cost if ratio else 0.0
        self._balance = 0.0

    def deposit(self, requests: int = 1) -> None:
        """Adds this many requests that were made since the last deposit."""
        self._balance = min(self._most, self._balance + requests)

    def withdraw(self) -> bool:
        """Takes one retry from the budget, if there is one."""
        if self._balance <= 0.0:
            return False
        self._balance -= self._cost
        return True

    def left(self, requests: int = 0) -> float:
        """Retries left, with those that `requests` more would bring."""
        return max(0.0, min(self._most, self._balance + requests)) / self._cost

    def __repr__(self) -> str:
        return f"<{self.left():.1f} retries to spend>"


class Retry:
    """Decides on the later attempts of one request. Owned by its call.

    `attempt` is the number of the attempt that is due, from 0, as on the wire.
    `is_idempotent` is called only if the request may have been executed.
    """

    __slots__ = (
        "_attempts",
        "_budget",
        "_is_idempotent",
        "_resends",
        "_rng",
        "attempt",
    )

    def __init__(
        self,
        budget: Budget,
        rng: Random,
        attempts: int = ATTEMPTS,
        is_idempotent: Callable[[], bool] = lambda: False,
    ) -> None:
        self.attempt = 0
        self._resends = 0
        self._budget = budget
        self._rng = rng
        self._attempts = attempts
        self._is_idempotent = is_idempotent

    def decide(
        self,
        failure: Failure,
        left: float | None,
        is_other: bool,
        is_throttled: Callable[[], object] | None = None,
    ) -> Decision:
        """What to do after `failure`, with `left` seconds until the deadline.

        `is_other`: whether another backend is ready. `is_throttled` asks the throttle,
        to which a retry is a request like any other; None: it refuses nothing. A
        decision to go on is final: it is counted, and taken from the budget.
        """
        if why_not := self.why_not(failure):
            return Decision(None, why_not)
        if is_throttled is not None and failure.is_sent and is_throttled():
            return Decision(None, "throttled: the backends refuse too much")
        delay, how = self._delay(failure, left, is_other)
        if left is not None and delay >= left:
            return Decision(None, f"{max(0.0, left):.3f} s left, {delay:.3f} s to wait")
        if not failure.is_sent:
            self._resends += 1
            return Decision(delay, f"not sent: again {how}", is_resend=True)
        if not self._budget.withdraw():
            return Decision(None, "the client's retry budget is spent")
        self.attempt += 1
        number = self.attempt
        why = f"attempt {number + 1} of {self._attempts} {how}"
        return Decision(delay, why, attempt=number)

    def why_not(self, failure: Failure) -> str:
        """Why no attempt may follow, time and budget aside; '' if one may."""
        if failure.is_answered:
            return "the application has answered"
        if failure.refusal in FINAL_REFUSALS:
            return FINAL_REFUSALS[failure.refusal]
        if failure.is_never():
            return _SAID_NOT_TO
        if not failure.is_sent:
            spent = self._resends >= RESENDS
            return f"not sent in {RESENDS + 1} tries" if spent else ""
        if failure.refusal is None and not self._is_idempotent():
            return "it may have been executed, and is not idempotent"
        if self.attempt + 1 >= self._attempts:
            return f"all {self._attempts} attempts failed"
        return ""

    def _delay(
        self, failure: Failure, left: float | None, is_other: bool
    ) -> tuple[float, str]:
        if failure.pushback is not None and failure.pushback >= 0.0:
            return failure.pushback, f"after {failure.pushback:.3f} s, as told"
        pauses = self.attempt
        if not failure.is_sent:
            pauses = self._resends - 1  # a first resend may find the backend back
        if is_other or pauses < 0:
            return 0.0, "at once"
        most = min(PAUSE * 2**pauses, LONGEST_PAUSE)
        if not failure.is_sent and left is not None:
            most = min(most, left / 2)  # a pause alone must not use it up
        pause = self._rng.uniform(0.0, most)  # full jitter: no client in step
        return pause, f"after {pause:.3f} s, as there is no other backend"

    def __repr__(self) -> str:
        of = f"attempt {self.attempt + 1} of {self._attempts}"
        return f"<{of}, not sent {self._resends} times>"


class RetryPolicy:
    """What the requests of one channel share for their retries: above all the budget.

    `attempts` is as `told` of `max_attempts`. `is_idempotent` takes a method's path.
    """

    __slots__ = ("_attempts", "_budget", "_deposited", "_is_idempotent", "_rng")

    def __init__(
        self,
        budget: Budget,
        rng: Random,
        attempts: int | Mapping[str, int],
        is_idempotent: Callable[[str], bool],
    ) -> None:
        self._budget = budget
        self._deposited = 0  # requests
        self._rng = rng
        self._attempts = attempts
        self._is_idempotent = is_idempotent

    def begin(self, path: str, sent: int) -> Retry:
        """Decides on the later attempts of a request whose first attempt failed.

        `sent` is the number of requests ever sent, which bring retries.
        """
        self._budget.deposit(sent - self._deposited)
        self._deposited = sent
        attempts = max_attempts(path, self._attempts)
        is_idempotent = partial(self._is_idempotent, path)
        return Retry(self._budget, self._rng, attempts, is_idempotent)

    def hedge(self, path: str, sent: int) -> Retry | None:
        """Takes a hedge from the budget, and decides on the attempts after it.

        A hedge is an attempt like a retry (gRFC A6). None: the budget is spent.
        """
        retry = self.begin(path, sent)
        if not self._budget.withdraw():
            return None
        retry.attempt = 1
        return retry

    def left(self, sent: int) -> float:
        """Retries left in the budget after this many requests."""
        return self._budget.left(sent - self._deposited)

    def __repr__(self) -> str:
        return repr(self._budget)


def max_attempts(path: str, told: int | Mapping[str, int]) -> int:
    """Returns the attempts of a method, as `told` for all, or by path.

    A `/package.Service/*` stands for its methods that are not named.

    >>> told = {"/a.B/*": 2, "/a.B/C": 1}
    >>> max_attempts("/a.B/C", told), max_attempts("/a.B/D", told)
    (1, 2)
    >>> max_attempts("/e.F/G", told), max_attempts("/e.F/G", 1)
    (3, 1)
    """
    if isinstance(told, int):
        return told
    service = path.rpartition("/")[0]
    return told.get(path) or told.get(f"{service}/*") or ATTEMPTS


def parse_pushback(values: Sequence[str]) -> float | None:
    """Seconds from the values of `grpc-retry-pushback-ms`; None where there is none.

    "If the value for pushback is negative or unparseable, then it will be seen as the
    server asking the client not to retry at all" (gRFC A6); so are several values.

    >>> parse_pushback(["250"]), parse_pushback([]), parse_pushback(["soon"])
    (0.25, None, -1.0)
    """
    if not values:
        return None
    if len(values) > 1 or not re.fullmatch("[0-9]{1,10}", values[0], re.ASCII):
        return NEVER
    return int(values[0]) / 1000


def parse_attempt(value: str | None) -> tuple[int, bool]:
    """An attempt's number from a header, and whether it was one; None is no header.

    >>> parse_attempt("2"), parse_attempt(None), parse_attempt("-1")
    ((2, True), (0, True), (0, False))
    """
    if value is None:
        return 0, True
    if not re.fullmatch("[0-9]{1,2}", value, re.ASCII):
        return 0, False
    return int(value), True
