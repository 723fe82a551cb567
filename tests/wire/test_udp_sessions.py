"""UDP health checks beside TLS: by a secret that came over it, without any setting."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import wire
from lbclient.client.backends import idleness
from lbclient.client.balancer import Balancer
from lbclient.client.health import udp
from lbclient.client.health.udp import Prober
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.backends import looks
from lbclient.core.model import LoadReport, TaskState
from lbclient.v1 import health_pb2
from lbclient.wire import datagram
from tests.certificates import certify

HOST = "127.0.0.1"
SECRET = "a secret that both sides know"
SETTINGS: dict[str, Any] = {"idle_after": 0.4, "health_interval": 0.2}
SERVING, LAME_DUCK = TaskState.SERVING, TaskState.LAME_DUCK

Eventually = Callable[..., Awaitable[None]]


class Pki:
    """Credentials of both sides."""

    def __init__(self, folder: Path) -> None:
        files = ("ca.pem", "server.key", "server.pem")
        ca, key, chain = ((folder / name).read_bytes() for name in files)
        self.server = grpc.ssl_server_credentials([(key, chain)])
        self.client = grpc.ssl_channel_credentials(ca)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(certify(tmp_path_factory.mktemp("certificates"), f"IP:{HOST}"))


@pytest.fixture
def secure(host: Any, pki: Pki) -> Callable[..., Awaitable[Any]]:
    return partial(host, credentials=pki.server)


def channel_to(
    pki: Pki, *addresses: str, credentials: Any = None, **settings: Any
) -> lbclient.Channel:
    return lbclient.secure_channel(
        "ipv4:" + ",".join(addresses),
        credentials or pki.client,
        config=ChannelConfig(**SETTINGS | settings),
    )


def seen(channel: lbclient.Channel) -> dict[str, tuple[str, str]]:
    backends = channel.statistics().backends
    return {backend.address: (backend.state, backend.reason) for backend in backends}


TOLD = ("lame duck", "it says lame duck by UDP")


def is_well(channel: lbclient.Channel, task: Any) -> bool:
    """Inactive, and asked by UDP."""
    answered = task.server.statistics().udp.answered
    return seen(channel)[task.address][0] == "inactive" and answered > 0


def inside(channel: lbclient.Channel) -> Balancer:
    assert channel._balancer is not None
    return channel._balancer


def is_told(channel: lbclient.Channel, task: Any) -> bool:
    return seen(channel)[task.address] == TOLD


async def checked(channel: grpc.aio.Channel) -> health_pb2.HealthReport:
    check: Any = channel.unary_unary(wire.CHECK_METHOD)
    return health_pb2.HealthReport.FromString(await check(b""))


async def test_an_inactive_client_hears_of_a_lame_duck_without_any_setting(
    secure: Any, pki: Pki, eventually: Eventually, connections: Any
) -> None:
    leaving, other = await secure(), await secure()
    async with channel_to(pki, leaving.address, other.address) as channel:
        await channel.channel_ready()
        for each in (leaving, other):
            await eventually(
                lambda task=each: is_well(channel, task), seen=lambda: seen(channel)
            )
        await eventually(lambda: not connections(leaving.port, other.port))
        leaving.server.lame_duck()
        await eventually(lambda: is_told(channel, leaving), seen=lambda: seen(channel))
        assert is_well(channel, other)
        assert leaving.server.statistics().udp.pushed == 1
        assert not connections(leaving.port, other.port)


async def test_what_others_send_changes_nothing(
    secure: Any, pki: Pki, eventually: Eventually
) -> None:
    """From the task's own address and port, for the right nonce, with no secret or
    that of another session; then the task is still believed."""
    task = await secure()
    async with channel_to(pki, task.address) as channel:
        await channel.channel_ready()
        await eventually(lambda: is_well(channel, task), seen=lambda: seen(channel))
        prober = inside(channel).backends.idleness.prober()
        (nonce,) = prober._by_nonce
        (sock,) = prober._sockets.values()
        (listener,) = task.server._udp.private._listeners
        another = task.server._udp.sessions.issue().secret
        forged = [
            datagram.answer(nonce, LAME_DUCK, LoadReport(), secret, is_news=is_news)
            for secret in (b"", another, bytes(32))
            for is_news in (False, True)
        ]
        for data in forged:
            listener.send(data, (HOST, sock.getsockname()[1]))
        await eventually(lambda: prober.statistics().disbelieved == len(forged))
        assert is_well(channel, task)
        task.server.lame_duck()
        await eventually(lambda: is_told(channel, task), seen=lambda: seen(channel))
        assert prober.statistics().disbelieved == len(forged)


async def test_who_has_no_session_is_told_nothing(
    secure: Any, pki: Pki, eventually: Eventually
) -> None:
    """Neither by an answer nor by news; one that has one is told both."""
    task = await secure()
    async with grpc.aio.secure_channel(task.address, pki.client) as channel:
        given = (await checked(channel)).udp_session
    loop = asyncio.get_running_loop()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knows,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guesses,
    ):
        for sock in (knows, guesses):
            sock.setblocking(False)
            sock.connect((HOST, given.port))
        wrong = [
            datagram.probe(1),
            datagram.probe(2, b"", given.id),
            datagram.probe(3, bytes(32), given.id),
            datagram.probe(4, given.secret, given.id + 1),
            datagram.probe(5, given.secret),
        ]
        for data in wrong:
            guesses.send(data)
        await eventually(lambda: task.server.statistics().udp.forged == len(wrong))
        knows.send(datagram.probe(6, given.secret, given.id))
        first = await loop.sock_recv(knows, 1024)
        task.server.lame_duck()
        second = await loop.sock_recv(knows, 1024)
        for data, state in ((first, SERVING), (second, LAME_DUCK)):
            said = datagram.parse_answer(data)
            assert said is not None
            assert (said.nonce, said.state) == (6, state)
            assert datagram.is_sealed(data, given.secret)
        assert task.server.statistics().udp.pushed == 1
        with pytest.raises(BlockingIOError):
            guesses.recv(1024)


async def test_only_over_tls_is_a_session_given(
    host: Any, pki: Pki, eventually: Eventually
) -> None:
    """Of a server with ports of both kinds, who reads along at the other learns none,
    and a client that knows of no sessions finds the port that it always found."""
    server = lbclient.server()
    secure_port = server.add_secure_port(f"{HOST}:0", pki.server)
    hosted = await host(server=server)
    async with (
        grpc.aio.secure_channel(f"{HOST}:{secure_port}", pki.client) as secure,
        hosted.channel as insecure,
    ):
        by_tls, by_tcp = await checked(secure), await checked(insecure)
        assert not by_tcp.HasField("udp_session")
        assert by_tcp.udp_port == by_tls.udp_port != 0
        assert by_tls.udp_session.port not in (0, by_tls.udp_port)
        for channel, gives in ((secure, True), (insecure, False)):
            method: Any = channel.unary_stream(wire.WATCH_METHOD)
            watch = method(b"")
            given = [
                health_pb2.HealthReport.FromString(await watch.read()).udp_session.id
                for _ in range(2)
            ]
            assert [bool(number) for number in given] == [gives, False]


async def test_an_older_client_finds_no_udp_port_beside_tls(
    secure: Any, pki: Pki
) -> None:
    """It would probe without a session, and not be answered."""
    task = await secure()
    async with grpc.aio.secure_channel(task.address, pki.client) as channel:
        report = await checked(channel)
        assert report.udp_port == 0
        assert report.udp_session.port == task.server.statistics().udp.port != 0


async def test_a_server_with_a_secret_or_without_udp_gives_no_sessions(
    secure: Any, pki: Pki
) -> None:
    for settings in ({"udp_secret": SECRET}, {"udp_health": False}):
        task = await secure(**settings)
        async with grpc.aio.secure_channel(task.address, pki.client) as channel:
            report = await checked(channel)
            assert not report.HasField("udp_session")
            assert bool(report.udp_port) == ("udp_secret" in settings)


async def test_a_client_with_a_secret_believes_no_server_without_it(
    secure: Any, pki: Pki, eventually: Eventually
) -> None:
    task = await secure()
    config = ServerConfig(udp_secret=SECRET)
    other = await secure(server=lbclient.server(config=config))
    addresses = (task.address, other.address)
    async with channel_to(pki, *addresses, udp_secret=SECRET) as channel:
        await channel.channel_ready()
        await eventually(lambda: is_well(channel, other), seen=lambda: seen(channel))
        await eventually(lambda: seen(channel)[task.address][0] == "inactive")
        udp = task.server.statistics().udp
        assert udp == type(udp)(port=udp.port)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes takes moments."""
    prober = partial(Prober, period=0.1, longest_period=0.1, timeout=0.05)
    monkeypatch.setattr(idleness, "Prober", prober)
    monkeypatch.setattr(udp, "TUNING", replace(udp.TUNING, rarest_period=0.1))
    monkeypatch.setattr(looks, "LOOK_PERIOD", 0.3)
    monkeypatch.setattr(looks, "FIRST_LOOK", 0.1)


