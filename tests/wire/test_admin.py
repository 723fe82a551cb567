"""The page as HTTP: what it tells, whom it refuses, and that nobody can hurt it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import lbclient
from lbclient import admin
from lbclient.admin.history import History
from lbclient.admin.http import CONNECTIONS, HEAD_SIZE, OF_ONE, Site
from lbclient.admin.shape import flaw
from lbclient.admin.snapshot import LONGEST, MOST_BACKENDS, snapshot
from lbclient.core.errors import ConfigError
from tests.waiting import eventually


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with admin.page(port=0) as url:
        yield int(url.rpartition(":")[2].partition("/")[0])


async def say(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        answer = await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


async def get(port: int, path: str = "/lbz.json", *headers: str) -> Any:
    lines = (f"GET {path} HTTP/1.1", *(headers or ("Host: localhost",)), "", "")
    return await say(port, "\r\n".join(lines).encode())


async def told(port: int) -> Any:
    status, _, body = await get(port)
    assert status == 200
    return json.loads(body)


def of_channel(said: Any, target: str) -> Any:
    return next(one for one in said["channels"] if one["target"] == target)


def served_by(channel: Any) -> int:
    return sum(one["served"] for one in channel["backends"])


async def test_a_channel_and_a_server_are_told_of_whoever_made_them(
    port: int, start: Any, search: Any
) -> None:
    tasks = [await start(lbclient.server) for _ in range(2)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    config = replace(
        lbclient.ChannelConfig.from_environment({"LBCLIENT_SUBSET_SIZE": "7"}),
        active_limit=50,
        udp_secret="known to nobody else",
    )
    async with lbclient.insecure_channel(target, config=config) as channel:
        stub = search.SearchStub(channel)
        await told(port)  # before the first call: from here on picks are kept
        for _ in range(5):
            await stub.Search(search.Query(), timeout=5)
        said: Any = {}

        async def ask() -> None:
            nonlocal said
            said = await told(port)

        await ask()  # what the page tells is up to half a second old
        await eventually(
            lambda: served_by(of_channel(said, target)) == 5, meanwhile=ask
        )
    mine = of_channel(said, target)
    assert flaw(said) == ""
    assert {one["address"] for one in mine["backends"]} == {t.address for t in tasks}
    assert any(one["p99"] for one in mine["backends"])
    assert mine["rule"].startswith("A call goes to the backend with the least")
    assert mine["picks"][0]["backend"] in target
    assert "ready" in mine["picks"][0]["because"]
    settings = {one["name"]: (one["value"], one["source"]) for one in mine["config"]}
    assert settings["subset_size"] == ("7", "LBCLIENT_SUBSET_SIZE")
    assert settings["active_limit"] == ("50", "code")
    assert settings["picker"] == ("'weighted_least_loaded'", "default")
    assert "known to nobody else" not in json.dumps(said)
    servers = {port: one for one in said["servers"] for port in one["ports"]}
    assert {task.address for task in tasks} <= servers.keys()
    assert servers[tasks[0].address]["state"] == "serving"


async def test_a_closed_channel_is_told_of_no_more(port: int, start: Any) -> None:
    task = await start(lbclient.server)
    channel = lbclient.insecure_channel(task.address)
    targets = [one["target"] for one in snapshot()["channels"]]
    assert task.address in targets
    await channel.close()
    assert task.address not in [one["target"] for one in snapshot()["channels"]]


async def test_what_cannot_be_described_is_told_of_by_its_error_and_the_others_as_ever(
    port: int, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One `repr` of a resolver that raised had made the whole page a 500."""

    class Moody:
        words = "moody"

        def __repr__(self) -> str:
            return self.words if self.words else str(1 / 0)

        async def watch(self) -> Any:
            yield (lbclient.Endpoint(good.address),)
            await asyncio.Event().wait()

    def broken() -> None:
        raise RuntimeError("of redis://me:secret@host")

    good, bad = [await start(lbclient.server) for _ in range(2)]
    async with (
        lbclient.insecure_channel(good.address) as plain,
        lbclient.insecure_channel(Moody()) as moody,
    ):
        await plain.channel_ready()
        await moody.channel_ready()
        monkeypatch.setattr(Moody, "words", "")
        monkeypatch.setattr(bad.server, "statistics", broken)
        said = await told(port)
    assert flaw(said) == ""
    assert good.address in [one["target"] for one in said["channels"]]
    assert "moody" not in [one["target"] for one in said["channels"]]
    ports = [one for server in said["servers"] for one in server["ports"]]
    assert good.address in ports
    assert bad.address not in ports
    channel, server = said["untold"]
    assert (channel["kind"], channel["name"]) == ("channel", "moody")
    assert channel["error"] == "ZeroDivisionError: the log says more"
    assert (server["kind"], server["name"]) == ("server", bad.address)
    assert server["error"] == "RuntimeError: the log says more"
    assert said["channels_left_out"] == said["servers_left_out"] == 0


