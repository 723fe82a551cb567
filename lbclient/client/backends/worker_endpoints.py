"""Connects to the workers of a task one by one, where their own ports can be reached.

`core.backends.task_workers` decides. This module passes on what servers report, reviews
it now and then, and logs what follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lbclient.background.tasks import Alarm
from lbclient.client.channel_context import ChannelContext
from lbclient.core.backends.address import dialled
from lbclient.core.backends.task_workers import (
    LOOK_EVERY,
    Landing,
    TaskWorkers,
    ToldWorkers,
)
from lbclient.core.model import Endpoint, Endpoints, State
from lbclient.log import Log

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log("lbclient.balancer")  # as documented, for the whole channel

STRANGER = "another server answers at this worker's port"
DOUBLE = "another connection has this worker already"

# States of a backend that is connected. One that is inactive connects anew to whomever.
CONNECTED = frozenset({State.READY, State.STARTING, State.LAME_DUCK})


class WorkerEndpoints:
    """Knows which endpoints stand for a task. Owned by the connections of a channel.

    `apply` is called soon after these have changed, at most once each LOOK_EVERY
    seconds; `backend_at` an address is None where the channel has none, `order` is as
    of `TaskWorkers`. `given_up` counts tasks whose workers' own ports turned out not
    to be reached.
    """

    def __init__(
        self,
        context: ChannelContext,
        apply: Callable[[], None],
        backend_at: Callable[[str], Backend | None],
        order: Callable[[Endpoint, int], Sequence[int]],
    ) -> None:
        self.given_up = 0
        self._has_missed = False
        self._label = context.label
        self._clock = context.clock
        self._events = context.events
        self._tasks = TaskWorkers(order)
        self._backend_at = backend_at
        self._apply = Alarm(context.tasks, partial(self._apply_now, apply))
        self._look = Alarm(context.tasks, self._look_at_tasks)

    def counts(self) -> tuple[int, int, int]:
        """How many tasks are reached by their workers' own ports, how many have workers
        whose own ports cannot be reached, and how many connections the latter have."""
        return self._tasks.counts()

    def expand(self, endpoint: Endpoint) -> Endpoints:
        return self._tasks.expand(endpoint)

    def keep(self, endpoints: Endpoints) -> None:
        self._tasks.keep(endpoints)

    # --- what is heard --------------------------------------------------------

    def hear(self, address: str, told: ToldWorkers | None) -> None:
        """The server at this address says which workers its task has, NO_WORKERS for
        none. None: several tasks answer there, so all calls go to the shared port."""
        if told is None or not told.group:
            forget = self._tasks.forget if told is None else self._tasks.has_none
            if forget(address):
                self._change()
        elif self._tasks.learn(address, told, self._clock(), self._worker_at):
            task, count = self._tasks.task_of(address), told.serving
            words = "%d workers behind %s"
            logger.about(logging.DEBUG, words, count, task, channel=self._label)
            self._change()

    def is_stranger(self, backend: Backend) -> bool:
        """Whether who answers there is not the worker that is awaited."""
        told = backend.reported.workers
        if told is None and backend.reported.is_ours:
            return False  # it has not said yet, as where it refused a health stream
        group = 0 if told is None else told.group
        return self._tasks.is_stranger(backend.endpoint.address, group)

    def is_double(self, backend: Backend) -> bool:
        """Whether another connection to a shared port has the worker that answers on
        this one. It is then made again, or given up."""
        address, worker = backend.endpoint.address, backend.reported.worker_id
        task = dialled(address)
        before = self._tasks.shared_of(task)
        landing = self._tasks.lands(address, worker, self._worker_at)
        if landing is Landing.AGAIN:
            asyncio.get_running_loop().call_soon(backend.dial_again, DOUBLE)
        if self._tasks.shared_of(task) != before:
            self._say_how_many(task)
            self._look.set_unless_sooner(0.0)
            self._apply_soon()
        elif landing is Landing.LEAVING:
            self._apply_soon()
        return landing is not Landing.ALONE

    def _say_how_many(self, task: str) -> None:
        words = f"only {len(self._tasks.shared_of(task))} connections to the shared"
        words += " port reached a worker that no other one has"
        level = logging.INFO
        logger.about(level, words, channel=self._label, backend=task)
        self._events.add(self._clock(), task, "shared port", words)

    def _worker_at(self, address: str) -> int:
        backend = self._backend_at(address)
        if backend is None or backend.state not in CONNECTED:
            return 0
        return backend.reported.worker_id

    def _state_of(self, address: str) -> State | None:
        backend = self._backend_at(address)
        return None if backend is None else backend.state

    def changed(self, backend: Backend) -> None:
        """Takes note of the state of a backend, which has changed."""
        address = backend.endpoint.address
        if backend.state is State.READY and self._tasks.reached(address):
            self._change()
        elif self._tasks.task_of(address) != address:
            self._look.set_unless_sooner(0.0)

    def _change(self) -> None:
        self._apply_soon()
        self._look.set_unless_sooner(LOOK_EVERY)

    def _apply_soon(self) -> None:
        """At once, but for servers that tell of other workers again and again."""
        since = asyncio.get_running_loop().time() - self._apply.rang_at
        self._apply.set_unless_sooner(max(0.0, LOOK_EVERY - since))

    def _apply_now(self, apply: Callable[[], None]) -> None:
        apply()
        for one in self._tasks.doubles(self._worker_at):
            if (backend := self._backend_at(one)) is not None:
                self.is_double(backend)

    def _look_at_tasks(self) -> None:
        now = self._clock()
        is_changed, given_up = self._tasks.review(self._state_of, now)
        for task in given_up:
            self._give_up(task, now)
        for worker in self._tasks.missed(self._state_of, now):
            self._say_missed(worker)
        if is_changed:
            self._apply_soon()
        if (pause := self._tasks.review_in(now)) is not None:
            self._look.set_unless_sooner(pause)

    def _give_up(self, task: str, now: float) -> None:
        """Once in the log: most often it is the same for all tasks."""
        self.given_up += 1
        level = logging.WARNING if self.given_up == 1 else logging.DEBUG
        words = "the own ports of workers cannot be reached; using the shared port, by"
        words += f" {len(self._tasks.shared_of(task))} connections"
        logger.about(level, words, channel=self._label, backend=task)
        self._events.add(now, task, "shared port", words)

    def _say_missed(self, worker: str) -> None:
        level = logging.DEBUG if self._has_missed else logging.WARNING
        self._has_missed = True
        words = "this worker gets no calls: its own port is not reached, and those of"
        words += " others of its task are"
        logger.about(level, words, channel=self._label, backend=worker)

    def stop(self) -> None:
        self._apply.clear()
        self._look.clear()

    def __repr__(self) -> str:
        return repr(self._tasks)
