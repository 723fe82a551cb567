"""Sends the probes that a picker wants, as Prequal does, in the background.

A picker wants probes: no call waits for them, and answers are for later picks. Others
have something to tell with a question.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import grpc

from lbclient import wire
from lbclient.background.tasks import is_cancelled, is_fatal, leaving_no_trace
from lbclient.core.counting.line_limit import LineLimit
from lbclient.core.protocols import Clock, Picker, ProbingPicker
from lbclient.grpc_seam import cause_of, without_interceptors
from lbclient.log import Log, bare_context

if TYPE_CHECKING:
    from lbclient.client.backends.backend import Backend

logger = Log(__name__)

MOST = 64  # questions that are not answered yet; ours, what is beyond is not asked
TIMEOUT = 1.0  # seconds; as long as Prequal believes an answer


class Questions:
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
            health = wire.parse_health(await call)
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


class Probing:
    """Sends the probes that a picker wants. Owned by a balancer. `wanted` is the
    picker's own list; while it is empty nobody need call `ask`."""

    def __init__(self, label: str, picker: Picker, clock: Clock) -> None:
        self.serve(picker)
        self.sent = 0
        self._label = label
        self._clock = clock
        self._questions = Questions()
        self._limit = LineLimit()

    def serve(self, picker: Picker) -> None:
        """Asks for this picker from now on."""
        self.wanted: list[Backend] = getattr(picker, "probes", [])
        self._picker = cast(ProbingPicker, picker)

    def ask(self) -> None:
        """Takes who is wanted; servers that are not ours would have no answer."""
        wanted = [backend for backend in self.wanted if backend.reported.is_ours]
        self.wanted.clear()
        for backend in wanted:
            answered = partial(self._answered, backend)
            self.sent += self._questions.ask(backend.channel, answered=answered)

    def _answered(self, backend: "Backend", health: wire.Health | None) -> None:
        report = None if health is None else health.report
        now = self._clock()
        if report is not None:
            if backend.load.ready_at is None:
                return  # it left meanwhile, and what it said went with it
            backend.load.observe(report, now)
        try:
            self._picker.probed(backend, report, now)
        except BaseException as error:  # of a picker that is not ours, perhaps
            if is_fatal(error):
                raise
            if self._limit.take(now) is not None:
                label, words = self._label, "%s: picker raised; probing continues"
                address = backend.endpoint.address
                logger.exception(
                    words, label, channel=label, backend=address, reason=error
                )

    def close(self) -> None:
        self._questions.close()

    def __repr__(self) -> str:
        return f"<{self.sent} probes, {len(self._questions)} not answered>"
