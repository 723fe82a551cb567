"""Calls the servers that listen on the given ports: python hello_client.py [PORT...]"""

import asyncio
import sys
from collections import Counter

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
        call = stub.Search(Query(text="larch"), timeout=1.0)
        show((await call).text, call)
        pages = stub.Pages(Query(text="oak"), timeout=1.0)
        async for page in pages:
            show(page.text, pages)
        index = stub.Index(queries("ash", "elm"), timeout=1.0)
        show((await index).text, index)
        chat = stub.Chat(queries("hello", "goodbye"), timeout=1.0)
        async for answer in chat:
            show(answer.text, chat)

        calls = [stub.Search(Query(text="maple"), timeout=1.0) for _ in range(100)]
        await asyncio.gather(*calls)
        shares = Counter(lbclient.info(call).backend for call in calls)
        for backend, count in sorted(shares.items()):
            print(f"{backend}: {count} of 100 calls")


asyncio.run(main(*sys.argv[1:]))
