"""Quotas at work: who pays for a request, the fleet's usage, and where it is stored.

`lbclient.core.quotas.quota` decides; it gets from here the customer, the CPU seconds
used, and the fleet's word. That word comes from a store which all tasks share, asked
once an interval by a task of its own: no request ever waits for it, and where it is
gone the last shares hold for a while, and then the configured ones.
"""

import asyncio
import os
import socket
from collections.abc import Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import nlargest
from math import inf
from random import Random
from typing import Any
from weakref import WeakValueDictionary

from lbclient.background.tasks import Tasks, in_own_task, is_cancelled, is_own_end
from lbclient.config import ServerConfig
from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Clock, FleetUsage, UsageStore
from lbclient.core.quotas.quota import (
    INTERVAL,
    OTHERS,
    UNLIMITED,
    Quota,
    allot,
    is_name,
    limits,
    rooms,
)
from lbclient.core.quotas.quota_account import Payer
from lbclient.core.text import printable
from lbclient.log import Log
from lbclient.server.quotas.memory_store import ProcessStore, StoreError
from lbclient.server.quotas.worker_store import WorkerStore
from lbclient.server.statistics import QuotaStatistics
from lbclient.server.workers.membership import membership

EXCHANGE = "exchange with the quota store"  # the store itself may have no hash
LONGEST_PAUSE = 5.0  # seconds until a store is asked again, whatever it says
HEARD = 10_000  # customers of whom a store is believed; to share them out takes 10 ms

logger = Log(__name__)


class QuotaEnforcer:
    """Charges requests to customers, and exchanges usage with the quota store. Owned by
    a server, used on its loop's thread only."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._clock = clock
        self._limits = rooms(config.quotas)
        self._default = (
            UNLIMITED
            if config.default_quota is None
            else limits("default_quota", config.default_quota)
        )
        share = config.quota_share
        if config.quota_store is None and (member := membership()) is not None:
            share /= member.count  # until its supervisor says what the others gave
        self.quota = Quota(self._limits, self._default, share)
        self.enter = self.quota.enter  # in the hot path
        # Servers of one process that have no store share its limits by themselves.
        shared = (
            tuple(sorted(self._limits.items())),
            self._default,
            config.quota_share,
        )
        try:
            self._store: Any = find_store(
                config.quota_store, shared, (OTHERS, *self._limits)
            )
        except ConfigError as error:
            raise config.where_to_mend(error) from None
        self._is_ours = isinstance(config.quota_store, str)
        self._part = config.quota_share if config.quota_store is None else 1.0
        # Containers may share a name and a number, and a process may have several.
        self._name = f"{socket.gethostname()}/{os.getpid()}/{os.urandom(4).hex()}"
        self.tasks = Tasks("quotas", Random())
        self._is_complaining = False
        self._heard = QuotaStatistics(listed=tuple(self._limits))

    def refuses(self, customer: str, criticality: Criticality) -> bool:
        return self.quota.refuses(customer, criticality, self._clock()) is not None

    def is_used_up(self, customer: str, criticality: Criticality) -> bool:
        return self.quota.is_used_up(customer, criticality, self._clock())

    def drop(self, customer: str, criticality: Criticality) -> None:
        self.quota.drop(customer, criticality, self._clock())

    def admit(self, customer: str, criticality: Criticality) -> Payer:
        """Admits a request, and returns who pays for it."""
        return self.quota.admit(customer, criticality, self._clock())

    def usage(self) -> dict[str, float]:
        """CPU seconds a second, by customer; those without an account are ''."""
        return self.quota.usage(self._clock())

    @property
    def task_failures(self) -> int:
        return self.tasks.failures

    def statistics(self) -> QuotaStatistics:
        quota = self.quota
        return replace(self._heard, pooled=quota.pooled, forgotten=quota.forgotten)

    # Life

    def start(self) -> None:
        if isinstance(self._store, ProcessStore):
            self._store.join(self._name)
        self.tasks.keep(EXCHANGE, self._exchange)

    def stop(self) -> None:
        if isinstance(self._store, ProcessStore):
            self._store.leave(self._name)
        with suppress(RuntimeError):  # the loop is closed
            self.tasks.drop(EXCHANGE)

    async def _exchange(self) -> None:
        store = self._store
        try:
            while True:
                pause = await self._ask(store)
                if is_cancelled():
                    return  # though the store took that for its own affair
                await asyncio.sleep(pause)
        finally:
            if self._is_ours:
                await store.close()

    async def _ask(self, store: UsageStore) -> float:
        """Exchanges usage with the store. Returns seconds until the next time."""
        if isinstance(store, ProcessStore) and not store.has_others(self._name):
            self.quota.take({}, self._clock())
            self._heard = replace(self._heard, tasks=0, shares={})
            return INTERVAL
        try:
            # Not wait_for, which in Python 3.11 may lose a cancel.
            async with asyncio.timeout(INTERVAL):
                fleet = await in_own_task(
                    lambda: store.exchange(self._name, self.usage())
                )
            self._take(fleet)
            again = fleet.again if 0.0 <= fleet.again < inf else INTERVAL
            again = min(max(again, INTERVAL / 10), LONGEST_PAUSE)
        except BaseException as error:
            if is_own_end(error):
                raise
            self._complain(error)
            return INTERVAL
        self._is_complaining = False
        return again

    def _take(self, fleet: FleetUsage) -> None:
        fleet, heard = _sound(fleet, self._limits), self._heard
        if fleet.tasks:
            shares = self._shares(fleet)
            self.quota.take(shares, self._clock())
            heard = replace(heard, tasks=fleet.tasks, shares=shares)
        self._heard = replace(
            heard,
            exchanges=heard.exchanges + 1,
            malformed=heard.malformed + fleet.malformed,
        )

    def _complain(self, error: BaseException) -> None:
        self._heard = replace(self._heard, failures=self._heard.failures + 1)
        if not self._is_complaining:
            self._is_complaining = True
            kind, said = type(error).__name__, printable(str(error))
            if isinstance(error, TimeoutError):  # ours says nothing
                said = said or f"no answer within {INTERVAL:g} s"
            if not isinstance(error, StoreError):  # which has its kind in it
                said = f"{kind}: {said or '-'}"
            words = "quota store failed: %s; using the last shares"
            logger.warning(words, said, reason=said)

    def _shares(self, fleet: FleetUsage) -> dict[str, float]:
        """The share of each customer's limit that this task may give."""
        shares, told = {}, fleet.total
        if len(told) > HEARD:
            kept = nlargest(HEARD, told, key=partial(self._matters, fleet))
            told = {customer: told[customer] for customer in kept}
        for customer, total in told.items():
            limit = self._limits.get(customer, self._default)[-1]
            if limit < inf:
                own, limit = fleet.own.get(customer, 0.0), limit * self._part
                share = allot(limit, own, max(own, total), fleet.tasks)
                shares[customer] = self._part * share
        return shares

    def _matters(self, fleet: FleetUsage, customer: str) -> tuple[bool, bool, float]:
        """Orders customers: those listed, then those served here, then those who used
        most."""
        return customer in self._limits, customer in fleet.own, fleet.total[customer]

    def __repr__(self) -> str:
        heard = self._heard
        fleet = f"{heard.tasks} tasks, {heard.failures} failures of the store"
        return f"<{self.quota!r} of {fleet}>"


