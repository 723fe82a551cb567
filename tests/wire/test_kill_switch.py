"""`LBCLIENT_DISABLE`: grpc.aio's own channels and servers, with a line in the log."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

import lbclient
from lbclient import wire
from lbclient.admin.snapshot import snapshot
from lbclient.client import disabled as disabled_client
from lbclient.core.errors import ConfigError
from lbclient.metrics import export
from lbclient.resolvers import Srv, Target
from lbclient.resolvers.kubernetes import Kubernetes
from lbclient.resolvers.name_servers import NameServers
from lbclient.server.disabled import PlainServer
from lbclient.v1 import compat_pb2
from tests.hosts import hosting, unary_unary
from tests.wire.kubernetes_api import endpoint, endpoint_slice, kubernetes_api
from tests.wire.name_server import name_server

MAKERS: dict[str, Callable[[], Any]] = {
    "channel": lambda: lbclient.insecure_channel("127.0.0.1:1"),
    "secure channel": lambda: lbclient.secure_channel(
        "127.0.0.1:1", grpc.ssl_channel_credentials()
    ),
    "server": lbclient.server,
}


ROUND_ROBIN = (("grpc.lb_policy_name", "round_robin"),)  # as the guide has it


async def close(made: Any) -> None:
    await (made.close() if hasattr(made, "close") else made.stop(None))


@pytest.mark.parametrize("kind", MAKERS)
async def test_who_is_disabled_says_so_in_one_line(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient")
    monkeypatch.setenv("LBCLIENT_DISABLE", "yes")
    made = MAKERS[kind]()
    assert not isinstance(made, lbclient.Channel | lbclient.Server)
    (record,) = (r for r in caplog.records if "LBCLIENT_DISABLE" in r.getMessage())
    assert record.levelno == logging.INFO
    assert "is grpc.aio's own" in record.getMessage()
    await close(made)


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_word_for_off_disables_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbclient")
    monkeypatch.setenv("LBCLIENT_DISABLE", "false")
    made = MAKERS[kind]()
    assert type(made).__module__.startswith("lbclient")
    assert not [r for r in caplog.records if "LBCLIENT_DISABLE" in r.getMessage()]
    await close(made)


@pytest.mark.parametrize("kind", MAKERS)
def test_any_other_word_is_refused_by_what_it_would_disable(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBCLIENT_DISABLE", "maybe")
    with pytest.raises(
        ConfigError, match=r"^LBCLIENT_DISABLE = 'maybe': want one of 1"
    ):
        MAKERS[kind]()


# --- targets that gRPC does not know ---------------------------------------------


@pytest.fixture
def disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBCLIENT_DISABLE", "1")


def listed(path: Path, *addresses: str, **labels: str) -> str:
    path.write_text(json.dumps([{"targets": addresses, "labels": labels}]))
    return f"file://{path}"


@pytest.mark.usefixtures("disabled")
async def test_a_list_in_a_file_is_read_once_and_all_of_it_gets_calls(
    tmp_path: Path, start: Any
) -> None:
    tasks = [await start(), await start()]
    target = listed(tmp_path / "a.json", *(task.address for task in tasks))
    async with lbclient.insecure_channel(target) as channel:
        assert not isinstance(channel, lbclient.Channel)
        method: Any = channel.unary_unary("/search.Search/Search")
        for _ in range(20):
            await method(b"", timeout=20)
        assert all(task.servicer.served for task in tasks)
        (tmp_path / "a.json").unlink()
        await method(b"", timeout=20)


@pytest.mark.usefixtures("disabled")
async def test_names_in_a_list_are_looked_up(tmp_path: Path, start: Any) -> None:
    tasks = [await start(), await start()]
    names = [task.address.replace("127.0.0.1", "localhost") for task in tasks]
    target = listed(tmp_path / "a.json", *names)
    async with lbclient.insecure_channel(target) as channel:
        method: Any = channel.unary_unary("/search.Search/Search")
        for _ in range(20):
            await method(b"", timeout=20, wait_for_ready=True)
        assert all(task.servicer.served for task in tasks)


@pytest.mark.usefixtures("disabled")
def test_a_target_without_an_answer_says_so(tmp_path: Path) -> None:
    with pytest.raises(lbclient.ResolveError, match=r"none\.json"):
        lbclient.insecure_channel(f"file://{tmp_path}/none.json")


@pytest.mark.usefixtures("disabled")
@pytest.mark.parametrize("target", ["file:///a.txt", "srv:///a b", "k8s:///a"])
def test_a_target_that_is_none_is_refused_as_ever(target: str) -> None:
    with pytest.raises(ConfigError, match="target"):
        lbclient.insecure_channel(target)


class Listing:
    """Answers for a target, in place of name servers and APIs that are elsewhere."""

    def __init__(self, resolver: Any, authority: str) -> None:
        self.target = Target(resolver, authority)

    def __call__(self, *_: Any, **__: Any) -> Target:
        return self.target


async def test_records_of_services_and_slices_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with name_server() as server:
        records = ["0 5 7001 localhost.", "0 5 7000 localhost."]
        server.records["_grpc._tcp.search.test", "SRV"] = records
        asked = NameServers(server.resolver, Path("/dev/null"))
        srv = Srv("_grpc._tcp.search.test", 10.0, Random(7), asked.services)
        monkeypatch.setattr(disabled_client, "parse_target", Listing(srv, "search"))
        found, authority = await asyncio.to_thread(disabled_client.resolved, "srv:")
        assert {"127.0.0.1:7000", "127.0.0.1:7001"} <= set(found)
        assert authority == "search"
    async with kubernetes_api(tmp_path) as api:
        staying = endpoint("10.0.0.1"), endpoint("10.0.0.2")
        leaving = endpoint("10.0.0.3", ready=False, serving=True, terminating=True)
        api.put(endpoint_slice("search-a", *staying, leaving))
        k8s = Kubernetes("search", "prod", "grpc", Random(7), api.api)
        monkeypatch.setattr(disabled_client, "parse_target", Listing(k8s, "search"))
        found, _ = await asyncio.to_thread(disabled_client.resolved, "k8s:")
        assert found == ["10.0.0.1:50051", "10.0.0.2:50051"]


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def watch(self) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield ()

    monkeypatch.setattr(disabled_client, "PATIENCE", 0.05)
    monkeypatch.setattr(disabled_client, "parse_target", Listing(Silent(), ""))
    with pytest.raises(lbclient.ResolveError, match=r"srv:x: no endpoints in 0\.05 s"):
        disabled_client.resolved("srv:x")


@pytest.mark.usefixtures("disabled")
async def test_a_list_of_addresses_gets_the_policy_of_the_options(start: Any) -> None:
    """Without one grpc.aio's own: all calls go to one."""
    for policy, served in ((), 1), (ROUND_ROBIN, 2):
        tasks = [await start(), await start()]
        target = "ipv4:" + ",".join(task.address for task in tasks)
        async with lbclient.insecure_channel(target, options=policy) as channel:
            method: Any = channel.unary_unary("/search.Search/Search")
            for _ in range(20):
                await method(b"", timeout=20)
        assert sum(task.servicer.served > 0 for task in tasks) == served


