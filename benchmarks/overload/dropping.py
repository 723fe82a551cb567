"""What dropping requests takes of a server's loop, measured as it happens.

It depends on how many requests come in one turn of the loop: from a third of what it
takes where they come one by one. So no figure from another load will do.
"""

from collections.abc import Callable
from time import thread_time
from typing import Any

from lbclient.server.overload.intake import Intake


class Dropping:
    """Times an intake, which has to have its core. Used on the loop's thread.

    `seconds` of CPU are those in which requests were taken from the core of which one
    was dropped, in which the core ended it, and in which it had been asked for one.
    """

    def __init__(self, intake: Intake) -> None:
        self.seconds = 0.0
        self._asking, self._asked = 0.0, 0  # for those that are served, too
        self._intake = intake
        source: Any = intake._core
        self._request_call: Callable[[], Any] = source._request_call
        source._request_call = self._ask

    def _ask(self) -> "_Asking":
        began_at = thread_time()
        asking = self._request_call()
        future = asking.send(None)
        self._asking += thread_time() - began_at
        self._asked += 1
        return _Asking(asking, future, self)

    def timed(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        def answered(future: Any) -> None:
            before, began_at = self._intake.dropped, thread_time()
            callback(future)  # when it returns nobody keeps what was dropped
            if self._intake.dropped != before:
                self.seconds += thread_time() - began_at
                self.seconds += self._asking / self._asked

        return answered


class _Asking:
    """Stands for grpcio's coroutine that waits for a request."""

    def __init__(self, asking: Any, future: Any, dropping: Dropping) -> None:
        self._asking = asking
        self._future = future  # that it awaits first
        self._dropping = dropping

    def send(self, value: None) -> "_Answer":
        future, self._future = self._future, None
        if future is None:  # it has been answered, and ends
            future = self._asking.send(value)
        return _Answer(future, self._dropping)


class _Answer:
    """Stands for the future that it awaits."""

    def __init__(self, future: Any, dropping: Dropping) -> None:
        self._future = future
        self._dropping = dropping

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._future.add_done_callback(self._dropping.timed(callback))
