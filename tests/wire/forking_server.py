"""Makes a synchronous server, forks twice, and serves in each child.

For `test_sync_server`. Prints what each child was answered.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import lbclient

server = lbclient.sync_server(ThreadPoolExecutor(2))
handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, _context: request)
server.add_registered_method_handlers("a.B", {"C": handler})
children = []
for _ in range(2):
    if child := os.fork():
        children.append(child)
        continue
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/a.B/C")
        os.write(1, call(b"served\n", timeout=20))
    is_over = server.stop(None).wait(20)
    os._exit(0 if is_over else 1)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
