"""For operators, on a port of its own: probes, metrics, the status page.

The NetworkPolicy of kubernetes/ says who reaches it; on one machine it is loopback's.
"""

import os
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, HTTPException
from prometheus_client import REGISTRY, CollectorRegistry, make_asgi_app, multiprocess

from lbclient import admin


def make_operations(is_ready: Callable[[], bool]) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/live")
    async def live() -> str:
        """The event loop turns. Backends that are gone do not end a worker."""
        return "live"

    @app.get("/ready")
    async def ready() -> str:
        """The worker that answers has a backend to call."""
        if not is_ready():
            raise HTTPException(503, "no backend")
        return "ready"

    app.mount("/metrics", make_asgi_app(_registry()))
    app.mount("/debug", admin.asgi())  # /debug/lbz: the worker that answers
    return app


def _registry() -> CollectorRegistry:
    """Of all workers, whichever answers; of a process without workers its own."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return registry


class ByPort:
    """One application for users, another on the operators' port."""

    def __init__(self, public: FastAPI, operations: FastAPI, port: int) -> None:
        self._public = public
        self._operations = operations
        self._port = port

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_for_operators = (scope.get("server") or ("", 0))[1] == self._port
        app = self._operations if is_for_operators else self._public
        await app(scope, receive, send)
