"""CPU seconds by request, although handlers share one loop.

Each step of a handler's coroutine is timed by the clock of its thread, and so are the
steps of tasks that it starts, and theirs: a context variable says whose they are. What
is handed to `asyncio.to_thread`, or to the loop for its default executor, is timed
there. Not seen are threads that handlers start themselves, other processes, and what
gRPC does for a request outside of its handler, some 0.2 ms.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutine
from threading import local
from time import thread_time
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from lbclient.account import Charge

T = TypeVar("T")

logger = logging.getLogger(__name__)

HAND_OVER = "run_in_executor"  # the method of a loop

# Whose work this is: of whoever runs in this context.
account: ContextVar[Charge | None] = ContextVar("account", default=None)


class _Nesting(local):
    """Of one thread: what was timed within what is being timed, if anything is."""

    inner: float = 0.0


_nesting = _Nesting()


class _Timed:
    """Time in which nothing that is timed by itself counts twice."""

    __slots__ = ("_began_at", "_charge", "_outer")

    def __init__(self, charge: Charge) -> None:
        self._charge = charge

    def __enter__(self) -> None:
        self._outer = _nesting.inner
        _nesting.inner = 0.0
        self._began_at = thread_time()

    def __exit__(self, *_: object) -> None:
        spent = thread_time() - self._began_at
        own = spent - _nesting.inner
        _nesting.inner = self._outer + spent
        self._charge(own)


_NOTHING: Any = object()


class Steps(Coroutine[Any, Any, T]):
    """A coroutine whose steps are timed. To be awaited once, or made a task of."""

    __slots__ = ("_charge", "_coroutine", "_first")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], charge: Charge, first: Any = _NOTHING
    ) -> None:
        """`first` is what it said in the first step, if that has been done."""
        self._coroutine = coroutine
        self._charge = charge
        self._first = first

    def send(self, value: Any) -> Any:
        """As within a `_Timed`, and cheaper."""
        outer, _nesting.inner = _nesting.inner, 0.0
        began_at = thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            spent = thread_time() - began_at
            self._charge(spent - _nesting.inner)
            _nesting.inner = outer + spent

    def throw(self, *error: Any) -> Any:
        with _Timed(self._charge):
            return self._coroutine.throw(*error)

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
        """Who looks at a task sees the user's coroutine."""
        return getattr(self._coroutine, name)


def begun(
    coroutine: Coroutine[Any, Any, T], charge: Charge
) -> "tuple[Steps[T] | None, T | None]":
    """After its first step, which for most is all: what goes on, or what it returned.

    As in `Steps.send`, without a `Steps`: this is the hot path.
    """
    outer, _nesting.inner = _nesting.inner, 0.0
    began_at = thread_time()
    try:
        return Steps(coroutine, charge, coroutine.send(None)), None
    except StopIteration as over:
        return None, over.value
    finally:
        spent = thread_time() - began_at
        charge(spent - _nesting.inner)
        _nesting.inner = outer + spent


def run_timed(charge: Charge, work: Callable[..., T], *arguments: Any) -> T:
    """In whichever thread."""
    with _Timed(charge):
        return work(*arguments)


class _Installed:
    """On one loop, for all servers there: the first installs, the last removes.

    By the loop's own methods, as its default executor may be another loop's, too, and
    uvloop shows none. It does not keep the loop, which may go without a server being
    stopped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.servers = 0
        self._before = loop.get_task_factory()
        self._factory = _factory(self._before)
        loop.set_task_factory(self._factory)
        hand_over = partial(_hand_over, loop, loop.run_in_executor)
        self._had = HAND_OVER in getattr(loop, "__dict__", ())  # somebody else's
        self._hand_over = ref(hand_over)
        try:
            setattr(loop, HAND_OVER, hand_over)
        except AttributeError:
            logger.info("work in threads is not accounted: %r lets nobody see it", loop)

    def remove(self, loop: asyncio.AbstractEventLoop) -> None:
        """Whoever put something in the place of ours since then keeps that."""
        if loop.get_task_factory() is self._factory:
            loop.set_task_factory(self._before)
        hand_over: Any = self._hand_over()
        if hand_over is None or getattr(loop, HAND_OVER) is not hand_over:
            return
        if self._had:
            setattr(loop, HAND_OVER, hand_over.args[1])
        else:
            delattr(loop, HAND_OVER)


_installed: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Installed]"
_installed = WeakKeyDictionary()


class Accounting:
    """Installed by a server on its loop, for as long as it runs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in _installed:
            _installed[loop] = _Installed(loop)
        _installed[loop].servers += 1
        self._loop = loop

    def remove(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        installed = _installed[loop]
        installed.servers -= 1
        if not installed.servers:
            del _installed[loop]
            installed.remove(loop)

    def charge_from_thread(self, charge: Charge) -> Charge:
        return charge if self._loop is None else partial(_tell, self._loop, charge)


def _tell(loop: asyncio.AbstractEventLoop, charge: Charge, cpu: float) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(charge, cpu)


def _factory(before: Any) -> Any:
    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        charge = account.get() if context is None else context.get(account)
        if charge is not None and iscoroutine(coroutine):
            coroutine = Steps(coroutine, charge)
        if before is not None:
            return before(loop, coroutine, **options)
        return asyncio.Task(coroutine, loop=loop, **options)

    return make


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    run_in_executor: Callable[..., asyncio.Future[T]],
    executor: Executor | None,
    func: Callable[..., T],  # the loop's own word, as it may be given by name
    *arguments: Any,
) -> asyncio.Future[T]:
    charge = account.get()
    if charge is None or executor is not None:
        return run_in_executor(executor, func, *arguments)
    told = partial(_tell, loop, charge)
    return run_in_executor(executor, run_timed, told, func, *arguments)


def timed(coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Timed where the request has an account, else as it is."""
    charge = account.get()
    return coroutine if charge is None else Steps(coroutine, charge)
