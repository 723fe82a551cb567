"""In the places of cygrpc's operations and of `execute_batch`, over a core in memory.

lbclient's own classes of streaming calls begin batches themselves; all others are begun
by `cygrpc._AioCall`, in whose place is `memory_channel.MemoryCall`.
"""

import asyncio
from typing import Any

from tests.worlds.client_core import ClientStream
from tests.worlds.memory_channel import MemoryCall, checked


class Operation:
    """`given` is what is sent, `taken` what has come."""

    def __init__(self, *arguments: Any) -> None:
        self.given, self.taken = arguments[0], None

    def begin(self, stream: ClientStream) -> "asyncio.Future[Any]":
        raise NotImplementedError

    def message(self) -> Any:
        return self.taken

    initial_metadata = message


class SendInitialMetadata(Operation):
    """In a batch that sends a message, too, which waits for the connection."""

    def begin(self, stream: ClientStream) -> "asyncio.Future[Any]":
        stream.begin(checked(self.given))
        done: asyncio.Future[Any] = stream.core.loop.create_future()
        done.set_result(None)
        return done


class SendMessage(Operation):
    def __init__(self, message: bytes, flags: int) -> None:
        if not isinstance(message, bytes):
            raise TypeError(f"expected bytes, got {type(message).__name__}")
        super().__init__(message, flags)

    def begin(self, stream: ClientStream) -> "asyncio.Future[Any]":
        return stream.send(self.given)


class SendClose(Operation):
    def begin(self, stream: ClientStream) -> "asyncio.Future[Any]":
        return stream.close()


class ReceiveInitialMetadata(Operation):
    def begin(self, stream: ClientStream) -> "asyncio.Future[Any]":
        return stream.initial()


class ReceiveMessage(Operation):
    def begin(self, stream: ClientStream) -> "asyncio.Future[Any]":
        return stream.message()


async def execute_batch(call: MemoryCall, operations: Any, loop: Any) -> None:
    begun = [(one, one.begin(call.stream)) for one in operations]
    for one, done in begun:
        one.taken = await done


# By their names in `lbclient.grpc_seam.own_streams`.
IN_PLACES = {
    "ReceiveInitialMetadataOperation": ReceiveInitialMetadata,
    "ReceiveMessageOperation": ReceiveMessage,
    "SendCloseFromClientOperation": SendClose,
    "SendInitialMetadataOperation": SendInitialMetadata,
    "SendMessageOperation": SendMessage,
    "execute_batch": execute_batch,
}
