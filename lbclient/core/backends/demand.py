"""How many connections and health checks a channel's call rate justifies.

A client that calls seldom must not spend more on health checks than on calls, nor
keep connections that nobody needs. Both are computed now and then from counts that are
kept anyway, so calls pay nothing for them. Each has a band of rates in which it does
not change, so a steady call rate soon leads to steady numbers.
"""

from collections import deque
from math import inf

from lbclient.core.counting.ewma import DecayingCount

# One connection's health reports come at the pace of its calls, in coarse steps.
STEP = 4.0  # between one pace and the next slower one
SLOWEST = 60.0  # seconds; a frozen backend is then noticed by the calls on it
CREDIT = 16  # reports that no call has paid for, at first; and that are saved, at most
GAIN = 0.3  # of each pause between calls, in their mean

SEVERAL = 4  # calls within `idle_after` that make a connection worth opening
PARTS = 8  # of `idle_after`, by which calls are counted

# In the mean time between calls: after so many seconds a call counts 1/e. Long, as a
# mean of few calls is the shortest just after one.
MEMORY = 3600.0


class ReportInterval:
    """How often one backend is to send load reports: each report is paid for by a call.

    `every` is the period in seconds, from `fastest` to `SLOWEST`. It grows when calls
    no longer pay for the reports. It shrinks when calls come twice as often as reports
    would, and when a call is not answered.
    """

    __slots__ = (
        "_credit",
        "_fastest",
        "_gap",
        "_looked_at",
        "_open_since",
        "_started",
        "every",
        "used_at",
    )

    def __init__(self, fastest: float, now: float) -> None:
        self._fastest = fastest
        self.restart(0, now)

    def restart(self, started: int, now: float) -> None:
        """There is a new connection; `started` as for `observe`."""
        self.every = self._fastest
        self.used_at = now  # when it last had a call, as far as was looked
        self._looked_at = now
        self._credit = float(CREDIT)
        self._gap = 0.0  # mean time between calls
        self._started = started
        self._open_since: float | None = None  # the oldest call, as far as was looked

    def observe(self, started: int, in_flight: int, now: float) -> None:
        """Updates the period, from all calls ever `started` and those in flight now."""
        calls = max(0, started - self._started)  # fewer: one was never sent
        spent = (now - self._looked_at) / self.every
        self._credit = min(max(0.0, self._credit - spent) + calls, CREDIT)
        self._started, self._looked_at = started, now
        if calls:
            gap = (now - self.used_at) / calls
            self._gap += (gap - self._gap) * (1 - (1 - GAIN) ** calls)
        if not in_flight or calls >= in_flight:
            self._open_since = None  # or since a moment ago
        if in_flight and self._open_since is None:
            self._open_since = now
        if calls or in_flight:
            self.used_at = now
        self._choose_pace(now)

    def hurry(self) -> None:
        """A call was not answered in time: reports are wanted at the fastest pace."""
        self.every = self._fastest
        self._credit = float(CREDIT)

    def is_slowest(self) -> bool:
        """Whether reports cannot come less often, so that without calls nothing
        changes."""
        return self.every >= SLOWEST

    def _choose_pace(self, now: float) -> None:
        if self._open_since is not None and now - self._open_since >= self._fastest:
            self.every = self._fastest  # somebody waits for an answer
            return
        gap = max(self._gap, now - self.used_at)
        while self.every > self._fastest and gap < self._faster() / 2:
            self.every = self._faster()
        if not self._credit and self.every < SLOWEST:
            self.every = min(self.every * STEP, SLOWEST)

    def _faster(self) -> float:
        """The next faster pace."""
        pace = self._fastest
        while pace * STEP < self.every:
            pace *= STEP
        return pace


class Demand:
    """How many connections a channel's calls are worth, in the last `idle_after`."""

    def __init__(self, idle_after: float, now: float) -> None:
        self._part = idle_after / PARTS
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])
        self._calls = 0
        self._called_at = now  # last, as far as was looked
        self._recent = DecayingCount(MEMORY)

    def worth(self, calls: int, now: float) -> tuple[int, int]:
        """Returns the fewest and the most connections that the calls justify.

        `calls` counts all calls ever made. With fewer connections than the first
        number, each connection would carry several calls, even with one connection
        more.
        """
        if calls > self._calls:
            self._recent.add(now, calls - self._calls)
            self._calls, self._called_at = calls, now
        marks = self._marks
        if now - marks[-1][0] >= self._part:
            marks.append((now, calls))
        while len(marks) > 1 and now - marks[1][0] >= PARTS * self._part:
            marks.popleft()
        if now - marks[0][0] >= 2 * PARTS * self._part:  # nobody looked for long
            marks[0] = (now, calls)
        recent = calls - marks[0][1]
        return recent // SEVERAL, recent * 2 // SEVERAL

    def due_at(self) -> float:
        """When `worth` is wanted though nobody calls: what it counts then changes."""
        due = self._marks[-1][0] + self._part
        if len(self._marks) > 1:
            due = min(due, self._marks[1][0] + PARTS * self._part)
        return due

    def gap(self, now: float) -> float:
        """Mean seconds between recent calls; at least the time since the last call."""
        recent = self._recent.read(now)
        mean = MEMORY / recent if recent else inf
        return max(mean, now - self._called_at)
