"""Reports exceptions of handlers to clients where grpcio would not.

grpcio tells the client of an exception: UNKNOWN, its class and its text. But not of
each: an exception that is no `Exception`, such as CancelledError, leaves the request
without an answer, and so does one of grpcio's own, one whose text cannot be had or
encoded, and one that does not pass from a thread through a future. A text that is too
long for a header makes the client say RESOURCE_EXHAUSTED. Hence `is_told` asks what
grpcio does tell; all else is told by the request itself (`calls`).
"""

import asyncio
import concurrent.futures
from typing import Any

import grpc.aio

from lbclient.background.tasks import cancellations
from lbclient.log import Log

logger = Log(__name__)

# Bytes of a status' text on the wire. A peer takes 8 KB of trailers without complaint,
# and the handler's own are among them.
MOST = 6000

# What a future of asyncio, which brings it from a thread, makes something else of.
_NOT_BROUGHT = (StopIteration, concurrent.futures.CancelledError)

CANCELLED = "something that the handler awaited was cancelled, and the request was not"
TASK_CANCELLED = "the task that served the request was cancelled in its server"


def is_told(error: BaseException, in_thread: bool = False) -> bool:
    """Whether grpcio tells the client of it, in words that arrive."""
    if not isinstance(error, Exception) or isinstance(error, grpc.aio.BaseError):
        return False
    if in_thread and isinstance(error, _NOT_BROUGHT):
        return False
    try:
        text = str(error)
    except BaseException:
        return False
    return fitting(text) == text


def log_failure(error: BaseException) -> None:
    """Logs an exception of a handler that grpcio would not log.

    That its task was cancelled is no failure of the handler. Where a program ends
    without stopping its server, `asyncio.run` cancels the tasks of all requests.
    """
    name = type(error).__name__
    words = "handler failed: %s"
    if isinstance(error, asyncio.CancelledError) and cancellations():
        logger.debug(words, name, reason=name)
    else:
        logger.error(words, name, exc_info=error, reason=name)


def told(error: BaseException) -> str:
    """What grpcio would tell, as far as that is possible.

    >>> told(ValueError("no such guest"))
    "Unexpected <class 'ValueError'>: no such guest"
    """
    return f"Unexpected {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The class of an error, and its text."""
    try:
        text = str(error)
    except BaseException as reason:
        text = f"its text cannot be had: {type(reason).__name__}"
    return fitting(f"{type(error)}: {text}")


def encodable(text: Any) -> Any:
    """A status' text; with what cannot be encoded grpcio would send no status at all.

    >>> encodable("a" + chr(0xDCFF))
    'a?'
    """
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


def fitting(text: str) -> str:
    """As much of it as fits into a header; what cannot be encoded is replaced.

    >>> len(fitting(10_000 * "x")), fitting("a" + chr(0xDCFF))
    (6000, 'a?')
    """
    data = text[:MOST].encode(errors="replace")
    # What is not printable takes three bytes on the wire.
    size = len(data) + 2 * sum(not 32 <= byte < 127 for byte in data)
    if size > MOST:
        data = data[: MOST // 3]
    return data.decode(errors="ignore")
