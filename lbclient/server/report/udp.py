"""Answers UDP health checks, and tells those who asked lately that this task leaves.

So an inactive client, one without a connection, hears of a lame duck as soon as the
others (SRE book, ch. 20). Anybody may send us anything: what is no sound probe is
counted and dropped; answers are limited in number, and no larger than what they
answer; all that is remembered of peers is one bounded list, for the news.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar, cast

from lbclient.core.counting.allowance import Allowance
from lbclient.core.model import LoadReport, TaskState
from lbclient.core.protocols import Clock
from lbclient.log import Log
from lbclient.server.report.udp_sessions import UdpSessions
from lbclient.server.statistics import UdpStatistics
from lbclient.wire import datagram

ANSWER_RATE = 1000.0  # a second: 10,000 inactive clients ask 83 at most, but for bursts
RECENT_PROBERS = 10_000  # 4.9 MB
RECENT_AFTER = 5 * 3600.0  # seconds; inactive clients ask every 4.4 hours at least
NEWS_AT_ONCE = 100  # then a pause: 10,000 in a second, the default lame_duck_quiet
NEWS_PAUSE = 0.01  # seconds, in which requests have their turn
WILDCARDS = frozenset({"", "::", "0.0.0.0"})  # gRPC makes no difference either

Read = Callable[[], tuple[TaskState, LoadReport]]
SocketAddress = Any  # (host, port) or (host, port, flow, scope), as asyncio has it
P = TypeVar("P", bound=Hashable)

logger = Log(__name__)


class _Probed(NamedTuple):
    """What a prober sent last, and what had sealed it."""

    nonce: int
    secret: bytes
    at: float


class Responder(Generic[P]):
    """Decides what is sent to whom; a peer is whatever tells one from another."""

    def __init__(
        self,
        read: Read,
        clock: Clock,
        secret: str = "",
        sessions: UdpSessions | None = None,
    ) -> None:
        """With `sessions`, only probes of sessions are answered."""
        self._read = read
        self._clock = clock
        self._secret = secret.encode()
        self._sessions = sessions
        self._recent: OrderedDict[P, _Probed] = OrderedDict()
        self._allowance = Allowance(ANSWER_RATE, ANSWER_RATE)
        self.answered = 0
        self.malformed = 0
        self.forged = 0
        self.limited = 0
        self.pushed = 0

    def answer(self, data: bytes, peer: P) -> bytes | None:
        """What to send back, never more than `data`; None: nothing."""
        nonce = datagram.nonce_of(data)
        if nonce is None:
            self.malformed += 1
            return None
        secret = self._secret_of(datagram.session_of(data))
        if secret is None or not datagram.is_sealed(data, secret):
            self.forged += 1
            return None
        if not self._allowance.take(self._clock()):
            self.limited += 1
            return None
        self.answered += 1
        state, report = self._tellable()
        if state is TaskState.LAME_DUCK:
            self._recent.pop(peer, None)  # it knows now
        else:
            self._remember(peer, _Probed(nonce, secret, self._clock()))
        return datagram.answer(nonce, state, report, secret)

    def not_sent(self) -> None:
        """The network took no more, so what was to be sent is dropped."""
        self.limited += 1

    def news(self, count: int) -> list[tuple[P, bytes]]:
        """For up to `count` recent probers, who are then forgotten; the latest first.

        It answers a prober's last nonce once more, and no nonce twice.
        """
        state, report = self._tellable()
        too_old = self._clock() - RECENT_AFTER
        told: list[tuple[P, bytes]] = []
        while self._recent and len(told) < count:
            peer, last = self._recent.popitem()
            if last.at < too_old:
                self._recent.clear()  # the others are older
                break
            data = datagram.answer(last.nonce, state, report, last.secret, is_news=True)
            told.append((peer, data))
        self.pushed += len(told)
        return told

    def has_news(self) -> bool:
        return bool(self._recent)

    def _secret_of(self, session: int) -> bytes | None:
        if self._sessions is not None:
            return self._sessions.secret_of(session)
        return None if session else self._secret

    def _tellable(self) -> tuple[TaskState, LoadReport]:
        """Nothing is encrypted. Where gRPC's ports encrypt, the load is not told."""
        state, report = self._read()
        return state, report if self._sessions is None else LoadReport()

    def _remember(self, peer: P, last: _Probed) -> None:
        self._recent[peer] = last
        self._recent.move_to_end(peer)
        if len(self._recent) > RECENT_PROBERS:
            self._recent.popitem(last=False)

    def __repr__(self) -> str:
        dropped = self.malformed + self.forged + self.limited
        recent = len(self._recent)
        return f"<{self.answered} answered, {dropped} dropped, {recent} recent>"


class _Peer(NamedTuple):
    listener: "_Listener"
    address: SocketAddress


