"""Uses a channel and a server, ends both, forks, and uses others in the child, for
`test_workers`."""

import asyncio
import gc
import os
import sys

import lbclient


async def use() -> str:
    server = lbclient.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with lbclient.insecure_channel(sys.argv[1]) as channel:
        reply = await channel.unary_unary("/test.Service/Method")(b"", timeout=10.0)
    await server.stop(None)
    return str(reply)


gc.disable()  # else one could come by chance
asyncio.run(use())
if not (child := os.fork()):
    sys.stdout.write(asyncio.run(use()))
    sys.stdout.flush()
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
