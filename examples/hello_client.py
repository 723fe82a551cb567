"""Calls the servers that listen on the given ports: python hello_client.py [PORT...]"""

import asyncio
import sys

import search_pb2_grpc
from search_pb2 import Query

import lbclient


async def queries(*texts):
    for text in texts:
        yield Query(text=text)


def show(text, call):
    print(f"{lbclient.info(call).backend}: {text}")


async def main(*ports: str) -> None:
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports or ("50051",))
    async with lbclient.insecure_channel(target) as channel:  # the word that changes
        stub = search_pb2_grpc.SearchStub(channel)
        for text in ("larch", "maple", "willow"):
            call = stub.Search(Query(text=text), timeout=1.0)
            answer = await call
            show(answer.text, call)
        pages = stub.Pages(Query(text="oak"), timeout=1.0)
        async for page in pages:
            show(page.text, pages)
        index = stub.Index(queries("ash", "elm"), timeout=1.0)
        show((await index).text, index)
        chat = stub.Chat(queries("hello", "goodbye"), timeout=1.0)
        async for answer in chat:
            show(answer.text, chat)


asyncio.run(main(*sys.argv[1:]))
