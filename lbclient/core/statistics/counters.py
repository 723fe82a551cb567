"""How many calls and attempts of a channel ended in which way, and how long they took.

Plain numbers that only grow, for statistics and metrics. Only the methods here write
them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from lbclient.core.counting.call_counts import CallCounts
from lbclient.core.counting.histogram import Histogram
from lbclient.core.model import Verdict
from lbclient.core.retries.attempt_histogram import LAST
from lbclient.core.retries.retry import ATTEMPTS, Decision


class Counters:
    """Counts a channel's calls and attempts. `calls` are those that are over, by the
    number of their status.

    - `by_method` has the same for each method; a call carries the counts of its own.
    - `sent` of the calls went to a backend. Only these count for the retry budget:
      otherwise a throttled client could send a tenth of the calls that it holds back.
    - `refused` are the calls that ended in this client, by reason.
    - `retries` are attempts after one that was refused or may have been executed,
      `resends` those after one that no server took, `hedges` those beside the first.
    - `declined` are attempts whose backend wanted another pick first.
    - `refused_attempts` are attempts that backends refused for load, by number.
    - `latency` is that of attempts, `first_message` the time to the first message of
      their streams.
    - `waited` calls waited for a backend, `waited_seconds` in all.
    """

    def __init__(self, codes: Iterable[int], reasons: Iterable[str]) -> None:
        self.calls = dict.fromkeys(codes, 0)
        self.by_method: CallCounts[int] = CallCounts(self.calls)
        self.refused = dict.fromkeys(reasons, 0)
        self.sent = self.resends = self.hedges = self.declined = 0
        self._retries = [0] * ATTEMPTS  # by number, from 1; the last for all beyond
        self.refused_attempts = [0] * ATTEMPTS
        self.latency = Histogram()
        self.first_message = Histogram()
        self.waited, self.waited_seconds = 0, 0.0
        self._retired = dict.fromkeys(Verdict, 0)  # of backends that are closed

    def attempt_over(
        self, counts: dict[int, int], code: int, latency: float, then: Decision | None
    ) -> None:
        """Counts an attempt that ended, and its call, unless that is sent again.

        `counts` are those of its method. `then` is the decision on the next attempt;
        None: there was none to decide on, as after an attempt that was served.
        """
        if then is None or then.delay is None:
            self.calls[code] += 1
            counts[code] += 1
            self.sent += 1
        elif then.is_resend:
            self.resends += 1
        elif then.is_declined:
            self.declined += 1
        elif not then.is_left_to_other:
            self._retries[min(then.attempt, LAST)] += 1
        # `Histogram.observe`, written out: this runs after each attempt.
        histogram = self.latency
        histogram.counts[bisect_left(histogram.bounds, latency)] += 1
        histogram.sum += latency

    def attempt_refused(self, number: int) -> None:
        """A backend refused an attempt of that number, from 0, because of its load."""
        self.refused_attempts[min(number, LAST)] += 1

    def hedge_sent(self) -> None:
        """Counts an attempt that was sent beside the first one."""
        self.hedges += 1

    @property
    def retries(self) -> int:
        return sum(self._retries)

    def sent_attempts(self) -> list[int]:
        """Attempts by the number that servers are told, from 0.

        The first attempts are those of calls that are over, and declined ones. Servers
        are told that a hedge is attempt 1.
        """
        _, second, *others = self._retries
        return [self.sent + self.declined, second + self.hedges, *others]

    def call_over(self, counts: dict[int, int], code: int, was_sent: bool) -> None:
        """Counts a call that ended, but not by the end of an attempt."""
        self.sent += was_sent
        self.calls[code] += 1
        counts[code] += 1

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def begun_after(self, waited: float) -> None:
        """Counts a call that waited `waited` seconds for a backend."""
        self.waited += 1
        self.waited_seconds += waited

    def retire(self, attempts: Mapping[Verdict, int]) -> None:
        """Adds the attempts of a backend that was closed."""
        for verdict, count in attempts.items():
            self._retired[verdict] += count

    def total(self) -> int:
        """Calls that are over."""
        return sum(self.calls.values())

    def attempts(self, of_each: Iterable[Mapping[Verdict, int]]) -> dict[Verdict, int]:
        """Attempts that ended, by verdict; `of_each` are those of the open backends."""
        total = dict(self._retired)
        for attempts in of_each:
            for verdict, count in attempts.items():
                total[verdict] += count
        return total

    def __repr__(self) -> str:
        return f"<{self.total()} calls, {self.sent} of them sent>"
