"""Servers whose interceptors refuse health checks: everybody says so, and what helps.

Nobody sees a drain of theirs, and it was said of them that they have no health service,
that checks time out, or that there is no room for a stream.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import ChannelConfig, admin, wire
from lbclient.cli import main
from lbclient.client.health.statuses import UNANSWERED
from tests.certificates import certify
from tests.hosts import PATH, hosting, unary_stream, unary_unary
from tests.wire.conftest import ECHO

Code = grpc.StatusCode
Eventually = Callable[..., Awaitable[None]]
Command = Callable[..., Awaitable[tuple[int, str]]]

TOKEN = ("authorization", "Bearer token")
# Each status that a server can end a call with, but for those without such a method.
REFUSALS = [c for c in Code if c not in (Code.OK, Code.UNIMPLEMENTED, Code.NOT_FOUND)]
# What others may say, or nobody, is no answer, and costs a look over TCP:
# tests/loop/test_health_watch.py has them.
ANSWERS = [code for code in REFUSALS if code not in UNANSWERED]


class Refusing(grpc.aio.ServerInterceptor):
    """Whoever has no token may call `PATH`, and perhaps some methods more."""

    def __init__(self, code: Code = Code.UNAUTHENTICATED, *allowed: str) -> None:
        self._code = code
        self._allowed = {PATH, *allowed}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if TOKEN in details.invocation_metadata or details.method in self._allowed:
            return await continuation(details)

        async def refuse(_request: Any, context: Any) -> None:
            await context.abort(self._code, "no\x1btoken")

        return unary_unary(refuse)


def stock(*words: Any) -> Any:
    """A server of grpc.aio's with such an interceptor."""
    return grpc.aio.server(interceptors=[Refusing(*words)])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The status and what is printed. In a thread, as the servers have this loop."""

    async def command(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, words)
        out, complaint = capsys.readouterr()
        return status, out + complaint

    return command


def backend_of(channel: lbclient.Channel) -> Any:
    (backend,) = channel.statistics().backends
    return backend


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    name = "lbclient.client.health.refused_services"
    return [record for record in caplog.records if record.name == name]


@pytest.mark.parametrize("code", ANSWERS, ids=lambda code: code.name)
async def test_the_channel_says_with_which_status_health_is_refused(
    code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        hosting(ECHO, server=stock(code)) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        call: Any = channel.unary_unary(PATH)
        assert await call(b"hello", timeout=30) == b"hello"
        (record,) = logged(caplog)
        assert record.levelno == logging.WARNING
        refused = f"are refused: {code.name}: no?token (lbclient.v1.BackendHealth"
        assert record.message.startswith(f"{address}: its health checks {refused}")
        assert refused in backend_of(channel).reason
        assert backend_of(channel).health_refused.startswith(refused[4:])


async def test_the_page_and_inspect_say_so_of_a_ready_backend(command: Command) -> None:
    async with (
        hosting(ECHO, server=stock()) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
        admin.page(port=0) as url,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        place = url.removeprefix("http://")
        status, out = await command("inspect", "--json", place)
        [seen] = json.loads(out)["channels"][0]["backends"]
        assert (status, seen["state"]) == (0, "ready")
        assert seen["health_refused"].startswith("refused: UNAUTHENTICATED: no?token (")
        status, out = await command("inspect", "--interval", "0.5", place)
        words = " ".join(out.split())
        assert f"{address} its health services: refused: UNAUTHENTICATED: no" in words


async def test_one_of_which_only_grpc_health_v1_is_let_pass_tells_its_load_so(
    eventually: Eventually,
) -> None:
    """In the trailers of its answers, without a call. It owes no reports for that."""
    ours = lbclient.server(
        interceptors=[Refusing(Code.PERMISSION_DENIED, wire.SERVING_CHECK_METHOD)],
        config=lbclient.ServerConfig(
            intercept_health=True, utilization=lambda: 0.5, utilization_replaces=True
        ),
    )
    async with (
        hosting(ECHO, server=ours) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        await eventually(lambda: backend_of(channel).utilization == pytest.approx(0.5))
        assert backend_of(channel).reason == "it says serving"
        assert not channel.balancer().pool.ready[0].reported.is_ours


async def test_one_that_tells_its_state_by_grpc_health_v1_alone_is_no_warning(
    caplog: pytest.LogCaptureFixture, command: Command
) -> None:
    """As where its own rules let only that pass. What it lacks is said all the same."""
    ours = lbclient.server(
        interceptors=[Refusing(Code.PERMISSION_DENIED, wire.SERVING_CHECK_METHOD)],
        config=lbclient.ServerConfig(intercept_health=True),
    )
    caplog.set_level(logging.INFO, "lbclient.client.health.refused_services")
    async with (
        hosting(ECHO, server=ours) as (_, address, _),
        lbclient.insecure_channel(address) as channel,
    ):
        await asyncio.wait_for(channel.channel_ready(), 30)
        services = "lbclient.v1.BackendHealth, xds.service.orca.v3.OpenRcaService"
        refused = f"refused: PERMISSION_DENIED: no?token ({services})"
        assert backend_of(channel).reason == "it says serving"
        assert backend_of(channel).health_refused == refused
        (record,) = logged(caplog)
        assert (record.levelno, record.message) == (
            logging.INFO,
            f"{address}: {refused}",
        )
        _, out = await command("doctor", "--json", f"ipv4:{address}")
        checks = {check["name"]: check for check in json.loads(out)}
        assert checks["health"]["level"] == "ok"
        assert checks["reports"]["level"] == "warn"
        assert "refused: PERMISSION_DENIED: no?token" in checks["reports"]["found"]
        assert "pass the server's interceptors" in checks["reports"]["do"]


@pytest.mark.parametrize("code", REFUSALS, ids=lambda code: code.name)
async def test_doctor_and_probe_name_the_status(code: Code, command: Command) -> None:
    async with hosting(ECHO, server=stock(code)) as (_, address, _):
        _, out = await command("doctor", "--json", f"ipv4:{address}")
        found = [c for c in json.loads(out) if c["name"] in ("health", "answer")]
        (said,) = [one for one in found if f"refused: {code.name}: no?" in one["found"]]
        assert said["level"] != "ok"
        if said["name"] == "health":
            assert "pass the server's interceptors" in said["do"]
        status, out = await command("probe", address)
        assert status == 3
        assert f" no answer, refused: {code.name}: no?token" in out


async def test_doctor_names_a_refusal_beside_a_want(command: Command) -> None:
    """Of ten backends it was said that all have no health service."""
    async with (
        hosting(ECHO, server=stock()) as (_, refusing, _),
        hosting(ECHO, server=grpc.aio.server()) as (_, mute, _),
    ):
        _, out = await command("doctor", f"ipv4:{refusing},{mute}")
    health = [line[17:] for line in out.splitlines() if line.split()[1] == "health"]
    services = "lbclient.v1.BackendHealth, grpc.health.v1.Health"
    refused, missing = health
    assert refused.startswith(f"refused: UNAUTHENTICATED: no?token ({services}")
    assert missing.startswith(f"no health service at {mute}: use lbclient.server")


class Bearer(grpc.AuthMetadataPlugin):
    def __call__(self, context: Any, callback: Any) -> None:
        callback((TOKEN,), None)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Any, str, bytes]]:
    """A server of ours with TLS that asks for a token for its health, too."""
    folder = certify(tmp_path, "IP:127.0.0.1")
    own = [(folder / f"server.{end}").read_bytes() for end in ("key", "pem")]
    credentials = grpc.ssl_server_credentials([(own[0], own[1])])
    settings: Any = {"interceptors": [Refusing()], "intercept_health": True}
    ca = (folder / "ca.pem").read_bytes()
    async with hosting(ECHO, credentials=credentials, **settings) as hosted:
        yield hosted.server, hosted.address, ca


async def test_credentials_of_the_channel_are_given_with_health_checks_too(
    guarded: tuple[Any, str, bytes], eventually: Eventually
) -> None:
    """Which is one of the two remedies; the other is to let the checks pass."""
    server, address, ca = guarded
    tls = grpc.ssl_channel_credentials(ca)
    both = grpc.composite_channel_credentials(
        tls, grpc.metadata_call_credentials(Bearer())
    )
    config = ChannelConfig(health_interval=0.5)
    async with (
        lbclient.secure_channel(f"ipv4:{address}", tls, config=config) as without,
        lbclient.secure_channel(f"ipv4:{address}", both, config=config) as channel,
    ):
        await asyncio.wait_for(without.channel_ready(), 30)
        await asyncio.wait_for(channel.channel_ready(), 30)
        assert "are refused: UNAUTHENTICATED" in backend_of(without).reason
        assert backend_of(channel).health_refused == ""
        server.lame_duck()
        await eventually(lambda: backend_of(channel).state == "lame duck")
        assert backend_of(without).state == "ready"


async def test_doctor_and_probe_ask_with_the_same_credentials(
    guarded: tuple[Any, str, bytes], command: Command, tmp_path: Path
) -> None:
    _, address, _ = guarded
    files = ("--cacert", f"{tmp_path}/ca.pem")
    token = ("-H", "authorization: Bearer token")
    status, out = await command("probe", *files, address)
    assert (status, "refused: UNAUTHENTICATED" in out) == (3, True)
    assert (await command("probe", *files, *token, address))[0] == 0
    for more, level in ((token, "ok"), ((), "warn")):
        status, out = await command("doctor", "--json", *files, *more, address)
        checks = {check["name"]: check["level"] for check in json.loads(out)}
        assert (status, checks["health"], checks["reports"]) == (0, level, level)
    status, out = await command("doctor", "--json", *files, *token, f"ipv4:{address}")
    assert "lbclient.v1.BackendHealth" in out


async def test_doctor_reads_load_reports_with_the_same_credentials(
    command: Command,
) -> None:
    """Of a server of others, which has ORCA's stream."""

    async def report(_: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b""

    methods = {PATH: ECHO, wire.ORCA_METHOD: unary_stream(report)}
    async with hosting(methods, server=stock()) as (_, address, _):
        levels = []
        for more in ((), ("-H", "authorization: Bearer token")):
            _, out = await command("doctor", "--json", *more, f"ipv4:{address}")
            checks = {check["name"]: check["level"] for check in json.loads(out)}
            levels.append(checks["reports"])
    assert levels == ["warn", "ok"]


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
async def test_a_proxy_that_routes_no_health_checks_does_not_delay_calls(
    count: int,
) -> None:
    """Its 503 is UNAVAILABLE, which nobody may have said. Calls waited a health
    interval after each new connection, as after a reload of the proxy."""
    config = ChannelConfig(health_interval=600.0)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                hosting(ECHO, server=stock(Code.UNAVAILABLE))
            )
            for _ in range(count)
        ]
        target = "ipv4:" + ",".join(address for _, address, _ in servers)
        channel = lbclient.insecure_channel(target, config=config)
        await stack.enter_async_context(channel)
        call: Any = channel.unary_unary(PATH)
        assert await call(b"hello", timeout=30) == b"hello"


async def test_others_that_may_answer_health_checks_are_waited_for() -> None:
    """Of a proxy that reaches nobody every call would fail."""
    config = ChannelConfig(health_interval=600.0)
    async with (
        hosting(ECHO, server=stock(Code.UNAVAILABLE)) as (_, away, _),
        hosting(ECHO, server=lbclient.server()) as (_, there, _),
        lbclient.insecure_channel(f"ipv4:{away},{there}", config=config) as channel,
    ):
        call: Any = channel.unary_unary(PATH)
        for _ in range(20):
            assert await call(b"hello", timeout=30) == b"hello"
        states = {b.address: b.state for b in channel.statistics().backends}
        assert states == {away: "connecting", there: "ready"}
