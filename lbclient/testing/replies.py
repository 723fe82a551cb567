"""What a script answers: a message, an error, a stream of them, later or never.

`FakeChannel.answer` takes messages as they are. `FakeReply` says more about one.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import grpc
import grpc.aio

Pairs = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class FakeReply:
    """An answer after a delay in seconds, or with metadata; `FakeReply.never` is none.

    `answer` is whatever a script may answer: a message, `failure(...)`, a list of them
    for a stream, or a function. In a stream the delay is that before this message.
    Trailers of an error are those of `failure`.
    """

    answer: Any = None
    delay: float = 0.0
    trailers: Pairs = ()
    initial_metadata: Pairs = ()

    @classmethod
    def never(cls) -> "FakeReply":
        """Makes a reply that never comes: the deadline or a `cancel` ends the call."""
        return cls(delay=inf)


def failure(
    code: grpc.StatusCode, details: str = "", trailers: Pairs = ()
) -> grpc.aio.AioRpcError:
    """Makes the error with which a call ends. lbclient's own can be scripted, too.

    >>> from grpc import StatusCode
    >>> failure(StatusCode.NOT_FOUND, "no such tree").details()
    'no such tree'
    """
    metadata = grpc.aio.Metadata
    return grpc.aio.AioRpcError(code, metadata(), metadata(*trailers), details, "")


async def wait(delay: float) -> None:
    if delay == inf:
        await asyncio.get_running_loop().create_future()
    elif delay:
        await asyncio.sleep(delay)


async def played(answer: Any, request: Any, tell: Callable[[FakeReply], None]) -> Any:
    """The answer itself: its delay is over, its function called, its error raised.

    `tell` is called with each `FakeReply` on the way, for its metadata.
    """
    while True:
        if isinstance(answer, FakeReply):
            await wait(answer.delay)
            tell(answer)
            answer = answer.answer
        elif isinstance(answer, BaseException):
            raise answer
        elif callable(answer):
            answer = answer(request)
        elif inspect.isawaitable(answer):
            answer = await answer
        else:
            return answer


async def played_in_turn(
    answer: Any, request: Any, tell: Callable[[FakeReply], None]
) -> AsyncIterator[Any]:
    """The messages of a stream, from a list, an iterator, or a function's of these."""
    answers = await played(answer, request, tell)
    if isinstance(answers, AsyncIterator):
        async for one in answers:
            yield await played(one, request, tell)
        return
    if not isinstance(answers, Iterable) or isinstance(answers, str | bytes):
        raise TypeError(f"a stream is answered by a list of messages, not {answers!r}")
    for one in answers:
        yield await played(one, request, tell)
