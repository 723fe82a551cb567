"""Sends the probes that a picker wants, in the background.

A probe is a small call of our health service over the open connection. No call waits
for it; its answer is for later picks.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

import grpc

from lbclient import wire
from lbclient.background.tasks import is_cancelled, is_fatal, leaving_no_trace
from lbclient.core.model import LoadReport
from lbclient.core.protocols import Clock, Picker, ProbingPicker
from lbclient.grpc_seam import cause_of

if TYPE_CHECKING:
    from lbclient.client.backend import Backend

logger = logging.getLogger(__name__)

MOST = 64  # that are not answered yet; ours, what is beyond is not asked
TIMEOUT = 1.0  # seconds; as long as Prequal believes an answer


class Probing:
    """One channel's. `wanted` is the picker's own list; empty, it costs nothing."""

    def __init__(self, label: str, picker: Picker, clock: Clock) -> None:
        self.serve(picker)
        self.sent = 0
        self._label = label
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], None] = {}

    def serve(self, picker: Picker) -> None:
        """Asks for this picker from now on."""
        self.wanted: list[Backend] = getattr(picker, "probes", [])
        self._picker = cast(ProbingPicker, picker)

    def ask(self) -> None:
        """Takes who is wanted; servers that are not ours would have no answer."""
        wanted = [backend for backend in self.wanted if backend.reported.is_ours]
        self.wanted.clear()
        for backend in wanted[: MOST - len(self._tasks)]:
            task = leaving_no_trace(self._ask(backend))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
            self.sent += 1

    async def _ask(self, backend: "Backend") -> None:
        report: LoadReport | None = None
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        try:
            ask = backend.channel.unary_unary(wire.CHECK_METHOD)
            call = ask(b"", timeout=TIMEOUT)
            try:
                health = wire.parse_health(await call)
            except asyncio.CancelledError:
                if not cause_of(call):
                    raise
                health = None  # its connection was given up, and so was the probe
            report = None if health is None else health.report
        except (grpc.aio.AioRpcError, grpc.aio.UsageError):
            pass  # or it was closed
        except asyncio.CancelledError:
            if is_cancelled():
                raise
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
            logger.exception("%s: the picker failed; probing goes on", self._label)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __repr__(self) -> str:
        return f"<{self.sent} probes, {len(self._tasks)} not answered>"
