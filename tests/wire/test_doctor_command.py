"""`lbclient doctor` on what it is there to find, with real servers."""

import asyncio
import json
import re
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import ChannelConfig, ServerConfig, wire
from lbclient.cli import main
from lbclient.cli.operate.doctor import of_settings, udp_trouble
from lbclient.resolvers import Static
from lbclient.v1 import compat_pb2
from lbclient.wire.datagram import Seal
from tests.certificates import certify
from tests.hosts import add_methods, hosting, unary_unary

Doctor = Callable[..., Awaitable[tuple[int, dict[str, dict[str, str]]]]]

SECRET = "as long as it must be"


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Doctor:
    """The status, and the checks by name. In a thread: the servers have this loop."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "LBCLIENT_TASK_INDEX"):
        monkeypatch.delenv(name, raising=False)

    async def doctor(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
        command = ["doctor", "--json", "--timeout", "2", *words]
        status = await asyncio.to_thread(main, command)
        checks = json.loads(capsys.readouterr().out)
        return status, {check["name"]: check for check in checks}

    return doctor


def levels(checks: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: check["level"] for name, check in checks.items()}


def health_only() -> Any:
    """A plain server with grpc.health.v1 and nothing else."""

    async def check(request: bytes, context: Any) -> bytes:
        serving = compat_pb2.ServingReply.SERVING
        return compat_pb2.ServingReply(status=serving).SerializeToString()

    methods = {wire.SERVING_CHECK_METHOD: unary_unary(check)}
    return add_methods(grpc.aio.server(), methods)


async def test_nothing_is_wrong_with_two_servers_of_ours(
    start: Callable[..., Awaitable[Any]], doctor: Doctor
) -> None:
    one, other = await start(lbclient.server), await start(lbclient.server)
    status, checks = await doctor(f"ipv4:{one.address},{other.address}")
    assert status == 0
    assert set(levels(checks).values()) == {"ok"}
    assert checks["target"]["found"] == "2 endpoints"
    assert "lbclient.v1.BackendHealth" in checks["health"]["found"]
    assert checks["udp"]["found"] == "2 of 2 answer"
    assert "grpcio 1." in checks["versions"]["found"]


async def test_it_is_a_line_a_check_for_people(
    start: Callable[..., Awaitable[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    task = await start(grpc.aio.server)
    target = f"ipv4:{task.address}"
    assert await asyncio.to_thread(main, ["doctor", target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)
    (health,) = [line for line in lines if line.split()[1] == "health"]
    assert health.startswith("warn  health     no health service at 127.0.0.1:")
    assert "use lbclient.server" in health


async def test_a_plain_server_has_neither_health_nor_reports(
    start: Callable[..., Awaitable[Any]], doctor: Doctor
) -> None:
    task = await start(grpc.aio.server)
    status, checks = await doctor(f"ipv4:{task.address}")
    assert status == 0
    assert {name for name, level in levels(checks).items() if level == "warn"} == {
        "target",  # it is one address only
        "health",
        "reports",
    }
    assert "headless" in checks["target"]["do"]


async def test_a_server_with_grpc_s_own_health_service_lacks_reports_only(
    start: Callable[..., Awaitable[Any]], doctor: Doctor
) -> None:
    tasks = [await start(health_only) for _ in range(2)]
    _, checks = await doctor("ipv4:" + ",".join(task.address for task in tasks))
    assert levels(checks)["health"] == "ok"
    assert checks["health"]["found"] == "serving, by grpc.health.v1"
    assert levels(checks)["reports"] == "warn"
    assert "and 1 more" in checks["reports"]["found"]
    assert levels(checks)["udp"] == "ok"  # not offered


async def test_a_lame_duck_is_told(
    start: Callable[..., Awaitable[Any]], doctor: Doctor
) -> None:
    task = await start(lbclient.server)
    task.server.lame_duck()
    _, checks = await doctor(f"ipv4:{task.address}")
    assert checks["health"]["found"] == f"lame duck: {task.address}"


async def test_an_answer_that_may_be_half_of_one_is_a_warning(
    start: Callable[..., Awaitable[Any]],
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Doctor told how many there were, and that all was well."""
    one, other = await start(lbclient.server), await start(lbclient.server)
    monkeypatch.setattr(Static, "trouble", "addresses may be missing", raising=False)
    status, checks = await doctor(f"ipv4:{one.address},{other.address}")
    assert status == 0
    assert checks["source"]["level"] == "warn"
    assert checks["source"]["found"] == "addresses may be missing"


OTHER_NAME = ("--tls-name", "search.example")


