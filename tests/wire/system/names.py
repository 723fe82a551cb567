"""A channel of `dns:///search.test` where dnspython is not installed, and its fleet.

For a network namespace of its own, where it is the name server at port 53 that
/etc/resolv.conf names. Prints what it found, as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import lbclient
from lbclient.resolvers import dns, lookups

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc

from tests.waiting import eventually
from tests.wire.name_server import name_server

NAME, PORT = "search.test", 50051
HOSTS = [f"127.0.0.{n}" for n in range(1, 7)]
INTERVAL = 2.0

dns.is_installed = lambda module: False  # type: ignore[attr-defined]


class Search(pb_grpc.SearchServicer):
    def __init__(self) -> None:
        self.served = 0
        self.server = lbclient.server()

    async def Search(self, request: pb.Query, context: Any) -> pb.Answer:
        self.served += 1
        return pb.Answer()


async def serve(host: str) -> Search:
    search = Search()
    pb_grpc.add_SearchServicer_to_server(search, search.server)
    search.server.add_insecure_port(f"{host}:{PORT}")
    await search.server.start()
    return search


async def main() -> None:
    loop = asyncio.get_running_loop()
    of_hosts_file = await lookups.system_lookup("hosts.test", PORT)
    found: dict[str, Any] = {"hosts": list(of_hosts_file.hosts)}
    target = f"dns:///{NAME}:{PORT}"
    config = lbclient.ChannelConfig(resolve_interval=INTERVAL)
    async with name_server(53) as server:
        fleet = [await serve(host) for host in HOSTS]
        server.records[NAME, "A"] = HOSTS[:3]
        async with lbclient.insecure_channel(target, config=config) as channel:
            stub = pb_grpc.SearchStub(channel)

            def told() -> Any:
                return channel.statistics().resolver

            async def call_until_served(count: int) -> float:
                begun_at = loop.time()
                async with asyncio.timeout(20):
                    while sum(one.served > 0 for one in fleet) < count:
                        await stub.Search(pb.Query(), timeout=5)
                return loop.time() - begun_at

            await call_until_served(3)
            known = len(server.asked)
            await eventually(lambda: len(server.asked) > known)
            await asyncio.sleep(0.5)  # of the interval
            server.records[NAME, "A"] = HOSTS
            found["took"] = await call_until_served(6)
            for how in ("NXDOMAIN", "silence"):
                server.fails = dict.fromkeys(("A", "AAAA"), how)
                await eventually(lambda: told().error)
                await stub.Search(pb.Query(), timeout=5)
                found[how] = told().error, told().endpoints
                server.fails = {}
                await eventually(lambda: not told().error)
            server.fails = {"A": "SERVFAIL"}
            server.records[NAME, "AAAA"] = ["::1"]
            await eventually(lambda: told().error or told().endpoints == 1)
            found["half"] = told().error, told().endpoints
        for search in fleet:
            await search.server.stop(None)
    print(json.dumps(found))


asyncio.run(main())
