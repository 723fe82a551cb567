"""The connections of a channel: opens, drains and closes what the pool decides.

The pool decides which backends are wanted; the I/O is done here, a little in each turn
of the loop. A backend that leaves is closed after its last call has ended.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import inf

from lbclient.background.tasks import AT_ONCE, Alarm, is_fatal
from lbclient.client.backend_context import BackendContext, Dial
from lbclient.client.backends.backend import Backend, Observe
from lbclient.client.backends.worker_endpoints import WorkerEndpoints
from lbclient.client.channel_context import ChannelContext
from lbclient.client.connect_pacer import ConnectPacer
from lbclient.client.health.udp import Prober
from lbclient.config.identity import home_zone
from lbclient.core.backends.crowding import Crowding
from lbclient.core.backends.pool import PRESENT, Change, Limits, Pool
from lbclient.core.model import Endpoint, Endpoints, State, Verdict
from lbclient.core.protocols import Subset
from lbclient.core.statistics.counters import Counters
from lbclient.core.text import brief
from lbclient.core.utilization import utilization_by
from lbclient.log import Log

logger = Log("lbclient.balancer")  # as documented, for the whole channel

MANY = 1_000_000  # endpoints; no list is longer

# Seconds for each backend between two reviews of the pool, which look at all of them:
# some 3 % of a core at most while a large subset is found or lost one by one.
REVIEW_PAUSE = 1e-4


class Connections:
    """Opens, drains and closes the connections of a channel. Owned by a balancer. Only
    read `pool`, and `draining`, by address.

    `reconcile` decides what to do, `carry_out` does it.
    """

    def __init__(
        self,
        context: ChannelContext,
        subset: Subset,
        dial: Dial,
        counters: Counters,
        observe: Observe,
        prober: Callable[[], Prober],
        returns: Callable[[Backend], None],
        leaves: Callable[[Backend], None],
    ) -> None:
        """`observe` hears of every change of a state, `leaves` of who starts to drain,
        `returns` of who is wanted again before that was over."""
        config = context.config
        self.subset = subset
        self.workers = WorkerEndpoints(
            context,
            self._reconcile_workers,
            self._backend_at,
            getattr(subset, "workers", lambda _, count: range(count)),
        )
        self.pool: Pool[Backend] = Pool(
            self._make,
            subset,
            Limits(
                MANY if config.subset == "whole" else config.subset_size,
                config.active_limit,
                config.replace_after,
                config.settle_after,
                config.max_replacements,
                config.max_connections,
            ),
            lambda backend: backend.lifecycle.is_away(),
            lambda backend: backend.lifecycle.is_expected_back(),
            lambda endpoint: self.workers.expand(endpoint),
        )
        self.draining: dict[str, Backend] = {}
        self._label = context.label
        self._loop = asyncio.get_running_loop()
        self._context = BackendContext(
            context.label,
            dial,
            ConnectPacer(context.rng),
            prober,
            context.clock,
            context.rng,
            config.health,
            config.health_interval,
            utilization_by(config.metric_names_for_computing_utilization),
            bool(config.udp_secret),
            home_zone(config),
            self.workers.hear,
        )
        self._clock = context.clock
        self._tasks = context.tasks
        self._turns = context.turns
        self._counters = counters
        self._observe = observe
        self._returns = returns
        self._leaves = leaves
        self._review = Alarm(context.tasks, self._review_pool)
        self._crowding = Crowding(context.rng)
        self._looked_at = -inf  # for crowds
        self._crowd_timer = Alarm(context.tasks, self._leave_crowds)

    # --- who is wanted --------------------------------------------------------

    def reconcile(self, endpoints: Endpoints) -> Change[Backend] | str:
        """What a new list of endpoints makes due; or, as text, why the subset algorithm
        failed: the subset then stays as it is."""
        nodes = self.pool.nodes
        self.workers.keep(endpoints)
        for endpoint in endpoints:
            for one in self.workers.expand(endpoint):
                if (backend := nodes.get(one.address)) is not None:
                    backend.set_leaving(one.lame_duck)
        try:
            return self.pool.reconcile(endpoints, self._clock())
        except BaseException as error:  # of a subset that is not ours, perhaps
            if is_fatal(error):
                raise
            words = "%s: subset algorithm raised; keeping the previous subset"
            logger.exception(words, self._label, channel=self._label, reason=error)
            return f"the subset algorithm raised {brief(error)}"

    def _reconcile_workers(self) -> None:
        """The workers of tasks are others than before."""
        change = self.reconcile(self.pool.endpoints)
        if not isinstance(change, str):
            self.carry_out(change)

    def _backend_at(self, address: str) -> Backend | None:
        return self.pool.nodes.get(address)

    def carry_out(self, change: Change[Backend]) -> None:
        self._do(change)
        self._review.set_unless_sooner(0.0)
        if change.opened:
            self._crowding.look_soon()
        self._look_for_crowds()

    def review_soon(self) -> None:
        """Reviews the pool at once with few backends, and less often with many."""
        if self.pool.wants_review():
            since = self._loop.time() - self._review.rang_at
            pause = REVIEW_PAUSE * len(self.pool.nodes)
            self._review.set_unless_sooner(max(0.0, pause - since))

    def _review_pool(self) -> None:
        now = self._clock()
        self._do(self.pool.review(now))
        if (due := self.pool.review_at(now)) is not None:
            self._review.set_unless_sooner(due - now)

    def resize(self, size: int) -> None:
        """Sets how many backends the subset has."""
        self.carry_out(self.pool.resize(size, self._clock()))

    def _look_for_crowds(self) -> None:
        """Looks for crowded backends later, if the subset is chosen by chance and there
        are other backends."""
        is_random = getattr(self.subset, "is_random", False)
        if is_random and len(self.pool.members) > self.pool.tasks():
            self._crowd_timer.set_unless_sooner(self._crowding.pause())

    def _leave_crowds(self) -> None:
        clients, now = {}, self._clock()
        is_random = getattr(self.subset, "is_random", False)
        if is_random and self.pool.is_complete(now):
            clients = self._take_clients()
        connected = self.pool.connected_since(self._looked_at)
        self._looked_at = now
        if leaving := self._crowding.to_leave(clients, connected):
            change = self.pool.avoid(leaving, now)
            opened = (b.endpoint.address for b in change.opened)
            self._crowding.replaced_by(map(self.pool.task_of, opened))
            self._do(change)
            self._review.set_unless_sooner(0.0)
        self._look_for_crowds()

    def _take_clients(self) -> dict[str, int]:
        """How many clients tasks have, as told since this was called last.

        Nothing until half of them have told it: who goes by old counts leaves a crowd
        that is none any more. Nor where most have no connection: few are no measure.
        """
        guests = self.pool.guests
        nodes = [one for at, one in self.pool.nodes.items() if at not in guests]
        clients: dict[str, int] = {}  # of a task those of its most crowded worker
        for node in nodes:
            count = node.reported.clients
            if count is not None and node.state is State.READY:
                task = self.pool.task_of(node.endpoint.address)
                clients[task] = max(count, clients.get(task, 0))
        if 2 * len(clients) < self.pool.tasks():
            return {}
        for node in nodes:
            node.reported.forget_clients()
        return clients

    def _do(self, change: Change[Backend]) -> None:
        for backend in change.opened:
            self._turns.do(partial(self._open, backend))
        for backend in change.drained:
            self.draining[backend.endpoint.address] = backend
            self._leaves(backend)
            self._turns.do(partial(self._drain, backend))
        if any(change):
            logger.about(
                logging.INFO,
                "%d connections opened, %d drained, %d replacements",
                len(change.opened),
                len(change.drained),
                self.pool.replacements(),
                channel=self._label,
            )

    # --- one backend ----------------------------------------------------------

    def _make(self, endpoint: Endpoint) -> Backend:
        known = self.draining.pop(endpoint.address, None)
        if known is not None:  # it comes back with all that we know
            known.keep()
            known.set_leaving(endpoint.lame_duck)
            self._returns(known)
            return known
        backend = Backend(
            endpoint,
            self._context,
            self._observe,
            self.has_others,
            self.may_others_answer,
        )
        backend.set_leaving(endpoint.lame_duck)
        return backend

    def _open(self, backend: Backend) -> None:
        if self.pool.has(backend) and backend not in self._tasks:
            self._tasks.keep(backend, backend.follow)

    def has_others(self, backend: Backend, that_answer_checks: bool = False) -> bool:
        """Whether calls that this one does not get have somewhere else to go; or, to
        others that answer health checks: where none does, checks tell nothing."""
        if that_answer_checks:
            return any(
                node.state in PRESENT and node.lifecycle.answers_checks()
                for node in self.pool.nodes.values()
                if node is not backend
            )
        counts = self.pool.counts
        others = counts[State.READY] + counts[State.INACTIVE]
        return others > (backend.state in PRESENT and self.pool.has(backend))

    def may_others_answer(self, backend: Backend) -> bool:
        """Whether another backend answers health checks, or has not been seen to be
        away or to refuse them."""
        return any(
            node.state is not State.REFUSING and not node.reported.refusals.of_health()
            for node in self.pool.nodes.values()
            if node is not backend
        )

    def miss_deadline(self, backend: Backend) -> None:
        """A call on it ended by its deadline."""
        if self.pool.has(backend):
            backend.miss_deadline(self.has_others(backend))

    def is_draining(self, backend: Backend) -> bool:
        return self.draining.get(backend.endpoint.address) is backend

    def _drain(self, backend: Backend) -> None:
        """Watches the backend until its last call is over, and then closes it."""
        if self.is_draining(backend):
            backend.drain()
            self._close_backend(backend)

    def call_left(self, backend: Backend) -> None:
        """A call is not there any more: closes who was drained but for it."""
        if backend.load.in_flight == 0 and self.is_draining(backend):
            # Not here: this runs inside a callback of the channel to be closed.
            self._loop.call_soon(self._close_backend, backend)

    def _close_backend(self, backend: Backend) -> None:
        if backend.load.in_flight == 0 and self.is_draining(backend):
            self._retire(backend)
            backend.close_now()

    def _retire(self, backend: Backend) -> None:
        self._tasks.drop(backend)
        del self.draining[backend.endpoint.address]
        self._counters.retire(backend.load.counts)

    # --- all of them ----------------------------------------------------------

    def attempts(self) -> dict[Verdict, int]:
        """How many have ended in each way; also from another thread."""
        backends = (*self.pool.nodes.values(), *list(self.draining.values()))
        return self._counters.attempts(backend.load.counts for backend in backends)

    def stop(self) -> None:
        self._review.clear()
        self._crowd_timer.clear()
        self.workers.stop()

    def drain_all(self) -> None:
        self._do(self.pool.reconcile((), self._clock()))

    async def close(self, grace: float | None) -> None:
        """Ends calls in flight after `grace`. Their tasks are over by now."""
        closing = []
        for number, backend in enumerate(self._all(), start=1):
            closing.append(self._loop.create_task(backend.close(grace)))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*closing)
        for backend in list(self.draining.values()):
            self._retire(backend)

    def close_at_once(self) -> None:
        """Ends calls in flight without waiting, also where `close` was cut short."""
        for backend in self._all():
            backend.close_at_once()
        for backend in list(self.draining.values()):
            self._retire(backend)

    def _all(self) -> tuple[Backend, ...]:
        return (*self.pool.nodes.values(), *self.draining.values())

    def __repr__(self) -> str:
        return f"<{self.pool!r}, {len(self.draining)} draining>"
