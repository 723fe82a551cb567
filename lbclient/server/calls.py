"""One request in this server: the context of its handler, and the guard around it.

The handler sees grpcio's context, except that trailers carry the load report.
`set_trailing_metadata` replaces, and after `abort` it is too late to add anything,
so the merging must happen inside of these methods. Registered as subclasses of
grpcio's contexts, not derived: what is not here goes to grpcio's as it is.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from typing import Any, Never, TypeVar

import grpc
import grpc.aio
from grpc import StatusCode

from lbclient.grpc_codes import STATUS_OF_NUMBER
from lbclient.server.accounting import account, run_timed
from lbclient.server.gate import Answer
from lbclient.server.reporter import Reporter, Trailers

# In a server's metadata each of these ends the process: a failed check in C-core.
LETHAL = frozenset({"grpc-timeout", "grpclb_client_stats"})

_OK = StatusCode.OK

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Call:
    """Begins when it is made, and ends once, whoever says so first.

    Owned by the handler that serves it.
    """

    __slots__ = (
        "_code",
        "_finished",
        "_reporter",
        "_trailers",
        "begun_at",
        "inner",
        "took",
    )

    def __init__(self, reporter: Reporter, inner: Any) -> None:
        self._reporter = reporter
        self.inner = inner
        self._code: Any = None  # what the handler set, as it set it
        self._trailers: Trailers = ()  # the handler's own
        self._finished = False
        self.took = 0.0  # seconds, once it is finished
        self.begun_at = reporter.clock()
        reporter.monitor.begin()

    # What a handler does

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        own = _harmless(trailing_metadata)
        self.inner.set_trailing_metadata(self._merged(own))
        self._trailers = own

    def trailing_metadata(self) -> Trailers:
        return self._trailers

    def set_code(self, code: StatusCode) -> None:
        self.inner.set_code(code)
        self._code = code

    def code(self) -> Any:
        return self._code

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> Any:
        return self.inner.send_initial_metadata(_harmless(initial_metadata))

    def _aborting(self, code: StatusCode, trailers: Iterable[Any]) -> Trailers:
        self._code = code
        self._trailers = _harmless(trailers) or self._trailers
        return self._answer(code)

    # What becomes of it

    def is_ok(self) -> bool:
        """As far as the handler said; it may still raise."""
        return self._code is None or _status(self._code) is _OK

    def preset(self) -> None:
        """For an end that comes where we do not see it in time."""
        self.inner.set_trailing_metadata(self._merged(()))

    def served(self) -> None:
        code = _OK if self._code is None else self._code
        self.inner.set_trailing_metadata(self._answer(code))

    def raised(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._answer(self._interrupted())
            return
        # grpcio sends the code that was set, if it is one of an error.
        code = _status(self._code or StatusCode.UNKNOWN)
        code = StatusCode.UNKNOWN if code is StatusCode.OK else code
        self.inner.set_trailing_metadata(self._answer(code))

    def ended(self, _task: object = None) -> None:
        """grpcio is done with the request, for whatever reason."""
        self._finish(self._interrupted)

    def _answer(self, code: Any) -> Trailers:
        """Ends the request; the trailers are to be sent at once."""
        if not self._finished:
            self._finished = True
            self.took = self._reporter.finish(_status(code), self.begun_at)
        return self._with_report(self._trailers, self._reporter.monitor.active)

    def _finish(self, code: Callable[[], StatusCode]) -> None:
        if not self._finished:
            self._finished = True
            self.took = self._reporter.finish(code(), self.begun_at)

    def _merged(self, own: Trailers) -> Trailers:
        """While the request is still among the active ones."""
        others = self._reporter.monitor.active - (not self._finished)
        return self._with_report(own, max(0, others))

    def _with_report(self, own: Trailers, active: int) -> Trailers:
        report = self._reporter.trailers(active)
        if not own:
            return report
        # Envoy refuses more than one ORCA report: the user's own goes first.
        taken = [_key(item) for item in own]
        return own + tuple(item for item in report if item[0] not in taken)

    def _interrupted(self) -> StatusCode:
        """Deadline or cancel: grpcio tells neither from the other."""
        remaining = None if self.inner is None else self.inner.time_remaining()
        if remaining is None:
            return StatusCode.CANCELLED
        # On the wire a timeout above 1 s is rounded up by up to 1 %, so the client,
        # whose clock runs out first, cancels a little before our deadline.
        timeout = self._reporter.clock() - self.begun_at + remaining
        if remaining <= 0.005 + 0.01 * timeout:
            return StatusCode.DEADLINE_EXCEEDED
        return StatusCode.CANCELLED


class AsyncCall(Call):
    """What a coroutine or an async generator is given."""

    __slots__ = ("_serialize",)

    def __init__(
        self, reporter: Reporter, inner: Any, serialize: Callable[[Any], Any]
    ) -> None:
        super().__init__(reporter, inner)
        self._serialize = serialize

    def read(self) -> Coroutine[Any, Any, Any]:
        return self.inner.read()  # type: ignore[no-any-return]

    def write(self, message: Any) -> Coroutine[Any, Any, None]:
        return self.inner.write(self._serialize(message))  # type: ignore[no-any-return]

    async def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        trailers = self._aborting(code, trailing_metadata)
        await self.inner.abort(code, details, trailers)
        raise AssertionError("grpcio's abort returned")

    async def abort_with_status(self, status: grpc.Status) -> Never:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def refuse(self, answer: Answer, reason: str) -> Never:
        self._reporter.gate.count(reason)
        await self.abort(*answer)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.inner.add_done_callback(lambda _: callback(self))


class SyncCall(Call):
    """What a handler in the thread pool is given.

    Made on the loop's thread, and ended there: in a thread nothing is counted.
    """

    __slots__ = ("_answered", "_context", "refusal")

    def __init__(self, reporter: Reporter, inner: Any = None) -> None:
        super().__init__(reporter, inner)
        self._answered: StatusCode | None = None
        self._context = copy_context()
        self.refusal: Answer | None = None
        reporter.gate.threads.queue(self)

    def enter(self, inner: Any) -> None:
        """It has a thread at last, and a context."""
        self.inner = inner

    def refuse(self, answer: Answer, reason: str) -> None:
        """Ends it before its handler begins."""
        self.refusal = answer
        self._reporter.gate.count(reason)
        self._finish(lambda: answer.code)

    def adopt(self, context: Context) -> None:
        """That of the request's own task, where it began in another one."""
        self._context = context

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """In the context of the request, and at the cost of whoever pays for that."""
        charge = self._context.get(account)
        quotas = self._reporter.gate.quotas
        if charge is None or quotas is None:
            return self._context.run(work, *arguments)
        charge = quotas.charge_from_thread(charge)
        return self._context.run(run_timed, charge, work, *arguments)

    def abort(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        trailers = self._aborting(code, trailing_metadata)
        self.inner.abort(code, details, trailers)
        raise AssertionError("grpcio's abort returned")

    def abort_with_status(self, status: grpc.Status) -> Never:
        self.abort(status.code, status.details, status.trailing_metadata or ())

    def ended(self, _task: object = None) -> None:
        self._reporter.gate.threads.leave(self)
        super().ended()

    def _answer(self, code: Any) -> Trailers:
        self._answered = _status(code)
        return self._merged(self._trailers)

    def _interrupted(self) -> StatusCode:
        return self._answered or super()._interrupted()


grpc.aio.ServicerContext.register(AsyncCall)
grpc.ServicerContext.register(SyncCall)


def _status(code: Any) -> StatusCode:
    """As grpcio reads it: a number will do, and nonsense is UNKNOWN."""
    if code is _OK or isinstance(code, StatusCode):
        return code
    return STATUS_OF_NUMBER.get(code, StatusCode.UNKNOWN)


def _harmless(metadata: Iterable[Any]) -> Trailers:
    """A copy of a user's metadata without what would kill the process."""
    items = tuple(metadata or ())
    if not LETHAL.isdisjoint(map(_key, items)):
        logger.warning("left out of metadata: %s", ", ".join(sorted(LETHAL)))
        items = tuple(item for item in items if _key(item) not in LETHAL)
    return items


def _key(item: Any) -> Any:
    """None for what is no metadata at all, which grpcio will say better than we."""
    return item[0] if isinstance(item, tuple) and item else None
