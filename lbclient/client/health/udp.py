"""Asks inactive backends by UDP how they are: many of them through one socket.

A backend is asked at once, then seldom, and for all of them together no more often than
the channel is called; for a while more often after something new. When it leaves it
says so unasked. An answer is believed once, within the timeout, from
where the probe went, for a nonce that nobody can guess. Where nothing comes
back (UDP is blocked, the task is gone, secrets differ), the watcher is told that; the
rest, above all a look over TCP, is up to it. SRE book, ch. 20, "lame duck state".
"""

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from math import floor
from random import SystemRandom
from typing import Any, Protocol

from lbclient.background.threads import in_daemon_thread
from lbclient.core.backends.address import dialled
from lbclient.core.model import Endpoint, LoadReport, TaskState
from lbclient.log import Log
from lbclient.wire import datagram


@dataclass(frozen=True, slots=True)
class ProbingTuning:
    """When backends are asked by UDP. Ours, but for `timeout`; `benchmarks.idle`
    measures what they cost."""

    period: float = 10.0  # seconds between probes after a change
    stretch: float = 1.5  # from one period to the next: 7 probes in the first 5 minutes
    jitter: float = 0.1  # of a period, to either side

    # Seconds between probes when nothing changes, if calls pay for them: 30 an hour.
    longest_period: float = 120.0

    # Seconds between probes for which no calls pay. A server remembers somewhat longer
    # whom to tell that it leaves: `RECENT_AFTER` of lbclient.server.report.udp.
    rarest_period: float = 4 * 3600.0

    timeout: float = 1.0  # seconds, as the first of a lost segment in TCP (RFC 6298)
    probes: int = 3  # in a row without an answer: silent

    # To wake up costs a process more than to probe, so probes are sent at two moments
    # of each timeout, to at most `at_once` backends: 40 a second.
    moments: int = 2
    at_once: int = 20  # backends
    read_at_once: int = 100  # datagrams, before others have their turn


TUNING = ProbingTuning()
SocketAddress = Any  # (host, port) or (host, port, flow, scope), as sockets have it

logger = Log(__name__)


