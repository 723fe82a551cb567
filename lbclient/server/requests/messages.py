"""Sizes of a request's messages, while somebody exports them (`RequestTally.measures`).

Then the handler's codecs count, and find the request by a context variable, which is
set where its handler is looked up. As for clients, sizes are of serialized messages.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

Codec = Callable[[Any], Any] | None


class MessageSizes:
    """Bytes of all messages of one request, so far."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = self.sent = 0

    def __repr__(self) -> str:
        return f"<{self.received} bytes received, {self.sent} sent>"


measured: ContextVar[MessageSizes | None] = ContextVar("measured", default=None)


def begin() -> MessageSizes:
    """For the request whose handler is looked up in the current context."""
    sizes = MessageSizes()
    measured.set(sizes)
    return sizes


def receiving(
    deserializer: Codec, sizes: MessageSizes | None = None
) -> Callable[[Any], Any]:
    """Counts what is received; in `sizes`, or else in those of the current context."""

    def deserialized(data: Any) -> Any:
        counted = sizes or measured.get()
        if counted is not None:
            counted.received += len(data)
        return data if deserializer is None else deserializer(data)

    return deserialized


def sending(
    serializer: Codec, sizes: MessageSizes | None = None
) -> Callable[[Any], Any]:
    def serialized(message: Any) -> Any:
        data = message if serializer is None else serializer(message)
        counted = sizes or measured.get()
        if counted is not None:
            counted.sent += len(data)
        return data

    return serialized
