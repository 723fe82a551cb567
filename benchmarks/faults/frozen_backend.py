"""A backend freezes (SIGSTOP) under calls that have no deadline.

Its connection stays, so only its silence tells. The calls are made by a channel of
ours, by a handler of a server of ours, whose own clients are grpc.aio's, and through
`lbclient proxy`; two calls of each arity that the tasks serve. And as a control by
plain grpc.aio, whose calls are still waiting when all of ours have ended.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple

import grpc

import lbclient
from benchmarks.faults.fleet import Front, Task, fleet, ours, theirs
from benchmarks.faults.row import Result, Row
from benchmarks.faults.task import METHOD, STREAM
from benchmarks.harness.load import until
from benchmarks.harness.processes import program
from benchmarks.harness.servers import listen

EACH = 2  # calls of each arity, on each way
FOR_EVER = 3600.0
EARNING = 30  # calls that bring the retries of two more
UNAVAILABLE = "UNAVAILABLE"


class End(NamedTuple):
    """How a call ended: the status or the exception's name, the words, the moment."""

    status: str
    words: str
    at: float


async def end_of(call: Any) -> End:
    """A stream is read to its end."""
    status = words = ""
    try:
        if hasattr(call, "__await__"):
            await call
        else:
            async for _ in call:
                pass
        status = "OK"
    except grpc.aio.AioRpcError as error:
        status, words = error.code().name, error.details() or ""
    except BaseException as error:
        status = type(error).__name__
    return End(status, words, monotonic())


class Calls:
    """Calls without a deadline on one channel, each awaited by a task of its own."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        unary: Any = channel.unary_unary(METHOD)
        stream: Any = channel.unary_stream(STREAM)
        calls = [begin(b"echo") for begin in (unary, stream) for _ in range(EACH)]
        self.streams = calls[EACH:]
        self.tasks = [asyncio.ensure_future(end_of(call)) for call in calls]

    def ends(self) -> list[End]:
        return [task.result() for task in self.tasks if task.done()]

    def are_over(self) -> bool:
        return all(task.done() for task in self.tasks)

    def said(self) -> str:
        counts = Counter(end.status for end in self.ends())
        waiting = len(self.tasks) - len(self.ends())
        return ", ".join(f"{n} {status}" for status, n in counts.items()) or (
            f"{waiting} still waiting"
        )

    async def give_up(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


class Relay:
    """Handlers that make the same call below, and do not look how that ends."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._echo: Any = channel.unary_unary(METHOD)
        self._stream: Any = channel.unary_stream(STREAM)

    async def echo(self, request: bytes, _: Any) -> bytes:
        return bytes(await self._echo(request))

    async def stream(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        async for message in self._stream(request):
            yield message

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[Any, str]]:
        server: Any = lbclient.server()
        stream: Any = grpc.unary_stream_rpc_method_handler(self.stream)
        port = await listen(server, {METHOD: self.echo, STREAM: stream})
        try:
            yield server, f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


@asynccontextmanager
async def proxy(target: Task, interval: float) -> AsyncIterator[Front]:
    """`lbclient proxy` in a process of its own."""
    words = ["--json", "--listen", "127.0.0.1:0", "--target", f"ipv4:{target.address}"]
    environment = {**os.environ, "LBCLIENT_HEALTH_INTERVAL": str(interval)}
    command = [sys.executable, "-m", "lbclient", "proxy", *words]
    async with program(*command, env=environment) as process:
        yield Front((await process.hear())["listening"])


def row(
    way: str,
    mine: Calls,
    control: Calls | None,
    frozen_at: float,
    status: str = UNAVAILABLE,
) -> Row:
    ends = mine.ends()
    promised = [e for e in ends if e.status == status and "silent for" in e.words]
    took = max((end.at for end in ends), default=frozen_at) - frozen_at
    return Row(
        f"frozen backend, {way}",
        f"each call ends, as {status}, and says why; none as CancelledError",
        Result(len(mine.tasks), len(ends), took, said_of(mine)),
        None
        if control is None
        # Who waits for ever has failed.
        else Result(len(control.tasks), len(control.tasks), None, control.said()),
        len(promised) == len(mine.tasks),
    )


def said_of(calls: Calls) -> str:
    words = sorted({" ".join(end.words.split()) for end in calls.ends()})
    return f"{calls.said()}: {words[0] if words else ''}"


async def run(seconds: float) -> list[Row]:
    """Short, if `seconds` is: then silence is judged five times sooner."""
    interval = 0.2 if seconds < 10 else 1.0
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        [backend, other] = await enter(fleet(2, "ours"))
        direct = await enter(ours([backend], health_interval=interval))
        below = await enter(ours([backend], health_interval=interval))
        server, relay = await enter(Relay(below).serving())
        forwarder = await enter(proxy(backend, interval))
        again = await enter(
            ours(
                [backend, other],
                health_interval=interval,
                idempotent=(METHOD,),
                picker="round_robin",
            )
        )
        await all_ready(again)
        unary: Any = again.unary_unary(METHOD)
        for _ in range(EARNING):
            await unary(b"echo")
        await backend.behave(latency=FOR_EVER)
        plain = await enter(theirs([backend]))
        through_relay = await enter(grpc.aio.insecure_channel(relay))
        through_proxy = await enter(theirs([forwarder]))

        channels = (direct, through_relay, through_proxy, plain)
        ways = [Calls(channel) for channel in channels]
        resent = [asyncio.ensure_future(end_of(unary(b"echo"))) for _ in range(4)]
        for calls in ways:  # each has the first message, so the backend has the call
            for stream in calls.streams:
                await stream.initial_metadata()
        await until(lambda: sum(task.done() for task in resent) == 2)
        await until(lambda: server.statistics().active == 2 * EACH)
        await asyncio.sleep(0.2)  # unary calls, too

        frozen_at = monotonic()
        backend.signal(signal.SIGSTOP)
        try:
            is_over = [calls.are_over for calls in ways[:3]]
            await until(
                lambda: (
                    all(over() for over in is_over)
                    and all(task.done() for task in resent)
                ),
                lambda: [calls.said() for calls in ways],
            )
            await until(lambda: server.statistics().active == 0)
            rows = [
                row("called directly", ways[0], ways[3], frozen_at),
                # As of every exception that a handler does not look at.
                row("by a handler on our server", ways[1], None, frozen_at, "UNKNOWN"),
                row("through lbclient proxy", ways[2], None, frozen_at),
                sent_again(again, [task.result() for task in resent], frozen_at),
            ]
            counts = direct.statistics()
            assert counts.calls == {UNAVAILABLE: 2 * EACH}, counts.calls
            assert counts.attempts["abandoned"] == 0, counts.attempts
        finally:
            await ways[3].give_up()
            backend.signal(signal.SIGCONT)
    return rows


async def all_ready(channel: lbclient.Channel) -> None:
    channel.get_state(try_to_connect=True)
    await until(
        lambda: {b.state for b in channel.statistics().backends} == {"ready"},
        lambda: channel.statistics(),
    )


def sent_again(channel: lbclient.Channel, ends: list[End], frozen_at: float) -> Row:
    failed = sum(end.status != "OK" for end in ends)
    took = max(end.at for end in ends) - frozen_at
    said = f"{channel.statistics().retries} retries"
    said += "".join(f"; {e.status}: {e.words}" for e in ends if e.status != "OK")
    return Row(
        "frozen backend, calls that may be executed twice",
        "are answered by another backend",
        Result(len(ends), failed, took, said),
        None,
        failed == 0,
    )