async def test_what_is_told_has_an_end(eventually: Any) -> None:
    class Many:
        def __repr__(self) -> str:
            return "x" * 10_000

        async def watch(self) -> Any:
            count = MOST_BACKENDS + 5
            yield tuple(lbclient.Endpoint(f"127.1.0.1:{n + 1}") for n in range(count))
            await asyncio.Event().wait()

    config = lbclient.ChannelConfig(subset="whole", max_replacements=0)
    async with lbclient.insecure_channel(Many(), config=config) as channel:
        channel.get_state(try_to_connect=True)
        await eventually(lambda: channel.statistics().backends)
        said = snapshot()
        mine = next(one for one in said["channels"] if one["target"][0] == "x")
    assert len(mine["target"]) <= LONGEST + 3
    assert len(mine["backends"]) <= MOST_BACKENDS
    assert mine["backends_left_out"] >= 5
    assert len(json.dumps(said)) < 1_000_000


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/lbz", "text/html"),
        ("/lbz.json", "application/json"),
        ("/lbz/page.js", "text/javascript"),
        ("/lbz/uplot.css", "text/css"),
    ],
)
async def test_each_page_is_of_its_kind_and_from_here_alone(
    port: int, path: str, kind: str
) -> None:
    status, headers, body = await get(port, path)
    assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
    assert int(headers["content-length"]) == len(body) > 0
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


async def test_a_program_that_asks_for_json_gets_it_at_the_same_address(
    port: int,
) -> None:
    _, headers, body = await get(
        port, "/lbz", "Host: localhost", "Accept: application/json"
    )
    assert headers["content-type"].startswith("application/json")
    assert json.loads(body)["version"] == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9465", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:9465", 200),
        ("10.1.2.3", 200),
        ("evil.example:9465", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
async def test_a_name_that_was_made_to_point_here_is_refused(
    port: int, host: str, status: int
) -> None:
    assert (await get(port, "/lbz.json", f"Host: {host}"))[0] == status


async def test_two_hosts_or_none_are_refused(port: int) -> None:
    assert (await get(port, "/lbz", "Host: localhost", "Host: localhost"))[0] == 421
    assert (await get(port, "/lbz", "Accept: */*"))[0] == 421


async def test_one_text_is_no_collection_of_names() -> None:
    """Each of its letters was a name of the page, and the name was none."""
    with pytest.raises(ConfigError, match=r"names = 'lbz\.test': want a collection"):
        async with admin.page(port=0, names="lbz.test"):
            pass


@pytest.mark.parametrize("names", [[5], 5])
async def test_names_are_texts(names: Any) -> None:
    with pytest.raises(ConfigError, match=r"want a collection of names, each a text"):
        async with admin.page(port=0, names=names):
            pass


async def test_more_names_are_welcome_if_they_are_given() -> None:
    async with admin.page(port=0, names=["backend-1"]) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        assert (await get(port, "/lbz.json", "Host: backend-1:9465"))[0] == 200


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST /lbz HTTP/1.1", 405),
        (b"DELETE /lbz.json HTTP/1.1", 405),
        (b"GET / HTTP/1.1", 404),
        (b"GET /lbz/../../etc/passwd HTTP/1.1", 404),
        (b"GET /lbz/%2e%2e/x HTTP/1.1", 404),
        (b"GET /lbz?x=y HTTP/1.1", 200),
        (b"GET /lbz HTTP/2.0", 400),
        (b"nonsense", 400),
        (b"\xff\xfe \x00 \x01", 400),
    ],
)
async def test_anything_else_is_refused_by_name(
    port: int, request_line: bytes, status: int
) -> None:
    assert (await say(port, request_line + b"\r\nHost: localhost\r\n\r\n"))[0] == status


async def test_head_has_no_body(port: int) -> None:
    request = b"HEAD /lbz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, headers, body = await say(port, request)
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


async def test_a_request_without_end_is_refused(port: int) -> None:
    request = b"GET /lbz HTTP/1.1\r\nHost: " + b"x" * (2 * HEAD_SIZE)
    assert (await say(port, request))[0] == 431


Held = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


async def ended(held: Held) -> list[int]:
    """The places of those that the page has closed."""
    places = []
    for place, (reader, _) in enumerate(held):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                with suppress(ConnectionResetError):
                    await reader.read()
                places.append(place)
    return places


async def until_ended(held: Held, places: list[int]) -> None:
    """Those that are accepted last end others, and all are accepted by and by."""
    for _ in range(20):
        if (found := await ended(held)) == places:
            return
    pytest.fail(f"ended: {found}, want {places}")


