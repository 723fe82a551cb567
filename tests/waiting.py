"""Waits for a condition, and says what it saw if the condition never came true.

`asyncio.sleep` in a test is work that takes time, or a pause between two calls.
"""

import ast
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar

import pytest

Number = TypeVar("Number", int, float)
Eventually = Callable[..., Awaitable[None]]

PAUSE = 0.01  # seconds between two looks
TURNS = (
    2000  # twenty seconds and more: a machine may be busy, and who passes is soon done
)


async def eventually(
    condition: Callable[[], object],
    seen: Callable[[], object] | None = None,
    *,
    turns: int = TURNS,
    meanwhile: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Waits until `condition()` is true; fails if it never is.

    The failure shows the condition's text and the values in it. `seen` returns what to
    show besides, such as `channel.statistics`. `meanwhile` is what to do between two
    looks, such as a call.
    """
    for _ in range(turns):
        if condition():
            return
        if meanwhile is not None:
            await meanwhile()
        await asyncio.sleep(PAUSE)
    _fail(condition, seen, turns)


async def stands_still(count: Callable[[], Number], looks: int = 3) -> Number:
    """Waits until as many looks in a row show the same count, above 0; returns it."""
    counts: list[Number] = []

    def is_still() -> bool:
        counts.append(count())
        last = counts[-looks:]
        return len(last) == looks and last[0] > 0 and len(set(last)) == 1

    await eventually(is_still, lambda: counts[-10:])
    return counts[-1]


def wait_until(
    condition: Callable[[], object],
    seen: Callable[[], object] | None = None,
    *,
    turns: int = TURNS,
) -> None:
    """`eventually` for tests without an event loop."""
    for _ in range(turns):
        if condition():
            return
        time.sleep(PAUSE)
    _fail(condition, seen, turns)


def _fail(
    condition: Callable[[], object], seen: Callable[[], object] | None, turns: int
) -> NoReturn:
    besides = [] if seen is None else [f"seen: {seen()!r}"]
    never = f"never true in {turns} looks: {text_of(condition)}"
    pytest.fail("\n  ".join([never, *values_in(condition), *besides]))


async def let_pass(seconds: float) -> None:
    """Lets time pass in which something could happen that must not."""
    await asyncio.sleep(seconds)


def text_of(condition: Callable[[], object]) -> str:
    body = _body(condition)
    name = getattr(condition, "__qualname__", repr(condition))
    return name if body is None else ast.unparse(body)


def values_in(condition: Callable[[], object]) -> Iterator[str]:
    """The parts of the condition that are no constants, each with its last value."""
    body = _body(condition)
    if body is None:
        return
    names = _names(condition)
    for part in _parts(body):
        if isinstance(part, ast.Constant):
            continue
        code = compile(ast.Expression(part), "<condition>", "eval")
        try:
            value = repr(eval(code, names))
        except Exception as error:  # it may name a variable of a comprehension
            value = f"{type(error).__name__}: {error}"
        yield f"{ast.unparse(part)} = {value}"


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The sides of comparisons, also where they are joined by and, or, not."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _parts(value)
    elif isinstance(node, ast.UnaryOp):
        yield from _parts(node.operand)
    elif isinstance(node, ast.Compare):
        yield node.left
        yield from node.comparators
    else:
        yield node


def _body(condition: Callable[[], object]) -> ast.expr | None:
    """What a lambda returns, or a function that does nothing but return."""
    code = getattr(condition, "__code__", None)
    if not isinstance(code, CodeType) or not Path(code.co_filename).is_file():
        return None
    for node in ast.walk(ast.parse(Path(code.co_filename).read_text())):
        match node:
            case ast.Lambda(lineno=line, body=body) if line == code.co_firstlineno:
                return body
            case ast.FunctionDef(lineno=line, body=[*_, ast.Return(value=body)]) if (
                line == code.co_firstlineno and body is not None
            ):
                return body
    return None


def _names(condition: Callable[[], object]) -> dict[str, Any]:
    """What each name in it meant as it returned, which it does once more for that."""
    names: dict[str, Any] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is code:
            names.update({**frame.f_globals, **frame.f_locals})

    code, before = condition.__code__, sys.getprofile()
    sys.setprofile(look)
    try:
        with suppress(Exception):  # of a condition that is not made to be asked again
            condition()
    finally:
        sys.setprofile(before)
    return names