class _Listener(asyncio.DatagramProtocol):
    """Listens on one socket. Nothing that arrives can raise, or end it."""

    _transport: asyncio.DatagramTransport

    def __init__(self, responder: Responder[_Peer]) -> None:
        self._responder = responder
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # It is one in all but its bases, in Python 3.11.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: SocketAddress) -> None:
        said = self._responder.answer(data, _Peer(self, address))
        if said is not None:
            self.send(said, address)

    def send(self, data: bytes, address: SocketAddress) -> None:
        """Or drops it, where the network takes no more: asyncio would keep it all."""
        if self._is_full:
            self._responder.not_sent()
        else:
            self._transport.sendto(data, address)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def error_received(self, error: Exception) -> None:
        logger.debug("a datagram was not sent: %s", error, reason=error)

    def close(self) -> None:
        self._transport.close()


class UdpHealth:
    """Answers on one UDP port: its sockets, and the pace of its news."""

    _loop: asyncio.AbstractEventLoop  # once open

    def __init__(
        self,
        read: Read,
        clock: Clock,
        secret: str = "",
        sessions: UdpSessions | None = None,
    ) -> None:
        self.port = 0  # what clients are told; 0: none
        self._responder: Responder[_Peer] = Responder(read, clock, secret, sessions)
        self._listeners: list[_Listener] = []
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Listens on the hosts of these gRPC ports, on one of their numbers if free.

        One number for all hosts, as clients are told one. Never raises for what the
        network is like: `port` is then 0, and the log has a warning.
        """
        named = [(host_of(address), port) for address, port in addresses]
        hosts = [host for host, _ in named if host is not None]
        if not hosts:
            return
        ports = [port for host, port in named if host is not None]
        self._loop = asyncio.get_running_loop()
        try:
            sockets = _bind(await _resolve(self._loop, hosts), ports)
        except OSError as error:
            words = "UDP health checks are off: no port could be opened: %s"
            logger.warning(words, error, reason=error)
            return
        for sock in sockets:
            _, listener = await self._loop.create_datagram_endpoint(
                lambda: _Listener(self._responder), sock=sock
            )
            self._listeners.append(listener)
        self.port = sockets[0].getsockname()[1]

    def push(self) -> None:
        """Tells the recent probers what the state is now, a few at a time."""
        self._timer = None
        try:
            for peer, data in self._responder.news(NEWS_AT_ONCE):
                peer.listener.send(data, peer.address)
        finally:
            if self._responder.has_news():
                self._timer = self._loop.call_later(NEWS_PAUSE, self.push)

    def close(self) -> None:
        """Closes the sockets. Called on the loop's thread."""
        self.port = 0
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def drop(self) -> None:
        """`close` for a finalizer, which may run in any thread, and too late."""
        if self._listeners:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.close)

    def statistics(self) -> UdpStatistics:
        said = self._responder
        return UdpStatistics(
            self.port,
            said.answered,
            said.malformed,
            said.forged,
            said.limited,
            said.pushed,
        )

    def __repr__(self) -> str:
        return f"<UDP port {self.port}: {self._responder!r}>"


def host_of(address: str) -> str | None:
    """The host of what was given to `add_insecure_port`; None for a Unix socket.

    >>> host_of("[::1]:50051"), host_of("ipv4:10.0.0.3:0"), host_of("unix:/tmp/s")
    ('::1', '10.0.0.3', None)
    """
    scheme, _, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract", "vsock"):
        return None
    if scheme in ("dns", "ipv4", "ipv6"):
        address = rest.removeprefix("///")
    return address.rpartition(":")[0].strip("[]")


async def _resolve(
    loop: asyncio.AbstractEventLoop, hosts: Iterable[str]
) -> list[tuple[int, SocketAddress]]:
    """Families and addresses. One that stands for all of them goes alone."""
    if not WILDCARDS.isdisjoint(hosts):
        return [_wildcard()]
    found: dict[tuple[int, SocketAddress], None] = {}
    for host in hosts:
        infos = await loop.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        found.update(dict.fromkeys((info[0], info[4]) for info in infos))
    return list(found)


def _wildcard() -> tuple[int, SocketAddress]:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    except OSError:
        return socket.AF_INET, ("0.0.0.0", 0)
    return socket.AF_INET6, ("::", 0)


def _bind(
    addresses: Sequence[tuple[int, SocketAddress]], ports: Sequence[int]
) -> list[socket.socket]:
    """All addresses on the first of these ports that is free, or on any other."""
    for port in ports:
        with suppress(OSError):
            return _bind_all(addresses, port)
    return _bind_all(addresses, 0)


def _bind_all(
    addresses: Sequence[tuple[int, SocketAddress]], port: int
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, (host, _, *more) in addresses:
            sock = socket.socket(family, socket.SOCK_DGRAM)
            sockets.append(sock)
            sock.setblocking(False)
            if family == socket.AF_INET6:
                # As gRPC has it: `[::]` takes IPv4 too.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
            sock.bind((host, port, *more))
            port = sock.getsockname()[1]
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets
