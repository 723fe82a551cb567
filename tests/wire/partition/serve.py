"""Serves the Search service on each address of the command line."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import lbclient

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc


class Search(pb_grpc.SearchServicer):
    def __init__(self, address: str) -> None:
        self.address = address

    async def Search(self, request: pb.Query, context: Any) -> pb.Answer:
        return pb.Answer(text=self.address)


async def main(addresses: list[str]) -> None:
    servers = []
    for address in addresses:
        server = lbclient.server()
        pb_grpc.add_SearchServicer_to_server(Search(address), server)
        server.add_insecure_port(address)
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.sleep(120)


asyncio.run(main(sys.argv[1:]))
