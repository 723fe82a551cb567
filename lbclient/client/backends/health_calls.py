"""Calls to the health service of lbclient's servers that carry a question or a notice.

No call of the program waits for them.
"""

import asyncio
from collections.abc import Callable

import grpc

from lbclient import wire
from lbclient.background.tasks import is_cancelled, leaving_no_trace
from lbclient.grpc_seam import answer_of, cause_of, without_interceptors
from lbclient.log import bare_context

MOST = 64  # calls in flight at most, ours; further ones are not sent
TIMEOUT = 1.0  # seconds; as long as Prequal believes an answer


class HealthCalls:
    """Asks lbclient's servers by small calls to their health service, at most `MOST` at
    a time. Owned by a channel."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def ask(
        self,
        channel: grpc.aio.Channel,
        request: bytes = b"",
        answered: Callable[[wire.Health | None], None] = lambda _: None,
    ) -> bool:
        """Returns False if too many are not answered yet."""
        if len(self._tasks) >= MOST:
            return False
        question = _ask(channel, request, answered)
        task = leaving_no_trace(question, bare_context())  # no caller's: see `Tasks`
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return True

    def __len__(self) -> int:
        return len(self._tasks)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __repr__(self) -> str:
        return f"<{len(self)} not answered>"


async def _ask(
    channel: grpc.aio.Channel,
    request: bytes,
    answered: Callable[[wire.Health | None], None],
) -> None:
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    health: wire.Health | None = None
    try:
        ask = without_interceptors(channel.unary_unary(wire.CHECK_METHOD))
        call = ask(request, timeout=TIMEOUT)
        try:
            health = wire.parse_health(await answer_of(call, call))
        except asyncio.CancelledError:
            if not cause_of(call):
                raise
            # Its connection was given up, and so was the question.
    except (grpc.aio.AioRpcError, grpc.aio.UsageError):
        pass  # or it was closed
    except asyncio.CancelledError:
        if is_cancelled():
            raise
    answered(health)
