"""`lbclient probe` as a container's health check runs it, against real servers."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import wire
from lbclient.cli import main
from lbclient.cli.operate.probe import Found, with_workers
from lbclient.core.backends.task_workers import ToldWorkers
from lbclient.core.model import TaskState
from lbclient.v1 import compat_pb2
from tests.certificates import certify
from tests.hosts import hosting, unary_unary

SECRET = "as long as it must be"

Probe = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def probe(capsys: pytest.CaptureFixture[str]) -> Probe:
    """The status and what is printed. In a thread, as the servers have this loop."""

    async def probe(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["probe", *words])
        out, complaint = capsys.readouterr()
        return status, out + complaint

    return probe


@pytest.fixture
async def task() -> AsyncIterator[tuple[Any, str]]:
    async with hosting(udp_secret=SECRET) as (server, address, _):
        yield server, address


async def test_a_server_that_serves_is_status_0_and_tells_its_load(
    task: tuple[Any, str], probe: Probe
) -> None:
    _, address = task
    status, line = await probe(address)
    assert status == 0
    assert line.startswith(f"{address} serving, ")
    assert "0 active (lbclient.v1.BackendHealth, " in line
    assert len(line.splitlines()) == 1


async def test_a_lame_duck_is_status_1(task: tuple[Any, str], probe: Probe) -> None:
    server, address = task
    server.lame_duck()
    status, line = await probe(address)
    assert (status, line[: len(address) + 10]) == (1, f"{address} lame duck")


async def test_one_that_warms_up_is_status_1(probe: Probe) -> None:
    warm = asyncio.Event()
    async with hosting(starts=False) as (server, address, _):
        starting = asyncio.create_task(server.start(warm.wait))
        status, line = await probe(address)
        assert (status, "starting" in line) == (1, True)
        warm.set()
        await starting
        assert (await probe(address))[0] == 0


async def test_where_nobody_listens_it_is_status_3(
    probe: Probe, free_port: Callable[[], int]
) -> None:
    status, line = await probe(f"127.0.0.1:{free_port()}")
    assert (status, "no answer, cannot connect" in line) == (3, True)


@pytest.mark.parametrize("how", [(), ("--udp",)])
async def test_who_takes_connections_and_says_nothing_is_status_3(
    probe: Probe, how: tuple[str, ...]
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(tcp.getsockname())
        port = tcp.getsockname()[1]
        status, line = await probe(*how, "--timeout", "0.3", f"127.0.0.1:{port}")
    assert (status, "no answer, " in line) == (3, True)


async def test_a_server_without_a_health_service_is_status_3(
    start: Any, probe: Probe
) -> None:
    task = await start()
    status, line = await probe(task.address)
    assert (status, "it has no health service" in line) == (3, True)


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (compat_pb2.ServingReply.SERVING, 0, "serving"),
        (compat_pb2.ServingReply.NOT_SERVING, 1, "not serving"),
        (compat_pb2.ServingReply.UNKNOWN, 1, "unknown"),
        (None, 3, "refused: PERMISSION_DENIED: not for?you (grpc.health.v1.Health)"),
    ],
)
async def test_a_server_of_another_kind_is_asked_as_it_can_be(
    probe: Probe, said: int | None, status: int, words: str
) -> None:
    async def check(_: bytes, context: Any) -> bytes:
        if said is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for\x1byou")
        reply: bytes = compat_pb2.ServingReply(status=said).SerializeToString()  # type: ignore[arg-type]
        return reply

    methods = {wire.SERVING_CHECK_METHOD: unary_unary(check)}
    async with hosting(methods, server=grpc.aio.server()) as (_, address, _):
        found, line = await probe(address)
    assert (found, f" {words} (" in line or f", {words} (" in line) == (status, True)


async def test_one_service_of_many_can_be_asked_for(start: Any, probe: Probe) -> None:
    task = await start(lbclient.server)
    assert (await probe("--service", "search.Search", task.address))[0] == 0
    status, line = await probe("--service", "no.Such", task.address)
    assert (status, "service unknown" in line) == (1, True)


@pytest.mark.parametrize(
    ("port", "serving", "status", "words"),
    [
        (50051, 1, 0, "serving, the worker that answered is lame duck"),
        (80, 1, 0, "serving, the worker that answered is lame duck"),
        (50051, 0, 1, "lame duck"),
        (40002, 1, 1, "lame duck"),
    ],
    ids=["the shared port", "a mapped one", "the task leaves", "its own port"],
)
def test_a_task_serves_while_one_of_its_workers_does(
    port: int, serving: int, status: int, words: str
) -> None:
    workers = ToldWorkers(7, ((50051, (40001, 40002)),), serving)
    own = Found(address=f"10.0.0.1:{port}", asked="", state="lame duck")
    found = with_workers(own, wire.Health(TaskState.LAME_DUCK, workers=workers))
    assert found.status() == status
    assert f" {words}, " in found.line()


async def test_json_has_the_same(task: tuple[Any, str], probe: Probe) -> None:
    _, address = task
    status, text = await probe("--json", address)
    told = json.loads(text)
    assert (status, told["address"], told["state"]) == (0, address, "serving")
    assert told["active"] == 0


async def test_udp_tells_the_same_to_who_knows_the_secret(
    task: tuple[Any, str], probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = task
    address = f"localhost:{server.statistics().udp.port}"  # and nobody listens on ::1
    status, line = await probe("--udp", "--timeout", "0.3", address)
    assert (status, "is the secret the same" in line) == (3, True)
    monkeypatch.setenv("LBCLIENT_UDP_SECRET", SECRET)
    status, line = await probe("--udp", address)
    assert (status, " serving, " in line) == (0, True)
    server.lame_duck()
    status, line = await probe("--udp", address)
    assert (status, " lame duck, " in line) == (1, True)


async def test_udp_where_nobody_listens_is_status_3_at_once(
    probe: Probe, free_port: Callable[[], int]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with asyncio.timeout(60):
        status, line = await probe("--udp", "--timeout", "600", address)
    assert (status, "refused" in line) == (3, True)


OURS = ("--tls-ca", "--tls-name", "--tls-cert", "--tls-key")
GRPCURLS = ("--cacert", "--servername", "--cert", "--key")


@pytest.mark.parametrize(
    "names",
    [OURS, GRPCURLS, ("--cacert", "--authority", "--cert", "--key")],
    ids=["ours", "grpcurl's", "by the authority"],
)
async def test_tls_is_asked_with_both_sides_certificates(
    probe: Probe, tmp_path: Path, names: tuple[str, ...]
) -> None:
    ca_file, name, certificate, key = names
    folder = certify(tmp_path, "DNS:search.prod")
    own = [(folder / f"server.{end}").read_bytes() for end in ("key", "pem")]
    ca = (folder / "ca.pem").read_bytes()
    credentials = grpc.ssl_server_credentials(
        [(own[0], own[1])], ca, require_client_auth=True
    )
    files = [ca_file, str(folder / "ca.pem"), name, "search.prod"]
    mine = [certificate, f"{folder}/client.pem", key, f"{folder}/client.key"]
    async with hosting(credentials=credentials) as (_, address, _):
        assert (await probe(*files, *mine, address))[0] == 0
        assert (await probe(*files, address))[0] == 3
        assert (await probe(*mine, address))[0] == 3


async def test_metadata_goes_with_every_health_check(probe: Probe) -> None:
    """In capitals or not, and in base64 where a key ends in -bin."""
    seen: dict[str, Any] = {}

    async def check(_: bytes, context: Any) -> bytes:
        seen.update(context.invocation_metadata())
        serving = compat_pb2.ServingReply.SERVING
        return compat_pb2.ServingReply(status=serving).SerializeToString()

    methods = {wire.SERVING_CHECK_METHOD: unary_unary(check)}
    token = ("-H", "Authorization: Bearer a:b", "--header", "trace-bin:AAE")
    async with hosting(methods, server=grpc.aio.server()) as (_, address, _):
        assert (await probe(*token, "-H", "empty:", address))[0] == 0
    assert seen["authorization"] == "Bearer a:b"
    assert (seen["trace-bin"], seen["empty"]) == (b"\0\1", "")


async def test_the_authority_is_sent_without_tls_too(probe: Probe) -> None:
    """As to a proxy that finds the service by it."""
    seen = bytearray()
    writers: list[asyncio.StreamWriter] = []

    async def listen(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writers.append(writer)
        writer.write(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # SETTINGS, none
        while data := await reader.read(4096):
            seen.extend(data)

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await probe("--timeout", "0.5", "--authority", "search.prod:80", address)
        for writer in writers:  # newer servers of asyncio wait for this as they close
            writer.close()
    assert b"search.prod:80" in seen
    assert address.encode() not in seen


async def test_a_socket_in_the_file_system_is_asked_too(
    probe: Probe, tmp_path: Path
) -> None:
    async with hosting(at=f"unix:{tmp_path}/s") as (_, address, _):
        assert (await probe(address))[0] == 0


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ("search", "ADDR = 'search': want host:port, [::1]:port or unix:/path"),
        ("search:0", "ADDR = 'search:0': want a port of 1 to 65535"),
        ("search:70000", "ADDR = 'search:70000': want a port of 1 to 65535"),
        ("dns:///a:1", "ADDR = 'dns:///a:1': want host:port"),
        ("--timeout 0 a:1", "timeout = 0.0: want seconds, above 0, up to 3600"),
        ("--timeout nan a:1", "timeout = nan: want seconds, above 0, up to 3600"),
        ("--timeout soon a:1", "timeout = 'soon': want seconds, above 0, up to 3600"),
        ("--udp unix:/s", "ADDR = 'unix:/s': want host:port for --udp"),
        ("--udp --tls a:1", "udp = True: want neither --service nor TLS, auth"),
        ("--udp -H k:v a:1", "udp = True: want neither"),
        ("--udp --authority n a:1", "udp = True: want neither"),
        ("--tls-name n --authority m a:1", "authority = 'm': want the same as --tls"),
        (
            "--authority n/m a:1",
            "authority = 'n/m': want a host name, optionally with a port",
        ),
        (
            "--servername n=m a:1",
            "tls-name = 'n=m': want a host name, optionally with a port",
        ),
        ("-H secret a:1", "header = '<6 characters>': want KEY:VALUE"),
        (
            "-H :path:secret a:1",
            "header = '<0 characters>: ...': want a key of",
        ),
        ("-H grpc-timeout:1S a:1", "header = 'grpc-timeout: ...': want a key of"),
        ("-H k:\N{SNOWMAN} a:1", "header = 'k: ...': want a value in printable ASCII"),
        ("-H k-bin:secret! a:1", "header = 'k-bin: ...': want a value in base64"),
        (f"-H k:{8191 * 'x'} a:1", "header = '...': want 8,192 characters at most"),
        ("--udp --service S a:1", "udp = True: want neither"),
        ("--tls-cert f a:1", "tls-cert = 'f': want both it and --tls-key"),
        ("--tls-ca /no/such a:1", "tls-ca = '/no/such': want a file that can be read"),
    ],
)
async def test_a_mistake_is_status_2_and_named(
    probe: Probe, words: str, want: str
) -> None:
    status, line = await probe(*words.split())
    assert "secret" not in line
    assert (status, line[: len("lbclient probe: " + want)]) == (
        2,
        "lbclient probe: " + want,
    )


def test_an_option_to_leave_certificates_unchecked_is_not_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """grpcurl has it, and gRPC for Python cannot; so help says what to do."""
    with pytest.raises(SystemExit):
        main(["probe", "--insecure", "a:1"])
    assert "--insecure" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["probe", "--help"])
    assert "There is no --insecure" in capsys.readouterr().out


async def test_a_process_ends_with_that_status(task: tuple[Any, str]) -> None:
    _, address = task
    command = [sys.executable, "-m", "lbclient", "probe", address]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
