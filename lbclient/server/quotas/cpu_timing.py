"""Measures the CPU time of each request on an event loop that requests share.

Each step of a handler's coroutine is timed by the clock of its thread, and so are the
steps of tasks that it starts, and theirs: a context variable says whose they are. What
is handed to `asyncio.to_thread`, or to the loop for its default executor, is timed
there. Not seen are threads that handlers start themselves, other processes, and what
gRPC does for a request outside of its handler, some 0.2 ms.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutine
from threading import local
from time import thread_time
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from lbclient.core.quotas.costs import RequestCost
from lbclient.log import Log

T = TypeVar("T")

logger = Log(__name__)

HAND_OVER = "run_in_executor"  # the method of a loop


class Bill(Protocol):
    """Adds up the CPU seconds that a request used."""

    def pay(self, cpu: float) -> None:
        """Adds CPU seconds. To be called on the server's loop."""


# Whose work this is: of whoever runs in this context.
account: ContextVar[RequestCost | None] = ContextVar("account", default=None)
bill_to = account.set
billed = account.get


class Nesting:
    """Keeps apart the time of steps that nest, on one loop: seconds timed within
    another step.

    A task that begins eagerly has its first step within one of its parent's.
    `began_at` is the thread's clock when the innermost step began, 0.0 if none runs.
    """

    def __init__(self) -> None:
        self.inner = 0.0
        self.began_at = 0.0

    def running(self) -> float:
        """CPU seconds of the step that runs, which nobody has paid yet."""
        if not self.began_at:
            return 0.0
        return thread_time() - self.began_at - self.inner


class _InThread(Nesting, local):
    """Of one thread: a handler there is timed within what was handed over."""


_in_thread = _InThread()


def _timed(
    nesting: Nesting,
    pay: Callable[[float], object],
    work: Callable[..., T],
    *arguments: Any,
) -> T:
    """Times `work` and pays for it, without what is timed within it by itself."""
    outer, nesting.inner = nesting.inner, 0.0
    before, began_at = nesting.began_at, thread_time()
    nesting.began_at = began_at
    try:
        return work(*arguments)
    finally:
        spent = thread_time() - began_at
        pay(spent - nesting.inner)
        nesting.inner, nesting.began_at = outer + spent, before


_NOTHING: Any = object()


class Steps(Coroutine[Any, Any, T]):
    """A coroutine whose steps are timed. To be awaited once, or made a task of."""

    __slots__ = ("_coroutine", "_first", "_nesting", "_payer")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        payer: Bill,
        nesting: Nesting,
        first: Any = _NOTHING,
    ) -> None:
        """`first` is what the first step yielded, if that has been done."""
        self._coroutine = coroutine
        self._payer = payer
        self._nesting = nesting
        self._first = first

    def send(self, value: Any) -> Any:
        return _timed(self._nesting, self._payer.pay, self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return _timed(self._nesting, self._payer.pay, self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> "Steps[T]":
        return self

    def __next__(self) -> Any:
        if (first := self._first) is not _NOTHING:
            self._first = _NOTHING
            return first
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        """Attributes are those of the user's coroutine, for whoever inspects a task."""
        return getattr(self._coroutine, name)


def begun(
    coroutine: Coroutine[Any, Any, None], payer: Bill, nesting: Nesting
) -> "Steps[None] | None":
    """Runs the first step, which usually is the only one; returns the rest, or None.

    As `_timed` does it, without a frame and a `Steps`: this is the hot path. What is
    timed returns None, so that `next` sees its end without a StopIteration.
    """
    outer, nesting.inner = nesting.inner, 0.0
    before, began_at = nesting.began_at, thread_time()
    nesting.began_at = began_at
    try:
        first = next(coroutine.__await__(), _NOTHING)
    finally:
        spent = thread_time() - began_at
        payer.pay(spent - nesting.inner)
        nesting.inner, nesting.began_at = outer + spent, before
    return None if first is _NOTHING else Steps(coroutine, payer, nesting, first)


def run_timed(
    loop: asyncio.AbstractEventLoop, payer: Bill, work: Callable[..., T], *args: Any
) -> T:
    """Runs and times work outside of the payer's loop, usually in a thread."""
    return _timed(_in_thread, partial(_tell, loop, payer), work, *args)


def _tell(loop: asyncio.AbstractEventLoop, payer: Bill, cpu: float) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(payer.pay, cpu)


class _Installed:
    """On one loop, for all servers there: the first installs, the last removes.

    By the loop's own methods, as its default executor may be another loop's, too, and
    uvloop shows none. It does not keep the loop, which may go without a server being
    stopped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.servers = 0
        self.nesting = Nesting()
        self._before = loop.get_task_factory()
        self._factory = _factory(self._before, self.nesting)
        loop.set_task_factory(self._factory)
        hand_over = partial(_hand_over, loop, loop.run_in_executor)
        self._hand_over = ref(hand_over)
        try:
            setattr(loop, HAND_OVER, hand_over)
        except AttributeError:
            words = "CPU time in threads is not counted: no hook for threads in %r"
            logger.info(words, loop)

    def remove(self, loop: asyncio.AbstractEventLoop) -> None:
        """Puts back the loop's own, except where somebody has replaced ours since."""
        if loop.get_task_factory() is self._factory:
            loop.set_task_factory(self._before)
        hand_over: Any = self._hand_over()
        if hand_over is None or getattr(loop, HAND_OVER) is not hand_over:
            return
        # Whether the one before was the loop's own is seen now, not in the loop's
        # `__dict__`: once that is asked for, CPython 3.11 and 3.12 look there for each
        # of the loop's attributes, which took 5 % of all that a small request takes.
        delattr(loop, HAND_OVER)
        before = hand_over.args[1]
        if getattr(loop, HAND_OVER) != before:
            setattr(loop, HAND_OVER, before)


_installed: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Installed]"
_installed = WeakKeyDictionary()


class CpuTiming:
    """Has a loop time the steps of requests, for as long as a server runs there. Owned
    by the server."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> Nesting:
        if loop not in _installed:
            _installed[loop] = _Installed(loop)
        installed = _installed[loop]
        installed.servers += 1
        self._loop = loop
        return installed.nesting

    def remove(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        installed = _installed[loop]
        installed.servers -= 1
        if not installed.servers:
            del _installed[loop]
            installed.remove(loop)


def _factory(before: Any, nesting: Nesting) -> Any:
    task, make_before = asyncio.Task, before or _make

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if not options and before is None and billed() is None:
            return task(coroutine, loop=loop)  # as gRPC's own, three for each request
        context = options.get("context")
        payer = billed() if context is None else context.get(account)
        if payer is not None and iscoroutine(coroutine):
            coroutine = Steps(coroutine, payer, nesting)
        return make_before(loop, coroutine, **options)

    return make


def _make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    return asyncio.Task(coroutine, loop=loop, **options)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    run_in_executor: Callable[..., asyncio.Future[T]],
    executor: Executor | None,
    func: Callable[..., T],  # the loop's own word, as it may be given by name
    *arguments: Any,
) -> asyncio.Future[T]:
    payer = billed()
    if payer is None or executor is not None:
        return run_in_executor(executor, func, *arguments)
    return run_in_executor(executor, run_timed, loop, payer, func, *arguments)
