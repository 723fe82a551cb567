"""Runs a case on a channel of grpc.aio and on one of ours, and compares.

A case is an async function that uses a `Side` and returns what a caller sees. It is
made plain before it is compared: an exception is its class (of ours, the class of
grpc.aio's that it is), code, details and metadata. `on_both` makes a test of a case;
what differs on purpose is in `differences`.
"""

import asyncio
import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from enum import Enum
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from tests.conformance.differences import DIFFERENCES
from tests.conformance.script import KINDS, Script, path
from tests.waiting import eventually

SIDES: dict[str, Any] = {"grpc.aio": grpc.aio, "lbclient": lbclient}
LIMIT = 20.0  # a case that hangs; none takes a second
NEVER = 0.15  # seconds, long enough to say that something does not come
PIECES = 15  # of such a time
PARTS = (b"a", b"b", b"c")

Case = Callable[..., Awaitable[Any]]


class Side:
    """One of the two: makes channels and calls, and closes what it made."""

    def __init__(self, name: str, address: str, script: Script, is_ready: bool) -> None:
        self.name = name
        self.library = SIDES[name]
        self.address = address
        self.script = script
        self.is_ready = is_ready
        self.stack = AsyncExitStack()
        self._channel: grpc.aio.Channel | None = None

    def insecure(self, target: str | None = None, **options: Any) -> grpc.aio.Channel:
        """A channel that has not been used."""
        channel = self.library.insecure_channel(target or self.address, **options)
        return self._closing(channel)

    def secure(self, *arguments: Any, **options: Any) -> grpc.aio.Channel:
        return self._closing(self.library.secure_channel(*arguments, **options))

    def _closing(self, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        self.stack.push_async_callback(channel.close)
        return channel

    async def open(self, **options: Any) -> grpc.aio.Channel:
        """A channel in the state that the test is about."""
        channel = self.insecure(**options)
        if self.is_ready:
            await channel.channel_ready()
        return channel

    async def channel(self) -> grpc.aio.Channel:
        """The channel of a case that needs but one."""
        if self._channel is None:
            self._channel = await self.open()
        return self._channel

    async def begin(
        self,
        kind: str,
        parts: Iterable[bytes] = PARTS,
        sending: str = "iterator",
        on: grpc.aio.Channel | None = None,
        do: str = "",
        then: str = "",
        metadata: Iterable[tuple[str, Any]] = (),
        **options: Any,
    ) -> Any:
        """Starts a call of a kind; with `sending` "write" nothing is sent yet."""
        method: Any = getattr(on or await self.channel(), kind)(path(kind))
        options["metadata"] = (*metadata, ("do", do), ("then", then))
        if kind.startswith("unary"):
            return method(b",".join(parts), **options)
        if sending == "write":
            return method(**options)
        iterator = _asynchronous(parts) if sending == "async iterator" else iter(parts)
        return method(iterator, **options)

    async def at_work(self, word: str = "hangs", calls: int = 1) -> None:
        """Waits until the server has come to `hang`, or `hold`, in so many calls."""
        events = self.script.events
        await eventually(lambda: events.count(word) == calls, lambda: events)

    async def __aenter__(self) -> "Side":
        await self.stack.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._channel = None
        await self.stack.__aexit__(*error)


async def _asynchronous(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def outcome(awaitable: Any, within: float | None = None) -> Any:
    """A result, or the exception that came instead; "never" if nothing does."""
    ticking: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(None) as limit:
            if within is not None:
                ticking = asyncio.create_task(_end_after(within, limit))
            return await awaitable
    except TimeoutError:
        return "never"
    except (Exception, asyncio.CancelledError) as error:
        return error
    finally:
        if ticking is not None:
            ticking.cancel()


async def _end_after(seconds: float, limit: asyncio.Timeout) -> None:
    """In pieces: the loop of a busy machine may have one turn in all of the time."""
    for _ in range(PIECES):
        await asyncio.sleep(seconds / PIECES)
    limit.reschedule(asyncio.get_running_loop().time())


def attempted(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Like `outcome`, of a plain function."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


async def responses(call: Any, receiving: str = "iterate") -> list[Any]:
    """All that a call answers, and how it ends if it ends badly."""
    if receiving == "await":
        return [await outcome(call)]
    seen: list[Any] = []
    try:
        if receiving == "iterate":
            async for response in call:
                seen.append(response)  # noqa: PERF401 - what came before an error
        else:
            while (response := await call.read()) is not grpc.aio.EOF:
                seen.append(response)
    except (Exception, asyncio.CancelledError) as error:
        seen.append(error)
    return seen


def receiving(kind: str) -> str:
    return "await" if kind.endswith("unary") else "iterate"


async def answered(call: Any, kind: str) -> list[Any]:
    """`responses` by the way that is usual for the kind."""
    return await responses(call, receiving(kind))


async def end_of(call: Any) -> dict[str, Any]:
    """All that a call says of itself once it is over."""
    return {
        "done": call.done(),
        "cancelled": call.cancelled(),
        "cancel": call.cancel(),
        "time_remaining": remaining(call),
        "code": await outcome(call.code(), NEVER),
        "details": await outcome(call.details(), NEVER),
        "initial": await outcome(call.initial_metadata(), NEVER),
        "trailing": await outcome(call.trailing_metadata(), NEVER),
        "debug": type(await outcome(call.debug_error_string(), NEVER)).__name__,
        "repr": in_kind(call),
    }


def remaining(call: Any) -> str:
    """In kind: grpc.aio tells of seconds as an int or a float, or raises."""
    left = attempted(call.time_remaining)
    if isinstance(left, Exception):
        return type(left).__name__
    return "no end" if left is None else "some" if left > 0 else "nothing"


async def comes_true(condition: Callable[[], object], turns: int = 400) -> bool:
    """Whether a condition comes true within a few seconds, to compare; `eventually`
    of tests/waiting.py fails where it does not.
    """
    for _ in range(turns):
        if condition():
            return True
        await asyncio.sleep(0.005)
    return False


def in_kind(thing: object) -> str:
    """A repr without what is of the moment: addresses, and what the core adds."""
    text = re.sub(r'debug_error_string = ".*"', "debug_error_string", repr(thing))
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    return re.sub(r"lbclient\.\w+\.", "", text)


def plain(seen: Any) -> Any:
    """What can be compared, and read when it is not equal."""
    match seen:
        case grpc.aio.AioRpcError():
            said = (seen.code(), seen.details())
            metadata = (seen.initial_metadata(), seen.trailing_metadata())
            return [_class(seen), *map(plain, said), *map(plain, metadata)]
        case BaseException():
            return [_class(seen), str(seen)]
        case grpc.aio.Metadata():
            return {"metadata": [plain(pair) for pair in seen]}
        case Enum():
            return str(seen)
        case bytes() if len(seen) > 100:
            return f"{len(seen)} bytes, {set(seen)}"
        case dict():
            return {key: plain(value) for key, value in seen.items()}
        case list() | tuple():
            return [plain(item) for item in seen]
        case None | bool() | int() | str() | bytes():
            return seen
    return "EOF" if seen is grpc.aio.EOF else _class(seen)


def _class(thing: object) -> str:
    """The first class that is not of ours: what a caller's `except` names."""
    classes = (
        c for c in type(thing).__mro__ if not c.__module__.startswith("lbclient")
    )
    return next(classes).__name__


class Both:
    """The runner: what a test made by `on_both` gets."""

    def __init__(self, address: str, script: Script, state: str, name: str) -> None:
        self._address = address
        self._script = script
        self._state = state
        self._name = name

    async def compare(self, case: Case, arguments: dict[str, Any]) -> None:
        theirs = plain(await self._run("grpc.aio", case, arguments))
        ours = plain(await self._run("lbclient", case, arguments))
        difference = DIFFERENCES.get(self._name)
        if difference is None or self._state not in difference.states:
            assert ours == theirs
        else:
            assert theirs == difference.theirs
            assert ours == difference.ours

    async def _run(self, name: str, case: Case, arguments: dict[str, Any]) -> Any:
        self._script.forget()
        is_ready = self._state == "ready"
        async with (
            asyncio.timeout(LIMIT),
            Side(name, self._address, self._script, is_ready) as side,
        ):
            return await case(side, **arguments)


def on_both(case: Case) -> Callable[..., Awaitable[None]]:
    """Makes a test of a case, which gets a side as its first argument."""

    @functools.wraps(case)
    async def test(both: Both, **arguments: Any) -> None:
        await both.compare(case, arguments)

    # What pytest reads: the case's arguments, with the runner for the side.
    del test.__wrapped__
    _, *others = inspect.signature(case).parameters.values()
    runner = inspect.Parameter("both", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([runner, *others])  # type: ignore[attr-defined]
    test.case = case  # type: ignore[attr-defined]  # tests/worlds runs it in memory
    return test


each_kind = pytest.mark.parametrize("kind", KINDS)
each_stream = pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
each_sender = pytest.mark.parametrize("kind", ["stream_unary", "stream_stream"])
# Where the channel has no state yet, or the case makes its own.
once = pytest.mark.parametrize("both", ["fresh"], indirect=True)
when_ready = pytest.mark.parametrize("both", ["ready"], indirect=True)
