"""A synchronous server in a process of its own: `sync_task.py PORT`."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lbclient
from tests.hosts import PATH, add_methods, unary_unary


def respond(request: bytes, _context: Any) -> bytes:
    time.sleep(0.01)
    return request


def say_so() -> None:
    """Once signals are handled: `serve_sync` calls it when the server listens."""
    sys.stdout.write("listening\n")
    sys.stdout.flush()


def main() -> None:
    server = lbclient.sync_server(ThreadPoolExecutor(10))
    add_methods(server, {PATH: unary_unary(respond)})
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    lbclient.serve_sync(server, say_so)


main()
