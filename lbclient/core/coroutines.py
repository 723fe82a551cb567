"""Runs a coroutine that need not wait, without an event loop."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend.

    In a done callback `code()` and `trailing_metadata()` of a grpc.aio call are
    such coroutines: the only public way to the status without a task.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("the call is not done")
