"""Follows a resolver for ever: restarts it if it fails, and keeps the last endpoints.

A resolver may be code of the user. If it raises, even CancelledError, or ends, it is
restarted after a pause. If it answers without ever waiting, other tasks run between its
answers: at most `MOST` answers are taken in each `PERIOD`, and after the first `BURST`
only the last of them takes effect.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import iscoroutine
from random import Random
from typing import Any

from lbclient.background.tasks import (
    Alarm,
    Tasks,
    in_own_task,
    is_cancelled,
    is_own_end,
)
from lbclient.core.backoff import Backoff
from lbclient.core.counting.allowance import Allowance
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.protocols import Resolver
from lbclient.log import Log, set_subject
from lbclient.resolvers.listing import listing
from lbclient.resolvers.polling import Hinted

logger = Log(__name__)

PERIOD = 0.1  # seconds for each answer that takes effect
BURST = 10  # that take effect at once, of a resolver that was quiet before
MOST = 100  # answers taken in a period

FIRST_PAUSE = 1.0  # seconds after a resolver has failed
# Of a resolver that paces itself: errors in a row, each at once, before it is paced.
MOST_QUICK = 3
QUICK = 0.1  # seconds; what fails sooner has not paced itself


class Following:
    """Follows one resolver. Owned by a balancer.

    Calls `take` with each snapshot that takes effect, and `complain` with the reason if
    there is none.
    """

    def __init__(
        self,
        target: str,
        resolver: Resolver,
        take: Callable[[Endpoints], None],
        complain: Callable[[str], None],
        tasks: Tasks,
        rng: Random,
        longest_pause: float,
    ) -> None:
        self._target = target
        self._resolver = resolver
        self._take = take
        self._complain = complain
        self._tasks = tasks
        self._rng = rng
        longest = max(FIRST_PAUSE, longest_pause)
        self._pauses = Backoff(FIRST_PAUSE, longest, jitter=0.25)
        self._follower: asyncio.Task[Any] | None = None  # in which no resolver runs
        self._hinted = Hinted()  # between an error and the next try
        self._pending: list[Iterable[Endpoint]] = []  # the last answer, or nothing
        self._rest = Alarm(tasks, self._rested)  # set while there is such an answer
        self._allowance = Allowance(BURST, 1.0 / PERIOD)
        self._answers = 0
        self._answers_before = 0  # the period that began at
        self._period_at = 0.0

    def hint(self) -> None:
        """The answer may have changed: ask again soon."""
        self._hinted.hint()
        refresh = getattr(self._resolver, "refresh", None)
        if refresh is not None:
            refresh()

    async def follow(self) -> None:
        """Follows the resolver until cancelled."""
        loop = asyncio.get_running_loop()
        self._follower = asyncio.current_task()
        set_subject(channel=self._target)  # for what the resolver logs
        pause, quick = FIRST_PAUSE, 0
        while True:
            began_at, answers = loop.time(), self._answers
            error = await self._watch()
            if is_cancelled():
                return  # though the resolver took that for its own affair
            self._rested()
            self._complain(str(error))
            if self._answers != answers:
                pause = FIRST_PAUSE
            quick = quick + 1 if loop.time() - began_at < QUICK else 0
            paces_itself = getattr(self._resolver, "paces_itself", False)
            if isinstance(error, ResolveError) and paces_itself and quick <= MOST_QUICK:
                await asyncio.sleep(0)
                continue
            # Up to the interval of a healthy resolver.
            await self._hinted.pause(self._pauses.varied(pause, self._rng))
            pause = self._pauses.longer(pause)

    async def _watch(self) -> ResolveError | str:
        """Why it is over."""
        try:
            await in_own_task(self._hear)
        except ResolveError as error:
            return error
        except BaseException as error:
            if is_own_end(error):
                raise
            return self._failed(error)
        return "the resolver ended"

    async def _hear(self) -> None:
        """The resolver's own code runs in here."""
        answers: Any = None
        try:
            answers = self._resolver.watch()
            if not hasattr(answers, "__aiter__"):
                want = (
                    "an asynchronous iterator: `async def watch` is to yield endpoints"
                )
                raise ConfigError("watch()", answers, want)
            async for endpoints in answers:
                if self._is_left():
                    break
                self._answered(endpoints)
                await self._breathe()
        finally:
            # Where it stopped at an answer that it had given.
            if (close := getattr(answers, "aclose", None)) is not None:
                with suppress(Exception):
                    await close()
            if iscoroutine(answers):
                answers.close()

    def _is_left(self) -> bool:
        return self._follower is not None and self._follower.cancelling() > 0

    def _failed(self, error: BaseException) -> str:
        self._tasks.count_failure()
        logger.error(
            "%s: the resolver failed",
            self._target,
            exc_info=error,
            channel=self._target,
            reason=error,
        )
        return f"the resolver failed: {error!r}"

    async def _breathe(self) -> None:
        """Gives others a turn; a longer one if it answers again and again at once."""
        loop = asyncio.get_running_loop()
        self._answers += 1
        left = self._period_at + PERIOD - loop.time()
        if left > 0.0 and self._answers - self._answers_before < MOST:
            await asyncio.sleep(0)
            return
        await asyncio.sleep(max(0.0, left))
        self._period_at, self._answers_before = loop.time(), self._answers

    def _answered(self, endpoints: Iterable[Endpoint]) -> None:
        self._pending = [endpoints]
        if self._rest.is_set():
            return
        if self._allowance.has_one(asyncio.get_running_loop().time()):
            self._apply()
        else:
            self._rest.set(PERIOD)

    def _rested(self) -> None:
        """The last of those that came meanwhile takes effect."""
        try:
            self._apply()
        except Exception as error:  # it made no sense
            self._complain(self._failed(error))

    def _apply(self) -> None:
        pending, self._pending = self._pending, []
        for endpoints in pending:
            self._rest.clear()
            self._allowance.spend()
            self._take(listing(endpoints))

    def __repr__(self) -> str:
        return f"<{self._answers} answers of {self._resolver!r}>"
