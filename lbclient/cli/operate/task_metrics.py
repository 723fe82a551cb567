"""One scrape of all workers: the supervisor serves what each has written to files."""

import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from lbclient.admin.http import HttpRequest, HttpResponse, Site
from lbclient.cli.operate.task_site import port_of, served
from lbclient.core.errors import ConfigError
from lbclient.log import Log
from lbclient.metrics.multiprocess import DIRECTORY

logger = Log(__name__)

Ended = Callable[[int], None]

ADDED_UP = ("counter", "histogram", "summary")  # kinds of which the past counts


def named() -> str | None:
    """The folder that whoever started the program has set for prometheus_client."""
    return next(filter(None, map(os.environ.get, DIRECTORY)), None)


def mark_ended(pid: int) -> None:
    """Where nobody asked for metrics: the program's own are in the folder that is set,
    and gauges of a process that has ended are to go from there."""
    if (directory := named()) is not None:
        mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]


@contextmanager
def _folder() -> Iterator[str]:
    """Where processes that start within write their metrics, and what is left of it."""
    if (directory := named()) is None:
        with _temporary() as directory:
            os.environ[DIRECTORY[0]] = directory  # of workers, which inherit it
            try:
                yield directory
            finally:
                del os.environ[DIRECTORY[0]]
        return
    if not Path(directory).is_dir():
        raise ConfigError(DIRECTORY[0], directory, "a folder that is there")
    yield directory


def _temporary() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="lbclient-metrics-")
    except OSError as error:  # such as a container's file system, which is read-only
        want = f"a folder to write in, or one such at /tmp ({error.strerror})"
        raise ConfigError(DIRECTORY[0], None, want) from None


def end(directory: str, pid: int) -> None:
    """Adds what an ended process counted to this one's file for all of them. Its own
    files are gone then, so their number is bounded however often workers end."""
    mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
    for kind in ADDED_UP:
        file = Path(directory, f"{kind}_{pid}.db")
        if not file.exists():
            continue
        try:
            _add(file, Path(directory, f"{kind}_ended-{os.getpid()}.db"))
        except Exception:  # such as of a full disk, or of what was killed as it wrote
            logger.exception("metrics of an ended worker are lost")
        file.unlink()


def _add(file: Path, to: Path) -> None:
    found = MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
    total: Any = MmapedDict(str(to))  # type: ignore[no-untyped-call]
    try:
        for key, value, *_ in found:
            total.write_value(key, total.read_value(key)[0] + value, 0.0)
    finally:
        total.close()


@asynccontextmanager
async def scraped_at(port: object, host: str) -> AsyncIterator[Ended | None]:
    """Serves metrics of the processes that start within; gives what is to be told of
    each one that has ended. None: nobody wants metrics. They are in the folder that is
    set for prometheus_client, or else in one that is gone at the end.

    Raises ConfigError for what is no port and for a folder that cannot be had, and
    RuntimeError where the port is taken.
    """
    if port is None:
        yield None
        return
    number = port_of("metrics", port)
    with _folder() as directory:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]
        answer = partial(_exposition, registry)
        site = Site({"/metrics": answer, "/": answer}, names=None)
        async with served("metrics", site, host, number):
            yield partial(end, directory)


def _exposition(registry: CollectorRegistry, request: HttpRequest) -> HttpResponse:
    encode, kind = choose_encoder(",".join(request.headers.get("accept", ())))
    try:
        return HttpResponse(kind, encode(registry))
    except struct.error:  # a worker has just made a file, which is empty so far
        return HttpResponse(kind, encode(registry))
