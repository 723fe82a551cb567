"""Interceptors of all four kinds: what they see, and what they may do."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.conformance.both import (
    NEVER,
    Side,
    answered,
    attempted,
    comes_true,
    each_kind,
    end_of,
    on_both,
    once,
    outcome,
    responses,
)
from tests.conformance.script import KINDS, path

# Whether an intercepted call waits is tested in tests/wire/test_interceptors.py, too.
pytestmark = once

BASES: dict[str, Any] = {
    "unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "stream_stream": grpc.aio.StreamStreamClientInterceptor,
}


def interceptor(kind: str, intercept: Callable[..., Any]) -> Any:
    """One of a kind; `intercept(continuation, details, request)` is its method."""

    async def method(_: Any, continuation: Any, details: Any, request: Any) -> Any:
        return await intercept(continuation, details, request)

    return type("Interceptor", (BASES[kind],), {f"intercept_{kind}": method})()


def noting(kind: str, name: str, notes: list[Any]) -> Any:
    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        notes.append(f"{name} before")
        call = await continuation(details, request)
        notes.append(f"{name} after")
        return call

    return interceptor(kind, intercept)


async def stop_writing(call: Any) -> None:
    """Else grpc.aio waits for the next request for ever, answered or not."""
    if hasattr(call, "done_writing"):
        await outcome(call.done_writing())


def _plain_details(details: Any) -> list[Any]:
    metadata = details.metadata
    return [
        type(details).__name__,
        type(details.method).__name__,
        details.method,
        details.timeout,
        type(metadata).__name__,
        list(metadata),
        details.credentials,
        details.wait_for_ready,
    ]


@on_both
@each_kind
@pytest.mark.parametrize("given", ["nothing", "everything"])
async def test_an_interceptor_sees_the_details_of_the_call(
    side: Side, kind: str, given: str
) -> Any:
    seen: list[Any] = []

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        seen.append(_plain_details(details))
        seen.append(type(request).__name__)
        return await continuation(details, request)

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    method: Any = getattr(channel, kind)(path(kind))
    options: dict[str, Any] = {}
    if given == "everything":
        options = {
            "timeout": 9,
            "metadata": (("seen", "1"),),
            "wait_for_ready": True,
            "compression": grpc.Compression.Gzip,
        }
    call = method(b"a" if kind.startswith("unary") else [b"a"], **options)
    return await answered(call, kind), seen


@on_both
@each_kind
@pytest.mark.parametrize(("depth", "do"), [(1, ""), (3, ""), (3, "abort")])
async def test_interceptors_are_asked_in_order(
    side: Side, kind: str, depth: int, do: str
) -> Any:
    notes: list[Any] = []
    stack = [noting(kind, str(number), notes) for number in range(depth)]
    channel = await side.open(interceptors=stack)
    sending = "write" if do else "iterator"
    call = await side.begin(kind, on=channel, sending=sending, do=do)
    seen = await answered(call, kind), notes, await end_of(call)
    await stop_writing(call)
    return seen


@on_both
@each_kind
async def test_interceptors_of_other_kinds_are_not_asked(side: Side, kind: str) -> Any:
    notes: list[Any] = []
    others = [noting(other, other, notes) for other in KINDS if other != kind]
    channel = await side.open(interceptors=others)
    return await answered(await side.begin(kind, on=channel), kind), notes


@on_both
@each_kind
async def test_an_interceptor_changes_the_details(side: Side, kind: str) -> Any:
    new: dict[str, Any] = {}

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(details._replace(**new), request)

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    seen = []
    for new in (
        {"metadata": grpc.aio.Metadata(("do", "seen"), ("seen", "2"))},
        {"timeout": 77},
        {"wait_for_ready": True},
        {"method": b"/conformance.Script/nothing"},
    ):
        sending = "write" if "method" in new else "iterator"
        call = await side.begin(kind, sending=sending, on=channel, do="deadline")
        seen.append((await answered(call, kind), await end_of(call)))
        if sending == "write":
            await stop_writing(call)
    return seen


@on_both
@each_kind
async def test_an_interceptor_changes_the_request(side: Side, kind: str) -> Any:
    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        other = b"x,y" if kind.startswith("unary") else iter([b"x", b"y"])
        return await continuation(details, other)

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    return await answered(await side.begin(kind, on=channel), kind)


@on_both
@each_kind
async def test_an_interceptor_raises(side: Side, kind: str) -> Any:
    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        raise LookupError("no way")

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    call = await side.begin(kind, on=channel)
    seen = await answered(call, kind)
    return seen, call.done(), call.cancelled()


@on_both
@each_kind
async def test_an_interceptor_raises_an_rpc_error(side: Side, kind: str) -> Any:
    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.ABORTED,
            grpc.aio.Metadata(("initial", "1")),
            grpc.aio.Metadata(("trailing", "1")),
            "by an interceptor",
            "debug",
        )

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    call = await side.begin(kind, on=channel)
    return await answered(call, kind), await end_of(call)


@on_both
async def test_an_interceptor_answers_by_itself(side: Side) -> Any:
    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        return b"of my own"

    channel = await side.open(interceptors=[interceptor("unary_unary", intercept)])
    call = await side.begin("unary_unary", on=channel)
    seen = await outcome(call, NEVER)
    return seen, side.script.events


@on_both
@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
@pytest.mark.parametrize("receiving", ["iterate", "read"])
async def test_an_interceptor_changes_the_responses(
    side: Side, kind: str, receiving: str
) -> Any:
    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        call = await continuation(details, request)

        async def changed() -> Any:
            async for response in call:
                yield response.upper()

        return changed()

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    call = await side.begin(kind, on=channel)
    return await responses(call, receiving), await end_of(call)


@on_both
@each_kind
async def test_an_interceptor_calls_its_continuation_twice(
    side: Side, kind: str
) -> Any:
    codes: list[Any] = []

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        first = await continuation(details, request)
        await answered(first, kind)
        codes.append(await first.code())
        return await continuation(details, request)

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    method: Any = getattr(channel, kind)(path(kind))
    call = method(b"a,b" if kind.startswith("unary") else [b"a", b"b"])
    return await answered(call, kind), codes, await end_of(call)


@on_both
async def test_an_interceptor_tries_again_after_an_error(side: Side) -> Any:
    tried: list[Any] = []

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(("do", "refuse"))
        while True:
            call = await continuation(details._replace(metadata=metadata), request)
            tried.append(await call.code())
            if tried[-1] is grpc.StatusCode.OK:
                return call
            metadata = grpc.aio.Metadata(("do", "trailing"))

    channel = await side.open(interceptors=[interceptor("unary_unary", intercept)])
    call = await side.begin("unary_unary", on=channel)
    return await outcome(call), tried, await end_of(call)


@on_both
async def test_an_interceptor_waits_for_the_answer(side: Side) -> Any:
    seen: list[Any] = []

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        call = await continuation(details, request)
        seen.append(await call)
        seen.append(await call.trailing_metadata())
        return call

    channel = await side.open(interceptors=[interceptor("unary_unary", intercept)])
    call = await side.begin("unary_unary", on=channel, do="trailing")
    return await outcome(call), seen, await end_of(call)


@on_both
@each_kind
@pytest.mark.parametrize("moment", ["at once", "in the interceptor", "at work"])
async def test_an_intercepted_call_is_cancelled(
    side: Side, kind: str, moment: str
) -> Any:
    reached = asyncio.Event()

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        reached.set()
        if moment == "in the interceptor":
            await asyncio.sleep(5)
        return await continuation(details, request)

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    call = await side.begin(kind, on=channel, sending="write", do="hang")
    if moment != "at once":
        await reached.wait()
    if moment == "at work":
        await side.at_work()
    told = call.cancel(), call.cancelled(), call.done()
    seen = await answered(call, kind)
    return told, seen, await outcome(call.code(), NEVER), call.cancel()


@on_both
@each_kind
async def test_a_deadline_passes_beneath_an_interceptor(side: Side, kind: str) -> Any:
    notes: list[Any] = []
    channel = await side.open(interceptors=[noting(kind, "it", notes)])
    call = await side.begin(kind, on=channel, sending="write", do="hang", timeout=0.3)
    (error,) = await answered(call, kind)
    await stop_writing(call)
    return type(error).__name__, error.code(), await call.code(), notes


@on_both
@each_kind
async def test_callbacks_of_an_intercepted_call_are_called(
    side: Side, kind: str
) -> Any:
    channel = await side.open(interceptors=[noting(kind, "it", [])])
    call = await side.begin(kind, on=channel)
    heard: list[Any] = []
    call.add_done_callback(lambda it: heard.append(it.done()))
    seen = await answered(call, kind)
    await comes_true(lambda: heard, turns=20)
    call.add_done_callback(lambda _: heard.append("late"))
    return seen, heard


@on_both
@pytest.mark.parametrize("kind", ["stream_unary", "stream_stream"])
async def test_requests_are_written_through_an_interceptor(
    side: Side, kind: str
) -> Any:
    notes: list[Any] = []
    stack = [noting(kind, str(number), notes) for number in range(2)]
    channel = await side.open(interceptors=stack)
    call = await side.begin(kind, on=channel, sending="write")
    await call.write(b"a")
    await call.write(b"b")
    await call.done_writing()
    return await answered(call, kind), notes


@on_both
@pytest.mark.parametrize("given", [object(), [], "text"], ids=str)
async def test_what_is_no_interceptor_is_refused(side: Side, given: Any) -> Any:
    error = attempted(side.library.insecure_channel, "a:1", interceptors=[given])
    return type(error).__name__, "UnaryUnaryClientInterceptor" in str(error)


@on_both
async def test_an_interceptor_of_two_kinds_counts_as_the_first(side: Side) -> Any:
    notes: list[Any] = []

    class Two(
        grpc.aio.UnaryUnaryClientInterceptor, grpc.aio.UnaryStreamClientInterceptor
    ):
        async def intercept_unary_unary(self, go: Any, details: Any, it: Any) -> Any:
            notes.append("unary")
            return await go(details, it)

        async def intercept_unary_stream(self, go: Any, details: Any, it: Any) -> Any:
            notes.append("stream")
            return await go(details, it)

    channel = await side.open(interceptors=[Two()])
    for kind in ("unary_unary", "unary_stream"):
        await answered(await side.begin(kind, on=channel), kind)
    return notes


@on_both
@each_kind
async def test_a_context_variable_reaches_the_interceptor(side: Side, kind: str) -> Any:
    import contextvars

    variable: Any = contextvars.ContextVar("variable", default="unset")
    seen: list[Any] = []

    async def intercept(continuation: Any, details: Any, request: Any) -> Any:
        seen.append(variable.get())
        return await continuation(details, request)

    channel = await side.open(interceptors=[interceptor(kind, intercept)])
    variable.set("set")
    await answered(await side.begin(kind, on=channel), kind)
    return seen
