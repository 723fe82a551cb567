"""What a channel tells of itself as `grpc.ChannelConnectivity`, and when it changes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from lbclient.core.backends.pool import Pool
from lbclient.core.model import State

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

SHUTDOWN = grpc.ChannelConnectivity.SHUTDOWN
READY, CONNECTING = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING
IDLE = grpc.ChannelConnectivity.IDLE
TRANSIENT_FAILURE = grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Connectivity:
    """Tells the channel's state as `grpc.ChannelConnectivity`, and waits for its
    changes. Owned by a balancer, which reports changes. Reads the pool as it is.

    `has_answer` says whether the resolver has answered yet.
    """

    def __init__(self, pool: Pool["Backend"], has_answer: Callable[[], bool]) -> None:
        self._pool = pool
        self._has_answer = has_answer
        self._told = CONNECTING  # last
        self._changes: dict[asyncio.Future[None], None] = {}

    def state(self) -> grpc.ChannelConnectivity:
        """READY if one backend is; else connecting if one may become so."""
        if self._told is SHUTDOWN:
            return SHUTDOWN
        if self._is_any_present(State.READY, State.LAME_DUCK):
            return READY
        is_coming = self._is_any_present(State.CONNECTING, State.STARTING)
        if is_coming or not self._has_answer():
            return CONNECTING
        return IDLE if self._pool.is_promising() else TRANSIENT_FAILURE

    def _is_any_present(self, *states: State) -> bool:
        """Whether one has a connection, or is to have one, and is in such a state."""
        counts = self._pool.counts
        if not any(counts[state] for state in states):
            return False
        # One that is ready, or connecting, is not away; for others all are looked at.
        if counts[State.READY] and State.READY in states:
            return True
        nodes = self._pool.nodes.values()
        return any(
            node.state in states and not node.lifecycle.is_away() for node in nodes
        )

    def changed(self) -> None:
        """Recomputes the channel's state, and wakes the waiters if it changed. Called
        after a backend's state changed or the resolver answered."""
        state = self.state()
        if state is not self._told:
            self._tell(state)

    async def wait_for_change(self, last: grpc.ChannelConnectivity) -> None:
        """Returns when it is another; also when the channel is closed."""
        while self.state() is last:
            change = asyncio.get_running_loop().create_future()
            self._changes[change] = None
            try:
                await change
            finally:
                self._changes.pop(change, None)

    def close(self) -> None:
        self._tell(SHUTDOWN)

    def _tell(self, state: grpc.ChannelConnectivity) -> None:
        self._told = state
        for change in list(self._changes):
            if not change.done():
                change.set_result(None)

    def __repr__(self) -> str:
        return f"<{self.state().name}, {len(self._changes)} wait for another>"
