"""What is asked of a grpc.aio call while it runs, and how it is given up."""

import re
from asyncio import current_task
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc

from lbclient.core.coroutines import step
from lbclient.grpc_seam.channels import active_calls
from lbclient.grpc_seam.interceptors import beneath
from lbclient.grpc_seam.private import is_news

_STREAMS_REQUESTS = (grpc.aio.StreamUnaryCall, grpc.aio.StreamStreamCall)


def give_up(channel: grpc.aio.Channel, cause: str) -> None:
    """Closes an inner channel, and ends the calls that are still on it as UNAVAILABLE.

    `grpc.aio.Channel.close` cancels them, and whoever waits for one of them gets a
    CancelledError, as if it had been cancelled itself. So each call is marked first:
    `final_status` and `error_of` then say UNAVAILABLE, for this cause. Each call is
    marked by itself, because a done callback may cancel others, as a caller does.

    Not in the turn of the loop in which a call was begun on the channel: `cancel` ends
    a call that grpc.aio has not begun in another way.
    """
    for call in list(active_calls(channel)):
        if not call.done():
            call._lbclient_cause = cause
            _end(call, cause)
    step(channel.close())  # without grace it does not wait


def cancel_loser(call: Any) -> None:
    """Cancels an attempt whose call another attempt has answered.

    Whoever awaits it goes on to the other, as after `give_up`.
    """
    call._lbclient_cause = "another attempt has answered"
    call.cancel()


def _end(call: Any, cause: str) -> None:
    """Ends a call as a lost connection does: with no CancelledError in its requests.

    `cancel` raises that in the iterator that they are taken from, which is over then:
    a later attempt would take the part that was sent for the whole.
    """
    sent = beneath(call)
    if _takes_from_iterator(sent):
        try:
            sent._cython_call.cancel(cause)
            return
        except AttributeError as error:
            is_news(error)
    call._lbclient_is_interrupted = True  # first: done callbacks ask
    call.cancel()


def _takes_from_iterator(call: Any) -> bool:
    """Whether grpc.aio takes the requests of a call from an iterator."""
    streams = isinstance(call, _STREAMS_REQUESTS)
    if not streams:
        return False
    try:
        return call._async_request_poller is not None
    except AttributeError as error:
        is_news(error)
        return False


def is_interrupted(call: Any) -> bool:
    """Whether a call was given up in a way that may have ended its iterator."""
    return bool(getattr(call, "_lbclient_is_interrupted", False))


def asks_itself(call: Any) -> bool:
    """Whether it is grpc.aio's own task of a call that asks whether it is cancelled."""
    return current_task() is getattr(call, "_call_response", None)


def tell(error: BaseException, history: tuple[str, ...]) -> None:
    """Adds to an error, as notes below its traceback, what became of the attempts.

    The same error may be raised again, for who awaits the call again.
    """
    if history and not hasattr(error, "__notes__"):
        for number, line in enumerate(history, 1):
            error.add_note(f"attempt {number} on {line}")


def mark(call: Any, value: object) -> None:
    """Remembers `value` with a call: grpc.aio's call objects take attributes."""
    call._lbclient = value


def marked(call: Any) -> Any:
    """What `mark` left; None for a call that is not marked."""
    return getattr(call, "_lbclient", None)


_legal_key = re.compile("[a-z0-9._-]+").fullmatch  # all else the core refuses


def read_once(metadata: Any) -> Any:
    """Metadata that can be read again, for a caller may give an iterator.

    Raises at once for what grpc.aio refuses at once.
    """
    if not metadata:
        return None
    if isinstance(metadata, grpc.aio.Metadata):
        return metadata
    pairs = tuple(metadata)
    is_list = isinstance(metadata, Sequence)
    return grpc.aio.Metadata.from_tuple(pairs) if is_list else pairs


class IllegalMetadata(ValueError):
    """Metadata has characters that gRPC's core refuses."""


def flaw_of(metadata: Any) -> Exception | None:
    """Why metadata cannot be sent: of the class that grpc.aio raises, but an RpcError,
    as of its streams, where its unary calls say that a batch has failed.

    Found later it would be found by a task of grpc.aio's, which then leaves the call
    half begun, in flight for ever.
    """
    try:
        for key, value in metadata or ():
            if (
                type(key) is type(value) is str
                and value.isascii()
                and value.isprintable()
                and _legal_key(key)
                and not key.endswith("-bin")
            ):
                continue  # almost all of it
            check_pair(key, value)
    except IllegalMetadata as error:
        none = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, none, str(error))
    except (TypeError, ValueError) as error:
        return error
    return None


def check_pair(key: Any, value: Any) -> None:
    """Raises TypeError, UnicodeEncodeError or IllegalMetadata for a pair of metadata
    that gRPC cannot send.

    Errors leave out the value, which may be a secret, such as a token with its line's
    end.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key of metadata is text, not {type(key).__name__}")
    key.encode()
    if not isinstance(value, str | bytes):
        kind = type(value).__name__
        raise TypeError(f"metadata of {key!r} is text or bytes, not {kind}")
    text = value if isinstance(value, str) else value.decode("latin-1")
    text.encode()
    is_legal = bool(_legal_key(key))
    if key.endswith("-bin"):
        if isinstance(value, str):
            raise TypeError(f"metadata of {key!r} is bytes, not str")
    else:
        is_legal = is_legal and text.isascii() and text.isprintable()
    if not is_legal:
        said = f"metadata of {key!r} has characters that gRPC does not allow"
        raise IllegalMetadata(said)


def is_half_closed(call: Any) -> bool:
    """Whether a call wants no more requests."""
    try:
        return bool(call._done_writing_flag)
    except AttributeError as error:  # instrumentation wraps it, or it is not begun
        is_news(error)
        return False


class TakenRequests(Protocol):
    """Requests that are taken one by one, as `calls.request_stream` has them.

    Who takes one sets `is_taken` and awaits `following()`. Then it calls `took` with
    the request, or `left` if there is none. Where `following` is None the requests are
    to be iterated over.
    """

    is_taken: bool
    following: Callable[[], Awaitable[Any]] | None

    def took(self, request: Any) -> None: ...
    def left(self) -> None: ...


class Writable:
    """What grpc.aio's interceptors look at in a call that requests are written to."""

    _inner: Any

    @property
    def _done_writing_flag(self) -> bool:
        return is_half_closed(self._inner)
