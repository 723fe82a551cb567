"""Settings that name methods: as a list, or each with a number."""

import re
from collections.abc import Mapping
from typing import Any

from lbclient.config.fields import Kind
from lbclient.config.kinds import read_whole, whole
from lbclient.core.call_hints import MOST_KEYS
from lbclient.core.errors import ConfigError

METHOD_PATH = re.compile(r"/[^/\s*]+/([^/\s*]+|\*)")
PATHS = "paths such as '/package.Service/Method' or '/package.Service/*'"

ATTEMPTS_OF_ONE = whole(1, 5)  # gRFC A6 ends at 5


def check_methods(field: str, value: Any) -> tuple[str, ...]:
    """A sequence of method paths; TOML has lists."""
    paths = tuple(value) if isinstance(value, list | tuple) else (value,)
    for path in paths:
        if not isinstance(path, str) or not METHOD_PATH.fullmatch(path):
            raise ConfigError(field, path, PATHS)
    return paths


def check_attempts(field: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return ATTEMPTS_OF_ONE.check(field, value)
    check_methods(field, list(value))
    for path, attempts in value.items():
        ATTEMPTS_OF_ONE.check(f"{field}[{path!r}]", attempts)
    return value


def split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


METHODS = Kind(PATHS, check_methods, split, note="paths with commas between them")

ATTEMPTS = Kind(
    f"{ATTEMPTS_OF_ONE.want}, or such numbers by method",
    check_attempts,
    read_whole,
    note="one number",
)

METADATA_NAME = re.compile(r"[a-z0-9_.-]{1,100}(?<!-bin)")
NAMES = (
    "names of metadata, in lower case and not ending in '-bin', such as 'session-id'"
)


def _check_names(field: str, value: Any) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(names) > MOST_KEYS:
        raise ConfigError(field, f"{len(names)} names", f"{MOST_KEYS} at most")
    for name in names:
        if not isinstance(name, str) or not METADATA_NAME.fullmatch(name):
            raise ConfigError(field, name, NAMES)
    return names


def check_key_metadata(field: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _check_names(field, value)
    check_methods(field, list(value))
    return {
        path: _check_names(f"{field}[{path!r}]", names) for path, names in value.items()
    }


KEY_METADATA = Kind(
    f"{NAMES}, or such names by method",
    check_key_metadata,
    split,
    note="names with commas between them",
)
