"""The web application: gunicorn shop.app:app"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request, Response
from grpc import ChannelConnectivity
from grpc.aio import AioRpcError
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from prometheus_client import Counter

import lbclient
from lbclient import metrics
from lbclient.metrics import opentelemetry
from shop import errors, telemetry
from shop.catalog import Catalog, TheCatalog
from shop.deadline import RequestDeadline
from shop.operations import ByPort, make_operations
from shop.settings import Settings
from shop.users import CurrentUser, read_users

FIRST_CONNECTION = 5.0  # seconds that a worker waits for a backend before it serves

settings = Settings()
requests = Counter("shop_http_requests", "HTTP requests", ["route", "status"])


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """One channel a worker, for all its requests, made after the fork."""
    read_users()  # a bad file is told now, not to the first user
    provider = telemetry.start("shop")
    async with lbclient.insecure_channel(settings.target, name="catalog") as channel:
        metrics.export(channel)
        opentelemetry.trace(channel)
        api.state.channel = channel
        api.state.catalog = Catalog(channel, settings.catalog_token)
        with suppress(TimeoutError):  # /ready says that there is none
            await asyncio.wait_for(channel.channel_ready(), FIRST_CONNECTION)
        yield
    provider.shutdown()


api = FastAPI(title="shop", lifespan=lifespan)
api.add_exception_handler(AioRpcError, errors.respond)
FastAPIInstrumentor.instrument_app(api)


@api.middleware("http")
async def count(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """By route, not by path: anybody can make up paths."""
    response = await call_next(request)
    route = getattr(request.scope.get("route"), "path", "none")
    requests.labels(route, str(response.status_code)).inc()
    return response


@api.get("/search")
async def search(
    text: str, _: CurrentUser, catalog: TheCatalog, deadline: RequestDeadline
) -> list[str]:
    return await catalog.search(text, deadline.left())


def is_ready() -> bool:
    """Without calls for a while a channel is idle, and connects at the next one."""
    channel = getattr(api.state, "channel", None)
    ready = (ChannelConnectivity.READY, ChannelConnectivity.IDLE)
    return channel is not None and channel.get_state() in ready


app = ByPort(api, make_operations(is_ready), int(settings.operations_port))
