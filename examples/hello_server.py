"""A search service behind lbclient: python hello_server.py [PORT]

Start some, then run hello_client.py with their ports. Stop one with SIGTERM while
calls go on: it tells its clients, serves what is on the way, and is gone.
"""

import asyncio
import sys

import search_pb2_grpc
from search_pb2 import Answer

import lbclient


class Search(search_pb2_grpc.SearchServicer):
    async def Search(self, request, context):
        return Answer(text=f"found {request.text}")

    async def Pages(self, request, context):
        for page in (1, 2, 3):
            yield Answer(text=f"{request.text}, page {page}")

    async def Index(self, requests, context):
        return Answer(text=f"indexed {[query.text async for query in requests]}")

    async def Chat(self, requests, context):
        async for query in requests:
            yield Answer(text=f"you said {query.text}")


async def main(port: str = "50051") -> None:
    server = lbclient.server()  # grpc.aio.server() with load reports and health
    search_pb2_grpc.add_SearchServicer_to_server(Search(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    print(f"serving on port {port}", flush=True)
    await lbclient.serve(server)  # until SIGTERM or Ctrl-C, and then in order


asyncio.run(main(*sys.argv[1:2]))
