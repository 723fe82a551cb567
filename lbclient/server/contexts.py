"""Contexts for handlers: grpcio's own, except that trailers carry the load report.

`set_trailing_metadata` replaces, and after `abort` it is too late to add anything,
so the merging must happen inside of these methods. Registered as subclasses, not
derived: what is not here goes to grpcio's context as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Never

import grpc
import grpc.aio

if TYPE_CHECKING:
    from lbclient.server.calls import Call
    from lbclient.server.reporter import Trailers

# In a server's metadata each of these ends the process: a failed check in C-core.
LETHAL = frozenset({"grpc-timeout", "grpclb_client_stats"})

_LOG = logging.getLogger(__name__)


def harmless(metadata: Iterable[Any]) -> Trailers:
    """A copy of a user's metadata without what would kill the process."""
    items = tuple(metadata or ())
    if not LETHAL.isdisjoint(map(key_of, items)):
        _LOG.warning("left out of metadata: %s", ", ".join(sorted(LETHAL)))
        items = tuple(item for item in items if key_of(item) not in LETHAL)
    return items


def key_of(item: Any) -> Any:
    """None for what is no metadata at all, which grpcio will say better than we."""
    return item[0] if isinstance(item, tuple) and item else None


class _Context:
    __slots__ = ("_call", "_inner")

    def __init__(self, call: Call, inner: Any) -> None:
        self._call = call
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        own = harmless(trailing_metadata)
        self._inner.set_trailing_metadata(self._call.merged(own))
        self._call.trailers = own

    def trailing_metadata(self) -> Trailers:
        return self._call.trailers

    def set_code(self, code: grpc.StatusCode) -> None:
        self._inner.set_code(code)
        self._call.code = code

    def code(self) -> Any:
        return self._call.code

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> Any:
        return self._inner.send_initial_metadata(harmless(initial_metadata))

    def _aborting(self, code: grpc.StatusCode, trailers: Iterable[Any]) -> Trailers:
        self._call.code = code
        self._call.trailers = harmless(trailers) or self._call.trailers
        return self._call.answer(code)


class AsyncContext(_Context):
    """What a coroutine or an async generator is given."""

    __slots__ = ()

    def read(self) -> Coroutine[Any, Any, Any]:
        return self._inner.read()  # type: ignore[no-any-return]

    def write(self, message: Any) -> Coroutine[Any, Any, None]:
        return self._inner.write(message)  # type: ignore[no-any-return]

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        trailers = self._aborting(code, trailing_metadata)
        await self._inner.abort(code, details, trailers)
        raise AssertionError("grpcio's abort returned")

    async def abort_with_status(self, status: grpc.Status) -> Never:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._inner.add_done_callback(lambda _: callback(self))


class SyncContext(_Context):
    """What a handler in the thread pool is given."""

    __slots__ = ()

    def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[Any] = (),
    ) -> Never:
        trailers = self._aborting(code, trailing_metadata)
        self._inner.abort(code, details, trailers)
        raise AssertionError("grpcio's abort returned")

    def abort_with_status(self, status: grpc.Status) -> Never:
        self.abort(status.code, status.details, status.trailing_metadata or ())


grpc.aio.ServicerContext.register(AsyncContext)
grpc.ServicerContext.register(SyncContext)
