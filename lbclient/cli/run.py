"""The event loop of a command, which ends when the command does.

`getaddrinfo` cannot be interrupted, and asyncio.run waits for its threads; so does the
interpreter when it exits. A name server that is silent would hold up a command long
after its timeout. Here threads are left to end by themselves, or with the process.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, but for threads that have not ended."""

    async def main() -> T:
        asyncio.get_running_loop().set_default_executor(Unawaited())
        return await work

    return asyncio.run(main())


class Unawaited(ThreadPoolExecutor):  # the loop takes no other kind
    """A thread for each job: a command has few."""

    def submit(
        self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        # The interpreter does not wait for a daemon.
        Thread(target=work, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for nobody."""
