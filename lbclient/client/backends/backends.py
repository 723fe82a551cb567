"""All backends of a channel: wires the modules of this folder together.

They work in the background; each change of a backend's state is handed on to them. No
call comes by here: `balancer` picks among the backends that are ready.
"""

from collections import Counter
from collections.abc import Callable

from lbclient.client.backend_context import Dial
from lbclient.client.backends.backend import Backend
from lbclient.client.backends.connections import Connections
from lbclient.client.backends.connectivity import IDLE, TRANSIENT_FAILURE, Connectivity
from lbclient.client.backends.discovery import Discovery
from lbclient.client.backends.idleness import Idleness
from lbclient.client.backends.outlier_detection import OutlierDetection
from lbclient.client.backends.slowdowns import Slowdowns
from lbclient.client.backends.state_changes import StateChanges
from lbclient.client.backends.subset_growth import SubsetGrowth
from lbclient.client.backends.worker_endpoints import DOUBLE, STRANGER
from lbclient.client.channel_context import ChannelContext
from lbclient.core.backends.pool import LOST
from lbclient.core.model import State
from lbclient.core.outliers.outliers import Outliers
from lbclient.core.protocols import Resolver, Subset
from lbclient.core.statistics.counters import Counters
from lbclient.grpc_seam import is_ready


class Backends:
    """Finds, connects, watches and wakes the backends of a channel. Owned by a
    balancer.

    `pool` knows their states, `outliers` which of them are ejected. `changed` is called
    once after the changes in one turn of the event loop; `has_ready` is as of `Waking`.
    """

    def __init__(
        self,
        context: ChannelContext,
        resolver: Resolver,
        subset: Subset,
        dial: Dial,
        counters: Counters,
        has_ready: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.tasks = context.tasks
        self.events = context.events
        self.is_stopped = False
        self._clock = context.clock
        self._changed = changed
        self._rest = context.rest
        self.connections = Connections(
            context,
            subset,
            dial,
            counters,
            observe=self.observe,
            prober=lambda: self.idleness.prober(),
            returns=lambda backend: self.idleness.waking.update(backend),
            leaves=self._leaves,
        )
        self.pool = self.connections.pool
        self.outliers = Outliers(
            self.pool, context.rng, ejects_late=context.config.eject_late
        )
        self.idleness = Idleness(
            context, self.connections, calls=counters.total, has_ready=has_ready
        )
        self.outlier_detection = OutlierDetection(
            context.label,
            self.outliers,
            counters.by_method,
            self.idleness.wake_a_second,
            context.events,
        )
        self.slowdowns = Slowdowns(context, lambda: self.pool.ready)
        self._growth = SubsetGrowth(context, self.connections)
        self._changes = StateChanges(context, self._follow_up)
        self.discovery = Discovery(
            context, resolver, self.connections, self._changes.follow_up_soon
        )
        self.connectivity = Connectivity(self.pool, self.discovery.has_answered)

    # --- changes ---------------------------------------------------------------

    def observe(self, backend: Backend, state: State, reason: str) -> None:
        """The one door for what a backend's connection and health say."""
        now = self._clock()
        before = backend.state
        if state is State.READY and self.connections.workers.is_stranger(backend):
            state, reason = State.REFUSING, STRANGER
        elif state is State.READY and self._is_double(backend):
            state, reason = State.REFUSING, DOUBLE
        if not self.pool.observe(backend, state, now):
            return
        backend.condition.changed(state, reason, now)
        self.outliers.changed(backend, now)
        self._changes.log(backend, before)
        if self.connections.is_draining(backend):
            return  # nobody waits for it
        if state is State.CONNECTING:
            backend.connect()  # a pick found it, a lame duck, without a connection
        self.connections.workers.changed(backend)
        self.idleness.update(backend)
        self._changes.follow_up_soon()

    def _is_double(self, backend: Backend) -> bool:
        workers = self.connections.workers
        return self.pool.has(backend) and workers.is_double(backend)

    def lost(self, backend: Backend, *, is_second: bool) -> None:
        """A pick found it without a connection. If it `is_second` of that pick, all are
        looked at: to find them one by one costs a new `ready` for each."""
        self._lost(backend)
        if is_second:
            for other in self.pool.ready:
                if not is_ready(other.channel):
                    self._lost(other)

    def _lost(self, backend: Backend) -> None:
        self.observe(backend, State.CONNECTING, "connection lost")

    def _leaves(self, backend: Backend) -> None:
        self.outliers.forget(backend)
        self.idleness.forget(backend)

    def _follow_up(self, changed: Counter[State]) -> None:
        if any(changed[state] for state in LOST):
            self.discovery.hint()
        if changed:
            self.connections.review_soon()
            self.idleness.look_soon()
            self.slowdowns.look_soon()
            self._growth.look_soon()
            if self._rest.is_on:
                self._rest.end()
        self.connectivity.changed()
        self._changed()

    def connect(self) -> None:
        """Wakes a backend if they all are inactive or refuse, as a call would."""
        if self.connectivity.state() in (IDLE, TRANSIENT_FAILURE):
            self.idleness.waking.wake(1)

    # --- the end -----------------------------------------------------------------

    def _stop(self) -> None:
        self.is_stopped = True
        self.discovery.stop()
        self._changes.stop()
        self.connections.stop()
        self.idleness.close()
        self.slowdowns.close()
        self._growth.close()

    def abort(self) -> None:
        """Ends without waiting what nobody is left for; calls in flight go on."""
        self._stop()
        self.tasks.cancel()
        self.connections.drain_all()

    def close_at_once(self) -> None:
        """Cancels the calls in flight, also where `close` was cut short."""
        self._stop()
        self.tasks.cancel()
        self.connections.close_at_once()
        self.connectivity.close()

    async def close(self, grace: float | None) -> None:
        """Cancels the calls in flight after `grace`."""
        self._stop()
        await self.tasks.close()
        await self.connections.close(grace)
        self.connectivity.close()

    def __repr__(self) -> str:
        return repr(self.pool)
