"""The drop-in for `grpc.aio.Channel`: its interface, its lifecycle, no decisions.

Constructing one does no I/O. It binds to the event loop of its first use, which is
also when it starts to resolve and to connect.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import cache
from random import Random
from threading import get_ident
from typing import Any, Self, TypeVar

import grpc

from lbclient import client
from lbclient.background.forks import has_ended
from lbclient.client import methods
from lbclient.client.balancer import Balancer
from lbclient.client.channel_context import channel_context
from lbclient.client.channel_parts import parts_of
from lbclient.client.observers import Observers
from lbclient.config import ChannelConfig
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Clock, Resolver
from lbclient.core.statistics.call_times import CallTimes, Trace
from lbclient.core.statistics.recent import Recent
from lbclient.core.statistics.registry import CHANNELS
from lbclient.core.text import is_printable
from lbclient.core.uncopied import Uncopied
from lbclient.grpc_seam import (
    Options,
)
from lbclient.pickers.scheduler_updates import SchedulerUpdates

M = TypeVar("M", bound=methods.StubMethod)

MOST_NAME = 100  # characters; a label of metrics has at most 200

KINDS = {
    "unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "stream_stream": grpc.aio.StreamStreamClientInterceptor,
}


def _method(kind: type[M], requests: str, responses: str) -> Callable[..., M]:
    def make(
        self: "Channel",
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> M:
        return kind(
            self.balancer,
            method if isinstance(method, str) else method.decode(),
            request_serializer,
            response_deserializer,
            bool(_registered_method),
            self._interceptors[kind.kind],
        )

    make.__name__ = kind.kind
    make.__doc__ = (
        f"Returns a callable for a method with {requests} and {responses}, "
        f"like `grpc.aio.Channel.{kind.kind}`."
    )
    return make


class Channel(Uncopied, grpc.aio.Channel):
    """A channel that sends each call to the most suitable backend of `target`.

    `target` is what `grpc.aio.insecure_channel` takes (`dns:///name:port`, `host:port`,
    `ipv4:...`, `ipv6:...`, `unix:...`), or a `Resolver`. Raises ConfigError for an
    invalid target, option or setting.
    """

    def __init__(
        self,
        target: str | Resolver,
        credentials: grpc.ChannelCredentials | None,
        options: Options | None,
        compression: grpc.Compression | None,
        interceptors: Sequence[grpc.aio.ClientInterceptor] | None,
        config: ChannelConfig | None,
        clock: Clock = time.monotonic,
        name: str = "",
    ) -> None:
        _check_name(name)
        if config is None:
            key = target if isinstance(target, str) else ""
            config = ChannelConfig.from_environment(target=key, name=name)
        if not isinstance(config, ChannelConfig):
            raise ConfigError("config", type(config), "a ChannelConfig")
        rng = Random(config.seed)
        parts = parts_of(target, credentials, options, compression, config, rng)
        self._target = parts.target
        self._name = name
        self._interceptors = _by_kind(interceptors or ())
        self._is_closed = False
        self._begun = asyncio.Event()  # first used, or closed
        self._balancer: Balancer | None = None
        self._observers = observers = Observers()
        self._clock = clock
        self._viewed: Recent | None = None  # by a view of a page before the first call
        label = self._label()  # a function that knew `self` would keep us alive
        self._make_balancer: Callable[[], Balancer] = lambda: Balancer(
            channel_context(label, config, clock, rng),
            parts.resolver,
            parts.subset,
            parts.make_picker(),
            parts.dial,
            parts.spillover,
            observers,
        )
        self._config = config
        self._number = CHANNELS.enter(self)
        _watch_forks()

    def balancer(self) -> Balancer:
        """Returns the working half, which starts on first use.

        Raises UsageError after close, and RuntimeError outside of the event loop
        that the channel belongs to.
        """
        balancer = self._balancer
        if balancer is None:
            if self._is_closed:
                raise grpc.aio.UsageError("Channel is closed.")
            # Its tasks outlive the request within which it is first used.
            self._balancer = balancer = Context().run(self._make_balancer)
            balancer.picks.recent = self._viewed
            self._begun.set()
        elif not balancer.loop.is_running() or get_ident() != balancer.thread:
            # What `get_running_loop` would tell, by a system call at every call.
            raise RuntimeError(
                "this channel belongs to another event loop: make one channel a loop"
            )
        elif self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        return balancer

    def _forked(self) -> None:
        """Refuses calls in the child of a fork, if the channel was used before it:
        gRPC's threads and connections are the parent's."""
        if self._balancer is None:
            return
        parent = os.getppid()

        def refuse() -> Balancer:
            raise RuntimeError(
                f"this channel was used before a fork, by process {parent}, which gRPC "
                "does not survive: fork first, then use channels, in each child its own"
            )

        _USED_BEFORE_FORK.append(self._balancer)
        self._balancer = None
        self._make_balancer = refuse

    def statistics(self) -> "client.records.ChannelStatistics":
        """Returns what the channel knows and has done, as an immutable snapshot.

        Reading changes nothing, also from another thread, before the first use and
        after close.
        """
        # Of records, which take a while to make.
        from lbclient.client.statistics import channel_statistics
        from lbclient.core.statistics.records import ChannelStatistics

        if self._balancer is None:
            state = self.get_state().name.lower()
            return ChannelStatistics(self._target, state, name=self._name)
        return channel_statistics(self._balancer, self._target, self._name)

    def _keep_times(
        self, find_trace: Callable[[], Trace | None], measures: bool
    ) -> CallTimes:
        """How long its calls and attempts take, from now on; for metrics. `measures`:
        also how large messages are."""
        return self._observers.keep_times(find_trace, measures)

    def _keep_picks(self) -> Recent:
        """Returns recent picks and latencies, and keeps them for a minute from now on,
        also those of a first call that comes later."""
        if self._balancer is not None:
            return self._balancer.picks.keep()
        self._viewed = Recent.keep(self._viewed, self._clock())
        return self._viewed

    def _scheduler_updates(self) -> tuple[SchedulerUpdates, ...]:
        """What its picker counts if it is weighted round robin; for metrics."""
        if self._balancer is None:
            return ()
        each = self._balancer.pickers.each()
        found = (getattr(one, "updates", None) for one in each)
        return tuple(one for one in found if isinstance(one, SchedulerUpdates))

    def _label(self) -> str:
        return self._name or self._target

    def __repr__(self) -> str:
        known = "" if self._balancer is None else f": {self._balancer.pool!r}"
        state = self.get_state().name.lower().replace("_", " ")
        name = f"{self._name!r} " if self._name else ""
        return f"<lbclient channel {name}to {self._target}, {state}{known}>"

    # --- the interface of grpc.aio.Channel ------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        if grace is not None and grace < 0:
            raise ValueError(f"grace must be non-negative, got {grace}.")
        if self._is_closed:
            return
        self._is_closed = True
        self._begun.set()
        try:
            if self._balancer is not None:
                await self._balancer.close(grace)
        finally:
            if self._balancer is not None:
                has_ended(self._balancer)
            CHANNELS.leave(self._number)

    def __del__(self) -> None:
        balancer = self.__dict__.get("_balancer")
        if balancer is not None and not self._is_closed:
            self._is_closed = True
            has_ended(balancer)
            with suppress(RuntimeError):  # it is closed, perhaps by another thread
                balancer.loop.call_soon_threadsafe(balancer.abort)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        known = self._balancer
        # As grpc.aio does, it tells what was before it tried.
        state = (
            grpc.ChannelConnectivity.IDLE
            if known is None
            else known.backends.connectivity.state()
        )
        if try_to_connect:
            self.balancer().backends.connect()
        return state

    async def wait_for_state_change(
        self, last_observed_state: grpc.ChannelConnectivity
    ) -> None:
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        if self.get_state() is not last_observed_state:
            return
        if self._balancer is None:
            await self._begun.wait()  # to wait is no use: it does not connect
        else:
            connectivity = self.balancer().backends.connectivity
            await connectivity.wait_for_change(last_observed_state)

    async def channel_ready(self) -> None:
        while (state := self.get_state(True)) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(state)

    unary_unary = _method(methods.UnaryUnary, "one request", "one response")
    unary_stream = _method(methods.UnaryStream, "one request", "a stream of responses")
    stream_unary = _method(methods.StreamUnary, "a stream of requests", "one response")
    stream_stream = _method(
        methods.StreamStream, "a stream of requests", "a stream of responses"
    )


_USED_BEFORE_FORK: list[Balancer] = []
"""Those used before a fork. The child keeps them: to collect one would wait for threads
that it does not have."""


@cache
def _watch_forks() -> None:
    def forked() -> None:
        for _, channel in CHANNELS.present():
            if isinstance(channel, Channel):
                channel._forked()

    os.register_at_fork(after_in_child=forked)


def _check_name(name: Any) -> None:
    is_text = isinstance(name, str) and len(name) <= MOST_NAME and is_printable(name)
    if not is_text or name.strip() != name:
        want = f"text, at most {MOST_NAME} printable characters, no space around it"
        raise ConfigError("name", name, want)


def _by_kind(interceptors: Sequence[object]) -> dict[str, list[Any]]:
    """Sorts interceptors as grpc.aio does: each into the first kind that it is."""
    by_kind: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for interceptor in interceptors:
        for kind, base in KINDS.items():
            if isinstance(interceptor, base):
                by_kind[kind].append(interceptor)
                break
        else:
            names = " or ".join(base.__name__ for base in KINDS.values())
            raise ValueError(f"Interceptor {interceptor} must be {names}.")
    return by_kind
