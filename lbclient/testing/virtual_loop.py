"""Virtual time: a loop whose clock jumps to the next timer instead of waiting.

For coroutines, timers and fakes. Sockets and threads pass no virtual time: the clock
would jump past them.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

LONGEST = 86400.0  # virtual seconds of one test: a retry that never ends is no hang

P = ParamSpec("P")
T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which an hour passes at once; `time()` begins at 0.0."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    """Advances the clock where another selector would wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        if not events and timeout is not None:
            self._loop.now += max(0.0, timeout)
        return events


def virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Makes an async test a plain one, which runs on a `VirtualLoop` of its own.

    So no plugin for async tests is needed, and any may be there. A test that takes
    more than a day of virtual time fails with TimeoutError.
    """

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        async def limited() -> T:
            async with asyncio.timeout(LONGEST):
                return await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(limited())

    return run
