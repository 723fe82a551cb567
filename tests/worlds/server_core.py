"""The server's half of gRPC's core, in memory: connections, calls, GOAWAY."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from grpc._cython import cygrpc

from tests.worlds.client_core import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    REFUSED,
    UNAVAILABLE,
    WINDOW,
    ClientStream,
    Status,
    set_failure,
    set_result,
)
from tests.worlds.clock import ProcessLoop, Timer
from tests.worlds.network import Connection, Host

MOST_PENDING = 3000  # of the core, where no option says another number


class ServerStream:
    """One call in the core of a server."""

    def __init__(
        self,
        core: "ServerCore",
        connection: Connection,
        client: ClientStream,
        method: str,
        metadata: tuple[Any, ...],
        deadline: float | None,
    ) -> None:
        self.core = core
        self.connection = connection
        self.method = method
        self.metadata = metadata
        self.deadline = deadline
        self.is_over = False
        self.has_taken = False  # the process, by `request_call`
        self._client = client
        self._inbox: deque[bytes] = deque()
        self._is_half_closed = False
        self._was_cancelled = False
        self._for_message: deque[asyncio.Future[Any]] = deque()
        self._for_close: list[asyncio.Future[Any]] = []
        self._sending: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._unread = 0
        self._timer: Timer | None = None
        if deadline is not None:
            self._timer = core.clock.at(deadline, self._expire)

    # --- what comes from the client -------------------------------------------

    def got_message(self, message: bytes) -> None:
        self._inbox.append(message)
        self._hand_out()

    def half_closed(self) -> None:
        self._is_half_closed = True
        self._hand_out()

    def was_read(self, size: int) -> None:
        self._unread -= size
        self._go_on_sending()

    def cancelled_by_client(self) -> None:
        self._over(was_cancelled=True)

    # --- what the process asks -------------------------------------------------

    def message(self) -> "asyncio.Future[Any]":
        future = self._future()
        self._for_message.append(future)
        self._hand_out()
        return future

    def closed(self) -> "asyncio.Future[Any]":
        """Done when the call is over; whether it was cancelled."""
        future = self._future()
        if self.is_over:
            self._post(set_result, future, self._was_cancelled)
        else:
            self._for_close.append(future)
        return future

    def send_initial(self, metadata: tuple[Any, ...]) -> None:
        if not self.is_over:
            client = self._client
            self.connection.send_to_client(lambda: client.got_initial(metadata))

    def send(self, message: bytes) -> "asyncio.Future[Any]":
        future = self._future()
        if self.is_over:
            self._post(set_failure, future, "send message")
            return future
        client = self._client
        self._unread += len(message)
        self._sending.append((future, len(message)))
        self.connection.send_to_client(lambda: client.got_message(message))
        self._go_on_sending()
        return future

    def finish(self, status: Status) -> "asyncio.Future[Any]":
        future = self._future()
        if self.is_over:
            self._post(set_failure, future, "send status")
            return future
        client = self._client
        self.connection.send_to_client(lambda: client.got_trailers(status))
        self._over(was_cancelled=False)
        self._post(set_result, future, None)
        return future

    def reset(self, code: int, details: str) -> None:
        """Ends it without a word of a handler."""
        if not self.is_over:
            client = self._client
            self.connection.send_to_client(lambda: client.lost(code, details))
            self._over(was_cancelled=True)

    # ---------------------------------------------------------------------------

    def _expire(self) -> None:
        self.reset(DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _hand_out(self) -> None:
        while self._for_message and self._inbox and not self._was_cancelled:
            future = self._for_message.popleft()
            message = self._inbox.popleft()
            self._post(set_result, future, message)
            read = partial(self._client.was_read, len(message))
            self.connection.send_to_client(read)
        if self._is_half_closed or self.is_over:
            while self._for_message:
                self._post(set_result, self._for_message.popleft(), None)

    def _go_on_sending(self) -> None:
        while self._sending and self._unread - self._sending[0][1] <= WINDOW:
            self._post(set_result, self._sending.popleft()[0], None)

    def _over(self, was_cancelled: bool) -> None:
        if self.is_over:
            return
        self.is_over, self._was_cancelled = True, was_cancelled
        if self._timer is not None:
            self._timer.cancel()
        for future in self._for_close:
            self._post(set_result, future, was_cancelled)
        while self._sending:
            self._post(set_failure, self._sending.popleft()[0], "send message")
        self._for_close = []
        self._hand_out()
        self.core.forget(self)

    def _future(self) -> "asyncio.Future[Any]":
        return self.core.loop.create_future()

    def _post(self, do: Callable[..., None], *arguments: Any) -> None:
        if not self.core.is_dead:
            self.core.loop.call_soon(do, *arguments)


class ServerCore:
    """Connections and calls of one server process, which listens at these hosts."""

    def __init__(
        self, hosts: list[Host], loop: ProcessLoop, options: dict[str, Any]
    ) -> None:
        self._hosts = hosts
        self.loop = loop
        self.clock = loop.clock
        self.is_dead = False
        self.begun = 0  # calls that have arrived, as channelz counts them
        self.stopped_until = 0.0  # by SIGSTOP
        self.refuses_streams = False
        self.most_streams: int | None = options.get("grpc.max_concurrent_streams")
        self._most_pending = options.get(
            "grpc.server.max_pending_requests_hard_limit", MOST_PENDING
        )
        self._connections: dict[Connection, None] = {}
        self._streams: dict[ServerStream, None] = {}
        self._pending: deque[ServerStream] = deque()
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._is_leaving = False
        self._all_over: asyncio.Future[None] | None = None

    def is_stopped(self) -> bool:
        return self.clock.now < self.stopped_until

    def listen(self) -> None:
        for host in self._hosts:
            host.listeners[self] = None
            host.cores.append(self)

    def _stop_listening(self) -> None:
        for host in self._hosts:
            host.listeners.pop(self, None)

    # --- what happens to it ------------------------------------------------------

    def accept(self, connection: Connection) -> None:
        self._connections[connection] = None

    def connection_over(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        for stream in [one for one in self._streams if one.connection is connection]:
            stream.cancelled_by_client()

    def arrived(
        self,
        connection: Connection,
        client: ClientStream,
        method: str,
        metadata: tuple[Any, ...],
        deadline: float | None,
    ) -> None:
        if connection.refuses:
            return  # above the last one that was named with GOAWAY
        connection.last_number = client.number
        if self.refuses_streams:
            connection.send_to_client(lambda: client.lost(UNAVAILABLE, REFUSED))
            return
        self.begun += 1
        stream = ServerStream(self, connection, client, method, metadata, deadline)
        client.peer = stream
        self._streams[stream] = None
        if self._is_leaving or len(self._pending) >= self._most_pending:
            stream.reset(CANCELLED, "CANCELLED")
            return
        self._pending.append(stream)
        self._hand_over()

    def forget(self, stream: ServerStream) -> None:
        self._streams.pop(stream, None)
        self._see_whether_over()

    def stop(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        self.stopped_until = max(self.stopped_until, self.clock.now + seconds)
        self.loop.block(seconds)
        for host in self._hosts:
            self.clock.at(self.stopped_until, host.changed)

    def die(self, with_machine: bool = False) -> None:
        self.is_dead = True
        self._stop_listening()
        for connection in list(self._connections):
            if with_machine:
                connection.vanish_at_server()
            else:
                connection.close_at_server()

    def say_goaway(self, is_abrupt: bool) -> None:
        """On every connection. Abrupt: what has not arrived is not served."""
        for connection in list(self._connections):
            last = connection.last_number if is_abrupt else None
            connection.refuses = is_abrupt
            self._tell_goaway(connection, last)

    def _tell_goaway(self, connection: Connection, last: int | None) -> None:
        def tell() -> None:
            connection.client.goaway(connection, last)

        connection.send_to_client(tell)

    # --- what the process asks ---------------------------------------------------

    def ask(self) -> "asyncio.Future[Any]":
        future = self.loop.create_future()
        if self._is_leaving:
            self.loop.call_soon(_fail_request, future)
        else:
            self._asked.append(future)
            self._hand_over()
        return future

    def _hand_over(self) -> None:
        while self._asked and self._pending:
            future, stream = self._asked.popleft(), self._pending.popleft()
            if future.done():
                self._pending.appendleft(stream)
            else:
                stream.has_taken = True
                self.loop.call_soon(set_result, future, stream)

    def leave(self) -> "asyncio.Future[None]":
        """No new calls; done when the last is over."""
        self._is_leaving = True
        self._stop_listening()
        self._all_over = over = self.loop.create_future()
        asked, self._asked = self._asked, deque()
        for future in asked:
            self.loop.call_soon(_fail_request, future)
        for connection in self._connections:
            self._tell_goaway(connection, None)
        while self._pending:
            self._pending.popleft().reset(CANCELLED, "CANCELLED")
        self._see_whether_over()
        return over

    def cancel_all(self) -> None:
        for stream in list(self._streams):
            stream.reset(UNAVAILABLE, "Cancelling all calls")

    def _see_whether_over(self) -> None:
        future = self._all_over
        if future is not None and not self._streams and not self.is_dead:
            self._all_over = None
            self.loop.call_soon(set_result, future, None)
            for connection in list(self._connections):
                connection.close_at_server()


def _fail_request(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(cygrpc._RequestCallError("the server stops"))
