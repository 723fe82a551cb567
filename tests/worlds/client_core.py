"""The client's half of gRPC's core, in memory: a channel to one address, its streams.

By pick_first; there is no TLS, no name to resolve, no idle timeout.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import grpc
from grpc._cython import cygrpc

from tests.worlds.clock import Clock, ProcessLoop, Timer
from tests.worlds.network import Connection, Host, Network

State = grpc.ChannelConnectivity
IDLE: int = State.IDLE.value[0]
CONNECTING: int = State.CONNECTING.value[0]
READY: int = State.READY.value[0]
FAILING: int = State.TRANSIENT_FAILURE.value[0]
OVER: int = State.SHUTDOWN.value[0]
UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]
CANCELLED: int = grpc.StatusCode.CANCELLED.value[0]
DEADLINE_EXCEEDED: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]

WINDOW = 65536  # bytes of one stream that are sent and not read
LEFT_OUT = "GOAWAY received; Error code: 2; Debug Text: left"
REFUSED = "Received RST_STREAM with error code 7"
TIMED_OUT = "Timeout occurred: FD Shutdown"
GROWTH, JITTER = 1.6, 0.2  # gRPC's connection backoff

Status = tuple[int, str, tuple[Any, ...]]


def set_result(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def set_failure(future: "asyncio.Future[Any]", what: str) -> None:
    if not future.done():
        words = f'Failed "execute_batch": {what}'
        future.set_exception(cygrpc.ExecuteBatchError(words))
        future.exception()  # it may be a part of a batch, of which nobody hears


class ClientStream:
    """One call in the core of a client: what was sent and received, and its end."""

    def __init__(
        self, core: "ClientCore", method: str, deadline: float | None, waits: bool
    ) -> None:
        self.core = core
        self.method = method
        self.deadline = deadline  # by the world's clock
        self.waits_for_ready = waits
        self.metadata: tuple[Any, ...] = ()
        self.status: Status | None = None
        self.connection: Connection | None = None
        self.number = 0
        self.peer: Any = None  # the server's half, once it has come there
        self._initial: tuple[Any, ...] | None = None
        self._inbox: deque[bytes] = deque()
        self._trailers: Status | None = None  # not yet told: messages come first
        self._for_initial: list[asyncio.Future[Any]] = []
        self._for_message: deque[asyncio.Future[Any]] = deque()
        self._for_status: list[asyncio.Future[Any]] = []
        self._outbox: list[Callable[[], None]] = []  # before there is a connection
        self._sending: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._unread = 0  # bytes, on the other side
        self._timer: Timer | None = None

    # --- what is asked, from the process ----------------------------------------

    def begin(self, metadata: tuple[Any, ...]) -> None:
        self.metadata = metadata
        clock = self.core.clock
        if self.deadline is not None and self.status is None:
            self._timer = clock.at(self.deadline, self._expire)
        if self.status is None:
            self.core.begin(self)

    def send(self, message: bytes) -> "asyncio.Future[Any]":
        future = self._future()
        if self.status is not None:
            self._fail(future, "send message")
            return future
        self._sending.append((future, len(message)))
        self._do(lambda: self._put(message))
        return future

    def send_nothing(self) -> "asyncio.Future[Any]":
        """Done when the stream has a connection."""
        future = self._future()
        if self.status is not None:
            self._fail(future, "send initial metadata")
            return future
        self._sending.append((future, -1))
        self._do(self._sent)
        return future

    def close(self) -> "asyncio.Future[Any]":
        future = self._future()
        if self.status is not None:
            self._fail(future, "send close")
            return future
        self._do(lambda: self._pass(lambda peer: peer.half_closed()))
        self._post(set_result, future, None)
        return future

    def initial(self) -> "asyncio.Future[Any]":
        future = self._future()
        if self._initial is not None:
            self._post(set_result, future, self._initial)
        elif self.status is not None:
            self._fail(future, "receive initial metadata")
        else:
            self._for_initial.append(future)
        return future

    def message(self) -> "asyncio.Future[Any]":
        """A message, or None at the end."""
        future = self._future()
        self._for_message.append(future)
        self._hand_out()
        return future

    def end(self) -> "asyncio.Future[Any]":
        future = self._future()
        if self.status is not None:
            self._post(set_result, future, self.status)
        else:
            self._for_status.append(future)
        return future

    def cancel(self, details: str) -> None:
        self._reset((CANCELLED, details, ()))

    # --- what comes from the connection ------------------------------------------

    def connected(self, connection: Connection, number: int) -> None:
        """It is sent on its way."""
        self.connection, self.number = connection, number
        connection.streams[number] = self
        self.core.network.begins(self.core.host.address, self.method)
        method, metadata, deadline = self.method, self.metadata, self.deadline

        def arrive() -> None:
            connection.server.arrived(connection, self, method, metadata, deadline)

        connection.send_to_server(arrive)
        outbox, self._outbox = self._outbox, []
        for do in outbox:
            do()

    def got_initial(self, metadata: tuple[Any, ...]) -> None:
        if self._initial is None and self.status is None:
            self._initial = metadata
            waiting, self._for_initial = self._for_initial, []
            for future in waiting:
                self._post(set_result, future, metadata)

    def got_message(self, message: bytes) -> None:
        if self.status is None:
            self._inbox.append(message)
            self._hand_out()

    def got_trailers(self, status: Status) -> None:
        if self.status is None:
            self._trailers = status
            self.got_initial(())
            self._hand_out()

    def was_read(self, size: int) -> None:
        self._unread -= size
        self._sent()

    def lost(self, code: int, details: str) -> None:
        """The connection, or the stream, is over without a word of a handler."""
        self._end((code, details, ()))

    # -----------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while self._for_message and self._inbox:
            future = self._for_message.popleft()
            if future.done():
                continue
            message = self._inbox.popleft()
            self._post(set_result, future, message)
            self._pass(methodcaller("was_read", len(message)))
        if self._trailers is not None and not self._inbox:
            trailers, self._trailers = self._trailers, None
            self._end(trailers)
        if self.status is not None:
            while self._for_message:
                self._post(set_result, self._for_message.popleft(), None)

    def _expire(self) -> None:
        self._reset((DEADLINE_EXCEEDED, "Deadline Exceeded", ()))

    def _reset(self, status: Status) -> None:
        if self.status is None:
            self._pass(lambda peer: peer.cancelled_by_client())
            self._end(status)

    def _end(self, status: Status) -> None:
        """Tells all who wait for something, in the order in which gRPC does."""
        if self.status is not None:
            return
        self.status = status
        self._inbox.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.core.forget(self)
        for future in self._for_initial:
            self._fail(future, "receive initial metadata")
        sending, self._sending = self._sending, deque()
        for future, _ in sending:
            self._fail(future, "send message")
        while self._for_message:
            self._post(set_result, self._for_message.popleft(), None)
        for future in self._for_status:
            self._post(set_result, future, status)
        self._for_initial, self._for_status, self._outbox = [], [], []

    def _do(self, do: Callable[[], None]) -> None:
        if self.connection is None:
            self._outbox.append(do)
        else:
            do()

    def _put(self, message: bytes) -> None:
        self._unread += len(message)
        self._pass(lambda peer: peer.got_message(message))
        self._sent()

    def _sent(self) -> None:
        while self._sending and self._unread - self._sending[0][1] <= WINDOW:
            future, _ = self._sending.popleft()
            self._post(set_result, future, None)

    def _pass(self, do: Callable[[Any], None]) -> None:
        """To the other half, if that exists when this arrives."""
        if self.connection is not None:
            self.connection.send_to_server(partial(self._at_peer, do))

    def _at_peer(self, do: Callable[[Any], None]) -> None:
        if self.peer is not None:
            do(self.peer)

    def _future(self) -> "asyncio.Future[Any]":
        return self.core.loop.create_future()

    def _post(self, do: Callable[..., None], *arguments: Any) -> None:
        self.core.loop.call_soon(do, *arguments)

    def _fail(self, future: "asyncio.Future[Any]", what: str) -> None:
        self._post(set_failure, future, what)


class ClientCore:
    """One channel to one address: IDLE, CONNECTING, READY, or TRANSIENT_FAILURE, which
    lasts until it is READY (gRFC A62)."""

    def __init__(
        self, network: Network, loop: ProcessLoop, host: Host, options: dict[str, Any]
    ) -> None:
        self.network = network
        self.clock: Clock = network.clock
        self.loop = loop
        self.host = host
        self.state = IDLE
        self.connection: Connection | None = None
        self._rng = host.link._rng
        self._queued: dict[ClientStream, None] = {}
        self._live: dict[ClientStream, None] = {}
        self._next_number = 1
        self._watchers: list[tuple[int, asyncio.Future[Any]]] = []
        self._is_closed = False
        self._attempt: object | None = None
        milliseconds = {key: value for key, value in options.items() if "_ms" in key}
        self._backoff = milliseconds.get("grpc.initial_reconnect_backoff_ms", 1000)
        self._first_backoff = self._backoff
        self._most_backoff = milliseconds.get("grpc.max_reconnect_backoff_ms", 120_000)
        self._patience = milliseconds.get("grpc.min_reconnect_backoff_ms", 20_000)
        self._keepalive = milliseconds.get("grpc.keepalive_time_ms")
        self._ping = milliseconds.get(
            "grpc.http2.ping_timeout_ms",
            milliseconds.get("grpc.keepalive_timeout_ms", 20_000),
        )
        self.user_timeout: float | None = None
        if self._keepalive is not None:
            patience = milliseconds.get("grpc.keepalive_timeout_ms", 20_000)
            self.user_timeout = patience / 1000

    def is_stopped(self) -> bool:
        return False

    # --- states -----------------------------------------------------------------

    def enter(self, state: int) -> None:
        if self.state == state:
            return
        self.state = state
        watchers, self._watchers = self._watchers, []
        for last, future in watchers:
            if last != state:
                self.loop.call_soon(set_result, future, True)
            else:
                self._watchers.append((last, future))

    def watch(self, last: int) -> "asyncio.Future[Any]":
        future = self.loop.create_future()
        if last != self.state:
            self.loop.call_soon(set_result, future, True)
        else:
            self._watchers.append((last, future))
        return future

    def connect(self) -> None:
        if self.state == IDLE:
            self.enter(CONNECTING)
            self._dial()

    def _dial(self) -> None:
        """One attempt; it fails by a refusal, or by time."""
        attempt = self._attempt = object()
        self.network.dials(self.host.address)
        began_at, host = self.clock.now, self.host
        give_up = self.clock.after(
            self._patience / 1000, lambda: self._failed(attempt, began_at, TIMED_OUT)
        )

        def arrive() -> None:
            if self._attempt is not attempt:
                return
            if not host.is_reachable():
                return  # nobody answers
            server = host.accepting()
            if server is None:
                delay = host.link.takes()
                refused = "Failed to connect to remote host: Connection refused"
                self.clock.after(
                    delay, lambda: self._failed(attempt, began_at, refused)
                )
                return
            greet(server)

        def greet(server: Any) -> None:
            """The kernel has accepted; the other core must speak."""
            if server.is_stopped():
                self.clock.after(0.05, lambda: greet(server))
                return
            self.clock.after(host.link.takes(), lambda: established(server))

        def established(server: Any) -> None:
            if self._attempt is not attempt or not host.is_reachable():
                return
            if server not in host.listeners:
                self._failed(attempt, began_at, "Socket closed")
                return
            give_up.cancel()
            self._established(Connection(self.network, host, self, server))

        self.clock.after(host.link.takes(), arrive)

    def _established(self, connection: Connection) -> None:
        self._attempt = None
        self._backoff = self._first_backoff
        self.connection = connection
        if self._keepalive is not None:
            connection.keep_alive(self._keepalive / 1000, self._ping / 1000)
        self.enter(READY)
        self._send_queued()

    def _send_queued(self) -> None:
        connection = self.connection
        while connection is not None and self._queued:
            most = connection.server.most_streams if connection.server else None
            if most is not None and len(connection.streams) >= most:
                return
            stream = next(iter(self._queued))
            del self._queued[stream]
            number, self._next_number = self._next_number, self._next_number + 2
            stream.connected(connection, number)

    def _failed(self, attempt: object, began_at: float, why: str) -> None:
        if self._attempt is not attempt:
            return
        self._attempt = None
        backoff = self._backoff / 1000 * (1 + JITTER * (2 * self._rng.random() - 1))
        self._backoff = min(self._backoff * GROWTH, self._most_backoff)
        self.enter(FAILING)
        address = self.host.address
        words = (
            "failed to connect to all addresses; last error: UNKNOWN: "
            f"ipv4:{address}: {why}"
        )
        for stream in [one for one in self._queued if not one.waits_for_ready]:
            stream.lost(UNAVAILABLE, words)
        self._last_words = words
        pause = max(0.0, began_at + backoff - self.clock.now)
        self.clock.after(pause, self._again)

    def _again(self) -> None:
        if self.state == FAILING and self._attempt is None and not self._is_closed:
            self._dial()

    # --- calls ------------------------------------------------------------------

    def begin(self, stream: ClientStream) -> None:
        self._live[stream] = None
        if self.state == FAILING and not stream.waits_for_ready:
            stream.lost(UNAVAILABLE, self._last_words)
            return
        self._queued[stream] = None
        self.connect()
        self._send_queued()

    def forget(self, stream: ClientStream) -> None:
        self._live.pop(stream, None)
        self._queued.pop(stream, None)
        connection = stream.connection
        if connection is not None:
            connection.streams.pop(stream.number, None)
            self._send_queued()
            self._let_go(connection)

    def _let_go(self, connection: Connection) -> None:
        is_old = connection is not self.connection or self._is_closed
        if is_old and not connection.streams:
            if self.connection is connection:
                self.connection = None
            connection.close_at_client("closed")

    def close(self) -> None:
        self._is_closed = True
        self._attempt = None
        self.enter(OVER)
        for stream in list(self._queued):
            stream.lost(UNAVAILABLE, "Channel closed")
        if self.connection is not None:
            self._let_go(self.connection)

    # --- what a connection tells ---------------------------------------------------

    def goaway(self, connection: Connection, last: int | None) -> None:
        """No new streams; those above `last` were never seen."""
        connection.is_leaving = True
        if self.connection is connection:
            self.connection = None
            if not self._is_closed:
                self.enter(IDLE)
        if last is not None:
            for number, stream in sorted(connection.streams.items()):
                if number > last:
                    stream.lost(UNAVAILABLE, LEFT_OUT)
        if self._queued and not self._is_closed:
            self.connect()
        self._let_go(connection)

    def connection_over(self, connection: Connection, why: str) -> None:
        if self.connection is connection:
            self.connection = None
            if not self._is_closed:
                self.enter(IDLE)
        for stream in list(connection.streams.values()):
            stream.lost(UNAVAILABLE, why or "Socket closed")
        connection.streams.clear()
        if self._queued and not self._is_closed:
            self.connect()
