"""Follows the resolver: decides which of its answers to use, and passes endpoints on.

An empty list is believed only after `empty_after` seconds, and an error keeps the last
endpoints: stale endpoints beat no endpoints.
"""

import logging
from collections.abc import Callable

from lbclient.background.tasks import Alarm
from lbclient.client.backends.connections import Connections
from lbclient.client.channel_context import ChannelContext
from lbclient.core.model import Endpoints
from lbclient.core.protocols import Resolver
from lbclient.core.text import printable
from lbclient.log import Log
from lbclient.resolvers.following import Following

logger = Log("lbclient.balancer")  # as documented, for the whole channel


class Discovery:
    """Applies the resolver's answers, and keeps the last endpoints if it fails. Owned
    by a balancer. `connections` get the endpoints; `changed` is called after each
    change.

    `updates` counts the resolver's answers, `resolved_at` is when the last one was
    applied. `error` says why there is no newer answer, or what is wrong with the last
    one. `trouble` is what a call without any backend is told; empty until the resolver
    has answered. Only read them.
    """

    def __init__(
        self,
        context: ChannelContext,
        resolver: Resolver,
        connections: Connections,
        changed: Callable[[], None],
    ) -> None:
        label, config, tasks = context.label, context.config, context.tasks
        self.resolver = resolver
        self.resolved_at: float | None = None
        self.updates = 0
        self.error = self.trouble = ""
        self._label = label
        self._connections = connections
        self._empty_after = config.empty_after
        self._tasks = tasks
        self._clock = context.clock
        self._events = context.events
        self._changed = changed
        self._subset = SubsetLog(label)
        self._believe_empty = Alarm(tasks, self._apply_empty)
        self._following = Following(
            label,
            resolver,
            self._resolved,
            self._unresolved,
            tasks,
            context.rng,
            config.resolve_interval,
        )
        # Not by the resolver: a user's may have no hash.
        tasks.keep(self._following, self._following.follow)

    def has_answered(self) -> bool:
        """Whether the resolver has said anything yet, be it an error."""
        return bool(self.trouble)

    def hint(self) -> None:
        """Connections were lost: their backends may live elsewhere now."""
        self._tasks.attempt(self._following.hint)

    def stop(self) -> None:
        self._believe_empty.clear()

    def _unresolved(self, error: str) -> None:
        error = printable(error)
        logger.about(logging.WARNING, channel=self._label, reason=error)
        self._believe_empty.clear()  # to fail is not to insist
        self._failed("resolver", error)

    def _failed(self, part: str, error: str) -> None:
        if error != self.error:  # once, however often it is tried again
            self._events.add(self._clock(), part, "failed", error)
        self.error = self.trouble = error
        self._changed()

    def _resolved(self, endpoints: Endpoints) -> None:
        self.updates += 1
        if not endpoints and self._connections.pool.endpoints:
            self.error = "no endpoints; keeping the last ones"
            if not self._believe_empty.is_set():
                logger.about(logging.WARNING, channel=self._label, reason=self.error)
                self._events.add(self._clock(), "resolver", "empty", self.error)
                self._believe_empty.set(self._empty_after)
            return
        self._believe_empty.clear()
        self._apply(endpoints)

    def _apply_empty(self) -> None:
        self._apply(())

    def _apply(self, endpoints: Endpoints) -> None:
        change = self._connections.reconcile(endpoints)
        if isinstance(change, str):
            self._failed("subset", change)
            return
        self.error = "" if endpoints else "no endpoints"
        self.resolved_at = self._clock()
        self.trouble = f"{self._label} has no endpoints"
        count, label = len(endpoints), self._label
        logger.about(logging.INFO, "%d endpoints", count, channel=label)
        now, many = self.resolved_at, f"{count} endpoints"
        self._events.add(now, "resolver", many, "its answer has changed")
        self._subset.tell(self._connections.subset)
        self._connections.carry_out(change)
        self._changed()

    def __repr__(self) -> str:
        return f"<{self.updates} answers of {self.resolver!r}>"


class SubsetLog:
    """Tells how the backends are chosen, each time that this changes."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._told = self._algorithm = ""
        self._is_churn_told = False

    def tell(self, subset: object) -> None:
        if repr(subset) == self._told:
            return
        self._told = repr(subset)
        before, self._algorithm = self._algorithm, getattr(subset, "algorithm", "")
        level = logging.INFO if before in ("", self._algorithm) else logging.WARNING
        label = self._label
        logger.about(level, "subset is %s", self._told, channel=label)
        if getattr(subset, "goes_by_place", False) and not self._is_churn_told:
            self._is_churn_told = True
            words = "%s: backends are numbered by position: %s"
            logger.warning(words, label, self._told, channel=label)
