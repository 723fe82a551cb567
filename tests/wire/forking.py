"""Makes a channel, forks, and calls on it in the child, for `test_workers`."""

import asyncio
import os
import sys

import lbclient

channel = lbclient.insecure_channel(sys.argv[1])


async def call() -> str:
    return str(await channel.unary_unary("/test.Service/Method")(b"", timeout=10.0))


if not (child := os.fork()):
    sys.stdout.write(asyncio.run(call()))
    sys.stdout.flush()
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