async def test_over_tls_udp_is_asked_by_the_session_that_the_server_gives(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a channel does: it takes none if it has a secret."""
    folder = certify(tmp_path, "IP:127.0.0.1")
    key, chain = ((folder / name).read_bytes() for name in ("server.key", "server.pem"))
    credentials = grpc.ssl_server_credentials([(key, chain)])
    async with hosting(credentials=credentials) as (server, address, _):
        words = ("--tls-ca", str(folder / "ca.pem"), f"ipv4:{address}")
        _, checks = await doctor(*words)
        assert checks["udp"]["found"] == "1 of 1 answer"
        assert server.statistics().udp.answered == 1
        monkeypatch.setenv("LBCLIENT_UDP_SECRET", SECRET)
        _, checks = await doctor(*words)
        assert checks["udp"]["found"].startswith("not offered")
        _, checks = await doctor(*OTHER_NAME, *words)
        assert "name (--tls-name)" in checks["answer"]["do"]
        _, checks = await doctor(words[-1])
        assert "want TLS (--tls)" in checks["answer"]["do"]


async def test_udp_without_an_answer_is_a_warning(
    start: Callable[..., Awaitable[Any]], doctor: Doctor
) -> None:
    """As behind a firewall: what it is asked without the secret it does not answer."""
    config = ServerConfig(udp_secret=SECRET)
    task = await start(partial(lbclient.server, config=config))
    status, checks = await doctor(f"ipv4:{task.address}")
    assert (status, levels(checks)["udp"]) == (0, "warn")
    assert "is UDP blocked" in checks["udp"]["found"]
    assert "let UDP through" in checks["udp"]["do"]


async def test_it_asks_with_the_settings_of_the_target_s_table(
    start: Callable[..., Awaitable[Any]],
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = ServerConfig(udp_secret=SECRET)
    task = await start(partial(lbclient.server, config=config))
    target, path = f"ipv4:{task.address}", tmp_path / "lb.toml"
    path.write_text(
        f"[channel.'{target}']\nudp_secret = '{SECRET}'\n"
        "[channel.batch]\nsubset_size = 7\n[channel.serch]\nsubset_size = 9\n"
    )
    monkeypatch.setenv("LBCLIENT_CONFIG", str(path))
    monkeypatch.setenv("LBCLIENT_ACTIVE_LIMIT", "50")
    _, checks = await doctor("--name", "batch", target)
    assert checks["udp"]["found"] == "1 of 1 answer"
    assert checks["settings"] == {
        "name": "settings",
        "level": "ok",
        "found": (
            f'subset_size from {path} [channel."batch"]; '
            "active_limit from LBCLIENT_ACTIVE_LIMIT; "
            f'udp_secret from {path} [channel."{target}"]; '
            f'not for this target and name: {path} [channel."serch"]'
        ),
        "do": "",
    }
    monkeypatch.delenv("LBCLIENT_CONFIG")
    monkeypatch.delenv("LBCLIENT_ACTIVE_LIMIT")
    _, checks = await doctor(target)
    assert checks["settings"]["found"] == "all by default"
    assert levels(checks)["udp"] == "warn"


def test_of_many_tables_doctor_names_the_first() -> None:
    tables = {f"/lb.toml [channel.{n}]": False for n in range(9)}
    found = of_settings(replace(ChannelConfig(), _tables=tables)).found
    assert "[channel.4] and 4 more" in found
    assert "[channel.5]" not in found


async def test_a_datagram_that_is_lost_is_sent_again() -> None:
    """Doctor sent one, waited a third of its patience, and told of all of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        mute.setblocking(False)
        port = mute.getsockname()[1]
        trouble = await udp_trouble("127.0.0.1:1", port, 3.0, Seal())
        assert trouble.startswith("nothing in 1 s: is UDP blocked")
        for _ in range(3):
            assert mute.recv(2048)


async def test_where_nobody_listens_a_check_fails(
    doctor: Doctor, free_port: Callable[[], int]
) -> None:
    status, checks = await doctor(f"ipv4:127.0.0.1:{free_port()}")
    assert (status, levels(checks)["answer"]) == (1, "fail")
    assert "is the port right" in checks["answer"]["do"]
    assert "health" not in checks


async def test_who_takes_connections_and_says_nothing_fails_too(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        status, checks = await doctor(f"ipv4:127.0.0.1:{port}")
    assert (status, levels(checks)["answer"]) == (1, "fail")


async def test_one_that_is_out_of_two_fails(
    start: Callable[..., Awaitable[Any]],
    doctor: Doctor,
    free_port: Callable[[], int],
) -> None:
    """A script that goes by the status took a fleet with a dead backend for sound."""
    task = await start(lbclient.server)
    target = f"ipv4:{task.address},127.0.0.1:{free_port()}"
    status, checks = await doctor(target)
    assert (status, levels(checks)["answer"]) == (1, "fail")
    assert levels(checks)["health"] == "ok"  # of the other one
    assert checks["answer"]["found"].startswith("1 of 2 that were asked answer")


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
async def test_a_proxy_in_the_environment_is_named(
    name: str,
    start: Callable[..., Awaitable[Any]],
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    task = await start(lbclient.server)
    status, checks = await doctor(f"ipv4:{task.address}")
    assert (status, levels(checks)["proxy"]) == (0, "warn")
    assert checks["proxy"]["found"] == f"{name} is set"
    assert levels(checks)["answer"] == "ok"


async def test_a_target_that_cannot_be_resolved_fails(
    doctor: Doctor, tmp_path: Path
) -> None:
    path = tmp_path / "backends.json"
    status, checks = await doctor(f"file://{path}")
    assert (status, levels(checks)["target"]) == (1, "fail")
    path.write_text("[")
    status, checks = await doctor(f"file://{path}")
    assert (status, levels(checks)["target"]) == (1, "fail")
    assert "is it the right file" in checks["target"]["do"]
    path.write_text("[]")
    status, checks = await doctor(f"file://{path}")
    assert (status, checks["target"]["found"]) == (1, "no endpoints")


async def test_numbers_and_zones_are_wanted_where_they_would_help(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backends.json"
    targets = [f"127.0.1.{n}:9" for n in range(1, 31)]
    path.write_text(json.dumps([{"targets": targets, "labels": {"zone": "a"}}]))
    monkeypatch.setenv("LBCLIENT_LOCALITY", "1")
    _, checks = await doctor(f"file://{path}")
    assert levels(checks)["numbers"] == levels(checks)["zone"] == "warn"
    assert "set LBCLIENT_TASK_INDEX" in checks["numbers"]["do"]
    monkeypatch.setenv("LBCLIENT_ZONE", "a")
    monkeypatch.setenv("LBCLIENT_TASK_INDEX", "3")
    _, checks = await doctor(f"file://{path}")
    assert checks["zone"]["found"] == "30 of 30 endpoints in zone 'a'"
    assert "label task" in checks["numbers"]["do"]


@pytest.mark.parametrize(
    ("leaving", "level", "found"),
    [
        (1, "ok", "2 endpoints, 1 lame duck"),
        (2, "warn", "2 endpoints, all of them lame ducks"),
    ],
)
async def test_who_leaves_is_an_address_too(
    doctor: Doctor, tmp_path: Path, leaving: int, level: str, found: str
) -> None:
    """In a restart of two backends it was said that there is one address only."""
    groups = [
        {"targets": [f"127.0.1.{n}:9"], "labels": {"lame_duck": n <= leaving}}
        for n in (1, 2)
    ]
    path = tmp_path / "backends.json"
    path.write_text(json.dumps(groups))
    _, checks = await doctor(f"file://{path}")
    assert (checks["target"]["level"], checks["target"]["found"]) == (level, found)


async def test_the_kill_switch_is_told(
    start: Callable[..., Awaitable[Any]],
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LBCLIENT_DISABLE", "1")
    task = await start(lbclient.server)
    _, checks = await doctor(f"ipv4:{task.address}")
    assert levels(checks)["disabled"] == "warn"
    monkeypatch.setenv("LBCLIENT_DISABLE", "maybe")
    _, checks = await doctor(f"ipv4:{task.address}")
    assert levels(checks)["disabled"] == "fail"
    assert "LBCLIENT_DISABLE = 'maybe'" in checks["disabled"]["found"]


@pytest.mark.parametrize(
    "words",
    ["ipv4:nonsense", "--timeout 0 ipv4:1.2.3.4:5", "--tls-key k ipv4:1.2.3.4:5"],
)
def test_bad_arguments_are_status_2(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words.split()]) == 2
    assert "lbclient doctor: " in capsys.readouterr().err


async def test_it_measures_what_a_server_here_can_refuse_if_asked_to(
    start: Callable[..., Awaitable[Any]], doctor: Doctor
) -> None:
    task = await start(lbclient.server)
    status, checks = await doctor("--refusals", task.address)
    assert status == 0
    assert checks["refusals"]["level"] == "ok"
    found = re.search(r"some ([\d,]+) requests a second", checks["refusals"]["found"])
    assert found is not None
    assert int(found[1].replace(",", "")) > 100
    _, checks = await doctor(task.address)
    assert "refusals" not in checks


async def test_where_that_cannot_be_measured_it_says_so(
    start: Callable[..., Awaitable[Any]],
    doctor: Doctor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = await start(lbclient.server)
    for program, why in (("/bin/false", "did not answer"), ("/no/python", "No such")):
        monkeypatch.setattr(sys, "executable", program)
        status, checks = await doctor("--refusals", task.address)
        assert status == 0
        assert checks["refusals"]["level"] == "warn"
        assert why in checks["refusals"]["found"]
