"""A server that does what a call's metadata says, in all four kinds of call.

Requests and responses are bytes. A unary request is a comma-separated list of what
a streaming one sends message by message, and so are the responses: every kind
echoes. The words of `do` are obeyed before the first request is read, those of
`then` after the first response or, where there is but one, the first request.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from tests.hosts import Methods, method_handler

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
SERVICE = "conformance.Script"
TO_SEE = ("seen", "seen-bin")  # of a call's metadata, what a handler tells back


def path(kind: str) -> str:
    return f"/{SERVICE}/{kind}"


class Script:
    """The servicer, and what happened to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.let_go = asyncio.Event()

    def forget(self) -> None:
        self.events.clear()
        self.let_go.clear()

    def methods(self) -> Methods:
        return {
            path(kind): method_handler(kind, getattr(self, f"_{kind}"))
            for kind in KINDS
        }

    async def _told(self, key: str, context: Any) -> None:
        for name, words in context.invocation_metadata():
            if name == key:
                for word in words.split():
                    await WORDS[word](self, context)

    async def _unary_unary(self, request: bytes, context: Any) -> bytes:
        await self._told("do", context)
        await self._told("then", context)
        return request

    async def _unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        await self._told("do", context)
        for number, part in enumerate(request.split(b",")):
            yield part
            if number == 0:
                await self._told("then", context)

    async def _stream_unary(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> bytes:
        await self._told("do", context)
        parts = []
        async for part in requests:
            parts.append(part)
            if len(parts) == 1:
                await self._told("then", context)
        return b",".join(parts)

    async def _stream_stream(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        await self._told("do", context)
        is_first = True
        async for part in requests:
            yield part
            if is_first:
                await self._told("then", context)
            is_first = False

    async def initial(self, context: Any) -> None:
        await context.send_initial_metadata((("initial", "1"), ("initial-bin", b"\0")))

    async def trailing(self, context: Any) -> None:
        context.set_trailing_metadata((("trailing", "1"), ("trailing-bin", b"\0\1")))

    async def repeated(self, context: Any) -> None:
        context.set_trailing_metadata((("again", "1"), ("again", "2")))

    async def seen(self, context: Any) -> None:
        told = [pair for pair in context.invocation_metadata() if pair[0] in TO_SEE]
        context.set_trailing_metadata(told)

    async def credentials(self, context: Any) -> None:
        found = dict(context.invocation_metadata()).get("authorization", "none")
        context.set_trailing_metadata((("credentials", found),))

    async def deadline(self, context: Any) -> None:
        left = context.time_remaining()
        text = "none" if left is None else f"{left:.0f}"
        context.set_trailing_metadata((("deadline", text),))

    async def abort(self, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    async def cancel(self, context: Any) -> None:
        await context.abort(grpc.StatusCode.CANCELLED, "not today")

    async def refuse(self, context: Any) -> None:
        trailing = (("why", "full"),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "full", trailing)

    async def status(self, context: Any) -> None:
        context.set_code(grpc.StatusCode.DATA_LOSS)
        context.set_details("all of it")

    async def unusual(self, context: Any) -> None:
        await context.abort(grpc.StatusCode.INTERNAL, "naïve ☃\nsecond line")

    async def fail(self, context: Any) -> None:
        raise ValueError("broken")

    async def nap(self, context: Any) -> None:
        await asyncio.sleep(0.03)

    async def hold(self, context: Any) -> None:
        """Until the test has `let_go`."""
        self.events.append("holds")
        await self.let_go.wait()

    async def compress(self, context: Any) -> None:
        context.set_compression(grpc.Compression.Gzip)

    async def hang(self, context: Any) -> None:
        self.events.append("hangs")
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append("released")


WORDS: dict[str, Callable[[Script, Any], Awaitable[None]]] = {
    name: word
    for name, word in vars(Script).items()
    if not name.startswith("_") and name not in ("methods", "forget")
}
