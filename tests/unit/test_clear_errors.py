"""Errors of a new user's mistakes name what is wrong, its value and what is right."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import lbclient
from lbclient import ChannelConfig, Endpoint, ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.resolvers.listing import listing
from lbclient.server.meters.user_signals import UserSignals
from lbclient.testing import LocalFleet


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        (ChannelConfig, "pickr", "'pickr': perhaps picker is meant"),
        (ServerConfig, "maxload", "'maxload': perhaps max_load is meant"),
        (ServerConfig, "zzz", "'zzz': want one of adaptive_concurrency, "),
    ],
)
def test_a_keyword_that_is_no_setting_names_the_one_that_is_meant(
    config: Any, name: str, said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        config(**{name: 1})
    assert f"{config.__name__} has no setting {said}" in str(caught.value)
    assert "_read" not in str(caught.value)


@pytest.mark.parametrize(
    "target",
    [
        "ipv4:1.2.3.4:50051;5.6.7.8:50051",
        "ipv4:1.2.3.4:50051 5.6.7.8:50051",
        "1.2.3.4:50051;5.6.7.8:50051",
        "ipv6:[::1]:50051;[::2]:50051",
    ],
)
def test_a_list_of_addresses_has_commas(target: str) -> None:
    """The target itself is not told: what is behind a typing error may be a secret."""
    right = "as in ipv4:10.0.0.1:50051,10.0.0.2:50051$"
    with pytest.raises(ConfigError, match=f"commas separate .* of a list, {right}"):
        lbclient.insecure_channel(target)


@pytest.mark.parametrize(
    ("target", "right"),
    [
        ("::1:6101", "[::1]:6101, with brackets around the address, or [::1:6101]:443"),
        ("::1:50051", "[::1]:50051, with brackets around the address"),
        ("dns:///fe80::1:6101", "or [fe80::1:6101]:443"),
    ],
)
def test_a_port_behind_an_ipv6_address_wants_brackets(target: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lbclient.insecure_channel(target)
    assert str(caught.value).startswith(f"target = {target!r}: want [")
    assert str(caught.value).endswith(right)


@pytest.mark.parametrize(
    "address",
    ["http://localhost:80", "https://a:1/x", "grpc://10.0.0.3:50051", "HTTP://a:1"],
)
def test_an_address_is_no_url(address: str) -> None:
    with pytest.raises(ConfigError, match="want host:port without a scheme"):
        Endpoint(address)


@pytest.mark.parametrize(
    "address", ["unix:/run/a", "unix:///run/a", "dns:///a:1", "dns://8.8.8.8/a:1"]
)
def test_an_address_may_be_a_target_that_grpc_dials(address: str) -> None:
    assert Endpoint(address).address == address


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        (["10.0.0.3:50051", Endpoint("a:1")], "endpoints = '10.0.0.3:50051': want"),
        ("10.0.0.3:50051", "endpoints = '10.0.0.3:50051': want"),
        ([("10.0.0.3", 50051)], "endpoints = ('10.0.0.3', 50051): want"),
        (Endpoint("a:1"), "endpoints = Endpoint(address='a:1'"),
        (None, "endpoints = None: want a tuple of Endpoints"),
    ],
)
def test_what_a_resolver_yields_instead_of_endpoints_is_named(
    endpoints: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        listing(endpoints)
    assert said in str(caught.value)
    assert "lbclient.Endpoint('10.0.0.3:50051')" in str(caught.value)


def test_an_error_of_a_resolvers_own_iterator_stays() -> None:
    def broken() -> Any:
        yield Endpoint("a:1")
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        listing(broken())


async def test_a_resolver_that_returns_is_told_to_yield() -> None:
    class Returns:
        async def watch(self) -> Any:
            return [Endpoint("127.0.0.1:1")]

    resolver: Any = Returns()
    async with lbclient.insecure_channel(resolver) as channel:
        call: Any = channel.unary_unary("/a.B/C")
        with pytest.raises(grpc.aio.AioRpcError, match="is to yield endpoints"):
            await call(b"", timeout=5.0)


@pytest.mark.parametrize("timeout", ["3", [3], object()])
async def test_a_timeout_is_a_number(timeout: Any) -> None:
    class Nobody:
        async def watch(self) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield ()

    resolver: Any = Nobody()
    async with lbclient.insecure_channel(resolver) as channel:
        unary: Any = channel.unary_unary("/a.B/C")
        stream: Any = channel.unary_stream("/a.B/C")
        for begin in (unary, stream):
            with pytest.raises(TypeError, match="want seconds, a number or None") as e:
                await begin(b"", timeout=timeout)
            assert "timeout = " in str(e.value)


def test_a_local_fleet_needs_a_function_that_registers() -> None:
    wrong: Any = 3
    with pytest.raises(ConfigError, match=r"register = 3: want a function that adds"):
        LocalFleet(wrong)
    with pytest.raises(ConfigError, match=r"count = .*: want a whole number"):
        LocalFleet(print, wrong.__class__)


def test_a_local_fleet_has_a_target_once_it_has_started() -> None:
    with pytest.raises(RuntimeError, match="async with LocalFleet"):
        _ = LocalFleet(print).target


async def test_a_number_of_threads_is_no_pool() -> None:
    wrong: Any = 10
    right = r"= 10: want an executor, such as ThreadPoolExecutor\(max_workers=10\)"
    with pytest.raises(ConfigError, match=f"^thread_pool {right}"):
        lbclient.sync_server(wrong)
    with pytest.raises(ConfigError, match=f"^migration_thread_pool {right}"):
        lbclient.server(wrong)


def test_a_utilization_in_percent_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    percent = [3.0]
    signals = UserSignals(ServerConfig(utilization=lambda: percent[0]))
    assert signals.utilization(0.5) == 3.0
    assert caplog.messages == [], "an overloaded task may say so"
    percent[0] = 45.0
    for _ in range(3):
        assert signals.utilization(0.5) == 45.0
    (line,) = caplog.messages
    assert line.startswith("ServerConfig.utilization returned 45: is it in percent?")
    assert "0.45" in line