@pytest.mark.usefixtures("soon")
async def test_after_a_restart_a_look_brings_a_new_session(
    secure: Any, pki: Pki, eventually: Eventually
) -> None:
    """The new task does not know the old one."""
    task = await secure()
    async with channel_to(pki, task.address) as channel:
        await channel.channel_ready()
        await eventually(lambda: is_well(channel, task), seen=lambda: seen(channel))
        await task.server.stop(None)
        back = await secure(at=task.address)
        await eventually(lambda: is_well(channel, back), seen=lambda: seen(channel))
        back.server.lame_duck()
        await eventually(lambda: is_told(channel, back), seen=lambda: seen(channel))


@pytest.mark.usefixtures("soon")
async def test_where_udp_is_blocked_new_sessions_make_no_more_looks(
    secure: Any, pki: Pki, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look brings a session, and none of them is a reason for the next look."""
    task = await secure()
    task.server._udp.private.close()  # but clients are told the port
    made: list[Any] = []
    watch = Prober.watch

    def count(prober: Prober, *args: Any) -> Any:
        made.append(args)
        return watch(prober, *args)

    monkeypatch.setattr(Prober, "watch", count)
    async with channel_to(pki, task.address) as channel:
        await channel.channel_ready()
        prober = inside(channel).backends.idleness.prober()
        await eventually(lambda: prober.statistics().sent > 4 * udp.TUNING.probes)
        numbers = {each.seal.session for each in prober._watches}
        await eventually(
            lambda: numbers.isdisjoint(each.seal.session for each in prober._watches)
        )
        assert len(made) == 1
        assert seen(channel)[task.address][0] == "inactive"
