"""What holds of the list of every source: its order, its doubles and its length."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

import lbclient
from lbclient.core.model import Endpoint
from lbclient.resolvers import Dns, File, Srv, listing
from lbclient.resolvers.kubernetes import Kubernetes
from lbclient.resolvers.name_servers import NameServers
from tests.wire.kubernetes_api import endpoint, endpoint_slice, kubernetes_api
from tests.wire.name_server import name_server

# Out of order, one of them twice; nobody listens there.
HOSTS = [f"127.0.0.{n}" for n in (5, 2, 3, 2, 4, 6)]
FIRST_THREE = [f"127.0.0.{n}:1" for n in (2, 3, 4)]


class Own:
    """As somebody may write it who read no more than the protocol."""

    async def watch(self) -> AsyncIterator[Any]:
        yield [Endpoint(f"{host}:1") for host in HOSTS]
        await asyncio.get_running_loop().create_future()


async def begin(kind: str, stack: AsyncExitStack, folder: Path) -> Any:
    """A target, or a resolver over a real source."""
    addresses = [f"{host}:1" for host in HOSTS]
    if kind == "ipv4":
        return f"ipv4:{','.join(addresses)}"
    if kind == "own":
        return Own()
    if kind in ("json", "yaml"):
        path = folder / f"backends.{kind}"
        path.write_text(json.dumps([{"targets": addresses}]))
        return File(str(path))
    if kind == "k8s":
        api = await stack.enter_async_context(kubernetes_api(folder))
        ports = [{"name": "grpc", "port": 1, "protocol": "TCP"}]
        for place, host in enumerate(HOSTS):
            api.put(endpoint_slice(f"search-{place}", endpoint(host), ports=ports))
        return Kubernetes("search", "prod", "grpc", Random(7), api.api)
    server = await stack.enter_async_context(name_server())
    asking = NameServers(server.resolver, Path("/dev/null"))
    if kind == "dns":
        server.records["search.test", "A"] = HOSTS
        return Dns("search.test", 1, 10.0, Random(7), asking.addresses)
    server.records["search.test", "SRV"] = [f"0 1 1 {host}." for host in HOSTS]
    return Srv("search.test", 10.0, Random(7), asking.services)


@pytest.mark.parametrize("kind", ["ipv4", "own", "dns", "srv", "json", "yaml", "k8s"])
async def test_of_a_long_list_the_first_are_taken_each_once(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    monkeypatch.setattr(listing, "MAX_ENDPOINTS", 3)
    async with AsyncExitStack() as stack:
        target = await begin(kind, stack, tmp_path)
        async with lbclient.insecure_channel(target) as channel:
            channel.get_state(try_to_connect=True)
            await eventually(lambda: channel.statistics().backends)
            told = [one.address for one in channel.statistics().backends]
            # Names keep the dot at their end.
            assert sorted(one.replace(".:", ":") for one in told) == FIRST_THREE
            assert channel.statistics().resolver.endpoints == 3