def test_what_the_user_says_of_policies_and_names_holds() -> None:
    with_defaults = disabled_client.with_defaults
    told = dict(with_defaults((("grpc.lb_policy_name", "pick_first"),), "search:1"))
    assert "grpc.service_config" not in told
    assert told["grpc.default_authority"] == "search:1"
    told = dict(with_defaults((("grpc.default_authority", "mine"),), "search:1"))
    assert "round_robin" in told["grpc.service_config"]
    assert told["grpc.default_authority"] == "mine"


# --- health, metrics, the page ----------------------------------------------------


@pytest.mark.usefixtures("disabled")
async def test_a_server_answers_health_checks_as_ever(start: Any) -> None:
    task = await start(lbclient.server)
    assert isinstance(task.server, PlainServer)
    request, reply = compat_pb2.ServingRequest, compat_pb2.ServingReply
    async with grpc.aio.insecure_channel(task.address) as channel:
        check: Any = channel.unary_unary(
            wire.SERVING_CHECK_METHOD, request.SerializeToString, reply.FromString
        )
        for service in ("", "search.Search", "grpc.health.v1.Health"):
            said = await check(request(service=service), timeout=20)
            assert said.status == reply.SERVING
        call = check(request(service="nobody"), timeout=20)
        assert await call.code() is grpc.StatusCode.NOT_FOUND
        watch: Any = channel.unary_stream(
            wire.SERVING_WATCH_METHOD, request.SerializeToString, reply.FromString
        )
        watching = watch(request(), timeout=20)
        assert (await watching.read()).status == reply.SERVING
        await task.server.stop(10)
        assert (await watching.read()).status == reply.NOT_SERVING
        assert await watching.read() is grpc.aio.EOF