_of_process: WeakValueDictionary[Hashable, ProcessStore] = WeakValueDictionary()


def find_store(
    said: str | UsageStore | None, shared: Hashable, first: Iterable[str] = ()
) -> UsageStore:
    """The store that `ServerConfig.quota_store` means. Raises ConfigError.

    Without one, the servers of this process that have the same `shared` limits share a
    store; those of a task's workers, one that their supervisor keeps. The store is told
    of the customers in `first` before all others.
    """
    if said is None:
        if (member := membership()) is not None:
            return WorkerStore(member, shared)
        return _of_process.setdefault(shared, ProcessStore())
    if not isinstance(said, str):
        return said
    from lbclient.server.quotas.redis_store import RedisStore  # an extra

    return RedisStore(said, first)


def _sound(fleet: FleetUsage, listed: Collection[str]) -> FleetUsage:
    """A store of the user's own may say anything: what makes no sense is left out."""
    own, total = _finite(fleet.own, listed), _finite(fleet.total, listed)
    tasks = fleet.tasks if 0 <= fleet.tasks < inf else 0
    malformed = fleet.malformed + (tasks != fleet.tasks)
    malformed += len(fleet.own) - len(own) + len(fleet.total) - len(total)
    malformed += not 0.0 <= fleet.again < inf
    return fleet._replace(own=own, total=total, tasks=tasks, malformed=malformed)


def _finite(used: Mapping[str, float], listed: Collection[str]) -> dict[str, float]:
    return {
        name: cpu
        for name, cpu in used.items()
        if isinstance(name, str)
        and (name in listed or is_name(name))
        and 0.0 <= cpu < inf
    }


def customer_of_identity(context: Any) -> str:
    """The client's name by its certificate (mTLS), for `ServerConfig.customer`."""
    for identity in context.peer_identities() or ():
        return str(identity.decode(errors="replace"))
    return OTHERS
