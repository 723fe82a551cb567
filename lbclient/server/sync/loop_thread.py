"""An event loop in a thread, for what a synchronous server does beside calls.

Its health streams, UDP answers and samples run there, so none of them holds a thread of
the server's pool.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

T = TypeVar("T")


async def _end() -> None:
    """Cancels all tasks, also those that were asked for last."""
    await asyncio.sleep(0)
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # a transport that was closed needs one more turn


class LoopThread:
    """Runs an event loop in a daemon thread, from `start` to `stop`. Owned by a server.

    `loop` exists from `start` on: processes that are forked before that share none.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._thread = self._made()
        self._asking = Lock()
        self._takes_work = False

    def _made(self) -> Thread:
        return Thread(target=self._run, name="lbclient server", daemon=True)

    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._takes_work = True
        # Made anew: Python 3.13 starts no thread that was made before a fork.
        self._thread = self._made()
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            with self._asking:
                self._takes_work = False
            self.loop.run_until_complete(_end())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    def is_current(self) -> bool:
        """Whether this is the loop's thread."""
        return current_thread() is self._thread

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Returns what `work` returns on the loop; here, if the loop does not run.

        Also here on the loop's own thread, as in a warmup that stops the server.
        """
        if self.is_current():
            return work(*arguments)
        answered: Future[T] = Future()

        def answer() -> None:
            try:
                answered.set_result(work(*arguments))
            except BaseException as error:
                answered.set_exception(error)

        with self._asking:
            takes_work = self._takes_work and self._thread.is_alive()
            if takes_work:
                self.loop.call_soon_threadsafe(answer)
        if not takes_work:
            if self._thread.is_alive():
                self._thread.join()  # it is ending
            return work(*arguments)
        return answered.result()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for the coroutine, which runs on the loop.

        Raises CancelledError if the loop ends meanwhile, or has ended. Not on the
        loop's thread, which would wait for itself.
        """
        with self._asking:
            if not self._takes_work:
                coroutine.close()
                raise CancelledError
            running = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return running.result()

    def stop(self) -> None:
        """Ends the loop and its tasks, and waits for that. Not on the loop's thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def drop(self, *last: Callable[[], object]) -> None:
        """The same without waiting, from any thread, once it has called `last`."""
        if self._thread.is_alive():
            for work in (*last, self.loop.stop):
                self.loop.call_soon_threadsafe(work)

    def __repr__(self) -> str:
        return f"<{'running' if self._thread.is_alive() else 'not running'}>"
