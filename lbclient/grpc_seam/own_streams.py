"""grpc.aio's own classes of streaming calls, with less between a message and the core.

In grpc.aio five coroutines wait one for another for each message that is read, and four
for each that is sent: here it is two. A call with a single request asks for the
response headers as it sends that, not in a step of its own. A call with a stream of
requests sends a first one that is there at once with the request headers.

Imported only where `direct.call_arguments` has found that all of it is there.
"""

from asyncio import CancelledError, Event, sleep, wait
from collections.abc import Callable
from typing import Any

import grpc
from grpc._cython.cygrpc import (  # type: ignore[import-not-found]
    ExecuteBatchError,
    ReceiveInitialMetadataOperation,
    ReceiveMessageOperation,
    SendCloseFromClientOperation,
    SendInitialMetadataOperation,
    SendMessageOperation,
    execute_batch,
)
from grpc.aio._call import StreamStreamCall, StreamUnaryCall, UnaryStreamCall
from grpc.aio._utils import _timeout_to_deadline

from lbclient.grpc_seam.calls import TakenRequests
from lbclient.grpc_seam.interceptors import with_compression
from lbclient.log import Log

logger = Log(__name__)

EOF = grpc.aio.EOF
NO_FLAGS = 0
# Bytes of a first request that goes with the headers. A longer one may have to wait for
# the server to read, and `wait_for_connection` would wait with it.
MOST_OF_FIRST = 2**14


class _Own:
    """What is the same for all kinds."""

    _cython_call: Any
    _loop: Any
    _raise_for_status: Any
    cancel: Any
    cancelled: Any

    def _give_up(self) -> None:
        if not self.cancelled():
            self.cancel()


class _Reading(_Own):
    """Reads messages. The call is its own iterator."""

    _preparation: Any
    _response_deserializer: Any
    _is_prepared = False
    _is_at_end = False
    _is_reading = False

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        if self._is_at_end:
            raise StopAsyncIteration
        if self._is_reading:  # by another task, as grpc.aio's generator would say
            raise RuntimeError("anext(): asynchronous generator is already running")
        self._is_reading = True
        try:
            if not self._is_prepared:  # as in `_read`, without its frame
                await self._preparation
                self._is_prepared = True
            received = ReceiveMessageOperation(NO_FLAGS)
            try:
                await execute_batch(self._cython_call, (received,), self._loop)
            except ExecuteBatchError:
                pass  # there is none: its status says why
            except CancelledError:
                self._give_up()
                raise
            data = received.message()
            if data is None:
                await self._raise_for_status()
                raise StopAsyncIteration
        except BaseException:
            self._is_at_end = True
            raise
        finally:
            self._is_reading = False
        decode = self._response_deserializer
        return data if decode is None else _decoded(data, decode)

    async def _read(self) -> Any:
        if not self._is_prepared:
            await self._preparation
            self._is_prepared = True
        received = ReceiveMessageOperation(NO_FLAGS)
        try:
            await execute_batch(self._cython_call, (received,), self._loop)
        except ExecuteBatchError:
            pass
        except CancelledError:
            self._give_up()
            raise
        data = received.message()
        if data is None:
            return EOF
        decode = self._response_deserializer
        return data if decode is None else _decoded(data, decode)


def _decoded(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """The response; None, as in grpc.aio, if it cannot be deserialized."""
    try:
        return decode(data)
    except Exception as error:
        logger.exception("a response could not be deserialized", reason=error)
        return None


class _Writing(_Own):
    """Writes requests. A first one that is there at once, and short, goes with the
    headers.

    The task that takes the requests sends it so. The task of the call, which begins
    after that, sends the headers alone where they were not sent.
    """

    _context: Any
    _done_writing_flag: bool
    _metadata: Any
    _metadata_sent: Any
    _request_serializer: Any
    _lbclient_headers: Any = None  # of the response, of a call that is joined
    _has_begun = False
    _is_joined = False  # has begun with a first request

    async def _consume_request_iterator(self, iterator: Any) -> None:
        if getattr(iterator, "following", None) is None:
            await super()._consume_request_iterator(iterator)  # type: ignore[misc]
            return
        requests: TakenRequests = iterator
        write = self._write_first
        try:
            while True:
                try:
                    requests.is_taken = True
                    request = await requests.following()  # type: ignore[misc]
                except BaseException as error:
                    requests.left()
                    if isinstance(error, StopAsyncIteration):
                        break
                    raise
                requests.took(request)
                try:
                    await write(request)
                except grpc.aio.AioRpcError:
                    return
                write = self._write
            await self._done_writing()
        except BaseException as error:  # as in grpc.aio: whatever its iterator raises
            logger.debug("requests could not be taken", reason=error)
            self.cancel()

    async def _write(self, request: Any, message: Any = None) -> None:
        """Writes a request, which is `message` if it is serialized already."""
        call = self._cython_call
        if self._done_writing_flag or call.done():
            await super()._write(request)  # type: ignore[misc]  # which says why not
            return
        if not self._metadata_sent.is_set():
            await self._metadata_sent.wait()
            if call.done():
                await self._raise_for_status()
        if message is None:
            encode = self._request_serializer
            try:
                message = request if encode is None else encode(request)
            except Exception:
                await super()._write(request)  # type: ignore[misc]  # which says it
                return
        sent = SendMessageOperation(message, NO_FLAGS)
        try:
            await execute_batch(call, (sent,), self._loop)
        except ExecuteBatchError as error:
            call.set_internal_error(str(error))
            await self._raise_for_status()
        except CancelledError:
            self._give_up()
            raise

    async def _write_first(self, request: Any) -> None:
        call, message = self._cython_call, None
        if not (self._has_begun or self._context or call.done()):
            encode = self._request_serializer
            try:
                message = request if encode is None else encode(request)
            except Exception:
                message = None  # `_write` says what is wrong with it
            if isinstance(message, bytes) and len(message) <= MOST_OF_FIRST:
                self._has_begun = self._is_joined = True
        if not self._is_joined:
            await self._write(request, message)
            return
        both = (
            SendInitialMetadataOperation(self._metadata, NO_FLAGS),
            SendMessageOperation(message, NO_FLAGS),
        )
        try:
            await execute_batch(call, both, self._loop)
            self._metadata_sent.set()
        except ExecuteBatchError:
            try:
                await self._raise_for_status()
            finally:
                self._metadata_sent.set()  # who waits for it is to hear of the status
        except CancelledError:
            self._give_up()
            raise

    async def _done_writing(self) -> None:
        call = self._cython_call
        if self._done_writing_flag or call.done():
            return
        self._done_writing_flag = True
        try:
            end = SendCloseFromClientOperation(NO_FLAGS)
            await execute_batch(call, (end,), self._loop)
        except CancelledError:
            self._give_up()
            raise


class OwnUnaryStreamCall(_Reading, UnaryStreamCall):  # type: ignore[type-arg]
    _lbclient_headers: Any = None

    async def _send_unary_request(self) -> None:
        if self._context is not None:  # instrumentation of the core
            await super()._send_unary_request()
            return
        request, call = self._request, self._cython_call
        if self._request_serializer is not None:  # it tells of messages
            request = self._request_serializer(request)
        end = self._loop.create_task(call._handle_status_once_received())
        headers = ReceiveInitialMetadataOperation(NO_FLAGS)
        operations = (
            SendInitialMetadataOperation(self._metadata, NO_FLAGS),
            SendMessageOperation(request, NO_FLAGS),
            SendCloseFromClientOperation(NO_FLAGS),
            headers,
        )
        try:
            await execute_batch(call, operations, self._loop)
            self._lbclient_headers = headers.initial_metadata()
        except ExecuteBatchError:
            await end  # which says why
        except CancelledError:
            self._give_up()
            raise

    async def initial_metadata(self) -> Any:
        if self._context is not None:
            return await super().initial_metadata()
        if not self._preparation.done():
            await wait((self._preparation,))  # which it does not cancel
        return grpc.aio.Metadata.from_tuple(self._lbclient_headers or ())


class OwnStreamUnaryCall(_Writing, StreamUnaryCall):  # type: ignore[type-arg]
    """Receives the response in one batch with the end of the requests, if its first
    one went with the headers. If it is answered before that end, the task of the call
    receives the response."""

    _is_received = False  # by a batch that has begun
    _response: Any = None
    _headers_awaited: Event | None = None

    def _done_writing(self) -> Any:
        call = self._cython_call
        if self._is_received or call.done() or not self._is_joined:
            return super()._done_writing()
        self._done_writing_flag = True
        return self._receive(SendCloseFromClientOperation(NO_FLAGS))

    async def _receive(self, *sent: Any) -> None:
        self._is_received = True
        received = ReceiveMessageOperation(NO_FLAGS)
        try:
            await execute_batch(self._cython_call, (*sent, received), self._loop)
            self._response = received.message()
        except ExecuteBatchError:
            pass  # there is none: its status says why
        except CancelledError:
            self._give_up()
            raise

    async def _conduct_rpc(self) -> Any:
        self._has_begun = True
        if not self._is_joined:
            return await super()._conduct_rpc()
        call, headers = self._cython_call, ReceiveInitialMetadataOperation(NO_FLAGS)
        try:
            try:
                await execute_batch(call, (headers,), self._loop)
                self._lbclient_headers = headers.initial_metadata()
            except ExecuteBatchError:
                pass  # there are none: its status says why
            if self._headers_awaited is not None:
                self._headers_awaited.set()
            is_with_end = self._is_received
            if not is_with_end:
                await self._receive()
            await call._handle_status_once_received()
            self._metadata_sent.set()
            if is_with_end and self._response is None and not call._status.code():
                requests: Any = self._async_request_poller
                await wait((requests,))  # which is about to have it
        except CancelledError:
            self._give_up()
            raise
        if call._status.code():
            return EOF
        data, self._response = self._response, None
        decode = self._response_deserializer
        return data if decode is None else _decoded(data, decode)

    async def initial_metadata(self) -> Any:
        if not (self._has_begun or self._call_response.done()):
            await sleep(0)  # in which its tasks begin
        if not self._is_joined:
            return await super().initial_metadata()
        if self._lbclient_headers is None and not self._call_response.done():
            come = self._headers_awaited = self._headers_awaited or Event()
            self._call_response.add_done_callback(lambda _: come.set())
            await come.wait()
        return grpc.aio.Metadata.from_tuple(self._lbclient_headers or ())


class OwnStreamStreamCall(_Reading, _Writing, StreamStreamCall):  # type: ignore[type-arg]
    async def _prepare_rpc(self) -> None:
        try:
            if self._context is None and getattr(self, "_async_request_poller", None):
                await sleep(0)  # in which it takes a request that is there
        except CancelledError:
            self._give_up()
            return
        self._has_begun = True
        if not self._is_joined:
            await super()._prepare_rpc()
            return
        call, headers = self._cython_call, ReceiveInitialMetadataOperation(NO_FLAGS)
        end = self._loop.create_task(call._handle_status_once_received())
        try:
            try:
                await execute_batch(call, (headers,), self._loop)
                self._lbclient_headers = headers.initial_metadata()
            except ExecuteBatchError:
                await end  # which says why
                self._metadata_sent.set()
        except CancelledError:
            self._give_up()

    async def initial_metadata(self) -> Any:
        if not self._preparation.done():
            await wait((self._preparation,))  # which it does not cancel
        if self._lbclient_headers is None:
            return await super().initial_metadata()
        return grpc.aio.Metadata.from_tuple(self._lbclient_headers)


CLASSES: dict[str, Any] = {
    "unary_stream": OwnUnaryStreamCall,
    "stream_unary": OwnStreamUnaryCall,
    "stream_stream": OwnStreamStreamCall,
}


def begin(
    make: Any,
    arguments: tuple[Any, ...],
    message: Any,
    timeout: float | None,
    metadata: Any = None,
    credentials: grpc.CallCredentials | None = None,
    compression: grpc.Compression | None = None,
) -> Any:
    """Begins a call as grpc.aio's method object does, with `arguments` of that."""
    if compression:
        metadata = with_compression(metadata, compression)
    deadline = _timeout_to_deadline(timeout)
    # It fails fast: to wait for this backend is no use while there are others.
    return make(message, deadline, metadata or (), credentials, None, *arguments)
