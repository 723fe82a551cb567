"""A program on CPUs, as in `0,1`: `serve CPUS` with calls that cost 3 ms of one CPU, or
`burn CPUS`."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import lbclient

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import search_pb2 as pb
import search_pb2_grpc as pb_grpc

COST = 0.003  # CPU seconds of a call


class Search(pb_grpc.SearchServicer):
    async def Search(self, request: pb.Query, context: Any) -> pb.Answer:
        end = time.thread_time() + COST
        while time.thread_time() < end:
            pass
        return pb.Answer(text=str(os.getpid()))


async def serve() -> None:
    # It is to be left before it has too much, and then it is not to refuse anybody.
    server = lbclient.server(config=lbclient.ServerConfig(max_load=0))
    pb_grpc.add_SearchServicer_to_server(Search(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.sleep(300)


verb, cpus = sys.argv[1:]
os.sched_setaffinity(0, set(map(int, cpus.split(","))))
if verb == "serve":
    asyncio.run(serve())
else:
    parent = os.getppid()
    while os.getppid() == parent:
        pass
