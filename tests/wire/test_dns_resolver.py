"""Names, asked of a real name server on loopback, by dnspython as users have it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from dns.name import from_text
from dns.resolver import Resolver as DnsPython

import lbclient
from lbclient.core.errors import ResolveError
from lbclient.resolvers import Dns, parse_target
from lbclient.resolvers.name_servers import NameServers, is_local
from tests.wire.name_server import NameServer, name_server

NAME = "search.test"  # RFC 6761: nobody will ever have it
NOBODY = Path("/dev/null")  # as /etc/hosts


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with name_server() as server:
        yield server


def asking(server: NameServer) -> NameServers:
    return NameServers(server.resolver, NOBODY)


def resolver(server: NameServer, port: int = 50051, interval: float = 10.0) -> Dns:
    return Dns(NAME, port, interval, Random(7), asking(server).addresses)


async def once(resolver: Dns) -> list[str]:
    async with aclosing(resolver.watch()) as watch, asyncio.timeout(20):
        return [endpoint.address for endpoint in await anext(watch)]


async def test_both_families_are_asked_and_the_shorter_time_holds(
    server: NameServer,
) -> None:
    server.records[NAME, "A"] = ["10.0.0.2", "10.0.0.1"]
    server.records[NAME, "AAAA"] = ["fd00::1"]
    server.ttl = 60
    hosts, ttl, trouble = await asking(server).addresses(NAME, 1)
    assert sorted(hosts) == ["10.0.0.1", "10.0.0.2", "fd00::1"]
    assert (ttl, trouble) == (60.0, "")
    assert await once(resolver(server)) == [
        "10.0.0.1:50051",
        "10.0.0.2:50051",
        "[fd00::1]:50051",
    ]


async def test_a_short_name_is_looked_for_in_the_search_list(
    server: NameServer,
) -> None:
    def make() -> DnsPython:
        made = server.resolver()
        made.search = [from_text("test.")]
        return made

    server.records[NAME, "A"] = ["10.0.0.1"]
    hosts, *_ = await NameServers(make, NOBODY).addresses("search", 1)
    assert hosts == ["10.0.0.1"]


async def test_a_name_without_addresses_is_an_empty_answer(server: NameServer) -> None:
    server.records[NAME, "TXT"] = ["hello"]
    assert await once(resolver(server)) == []


async def test_a_long_answer_is_asked_for_again_over_tcp(server: NameServer) -> None:
    server.records[NAME, "A"] = [f"10.0.{n // 250}.{n % 250}" for n in range(1000)]
    assert len(await once(resolver(server))) == 1000
    assert (NAME, "A", "tcp") in server.asked


@pytest.mark.parametrize(
    ("how", "words"),
    [("SERVFAIL", "SERVFAIL"), ("REFUSED", "REFUSED"), ("silence", "timed out")],
)
async def test_a_name_server_that_fails_is_an_error_that_says_how(
    server: NameServer, how: str, words: str
) -> None:
    server.fails = {"A": how, "AAAA": how}
    server.patience = 0.3 if how == "silence" else server.patience
    with pytest.raises(ResolveError, match=f"DNS lookup of '{NAME}' failed: .*{words}"):
        await once(resolver(server))


async def test_a_name_that_dns_does_not_know_is_left_to_the_system(
    server: NameServer,
) -> None:
    with pytest.raises(
        ResolveError, match=f"DNS lookup of '{NAME}' failed: .*not known"
    ):
        await once(resolver(server))
    assert (NAME, "A", "udp") in server.asked


async def test_a_machine_without_name_servers_asks_the_system(tmp_path: Path) -> None:
    empty = tmp_path / "resolv.conf"
    empty.touch()
    servers = NameServers(partial(DnsPython, str(empty)), NOBODY)
    with pytest.raises(OSError, match="not known"):
        await servers.addresses(NAME, 1)


async def test_a_family_that_fails_keeps_its_last_answer(server: NameServer) -> None:
    server.records[NAME, "A"] = ["10.0.0.1"]
    server.records[NAME, "AAAA"] = ["fd00::1"]
    asked = asking(server)
    await asked.addresses(NAME, 1)
    server.fails = {"A": "SERVFAIL"}
    server.records[NAME, "AAAA"] = ["fd00::2"]
    hosts, _, trouble = await asked.addresses(NAME, 1)
    assert hosts == ["10.0.0.1", "fd00::2"]
    assert trouble.startswith("the last ones hold, no answer of A: ")
    assert "SERVFAIL" in trouble


async def test_half_an_answer_is_taken_and_told(
    server: NameServer, eventually: Callable[..., Awaitable[None]], caplog: Any
) -> None:
    """It was taken for the whole fleet, without a word."""
    server.records[NAME, "A"] = ["127.0.0.1"]
    server.records[NAME, "AAAA"] = ["::1"]
    server.ttl = 0
    server.fails = {"A": "SERVFAIL"}
    asked = resolver(server, interval=0.1)
    async with lbclient.insecure_channel(asked) as channel:

        def told() -> Any:
            return channel.statistics().resolver

        channel.get_state(try_to_connect=True)
        await eventually(lambda: told().endpoints == 1)
        assert told().error.startswith("addresses may be missing, no answer of A: ")
        server.fails = {"AAAA": "SERVFAIL"}
        await eventually(lambda: told().endpoints == 2)
        await eventually(lambda: "the last ones hold" in told().error)
        server.fails = {}
        await eventually(lambda: told().error == "")
    warnings = [r.message for r in caplog.records if "no answer of" in r.message]
    assert len(warnings) == 1


async def test_a_family_that_never_answers_is_not_needed(server: NameServer) -> None:
    server.records[NAME, "A"] = ["10.0.0.1"]
    server.fails = {"AAAA": "silence"}
    server.patience = 1.0
    assert await once(resolver(server)) == ["10.0.0.1:50051"]


async def test_what_is_known_does_not_hide_that_nobody_answers(
    server: NameServer,
) -> None:
    server.records[NAME, "A"] = ["10.0.0.1"]
    asked = asking(server)
    await asked.addresses(NAME, 1)
    server.fails = {"A": "SERVFAIL"}
    with pytest.raises(OSError, match="SERVFAIL"):
        await asked.addresses(NAME, 1)


HOSTS = """
127.0.0.1 runs # search.test
10.0.0.1	Search.test  search
"""


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("localhost", True),
        ("a.localhost.", True),
        ("search", True),
        ("search.test", True),
        ("SEARCH.test.", True),
        ("10.0.0.1", False),
        ("#", False),
        ("other.test", False),
    ],
)
def test_the_hosts_file_goes_before_dns(name: str, local: bool, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(HOSTS)
    assert is_local(name, tmp_path / "hosts") is local


def test_without_a_hosts_file_nothing_is_in_it() -> None:
    assert not is_local("search.test", Path("/nowhere/hosts"))


async def test_a_name_of_this_machine_is_never_asked_of_dns(server: NameServer) -> None:
    hosts, ttl, trouble = await asking(server).addresses("localhost", 80)
    assert {"127.0.0.1", "::1"} >= set(hosts)
    assert (ttl, trouble, server.asked) == (0.0, "", [])


def test_a_target_is_asked_of_name_servers_where_dnspython_is_installed() -> None:
    target = parse_target("dns:///localhost:80", resolve_interval=10.0, rng=Random(7))
    assert isinstance(target.resolver, Dns)
    assert asyncio.run(once(target.resolver))


def listening(host: str, port: int) -> Any:
    server = lbclient.server()
    server.add_insecure_port(f"{host}:{port}")
    return server


async def test_backends_that_come_and_fail_in_dns_are_followed(
    server: NameServer,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    free_port: Callable[[], int],
    eventually: Callable[..., Awaitable[None]],
    served_by_all: Callable[..., Awaitable[None]],
) -> None:
    """From 3 to 6 by the next question; through SERVFAIL none is lost.

    When that is asked is shown in virtual time: tests/loop/test_resolvers.py.
    """
    hosts = [f"127.0.0.{n}" for n in range(1, 7)]
    port = free_port()
    tasks = [await start(partial(listening, host, port)) for host in hosts]
    server.records[NAME, "A"] = hosts[:3]
    server.ttl = 2
    async with lbclient.insecure_channel(resolver(server, port)) as channel:
        stub = search.SearchStub(channel)
        await served_by_all(stub, tasks[:3], within=20)
        known = len(server.asked)
        await eventually(lambda: len(server.asked) == known + 2)
        server.records[NAME, "A"] = hosts
        await eventually(lambda: channel.statistics().resolver.endpoints == 6)
        assert len(server.asked) == known + 4
        await served_by_all(stub, tasks, within=20)
        server.fails = {"A": "SERVFAIL", "AAAA": "SERVFAIL"}
        await eventually(lambda: channel.statistics().resolver.error)
        assert "SERVFAIL" in channel.statistics().resolver.error
        assert channel.statistics().resolver.endpoints == 6
        for task in tasks:
            task.servicer.served = 0
        await served_by_all(stub, tasks, within=20)
        server.fails.clear()
        await eventually(lambda: not channel.statistics().resolver.error)
