"""Kinds of settings: numbers with bounds, texts, switches, secrets, callables.

Kinds that only a channel or only a server has are with their configs.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from inspect import iscoroutinefunction
from math import inf
from typing import Any, get_args

from lbclient.config.fields import Kind
from lbclient.core.errors import ConfigError

# Bounds are no advice. Upper ones catch typing errors and values in another unit; lower
# ones of seconds, where 0 is not allowed, keep what is done each time from being done
# without a pause.
HOUR = 3600.0
DAY = 24 * HOUR
MILLION = 1_000_000

SECRET_SIZE = 16  # bytes, as the seal that it makes; shorter ones can be guessed


def kind(
    want: str, is_right: Callable[[Any], bool], read: Callable[[str], Any] | None
) -> Kind:
    """A kind of setting whose check says yes or no."""

    def check(field: str, value: Any) -> Any:
        if not is_right(value):
            raise ConfigError(field, value, want)
        return value

    return Kind(want, check, read)


def whole(low: int, high: float = inf) -> Kind:
    bound = f"at least {low}" if high == inf else f"{low} to {high:.0f}"
    return kind(
        f"a whole number, {bound}",
        lambda value: type(value) is int and low <= value <= high,
        read_whole,
    )


def seconds(low: float, high: float) -> Kind:
    return kind(
        f"seconds, {low:g} to {high:g}",
        lambda value: _is_number(value) and low <= value <= high,
        float,
    )


def number(low: float, high: float) -> Kind:
    return kind(
        f"a number, {low:g} to {high:.7g}",
        lambda value: _is_number(value) and low <= value <= high,
        float,
    )


def number_or_0(low: float, high: float) -> Kind:
    return kind(
        f"0, or a number, {low:g} to {high:g}",
        lambda value: _is_number(value) and (value == 0 or low <= value <= high),
        float,
    )


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def one_of(names: object) -> Kind:
    """One of the texts of a Literal."""
    allowed = get_args(names)
    want = f"one of {', '.join(allowed)}"
    return kind(want, lambda value: value in allowed, str)


def optional(kind: Kind) -> Kind:
    """The same, or None."""

    def check(field: str, value: Any) -> Any:
        return None if value is None else kind.check(field, value)

    return replace(kind, check=check, is_unset_if_empty=kind.read is not None)


def _check_secret(field: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise ConfigError(field, type(value), "text")
    said = f"<{len(value)} characters>"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # an environment variable with bytes that are not UTF-8
        raise ConfigError(field, said, "text in UTF-8") from None
    if 0 < size < SECRET_SIZE:
        raise ConfigError(field, said, f"at least {SECRET_SIZE} bytes, or none")
    return value


def read_whole(text: str) -> int:
    """`int` alone takes 1_0 and the digits of any script, too."""
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def _read_switch(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


TEXT = kind("text", lambda value: isinstance(value, str), str)
SWITCH = kind("true or false", lambda value: type(value) is bool, _read_switch)
SECRET = Kind(f"text, at least {SECRET_SIZE} bytes, or none", _check_secret, str)
SIGNAL = kind(
    "a callable without arguments, no coroutine",
    lambda value: callable(value) and not iscoroutinefunction(value),
    None,
)