class OwnHealth(grpc.GenericRpcHandler):
    async def answer(self, _request: bytes, _context: Any) -> bytes:
        return b"their own"

    def service(self, details: Any) -> Any:
        handler = unary_unary(self.answer)
        return handler if details.method == wire.SERVING_CHECK_METHOD else None


@pytest.mark.usefixtures("disabled")
async def test_a_health_service_of_the_users_goes_first() -> None:
    server = lbclient.server()
    server.add_generic_rpc_handlers([OwnHealth()])
    async with hosting(server=server) as (_, _, channel):
        check: Any = channel.unary_unary(wire.SERVING_CHECK_METHOD)
        assert await check(b"", timeout=20) == b"their own"


def shown(*sources: Any) -> float | None:
    registry = CollectorRegistry()
    for source in sources:
        export(source, registry)
    value: float | None = registry.get_sample_value("lbclient_disabled")
    return value


async def test_metrics_and_the_page_say_that_it_is_disabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = lbclient.insecure_channel("127.0.0.1:1")
    assert shown(ours) == 0.0
    assert snapshot()["disabled"] == 0
    monkeypatch.setenv("LBCLIENT_DISABLE", "1")
    for make in MAKERS.values():
        made = make()
        assert shown(made) == shown(ours, made) == 1.0
        await close(made)
    assert snapshot()["disabled"] == 1
    await ours.close()


# --- nothing that is private to grpcio ---------------------------------------------

PROGRAM = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
import grpc, prometheus_client
import lbclient, lbclient.admin, lbclient.cli.operate.proxy
from lbclient.metrics import export, opentelemetry
from lbclient.proxy import Forwarder

async def echo(request, context):
    return request

async def forwarded(channel):
    proxy = lbclient.server(handlers=[Forwarder(channel)])
    port = proxy.add_insecure_port("127.0.0.1:0")
    await proxy.start()
    async with lbclient.insecure_channel(f"127.0.0.1:{port}") as client:
        call = client.unary_unary("/a.B/C")(b"", timeout=20, wait_for_ready=True)
        assert await call == b""
    await proxy.stop(None)

async def main():
    method = grpc.unary_unary_rpc_method_handler(echo)
    service = grpc.method_handlers_generic_handler("a.B", {"C": method})
    server = lbclient.server(handlers=[service])
    port = server.add_insecure_port("127.0.0.1:0")
    threads = lbclient.sync_server(ThreadPoolExecutor(1))
    serving = asyncio.create_task(lbclient.serve(server))
    credentials = grpc.ssl_channel_credentials()
    async with lbclient.secure_channel("127.0.0.1:1", credentials) as channel:
        export(channel)
    async with lbclient.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        call = check(b"", timeout=20, wait_for_ready=True)
        print(await call)
        is_ours = "lbclient.client.channel" in sys.modules
        assert lbclient.info(call).attempts == is_ours
        try:
            await channel.unary_unary("/none/None")(b"", timeout=20)
        except lbclient.LocalRpcError:
            raise
        except grpc.aio.AioRpcError:
            lbclient.degraded(), lbclient.NoBackend, lbclient.CallInfo
        with lbclient.criticality(lbclient.Criticality.SHEDDABLE), lbclient.key("a"):
            export(channel), export(server), export(threads)
        await forwarded(channel)
    prometheus_client.generate_latest()
    lbclient.admin.snapshot()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    threads.stop(None).wait()
    lbclient.serve_sync, lbclient.resumed, lbclient.resumable
    lbclient.ServerStatistics, lbclient.ChannelStatistics

asyncio.run(main())
print(sum(name.startswith("lbclient.grpc_seam") for name in sys.modules))
"""


@pytest.mark.parametrize("switch", ["1", "0"])
def test_who_is_disabled_loads_nothing_of_grpc_seam(switch: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "LBCLIENT_DISABLE": switch},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer, loaded = done.stdout.splitlines()
    assert answer == r"b'\x08\x01'"
    assert (loaded == "0") == (switch == "1")
