"""Who pays for a request, and what all tasks together have given whom.

`lbclient.quota` decides; here it gets the customer, the CPU seconds that were used, and
the fleet's word. That word comes from a store which all tasks share, asked once an
interval by a task of its own: no request ever waits for it, and where it is gone the
last shares hold for a while, and then the configured ones.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Any, Protocol

from lbclient.config import ServerConfig
from lbclient.criticality import Criticality
from lbclient.protocols import Clock
from lbclient.quota import OTHERS, UNLIMITED, Quota, Room, allot, room
from lbclient.server.accounting import Accounting, Charge, account

INTERVAL = 1.0  # seconds between two exchanges. Ours: a fifth of quota.SMOOTHING

Usages = Mapping[str, Mapping[str, float]]
"""By customer and task: CPU seconds a second."""

logger = logging.getLogger(__name__)
_numbers = count()


class UsageStore(Protocol):
    """What tasks tell each other of their customers. May be slow, may fail."""

    async def exchange(self, task: str, usage: Mapping[str, float]) -> Usages:
        """Takes what this task gave lately; returns what all of them did, this too.

        A task that was not heard of for some intervals is left out.
        """


class MemoryStore:
    """For the servers of one process."""

    KEPT = 10 * INTERVAL  # seconds

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, tuple[float, dict[str, float]]] = {}

    async def exchange(self, task: str, usage: Mapping[str, float]) -> Usages:
        now = self._clock()
        self._told[task] = (now, dict(usage))
        usages: dict[str, dict[str, float]] = {}
        for name, (at, told) in list(self._told.items()):
            if now - at > self.KEPT:
                del self._told[name]
                continue
            for customer, used in told.items():
                usages.setdefault(customer, {})[name] = used
        return usages


def rooms(config: ServerConfig) -> dict[str, Room]:
    """What is configured, as `lbclient.quota` wants it. Raises ConfigError."""
    return {
        customer: room_of(limit) for customer, limit in (config.quotas or {}).items()
    }


def room_of(limit: float | Mapping[str, float]) -> Room:
    if not isinstance(limit, Mapping):
        return room(float(limit))
    below = {Criticality[name]: most for name, most in limit.items() if name != "total"}
    return room(float(limit.get("total", inf)), below)


class Quotas:
    """Owned by a server, used on its loop's thread only."""

    def __init__(self, config: ServerConfig, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._limits = rooms(config)
        self._default = (
            UNLIMITED if config.default_quota is None else room(config.default_quota)
        )
        self._quota = Quota(
            self._limits,
            rng,
            self._default,
            config.cpu_factor,
            config.quota_share,
        )
        self._store: Any = config.quota_store
        # A port is not known yet, and one process may have several servers.
        self._name = f"{socket.gethostname()}/{os.getpid()}/{next(_numbers)}"
        self._accounting = Accounting()
        self._exchanging: asyncio.Task[None] | None = None
        self._is_complaining = False
        self.store_failures = 0

    def refuses(self, customer: str, criticality: Criticality) -> bool:
        """If not, the request's context knows from here on who pays."""
        if self._quota.refuses(customer, criticality, self._clock()) is not None:
            return True
        charge: Charge = partial(self._quota.charge, customer, criticality)
        account.set(charge)
        return False

    def charge_from_thread(self, charge: Charge) -> Charge:
        return self._accounting.charge_from_thread(charge)

    def usage(self) -> dict[str, float]:
        """CPU seconds a second, by customer; those without an account are ''."""
        return self._quota.usage(self._clock())

    # Life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._accounting.install(loop)
        if self._store is not None:
            self._exchanging = loop.create_task(self._exchange())

    def stop(self) -> None:
        self._accounting.remove()
        if self._exchanging is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._exchanging.cancel()

    async def _exchange(self) -> None:
        while True:
            try:
                # Not wait_for, which in Python 3.11 may lose a cancel.
                async with asyncio.timeout(INTERVAL):
                    usages = await self._store.exchange(self._name, self.usage())
                self._quota.take(self._shares(usages), self._clock())
                self._is_complaining = False
            except Exception as error:
                self._complain(error)
            await asyncio.sleep(INTERVAL)

    def _complain(self, error: Exception) -> None:
        self.store_failures += 1
        if not self._is_complaining:
            self._is_complaining = True
            logger.warning("no word from the quota store: %r", error)

    def _shares(self, usages: Usages) -> dict[str, float]:
        """Of each customer's limit, what this task may give."""
        shares = {}
        for customer, used in usages.items():
            names = sorted({*used, self._name})
            limit = self._limits.get(customer, self._default)[-1]
            if limit < inf:
                parts = allot(limit, [used.get(name, 0.0) for name in names])
                shares[customer] = parts[names.index(self._name)]
        return shares


def customer_of_identity(context: Any) -> str:
    """For `ServerConfig.customer`: who the client is by its certificate (mTLS)."""
    for identity in context.peer_identities() or ():
        return str(identity.decode(errors="replace"))
    return OTHERS
