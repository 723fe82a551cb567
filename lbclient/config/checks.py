"""What a setting may be; a check raises ConfigError with what would be right."""

import re
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from math import inf
from typing import Any, Literal

from lbclient.config.redis_url import FORM, redis_place
from lbclient.core.admission import OWN_SIGNALS
from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError
from lbclient.core.protocols import PickerFactory, Subset, UsageStore

WhenFull = Literal["wait", "fail"]
Health = Literal["auto", "watch", "off"]

# Who may be named as `ServerConfig.customer`.
MTLS = "mtls"
Customer = Callable[[Any], str | bytes | None]

SECRET_SIZE = 16  # bytes, as the seal that it makes; shorter ones can be guessed

MOST_ATTEMPTS = 5  # gRFC A6

METHOD_PATH = re.compile(r"/[^/\s*]+/([^/\s*]+|\*)")

TEXTS = (
    str,
    WhenFull,
    Health,
    str | Criticality,
    str | PickerFactory,
    str | Subset,
    str | Customer | None,
    str | UsageStore | None,
)


def check_whole(field: str, value: object, low: int, high: float = inf) -> None:
    bound = f"at least {low}" if high == inf else f"{low} to {high:.0f}"
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(field, value, f"a whole number, {bound}")


def check_seconds(field: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not low <= float(str(value)) <= high:
        raise ConfigError(field, value, f"seconds, {low:g} to {high:g}")


def check_number_or_0(field: str, value: object, low: float, high: float) -> None:
    number = float(str(value)) if type(value) in (int, float) else -1.0
    if number and not low <= number <= high:
        raise ConfigError(field, value, f"0, or a number, {low:g} to {high:g}")


def check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(field, value, "text")


def check_true_or_false(field: str, value: object) -> None:
    if type(value) is not bool:
        raise ConfigError(field, value, "true or false")


def check_one_of(field: str, value: object, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ConfigError(field, value, f"one of {', '.join(names)}")


def check_number(field: str, value: object, low: float, high: float) -> None:
    if type(value) not in (int, float) or not low <= float(str(value)) <= high:
        raise ConfigError(field, value, f"a number, {low:g} to {high:.7g}")


def check_signal(field: str, value: object) -> None:
    if not callable(value) or iscoroutinefunction(value):
        raise ConfigError(field, value, "a callable without arguments, no coroutine")


def check_signals(field: str, value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(field, value, "callables without arguments, by name")
    for name, signal in (value or {}).items():
        if not isinstance(name, str) or not name:
            raise ConfigError(field, name, "names of signals")
        if name in OWN_SIGNALS:
            own = ", ".join(map(repr, OWN_SIGNALS))
            want = f"another name: {own} are the server's own signals"
            raise ConfigError(field, name, want)
        check_signal(f"{field}[{name!r}]", signal)


def check_store(field: str, value: object) -> None:
    if isinstance(value, str):
        redis_place(field, value)
    elif value is not None and not callable(getattr(value, "exchange", None)):
        # By its type: it may hold a password.
        raise ConfigError(field, type(value), f"{FORM}, or a store of your own")


def check_methods(field: str, value: object) -> tuple[str, ...]:
    """A sequence of method paths; TOML has lists."""
    paths = tuple(value) if isinstance(value, list | tuple) else (value,)
    for path in paths:
        if not isinstance(path, str) or not METHOD_PATH.fullmatch(path):
            want = "paths such as '/package.Service/Method' or '/package.Service/*'"
            raise ConfigError(field, path, want)
    return paths


def check_attempts(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        check_whole(field, value, 1, MOST_ATTEMPTS)
        return
    check_methods(field, list(value))
    for path, attempts in value.items():
        check_whole(f"{field}[{path!r}]", attempts, 1, MOST_ATTEMPTS)


def check_secret(field: str, value: object) -> None:
    """Its text stays out of the error."""
    if not isinstance(value, str):
        raise ConfigError(field, type(value), "text")
    if value and len(value.encode()) < SECRET_SIZE:
        said = f"<{len(value)} characters>"
        raise ConfigError(field, said, f"at least {SECRET_SIZE} bytes, or none")
