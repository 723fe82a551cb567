"""A web application in several workers, for `test_workers`: each has a channel.

The channel and the metrics are made where the module is imported, which gunicorn's
`--preload` does before it forks. `/call` makes a call, `/metrics` shows all workers'.
"""

import os
from typing import Any

from prometheus_client import CollectorRegistry, make_asgi_app, multiprocess

import lbclient
import lbclient.admin
from lbclient import metrics

PATH = "/test.Service/Method"

channel = lbclient.insecure_channel(os.environ["BACKEND"], name="backend")
method = channel.unary_unary(PATH)
metrics.export(channel)

registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
shown = make_asgi_app(registry)
page = lbclient.admin.asgi()


async def app(scope: Any, receive: Any, send: Any) -> None:
    path = scope.get("path", "")
    if scope["type"] == "lifespan" or path.startswith("/lbz"):
        await page(scope, receive, send)
    elif path == "/call":
        await method(b"", timeout=10.0)
        body = str(os.getpid()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
    else:
        await shown(scope, receive, send)