class ProbeCallback(Protocol):
    """Where what is learned goes; without a state nobody answers."""

    def __call__(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class ProberStatistics:
    """`silent` of the `watched` backends do not answer. `pushed` are news that came
    unasked; `disbelieved` is all that came and was not what we asked for."""

    watched: int
    silent: int
    sent: int
    answered: int
    pushed: int
    disbelieved: int


class Watch:
    """One backend that is probed. Made by `Prober.watch`; only the prober changes
    it."""

    __slots__ = (
        "address",
        "family",
        "misses",
        "nonces",
        "pending",
        "period",
        "place",
        "seal",
        "state",
        "tell",
        "timer",
    )

    def __init__(
        self,
        place: tuple[str, int],
        tell: ProbeCallback,
        period: float,
        seal: datagram.Seal,
    ) -> None:
        self.place = place  # as it was asked for
        self.seal = seal
        self.family, self.address = _numeric(*place)
        self.tell = tell
        self.period = period  # of the next wait
        self.state: TaskState | None = None
        self.misses = 0
        self.pending: int | None = None  # the nonce that may be answered
        self.nonces: deque[int] = deque()  # those that may bring news
        self.timer: asyncio.TimerHandle | None = None

    def is_silent(self) -> bool:
        return self.misses >= TUNING.probes

    def __repr__(self) -> str:
        said = "silent" if self.is_silent() else "not heard yet"
        if self.state is not None and not self.is_silent():
            said = self.state.name.lower().replace("_", " ")
        return f"<{self.address[0]}:{self.address[1]} {said}>"


class Prober:
    """Sends UDP health checks to inactive backends. Owned by a channel, used on its
    loop only. Opens one socket for each IP version that is used.

    `rng` must be the system's: whoever guesses nonces can forge answers. `gap` returns
    the mean time between calls, in seconds: a call pays for one probe.
    """

    _loop: asyncio.AbstractEventLoop  # once something is watched

    def __init__(
        self,
        rng: SystemRandom,
        secret: str = "",
        gap: Callable[[], float] = lambda: 0.0,
        *,
        period: float = TUNING.period,
        longest_period: float = TUNING.longest_period,
        timeout: float = TUNING.timeout,
    ) -> None:
        self._rng = rng
        self._seal = datagram.Seal(secret.encode())
        self._gap = gap
        self._period = period
        self._longest_period = longest_period
        self._timeout = timeout
        self._pause = timeout / TUNING.moments
        self._sockets: dict[int, socket.socket] = {}
        self._watches: dict[Watch, None] = {}
        self._by_nonce: dict[int, Watch] = {}
        self._line: OrderedDict[Watch, None] = OrderedDict()  # those due for a probe
        self._pace: asyncio.Handle | None = None
        self._waits_long = False
        self._sent = 0
        self._answered = 0
        self._pushed = 0
        self._disbelieved = 0

    def watch(
        self,
        host: str,
        port: int,
        tell: ProbeCallback,
        seal: datagram.Seal | None = None,
    ) -> Watch:
        """Asks from now on, until `unwatch`; `tell` is called on the loop.

        With state and report for every answer and for news; with None, None and a
        reason once `TUNING.probes` in a row were not answered, and again with a state
        when it answers again. `host` is an IP address: see `locate`; else ValueError.
        `seal` is what the task gave for this; it then tells a state without a report.
        """
        self._loop = asyncio.get_running_loop()
        seal = self._seal if seal is None else seal
        watch = Watch((host, port), tell, self._longest_period, seal)
        self._watches[watch] = None
        self._queue(watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """`tell` is not called any more. Does nothing when repeated."""
        if watch in self._watches:
            del self._watches[watch]
            self._line.pop(watch, None)
            for nonce in watch.nonces:
                del self._by_nonce[nonce]
            watch.nonces.clear()
            if watch.timer is not None:
                watch.timer.cancel()

    def ask_again(self, watch: Watch, seal: datagram.Seal | None = None) -> None:
        """Now, if it was silent: there is reason to think that it answers, perhaps to
        a new `seal` alone."""
        if watch in self._watches and watch.is_silent() and watch.pending is None:
            watch.seal = self._seal if seal is None else seal
            if watch.timer is not None:
                watch.timer.cancel()
            self._queue(watch)

    def close(self) -> None:
        """Ends all watches, and the sockets."""
        for watch in list(self._watches):
            self.unwatch(watch)
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None
        for sock in self._sockets.values():
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()

    def statistics(self) -> ProberStatistics:
        return ProberStatistics(
            watched=len(self._watches),
            silent=sum(watch.is_silent() for watch in self._watches),
            sent=self._sent,
            answered=self._answered,
            pushed=self._pushed,
            disbelieved=self._disbelieved,
        )

    def _queue(self, watch: Watch) -> None:
        """Puts a probe in line that is due. All those not in line have a timer."""
        watch.timer = None
        self._line[watch] = None
        if self._pace is None:
            self._pace = self._loop.call_soon(self._probe_some)

    def _probe_some(self) -> None:
        self._pace = None
        if self._line:
            self._pace = self._at_a_moment(0.0, self._probe_some)
        for _ in range(min(TUNING.at_once, len(self._line))):
            watch, _ = self._line.popitem(last=False)
            self._probe(watch)

    def _at_a_moment(
        self, delay: float, do: Callable[..., None], *arguments: Watch
    ) -> asyncio.TimerHandle:
        """Runs at the moment nearest to `delay` seconds from now, never at once."""
        now = self._loop.time() / self._pause
        moment = max(round(now + delay / self._pause), floor(now) + 1)
        return self._loop.call_at(moment * self._pause, do, *arguments)

    def _probe(self, watch: Watch) -> None:
        nonce = self._new_nonce(watch)
        watch.pending = nonce
        watch.timer = self._at_a_moment(self._timeout, self._missed, watch)
        self._sent += 1
        try:
            self.send(datagram.probe(nonce, *watch.seal), watch)
        except OSError as error:  # as good as lost
            words, backend = "%r: no probe was sent: %s", watch.address
            logger.debug(words, watch, error, backend=backend, reason=error)

    def _new_nonce(self, watch: Watch) -> int:
        """All probes since the last answer may be the last that the task has seen."""
        while len(watch.nonces) > TUNING.probes:
            del self._by_nonce[watch.nonces.popleft()]
        while (nonce := self._rng.getrandbits(64)) in self._by_nonce:
            pass
        watch.nonces.append(nonce)
        self._by_nonce[nonce] = watch
        return nonce

    def _missed(self, watch: Watch) -> None:
        watch.pending = None
        watch.misses += 1
        if watch.misses < TUNING.probes:
            self._queue(watch)
            return
        self._wait(watch)
        if watch.misses == TUNING.probes:
            watch.state = None
            watch.tell(None, None, f"no answer to {TUNING.probes} probes by UDP")

    def _wait(self, watch: Watch) -> None:
        """Waits for the next probe, longer each time."""
        period = watch.period
        if period >= self._longest_period:
            period = self._affordable()
            self._waits_long = self._waits_long or period > self._longest_period
        jitter = self._rng.uniform(1 - TUNING.jitter, 1 + TUNING.jitter)
        watch.timer = self._at_a_moment(period * jitter, self._queue, watch)
        watch.period = min(watch.period * TUNING.stretch, self._longest_period)

    def _affordable(self) -> float:
        """The time between two probes of each backend that calls pay for."""
        paid = len(self._watches) * self._gap()
        return min(max(self._longest_period, paid), TUNING.rarest_period)

    def hurry(self) -> None:
        """Calls are frequent again, perhaps: what waits for hours need not."""
        if not self._waits_long or self._affordable() > self._longest_period:
            return
        self._waits_long = False
        latest = self._loop.time() + self._longest_period * (1 + TUNING.jitter)
        for watch in self._watches:
            if watch.timer is not None and watch.timer.when() > latest:
                watch.timer.cancel()
                delay = self._rng.uniform(0, self._longest_period)
                watch.timer = self._at_a_moment(delay, self._queue, watch)

    def _read(self, sock: socket.socket) -> None:
        for _ in range(TUNING.read_at_once):
            try:
                data, address = sock.recvfrom(datagram.ANSWER_SIZE + 1)
            except OSError:  # nothing there, or an error of what was sent
                return
            self.hear(data, address)

    def hear(self, data: bytes, address: SocketAddress) -> None:
        """Takes what came from `address`, if it is what was asked for."""
        said = datagram.parse_answer(data)
        watch = None if said is None else self._by_nonce.get(said.nonce)
        if (
            said is None
            or watch is None
            or watch.address != address
            or not (said.is_news or said.nonce == watch.pending)
            or not datagram.is_sealed(data, watch.seal.secret)
        ):
            self._disbelieved += 1
        else:
            self._believe(watch, said)

    def _believe(self, watch: Watch, said: datagram.Answer) -> None:
        # Older probes can bring no news any more: the task has seen a later one.
        while watch.nonces[0] != said.nonce:
            del self._by_nonce[watch.nonces.popleft()]
        if said.is_news:
            self._pushed += 1
            # Once. An answer that the news overtook goes with it.
            del self._by_nonce[watch.nonces.popleft()]
        else:
            self._answered += 1
        if said.nonce == watch.pending:
            watch.pending = None
        if watch.state is not said.state and not _was_expected(watch, said):
            watch.period = self._period
        watch.state = said.state
        watch.misses = 0
        if watch.pending is None and watch.timer is not None:
            watch.timer.cancel()
            self._wait(watch)
        watch.tell(said.state, None if watch.seal.session else said.report)

    def send(self, data: bytes, watch: Watch) -> None:
        """The one door to the network; `hear` is the way back. Raises OSError."""
        sock = self._sockets.get(watch.family)
        if sock is None:
            sock = socket.socket(watch.family, socket.SOCK_DGRAM)
            sock.setblocking(False)
            self._sockets[watch.family] = sock
            self._loop.add_reader(sock, self._read, sock)
        sock.sendto(data, watch.address)

    def __repr__(self) -> str:
        said = self.statistics()
        return f"<{said.watched} watched, {said.silent} silent, {said.sent} probes>"


def _was_expected(watch: Watch, said: datagram.Answer) -> bool:
    """The first answer of one that was well, as those are that are left alone."""
    is_first = watch.state is None and not watch.is_silent()
    return is_first and said.state is TaskState.SERVING


async def locate(endpoint: Endpoint) -> str | None:
    """The IP address to `watch` for an endpoint; None where there is none now.

    Of a name it is the first one: an endpoint is one task.
    """
    host, _, port = dialled(endpoint.address).rpartition(":")
    if host == "unix" or not port.isdigit():
        return None
    host = host.strip("[]")
    with suppress(ValueError):
        return str(ip_address(host))
    with suppress(OSError):
        infos = await in_daemon_thread(
            "lbclient lookup", socket.getaddrinfo, host, 0, type=socket.SOCK_DGRAM
        )
        return str(infos[0][4][0])
    return None


def _numeric(host: str, port: int) -> tuple[int, SocketAddress]:
    """Family and address as the kernel will name them. Raises ValueError."""
    ip_address(host)
    if not 0 < port < 2**16:
        raise ValueError(f"not a port: {port}")
    flags = socket.AI_NUMERICHOST
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    return infos[0][0], infos[0][4]
