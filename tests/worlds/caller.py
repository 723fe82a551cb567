"""The callers of a world: each makes a call, may give it up, and notes what it saw."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

import lbclient
from tests.worlds.machines import request_of
from tests.worlds.plan import KINDS, CallPlan

if TYPE_CHECKING:
    from tests.worlds.world import World


@dataclass
class Seen:
    """What became of a call, as its caller saw it."""

    plan: CallPlan
    began_at: float
    over_at: float | None = None  # for its caller
    done_at: float | None = None  # its done callback
    gave_up_at: float | None = None
    has_begun: bool = False  # there is a call
    how: str = "never over"
    code: grpc.StatusCode | None = None
    details: str = ""
    trailers: tuple[Any, ...] = ()
    answers: list[bytes] = field(default_factory=list)
    error: str = ""
    notes: tuple[str, ...] = ()
    backend: str | None = None
    executed_at: list[str] = field(default_factory=list)  # machines, in order

    def __str__(self) -> str:
        told = {
            "error": f"{self.code and self.code.name} {self.details!r}",
            "raised": self.error,
        }.get(self.how, "")
        return f"{self.plan}: {self.how} {told}".strip()


class Caller:
    """Makes the calls of a plan in the client's process."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.seen: list[Seen] = []
        self.tasks: dict[asyncio.Task[None], None] = {}
        self._methods: dict[str, Any] = {}

    def begin(self, plan: CallPlan) -> Seen:
        world = self.world
        seen = Seen(plan, world.clock.now)
        self.seen.append(seen)
        task = world.client.create_task(self._make(seen))
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        if plan.stops is not None and plan.stops[1] == "task":
            world.client.call_later(plan.stops[0], self._give_up, seen, task)
        return seen

    def forget(self) -> None:
        """All but what was seen."""
        self.tasks.clear()
        self._methods.clear()

    def _give_up(self, seen: Seen, what: Any) -> None:
        if seen.over_at is None:
            seen.gave_up_at = self.world.clock.now
            self.world.note(f"call {seen.plan.number} is given up")
            what.cancel()

    def _method(self, path: str) -> Any:
        if path not in self._methods:
            make = getattr(self.world.channel, KINDS[path])
            self._methods[path] = make(path)
        return self._methods[path]

    async def _make(self, seen: Seen) -> None:
        plan, clock = seen.plan, self.world.clock
        seen.began_at = clock.now  # the loop may have been blocked
        self.world.note(f"begins: {plan}")
        call: Any = None
        try:
            call = self._call(plan)
            seen.has_begun = True
            call.add_done_callback(lambda _: self._done(seen))
            if plan.stops is not None and plan.stops[1] == "call":
                if plan.stops[0]:
                    loop = self.world.client
                    loop.call_later(plan.stops[0], self._give_up, seen, call)
                else:  # before anything of it has begun
                    self._give_up(seen, call)
            # Somebody else wants to know how it ends, unless it is to be left alone.
            is_left = plan.stops is not None and plan.stops[1] != "call"
            at_once = plan.stops is not None and plan.stops == (0.0, "task")
            # (Who gives up a write leaves the call alone, as in grpc.aio.)
            at_once = at_once and not self._writes(plan)
            if plan.number % 7 == 0 and (at_once or not is_left):
                task = self.world.client.create_task(self._ask(seen, call))
                self.tasks[task] = None
                task.add_done_callback(self.tasks.pop)
            is_whole = await self._take(call, seen)
            seen.how = "answered" if is_whole else "dropped"
            if not is_whole and self.world.plan.intercepts and self._writes(plan):
                call.cancel()  # a task of grpc.aio's interceptors keeps the call
        except asyncio.CancelledError:
            seen.how = "cancelled"
        except grpc.aio.AioRpcError as error:
            seen.how, seen.code = "error", error.code()
            seen.details = error.details() or ""
            seen.trailers = tuple(error.trailing_metadata() or ())
            seen.notes = tuple(getattr(error, "__notes__", ()))
        except BaseException as error:
            seen.how, seen.error = "raised", repr(error)
        seen.over_at = clock.now
        if call is not None:
            info = lbclient.info(call)
            seen.backend = info.backend
            # Who gives up between two messages leaves the call to be collected.
            if seen.how in ("answered", "error") and not call.done():
                seen.how = f"{seen.how}, and the call is not done"
        del call
        self.world.note(f"is over: {seen}")

    async def _ask(self, seen: Seen, call: Any) -> None:
        """Asks how the call ends, and whether it is true that it is done."""
        await asyncio.sleep(0.005)
        if call.done():
            end = self.world.client.create_task(call.code())
            await asyncio.sleep(0.001)
            if not end.done():
                words = f"{seen}: it is done, and has no status"
                self.world.broken.append(("every call ends", words))
            await end
        else:
            await call.code()

    def _done(self, seen: Seen) -> None:
        if seen.done_at is None:
            seen.done_at = self.world.clock.now

    def _call(self, plan: CallPlan) -> Any:
        options: dict[str, Any] = {"timeout": plan.timeout}
        if plan.waits_for_ready is not None:
            options["wait_for_ready"] = plan.waits_for_ready
        method = self._method(plan.method)
        kind = KINDS[plan.method]
        request = request_of(plan)
        if kind.startswith("unary"):
            return method(request, **options)
        if self._writes(plan):
            return method(**options)
        if plan.number % 2:
            return method(self._requests(plan, request), **options)
        return method([request] * plan.parts, **options)

    def _writes(self, plan: CallPlan) -> bool:
        """Whether requests are written, not taken from an iterator."""
        is_stream = KINDS[plan.method].startswith("stream")
        return is_stream and plan.number % 5 == 0

    async def _write(self, call: Any, plan: CallPlan) -> None:
        request = request_of(plan)
        with suppress(asyncio.InvalidStateError):  # it is over; its end tells why
            for _ in range(plan.parts):
                await call.write(request)
            await call.done_writing()

    async def _requests(self, plan: CallPlan, request: bytes) -> AsyncIterator[bytes]:
        for _ in range(plan.parts):
            if plan.pause:
                await asyncio.sleep(plan.pause)
            yield request

    async def _take(self, call: Any, seen: Seen) -> bool:
        """Whether all was read, to the end."""
        plan = seen.plan
        if self._writes(plan):
            await self._write(call, plan)
        if KINDS[plan.method].endswith("unary"):
            seen.answers.append(await call)
            return True
        drops_at = None
        if plan.stops is not None and plan.stops[1] == "drop":
            drops_at = int(plan.stops[0] * 3) + 1
        async for message in self._read(call, reads=plan.number % 3 == 0):
            seen.answers.append(message)
            if len(seen.answers) == drops_at:
                return False
            if plan.pause:
                await asyncio.sleep(plan.pause)
        return True

    async def _read(self, call: Any, reads: bool) -> AsyncIterator[bytes]:
        if reads:
            while (message := await call.read()) is not grpc.aio.EOF:
                yield message
        else:
            async for message in call:
                yield message