async def test_of_one_address_the_oldest_connections_give_way(port: int) -> None:
    held: Held = []
    for place in range(OF_ONE + 3):
        held.append(await asyncio.open_connection("127.0.0.1", port))
        if place == 0:
            held[0][1].write(b"GET /lbz HT")  # half a request is none
    await until_ended(held, [0, 1, 2])
    assert (await get(port))[0] == 200
    for _, writer in held:
        writer.close()


async def test_of_all_connections_the_oldest_gives_way(port: int) -> None:
    """All of 127.0.0.0/8 is this machine."""
    held: Held = []
    for place in range(CONNECTIONS + 2):
        source = f"127.0.1.{place // OF_ONE}"
        held.append(
            await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        )
    await until_ended(held, [0, 1])
    assert (await get(port))[0] == 200
    for _, writer in held:
        writer.close()


async def test_who_leaves_in_the_middle_of_a_request_is_not_worth_a_line_of_the_log(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a traceback each: a stranger could fill the disk."""
    for part in (b"", b"G", b"GET /lbz HTTP/1.1\r\nHost: local"):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(part)
        writer.close()
        await writer.wait_closed()
    assert (await get(port))[0] == 200
    assert caplog.records == []


@pytest.mark.parametrize("has_ipv6", [True, False])
async def test_every_address_is_those_of_ipv4_too(
    has_ipv6: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gRPC takes [::] for its own ports, in a container without IPv6 as well."""
    if not has_ipv6:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    site = Site({}, {"localhost"})
    port = await site.open("::", 0)
    assert (await get(port))[0] == 404
    with pytest.raises(OSError, match="in use"):
        await Site({}, ()).open("::", port)
    await site.close()


async def test_a_request_byte_by_byte_has_no_longer_than_others() -> None:
    site = Site({}, {"localhost"}, patience=0.3)
    port = await site.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with suppress(ConnectionError):
        while not reader.at_eof():
            writer.write(b"G")
            await writer.drain()
            await asyncio.sleep(0.01)
    assert loop.time() - began_at >= 0.3  # and it came to an end at all
    writer.close()
    await site.close()


async def test_who_does_not_come_to_an_end_is_left() -> None:
    site = Site({}, {"localhost"}, patience=0.1)
    port = await site.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /lbz HTTP/1.1\r\nHost: loc")
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await site.close()


async def test_a_port_is_named_if_it_and_those_after_it_are_taken(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(admin, "NEXT", 0)
    with pytest.raises(ConfigError, match=f"port = {port}: want one that is free"):
        async with admin.page(port=port):
            pass
    with pytest.raises(ConfigError, match="port = 70000"):
        async with admin.page(port=70000):
            pass


@pytest.mark.parametrize("host", ["nope.invalid", "192.0.2.1"])
async def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"host = '{host}': want a name or an addr"):
        async with admin.page(port=0, host=host):
            pass


async def test_it_ends_with_its_block_whoever_is_connected() -> None:
    async with admin.page(port=0) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await get(port)  # the connection before was accepted before this one
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def mounted(path: str, host: str, method: str = "GET") -> tuple[int, bytes]:
    """What the application answers where another one has mounted it at /debug."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode())]
    scope = {"type": "http", "method": method, "headers": headers}
    scope |= {"path": f"/debug{path}", "root_path": "/debug"}
    await admin.asgi(names=["shop.test"])(scope, None, send)
    start, body = sent
    return start["status"], body["body"]


def test_the_mounted_page_needs_no_loop_of_asyncio() -> None:
    """Hypercorn runs applications on trio, too. Nothing here waits."""
    with pytest.raises(StopIteration) as over:
        mounted("/lbz.json", "shop.test").send(None)
    status, body = over.value.value
    assert status == 200
    assert "channels" in json.loads(body)


def test_what_goes_on_failing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    history, errors = History(), [OSError(), OSError(), ValueError()]

    def fail(_: object) -> Any:
        raise errors[0]

    while errors:
        history._add({}, {1: "one", 2: "two"}, 10, 0.0, fail)
        errors.pop(0)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["'one' could not be described"] * 2


async def test_a_web_application_can_mount_the_page() -> None:
    status, page = await mounted("/lbz", "shop.test")
    assert (status, b'src="lbz/page.js"' in page) == (200, True)
    assert "channels" in json.loads((await mounted("/lbz.json", "127.0.0.1:80"))[1])
    assert await mounted("/lbz/page.js", "shop.test", "HEAD") == (200, b"")
    assert (await mounted("/lbz", "elsewhere.test"))[0] == 421
    assert (await mounted("/lbz", "shop.test", "POST"))[0] == 405
    assert (await mounted("/else", "shop.test"))[0] == 404
