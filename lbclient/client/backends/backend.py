"""One endpoint that we talk to, as the balancer, pickers and statistics see it.

What happens to it is told to its lifecycle, which decides; what follows for the channel
is for its balancer. A backend wires the parts that do the I/O: `connection`, the files
of `health`, and `former_connections`. It has one task, `follow`, which the balancer
starts and cancels.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from lbclient.background.flag import Flag
from lbclient.background.interruptible import Interruptible
from lbclient.background.readers import readers_of
from lbclient.client.backend_context import BackendContext
from lbclient.client.backends.connection import Connection
from lbclient.client.backends.former_connections import FormerConnections
from lbclient.client.driver import Driver
from lbclient.client.health.health_backoff import HealthBackoff
from lbclient.client.health.ordered_checks import OrderedChecks
from lbclient.client.health.paced_watch import PacedWatch
from lbclient.client.health.unconnected import UnconnectedWatch
from lbclient.client.reported import Reported
from lbclient.core.backends.address import dialled
from lbclient.core.backends.condition import Condition
from lbclient.core.backends.connection_state import Order, Step
from lbclient.core.backends.demand import ReportInterval
from lbclient.core.backends.lifecycle import Lifecycle
from lbclient.core.backends.stream_permit import StreamPermit
from lbclient.core.load import Load
from lbclient.core.model import Endpoint, State, Verdict
from lbclient.grpc_seam import PINGED, close, close_at_once, give_up, lighten
from lbclient.grpc_seam.wakeups import read_together
from lbclient.log import Log, set_subject

logger = Log(__name__)

Observe = Callable[["Backend", State, str], None]

OVER = grpc.ChannelConnectivity.SHUTDOWN


class Backend:
    """A node of the pool. `endpoint` and `state` are written by the pool, the rest by
    itself.

    There is a `channel` from the first step of `follow` on. An inactive backend's is
    closed.
    """

    channel: grpc.aio.Channel

    def __init__(
        self,
        endpoint: Endpoint,
        context: BackendContext,
        observe: Observe,
        has_others: Callable[["Backend", bool], bool],
        may_others_answer: Callable[["Backend"], bool],
    ) -> None:
        """`observe` is told of each state that the lifecycle wants, and why.
        `has_others` and `may_others_answer` are as of `Connections`."""
        address, clock, interval = (
            endpoint.address,
            context.clock,
            context.health_interval,
        )
        self.endpoint = endpoint
        self.load = Load(context.utilization_of)
        self.lifecycle = Lifecycle(interval, context.rng)
        self.condition = Condition(clock())
        # Reports are asked for twice as often as silence is judged, so that one that
        # is late is no silence.
        self.report_interval = ReportInterval(interval / 2, clock())
        self.permit = StreamPermit()
        self._context = context
        self._observe = observe
        self._is_kept = Flag()  # not draining
        self._is_kept.set()
        self._job = Interruptible()
        driver = self._driver = Driver(
            self.lifecycle, self.load, clock, self._carry_out, self._job.interrupt
        )
        self.reported = Reported(
            context.label,
            address,
            driver,
            self.load,
            self.condition,
            clock,
            takes_sessions=not context.has_udp_secret,
            tell_workers=partial(context.hear_workers, address),
        )
        backoff = HealthBackoff(context.rng)
        self._checks = OrderedChecks(
            driver,
            self.reported,
            clock,
            self._dial_other,
            partial(has_others, self),
            backoff,
        )
        self._watch = PacedWatch(
            context,
            driver,
            self.reported,
            self.load,
            self.report_interval,
            self.permit,
            backoff,
            partial(may_others_answer, self),
        )
        self._former = FormerConnections(address, interval, self.load, clock)

    @property
    def _dialled(self) -> Endpoint:
        """Its endpoint without the number of a connection."""
        return replace(self.endpoint, address=dialled(self.endpoint.address))

    @property
    def state(self) -> State:
        return self.lifecycle.connection.state

    @state.setter
    def state(self, state: State) -> None:
        self.lifecycle.connection.state = state

    def ended_connections(self) -> int:
        """How many of its connections have ended. Calls that began before GOAWAY go on
        after that, for as long as the server lets them."""
        return self.lifecycle.connection.ended

    def tells_refusals(self) -> bool:
        """Whether gRPC's status for a refused stream proves that the call was not
        executed: it does for lbclient's servers, and just after the client ended a
        stream."""
        now = asyncio.get_running_loop().time()
        return self.reported.is_ours or self.permit.has_just_ended(now)

    # --- what happens to it ---------------------------------------------------

    def has_left_zone(self) -> bool:
        """Whether it is in another zone than its channel's calls should stay in."""
        zone = self._context.zone
        return bool(zone) and self.endpoint.zone != zone

    def set_leaving(self, is_leaving: bool) -> None:
        """Applies what the resolver says: the backend is about to leave, or is not any
        more."""
        self._driver.take(self.lifecycle.resolver_said(is_leaving))

    def connect(self) -> None:
        """A call may come: connects if no connection was wanted until now."""
        self._driver.take(self.lifecycle.wanted())

    def miss_deadline(self, has_others: bool) -> None:
        """Notes that a call on the backend missed its deadline; a health check may
        follow. `has_others`: other backends are ready."""
        now = self._context.clock()
        self._watch.hurry()
        served, doubts = self.load.counts[Verdict.SERVED], self.lifecycle.doubts
        self._driver.take(doubts.deadline_missed(served, has_others, now))

    def look(self, now: float) -> None:
        """Reviews the calls on the backend: sets the interval of its reports, and has a
        health check made if calls are not answered. Called at intervals."""
        self._watch.look(now)
        doubts = self.lifecycle.doubts
        self._driver.take(doubts.look_at_calls(*self.load.traffic(), now))

    def disconnect_idle(self, now: float) -> None:
        """Closes the connection, as nobody calls the backend."""
        idle, by_udp = now - self.report_interval.used_at, self.reported.udp_port > 0
        self._driver.take(self.lifecycle.became_idle(idle, now, by_udp))

    # --- what its lifecycle decides -------------------------------------------

    def _carry_out(self, decided: Step) -> None:
        # First what is to be done: to tell may lead to another decision.
        if decided.order is not None:
            self._obey(decided.order, decided.reason or self.condition.reason)
        if decided.state is not None:
            self._observe(self, decided.state, decided.reason)
        elif decided.reason and self.condition.stays(decided.reason):
            logger.about(
                logging.INFO,
                channel=self._context.label,
                backend=self.endpoint.address,
                state=self.state.value,
                reason=decided.reason,
            )

    def _obey(self, order: Order, reason: str) -> None:
        if order is Order.CHECK or order is Order.LOOK:
            self._checks.order(order)
            return
        self._checks.cancel_orders()
        self._job.interrupt()  # `follow` goes on with what is to be done now
        if order is Order.DISCONNECT:
            give_up(self.channel, f"{self.endpoint.address} was disconnected: {reason}")
        elif order is Order.CONNECT:
            self.channel = self._dial()
        else:
            self._replace(order is Order.REPLACE, reason)

    def _replace(self, may_be_full: bool, reason: str) -> None:
        """Dials again. The former connection may be dead, or full: it is left to the
        calls that are still on it."""
        if may_be_full and self._watch.has_spoken_since(self._checks.asked_at):
            # The stream lives, and beside it nothing was answered.
            now = asyncio.get_running_loop().time()
            self.permit.record_ended(1, self.load.in_flight, now)
            self.permit.suspend(now)
        former, self.channel = self.channel, self._dial()
        self._former.add(
            former, reason, lambda: may_be_full or not self.reported.is_ours
        )
        if self._is_kept.is_set():
            logger.about(
                logging.INFO,
                "dialling again",
                channel=self._context.label,
                backend=self.endpoint.address,
                reason=reason,
            )

    def dial_again(self, reason: str) -> None:
        """Makes another connection in place of one that is well, and had no calls."""
        if not self.lifecycle.is_connected() or not self._is_kept.is_set():
            return
        former, self.channel = self.channel, self._dial()
        if self.load.in_flight:  # on connections before it
            self._former.add(former, reason, lambda: True)
        else:
            give_up(former, f"{self.endpoint.address}: {reason}")
        self._checks.cancel_orders()
        self._job.interrupt()
        self._driver.take(self.lifecycle.connection_lost())

    def _dial(self) -> grpc.aio.Channel:
        channel = lighten(self._context.dial(self._dialled))
        loop = asyncio.get_running_loop()
        read_together(loop, readers_of(loop))
        return channel

    async def _dial_other(self) -> grpc.aio.Channel:
        await self._context.pacer.wait_turn()
        return self._context.dial(self._dialled, PINGED)

    # --- what it does meanwhile -----------------------------------------------

    async def follow(self) -> None:
        """Connects, follows, connects again, or watches from afar; until cancelled.

        While it drains it follows the connection that it has, and makes no other.
        Raises what makes it fail, and can then be begun again.
        """
        # For what follows its health.
        set_subject(channel=self._context.label, backend=self.endpoint.address)
        try:
            while True:
                # As a job, so that a ring that fails meanwhile is reported at once.
                while not (self._is_kept.is_set() or self.lifecycle.is_connected()):
                    await self._job.run(self._until_kept())
                self._redial_if_closed()
                self._driver.start()
                await self._job.run(self._next_job())
        finally:
            self._driver.stop()

    async def _until_kept(self) -> None:
        await self._is_kept.wait()

    def _redial_if_closed(self) -> None:
        """Dials at first, and again if somebody else has closed the channel."""
        is_dialled = hasattr(self, "channel")
        if is_dialled and (
            self.lifecycle.is_away() or self.channel.get_state() is not OVER
        ):
            return
        self.channel = self._dial()
        if is_dialled:
            words = "its channel was closed"
            label, address = self._context.label, self.endpoint.address
            logger.about(logging.WARNING, words, channel=label, backend=address)
            self._driver.take(self.lifecycle.connection_lost())

    def _next_job(self) -> Coroutine[Any, Any, None]:
        context, driver, checks = self._context, self._driver, self._checks
        if self.lifecycle.is_away():
            afar = UnconnectedWatch(
                self.endpoint, context, driver, self.reported, checks
            )
            return afar.follow()
        connection = Connection(
            self.channel,
            context,
            driver,
            self._watch,
            checks,
            self._is_kept,
            self._count_calls,
        )
        return connection.follow()

    def _count_calls(self) -> int:
        """How many are on the connection, as far as is known: with former ones, none is
        known to be."""
        return 0 if self._former else self.load.in_flight

    # --- its end --------------------------------------------------------------

    def drain(self) -> None:
        """Stops new calls and connections. The backend is watched until it is closed or
        kept."""
        self._is_kept.clear()
        if not self.lifecycle.is_connected():
            self._job.interrupt()

    def keep(self) -> None:
        """Takes back `drain`: the backend is wanted after all."""
        self._is_kept.set()

    def close_now(self) -> None:
        """Ends the connection, and as UNAVAILABLE the calls that are still on it."""
        self._former.end_all()
        if hasattr(self, "channel"):
            give_up(self.channel, f"{self.endpoint.address}: it was drained")

    def _channels(self) -> list[grpc.aio.Channel]:
        """All of them, former ones too, which the caller closes."""
        channels = self._former.release()
        if hasattr(self, "channel"):
            channels.append(self.channel)
        return channels

    async def close(self, grace: float | None) -> None:
        channels = self._channels()
        try:
            await asyncio.gather(*(close(channel, grace) for channel in channels))
        except BaseException:
            for channel in channels:
                close_at_once(channel)
            raise

    def close_at_once(self) -> None:
        for channel in self._channels():
            close_at_once(channel)

    def __repr__(self) -> str:
        return (
            f"<{self.endpoint.address} {self.state.value}, "
            f"{self.load.in_flight} in flight>"
        )
