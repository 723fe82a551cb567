"""UDP health checks between real sockets: who hears what, and what does no harm."""

import asyncio
import socket
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest

from lbclient import wire
from lbclient.client.health.udp import TUNING, Prober, locate
from lbclient.core.model import Endpoint, LoadReport, TaskState
from lbclient.server import Server
from lbclient.server.report.udp import (
    ANSWER_RATE,
    NEWS_AT_ONCE,
    NEWS_PAUSE,
    RECENT_AFTER,
    RECENT_PROBERS,
    UdpHealth,
)
from lbclient.v1 import health_pb2
from lbclient.wire import datagram
from tests.hosts import Host, hosting
from tests.waiting import eventually, let_pass

HOST = "127.0.0.1"
SECRET = "a secret that both sides know"
SERVING, LAME_DUCK = TaskState.SERVING, TaskState.LAME_DUCK

Eventually = Callable[..., Awaitable[None]]


def at(*addresses: str) -> Server:
    """A server that listens there, besides where it is hosted."""
    server = Server()
    for address in addresses:
        server.add_insecure_port(address)
    return server


def port_of(server: Server) -> int:
    return server.statistics().udp.port


class Watcher:
    """A prober, and what it told."""

    def __init__(self, prober: Prober) -> None:
        self.prober = prober
        self.told: list[TaskState | str | None] = []
        self.reports: list[LoadReport | None] = []

    def watch(self, port: int, host: str = HOST) -> None:
        self.prober.watch(host, port, self.tell)

    def tell(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        self.told.append(reason or state)
        self.reports.append(report)


@pytest.fixture
def watching() -> Iterator[Callable[..., Watcher]]:
    with ExitStack() as stack:

        def watching(**options: Any) -> Watcher:
            prober = Prober(SystemRandom(), **options)
            stack.callback(prober.close)
            return Watcher(prober)

        yield watching


Watching = Callable[..., Watcher]


class Proxy(asyncio.DatagramProtocol):
    """Stands between one client and a task, delays, and counts what passes."""

    def __init__(self, delay: float = 0.0, *, is_blocked: bool = False) -> None:
        self.delay = delay
        self.is_blocked = is_blocked  # for what goes up
        self.is_deaf = False  # for what comes down
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self._client: Any = None
        self._loop = asyncio.get_running_loop()

    async def open(self, port: int) -> int:
        self.front: Any
        self.back: Any
        self.front, _ = await self._loop.create_datagram_endpoint(
            lambda: self, local_addr=(HOST, 0)
        )
        self.back, _ = await self._loop.create_datagram_endpoint(
            lambda: _Back(self), remote_addr=(HOST, port)
        )
        return int(self.front.get_extra_info("sockname")[1])

    def datagram_received(self, data: bytes, address: Any) -> None:
        self._client = address
        self.up.append(data)
        if not self.is_blocked:
            self._loop.call_later(self.delay, self.back.sendto, data)

    def from_task(self, data: bytes) -> None:
        self.down.append(data)
        if not self.is_deaf:
            self._loop.call_later(self.delay, self.front.sendto, data, self._client)

    def close(self) -> None:
        self.front.close()
        self.back.close()


class _Back(asyncio.DatagramProtocol):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def datagram_received(self, data: bytes, address: Any) -> None:
        self._proxy.from_task(data)


@pytest.fixture
def proxy() -> Iterator[Callable[..., Proxy]]:
    with ExitStack() as stack:

        def proxy(*args: Any, **options: Any) -> Proxy:
            proxy = Proxy(*args, **options)
            stack.callback(proxy.close)
            return proxy

        yield proxy


# Where a task answers


def number_free_for_both() -> int:
    """As a number that TCP has free may be somebody's UDP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HOST, 0))
        port = int(other.getsockname()[1])
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            return number_free_for_both()
    return port


async def advertised(target: str) -> int:
    async with grpc.aio.insecure_channel(target) as channel:
        check: Any = channel.unary_unary(wire.CHECK_METHOD)
        return int(health_pb2.HealthReport.FromString(await check(b"")).udp_port)


async def test_the_port_is_that_of_grpc_and_in_health_reports() -> None:
    server = Server()
    port = number_free_for_both()
    server.add_insecure_port(f"{HOST}:{port}")
    assert port_of(server) == 0
    await server.start()
    assert port_of(server) == await advertised(f"{HOST}:{port}") == port
    await server.stop(None)
    assert port_of(server) == 0


async def test_where_that_number_is_taken_it_is_another(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        server, *_ = await host(at=f"{HOST}:{port}")
        assert port_of(server) not in (0, port)
        assert await advertised(f"{HOST}:{port}") == port_of(server)
    watcher = watching()
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told == [SERVING])


@pytest.mark.parametrize("address", ["[::]:0", "0.0.0.0:0"])
async def test_a_server_on_all_addresses_answers_on_both_kinds(
    host: Host, watching: Watching, eventually: Eventually, address: str
) -> None:
    server, *_ = await host(at=address)
    for loopback in (HOST, "::1"):
        watcher = watching()
        watcher.watch(port_of(server), loopback)
        await eventually(lambda watcher=watcher: watcher.told == [SERVING])


async def test_several_ports_have_one_number_on_all_their_hosts(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    hosts = ("127.0.0.1", "127.0.0.2", "::1")
    server, *_ = await host(server=at("127.0.0.1:0", "127.0.0.2:0", "[::1]:0"))
    watcher = watching()
    for address in hosts:
        watcher.watch(port_of(server), address)
    await eventually(lambda: watcher.told == [SERVING] * len(hosts))


async def test_hosts_share_a_number_also_where_theirs_are_taken(
    host: Host,
    watching: Watching,
    eventually: Eventually,
    free_port: Callable[[], int],
) -> None:
    one, two = free_port(), free_port()
    addresses = {"127.0.0.1": one, "127.0.0.2": two}
    with ExitStack() as stack:
        for taken in addresses.items():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            stack.enter_context(sock).bind(taken)
        server, *_ = await host(server=at(f"127.0.0.2:{two}"), at=f"127.0.0.1:{one}")
        assert port_of(server) not in (0, *addresses.values())
    watcher = watching()
    for name in addresses:
        watcher.watch(port_of(server), name)
    await eventually(lambda: watcher.told == [SERVING] * len(addresses))


async def test_only_the_hosts_of_the_grpc_ports_are_listened_on(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    server, *_ = await host()
    watcher = watching(timeout=0.05)
    watcher.watch(port_of(server), "127.0.0.2")
    await eventually(
        lambda: watcher.told == [f"no answer to {TUNING.probes} probes by UDP"]
    )


async def test_a_secure_port_alone_is_no_reason_to_answer_everybody(
    watching: Watching, eventually: Eventually
) -> None:
    """What only those with a certificate may know is not told to others."""
    credentials = grpc.local_server_credentials()
    for secret in ("", SECRET):
        hosted = hosting(credentials=credentials, udp_secret=secret)
        async with hosted as (server, *_):
            watcher = watching(secret=secret, timeout=0.05)
            watcher.watch(port_of(server))
            await eventually(lambda watcher=watcher: watcher.told)
            silent = f"no answer to {TUNING.probes} probes by UDP"
            assert watcher.told == [SERVING if secret else silent]


async def test_a_server_may_be_told_not_to_answer(host: Host) -> None:
    assert port_of((await host(udp_health=False)).server) == 0


async def test_a_server_on_a_unix_socket_has_no_port(
    host: Host, tmp_path: Path
) -> None:
    assert port_of((await host(at=f"unix:{tmp_path / 'socket'}")).server) == 0


async def test_a_server_on_a_unix_socket_too_has_the_number_of_the_other(
    host: Host, tmp_path: Path
) -> None:
    port = number_free_for_both()
    server, *_ = await host(
        server=at(f"unix:{tmp_path / 'socket'}"), at=f"{HOST}:{port}"
    )
    assert port_of(server) == port


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "no.such.host.invalid:50051"])
async def test_no_port_to_be_had_is_a_warning(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    udp = UdpHealth(lambda: (SERVING, LoadReport()), monotonic)
    await udp.open([(address, 50051)])
    assert udp.port == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "UDP health checks are off: no port could be opened" in caplog.text
    udp.close()


async def test_a_stopped_server_frees_its_port(host: Host) -> None:
    server, *_ = await host()
    port = port_of(server)
    await server.stop(None)
    await asyncio.sleep(0)  # asyncio closes a socket in its next turn
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, port))


async def test_a_dropped_server_frees_its_port(eventually: Eventually) -> None:
    server = Server()
    server.add_insecure_port(f"{HOST}:0")
    await server.start()
    udp = server._udp.common
    assert udp.port
    del server
    await eventually(lambda: udp.port == 0)


async def test_the_state_is_told_while_the_task_warms_up(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    server, *_ = await host(starts=False)
    watcher = watching(period=0.1)
    warm = asyncio.Event()
    starting = asyncio.create_task(server.start(warm.wait))
    await eventually(lambda: port_of(server))
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told)
    assert set(watcher.told) == {TaskState.STARTING}
    warm.set()
    await starting
    await eventually(lambda: SERVING in watcher.told)


async def test_the_load_is_told(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    server, *_ = await host(utilization=lambda: 0.75)
    await eventually(lambda: server.statistics().utilization == pytest.approx(0.75))
    watcher = watching()
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told)
    (report,) = watcher.reports
    assert report is not None
    assert report.utilization == pytest.approx(0.75, abs=0.001)
    assert report.active == 0


async def test_an_endpoint_with_a_name_is_located() -> None:
    assert await locate(Endpoint("localhost:50051")) in (HOST, "::1")
    assert await locate(Endpoint("no.such.host.invalid:50051")) is None


# How the news travel


@pytest.mark.parametrize("secret", ["", SECRET])
async def test_news_of_a_lame_duck_take_one_trip(
    host: Host,
    watching: Watching,
    proxy: Callable[..., Proxy],
    eventually: Eventually,
    secret: str,
) -> None:
    """Counted in datagrams: one comes down, none goes up before it; 20 ms a way."""
    server, *_ = await host(udp_secret=secret)
    watcher, between = watching(secret=secret), proxy(0.02)
    watcher.watch(await between.open(port_of(server)))
    await eventually(lambda: watcher.told == [SERVING])
    server.lame_duck()
    await eventually(lambda: len(watcher.told) > 1)
    assert watcher.told == [SERVING, LAME_DUCK]
    assert len(between.up) == 1
    assert len(between.down) == 2
    assert sum(map(len, between.down)) < sum(map(len, between.up))
    assert server.statistics().udp.pushed == 1


async def test_lost_news_come_with_the_next_answer(
    host: Host,
    watching: Watching,
    proxy: Callable[..., Proxy],
    eventually: Eventually,
) -> None:
    server, *_ = await host()
    watcher, between = watching(period=0.2, longest_period=0.2, timeout=0.2), proxy()
    watcher.watch(await between.open(port_of(server)))
    await eventually(lambda: SERVING in watcher.told)
    between.is_deaf = True
    server.lame_duck()
    await eventually(lambda: datagram.NEWS in [data[4] for data in between.down])
    between.is_deaf = False
    await eventually(lambda: LAME_DUCK in watcher.told)
    assert server.statistics().udp.pushed == 1
    assert watcher.prober.statistics().pushed == 0


async def test_a_server_that_stops_without_a_word_before_says_so_too(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    server, *_ = await host()
    watcher = watching()
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told == [SERVING])
    await server.stop(None)
    await eventually(lambda: watcher.told == [SERVING, LAME_DUCK])


async def test_all_who_asked_lately_are_told_once_each(
    host: Host, eventually: Eventually
) -> None:
    """More than are told at once."""
    server, *_ = await host()
    target = (HOST, port_of(server))
    probers = 2 * NEWS_AT_ONCE + 1
    with ExitStack() as stack:
        socks = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for _ in range(probers)
        ]
        for nonce, sock in enumerate(socks):
            sock.setblocking(False)
            sock.sendto(datagram.probe(nonce), target)
        await eventually(lambda: server.statistics().udp.answered == probers)
        server.lame_duck()
        server.lame_duck()
        await eventually(lambda: server.statistics().udp.pushed == probers)
        for nonce, sock in enumerate(socks):
            first, second = (datagram.parse_answer(sock.recv(1024)) for _ in range(2))
            assert first is not None
            assert second is not None
            assert (first.nonce, first.state, first.is_news) == (nonce, SERVING, False)
            assert (second.nonce, second.state) == (nonce, LAME_DUCK)
            assert second.is_news
            with pytest.raises(BlockingIOError):
                sock.recv(1024)


async def test_nothing_is_pushed_after_the_end() -> None:
    udp = UdpHealth(lambda: (SERVING, LoadReport()), monotonic)
    await udp.open([(f"{HOST}:0", 0)])
    (listener,) = udp._listeners
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("0.0.0.0", 0))
        for n in range(NEWS_AT_ONCE + 1):
            peer = (f"127.1.0.{n + 1}", sink.getsockname()[1])
            listener.datagram_received(datagram.probe(n), peer)
        udp.push()
        udp.close()
        await let_pass(5 * NEWS_PAUSE)
    assert udp.statistics().pushed == NEWS_AT_ONCE


async def test_blocked_udp_is_noticed_after_so_many_probes(
    host: Host,
    watching: Watching,
    proxy: Callable[..., Proxy],
    eventually: Eventually,
) -> None:
    server, *_ = await host()
    watcher, between = watching(timeout=0.05), proxy(is_blocked=True)
    watcher.watch(await between.open(port_of(server)))
    await eventually(lambda: watcher.told)
    assert watcher.told == [f"no answer to {TUNING.probes} probes by UDP"]
    assert len(between.up) == TUNING.probes
    assert watcher.prober.statistics().silent == 1


@pytest.mark.parametrize(
    ("ours", "theirs"), [("", SECRET), (SECRET, ""), (SECRET, SECRET[::-1])]
)
async def test_different_secrets_are_silence(
    host: Host, watching: Watching, eventually: Eventually, ours: str, theirs: str
) -> None:
    server, *_ = await host(udp_secret=theirs)
    watcher = watching(secret=ours, timeout=0.05)
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told)
    assert watcher.told == [f"no answer to {TUNING.probes} probes by UDP"]
    said = server.statistics().udp
    assert (said.answered, said.forged) == (0, TUNING.probes)


# What does no harm

FUZZ = 20_000
AT_ONCE = 50  # datagrams, which the kernel keeps whatever their size
SEED = 7


def fuzz(*sound: bytes) -> Iterator[bytes]:
    """Random bytes of any length, and sound datagrams of which some are changed."""
    rng = Random(SEED)
    for _ in range(FUZZ):
        if rng.random() < 0.2:
            yield rng.randbytes(rng.randrange(3 * datagram.PROBE_SIZE))
            continue
        data = bytearray(rng.choice(sound))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        whole = rng.random() < 0.7
        yield bytes(data if whole else data[: rng.randrange(len(data))])


async def pour(
    data: list[bytes], send: Callable[[bytes], object], arrived: Callable[[], int]
) -> None:
    """Sends all of it, as fast as it is read; fails if any is not even counted."""
    before = arrived()

    def have_come(count: int) -> bool:
        return arrived() == before + count

    for sent, datum in enumerate(data, 1):
        send(datum)
        if sent % AT_ONCE == 0 or sent == len(data):
            for _ in range(AT_ONCE + 1):  # asyncio reads one in each turn
                await asyncio.sleep(0)
            await eventually(partial(have_come, sent))


async def pour_and_weigh(
    data: list[bytes], send: Callable[[bytes], object], arrived: Callable[[], int]
) -> int:
    """The bytes that the second half has left behind."""
    half = len(data) // 2
    await pour(data[:half], send, arrived)
    tracemalloc.start()
    try:
        await pour(data[half:], send, arrived)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("secret", ["", SECRET])
async def test_a_fuzzed_responder_serves_on_in_flat_memory(
    host: Host, watching: Watching, eventually: Eventually, secret: str
) -> None:
    """So slowly, by its clock, that none of it is over the limit."""
    now = 0.0
    server, *_ = await host(clock=lambda: now, udp_secret=secret)
    (listener,) = server._udp.common._listeners
    key = secret.encode()
    news = datagram.answer(SEED, LAME_DUCK, LoadReport(), key, is_news=True)
    data = list(fuzz(datagram.probe(SEED, key), datagram.probe(SEED, b"else"), news))
    sound = [datagram.probe(nonce, key) for nonce in range(RECENT_PROBERS)]

    def arrived() -> int:
        said = server._udp.statistics()
        return int(said.answered + said.malformed + said.forged + said.limited)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("0.0.0.0", 0))

        def send(datum: bytes) -> None:
            nonlocal now
            now += 1 / ANSWER_RATE
            sink.sendto(datum, (HOST, port_of(server)))

        for n, datum in enumerate(sound):  # as many as are remembered
            now += 1 / ANSWER_RATE
            peer = (f"127.1.{n // 250 % 200}.{n % 250 + 1}", sink.getsockname()[1])
            listener.datagram_received(datum, peer)
        before = server.statistics().udp
        grown = await pour_and_weigh(data, send, arrived)
    assert grown < FUZZ  # bytes: two for each datagram, and no object is as small
    said = server.statistics().udp
    assert said.malformed > FUZZ / 2
    assert said.answered > before.answered
    assert said.forged > before.forged
    assert said.limited == before.limited
    assert server.state is SERVING
    now += 1.0
    watcher = watching(secret=secret)
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told == [SERVING])
    now += RECENT_AFTER + 1.0  # so that all those have no news to wait for


async def test_what_the_network_does_not_take_is_dropped(host: Host) -> None:
    """asyncio says so when much is waiting to be sent; it would keep any more."""
    server, *_ = await host()
    (listener,) = server._udp.common._listeners
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, 0))
        sock.setblocking(False)
        listener.pause_writing()
        listener.datagram_received(datagram.probe(1), sock.getsockname())
        listener.resume_writing()
        listener.datagram_received(datagram.probe(2), sock.getsockname())
        data = await asyncio.get_running_loop().sock_recv(sock, 1024)
        answer = datagram.parse_answer(data)
        assert answer is not None
        assert answer.nonce == 2
    assert server.statistics().udp.limited == 1


async def test_a_fuzzed_prober_believes_none_of_it_in_flat_memory(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    """Not even from the right address and port, by somebody who has seen the probe
    but has no secret. It hears its task after that."""
    server, *_ = await host(udp_secret=SECRET)
    (listener,) = server._udp.common._listeners
    watcher = watching(secret=SECRET)
    prober = watcher.prober
    watcher.watch(port_of(server))
    await eventually(lambda: watcher.told == [SERVING])
    (seen,) = prober._by_nonce
    (sock,) = prober._sockets.values()
    address = (HOST, sock.getsockname()[1])
    forged = [
        datagram.answer(seen, LAME_DUCK, LoadReport(), secret, is_news=is_news)
        for secret in (b"", SECRET[::-1].encode())
        for is_news in (False, True)
    ]
    grown = await pour_and_weigh(
        list(filter(None, fuzz(*forged))),  # asyncio does not send empty ones
        lambda datum: listener.send(datum, address),
        lambda: prober.statistics().disbelieved,
    )
    assert grown < FUZZ  # bytes: two for each datagram, and no object is as small
    assert watcher.told == [SERVING]
    assert list(prober._by_nonce) == [seen]
    server.lame_duck()
    await eventually(lambda: watcher.told == [SERVING, LAME_DUCK])


async def test_a_forged_report_changes_nothing(
    host: Host, watching: Watching, eventually: Eventually
) -> None:
    """By somebody who saw the probe and can send in the task's name, but has no
    secret; and by one who has the secret, but did not see the probe."""
    server, *_ = await host(udp_secret=SECRET)
    watcher = watching(secret=SECRET)
    prober = watcher.prober
    address = (HOST, port_of(server))
    watcher.watch(address[1])
    await asyncio.sleep(0)
    (seen,) = prober._by_nonce
    forged = 0
    for is_news in (False, True):
        for secret in (b"", SECRET[::-1].encode()):
            report = LoadReport()
            said = datagram.answer(seen, LAME_DUCK, report, secret, is_news=is_news)
            prober.hear(said, address)
            forged += 1
        guess = datagram.answer(
            seen ^ 1, LAME_DUCK, LoadReport(), SECRET.encode(), is_news=is_news
        )
        prober.hear(guess, address)
        forged += 1
    await eventually(lambda: watcher.told == [SERVING])
    assert prober.statistics().disbelieved == forged
