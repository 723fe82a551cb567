"""One scrape of all workers: the supervisor serves what each has written to files."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from lbclient.admin.http import HttpRequest, HttpResponse, Site
from lbclient.core.errors import ConfigError
from lbclient.metrics.multiprocess import DIRECTORY

Ended = Callable[[int], None]


def ignore(pid: int) -> None:
    """Does nothing about a process that has ended, where nobody wants metrics."""


@asynccontextmanager
async def scraped_at(port: object, host: str) -> AsyncIterator[Ended | None]:
    """Serves metrics of the processes that start within; gives what is to be told of
    each one that has ended. None: nobody wants metrics.

    Raises ConfigError for what is no port, and RuntimeError where it is taken.
    """
    if port is None:
        yield None
        return
    if type(port) is not int or not 0 < port < 65536:
        raise ConfigError("metrics", port, "a port, 1 to 65535")
    with TemporaryDirectory(prefix="lbclient-metrics-") as directory:
        os.environ[DIRECTORY[0]] = directory  # of workers, which inherit it
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]
        answer = partial(_exposition, registry)
        site = Site({"/metrics": answer, "/": answer}, names=None)
        try:
            await site.open(host.strip("[]"), port)
        except OSError as error:
            raise RuntimeError(f"no metrics on {host}:{port}: {error}") from error
        try:
            yield lambda pid: mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
        finally:
            await site.close()


def _exposition(registry: CollectorRegistry, request: HttpRequest) -> HttpResponse:
    encode, kind = choose_encoder(",".join(request.headers.get("accept", ())))
    return HttpResponse(kind, encode(registry))
