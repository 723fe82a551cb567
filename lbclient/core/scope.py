"""Sets a value around a block or function: the base of `criticality`, `customer`,
`key` and `resumable`.

The value is in a context variable, so tasks that start within the block have it, too.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextvars import ContextVar
from functools import wraps
from inspect import (
    isasyncgenfunction,
    isclass,
    iscoroutinefunction,
    isgeneratorfunction,
)
from typing import Any, ClassVar, Final, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")
_OVER: Final[Any] = object()


class Scope:
    """Sets `_current` to `_value`, around a block or as a decorator.

    Each subclass has both variables of its own. `_before` holds the values from before
    each block that was entered, the innermost first. It is a context variable, too, as
    one object may be used around many blocks, in tasks that overlap.
    """

    _current: ClassVar[ContextVar[Any]]
    _before: ClassVar[ContextVar[Any]]
    _value: object

    def __enter__(self) -> None:
        self._before.set((self._current.get(), self._before.get()))
        self._current.set(self._value)

    def __exit__(self, *_: object) -> None:
        held, outer = self._before.get()
        self._before.set(outer)
        self._current.set(held)

    def __call__(self, function: F) -> F:
        if isclass(function) or not callable(function):
            name = type(self).__name__
            raise TypeError(f"{name} decorates functions, not {function!r}")
        # The result is of the same kind, by which grpc.aio tells handlers apart.
        wrapped: Callable[..., object]
        if isasyncgenfunction(function):
            wrapped = self._async_generator(function)
        elif isgeneratorfunction(function):
            wrapped = self._generator(function)
        elif iscoroutinefunction(function):
            wrapped = self._coroutine(function)
        else:
            wrapped = self._function(function)
        return cast(F, wraps(function)(wrapped))

    def _function(self, function: Callable[..., T]) -> Callable[..., T]:
        def call(*args: object, **kwargs: object) -> T:
            with self:
                return function(*args, **kwargs)

        return call

    def _coroutine(
        self, function: Callable[..., Awaitable[T]]
    ) -> Callable[..., Awaitable[T]]:
        async def call(*args: object, **kwargs: object) -> T:
            with self:
                return await function(*args, **kwargs)

        return call

    # A generator's steps run in the context of whoever iterates, where the value must
    # not stay: it is set around each step. Nothing can be sent into such a generator.

    def _generator(
        self, function: Callable[..., Generator[T, None, None]]
    ) -> Callable[..., Generator[T, None, None]]:
        def call(*args: object, **kwargs: object) -> Generator[T, None, None]:
            steps = function(*args, **kwargs)
            try:
                while True:
                    with self:
                        item = next(steps, _OVER)
                    if item is _OVER:
                        return
                    yield item
            finally:
                with self:
                    steps.close()

        return call

    def _async_generator(
        self, function: Callable[..., AsyncGenerator[T, None]]
    ) -> Callable[..., AsyncGenerator[T, None]]:
        async def call(*args: object, **kwargs: object) -> AsyncGenerator[T, None]:
            steps = function(*args, **kwargs)
            try:
                while True:
                    with self:
                        item = await anext(steps, _OVER)
                    if item is _OVER:
                        return
                    yield item
            finally:
                with self:
                    await steps.aclose()

        return call
