"""Options of channels and servers: pairs of a name and a value, for gRPC's core."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lbclient.core.errors import ConfigError

Options = Sequence[tuple[str, Any]]

INT = range(-(2**31), 2**31)  # of the core's
# What grpcio takes is int, text, bytes, and objects that stand for an address in the
# core, of which there are kinds nobody has told. It would take a float for an address.
NEVER = (type(None), float, Mapping, list, tuple, set, frozenset)


def option_pairs(options: Iterable[object] | None) -> Options:
    """The options as pairs, names as text. Raises ConfigError for what grpcio would
    fail with, which for a channel is only as it connects."""
    if isinstance(options, Mapping) or not isinstance(options or (), Iterable):
        raise ConfigError("options", options, "a list of pairs of name and value")
    return tuple(map(_checked, enumerate(options or ())))


def _checked(numbered: tuple[int, object]) -> tuple[str, Any]:
    number, option = numbered
    if not isinstance(option, Sequence) or len(option) != 2:
        raise ConfigError(f"options[{number}]", option, "a pair of name and value")
    name, value = option
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    if not isinstance(name, str):
        raise ConfigError(f"options[{number}]", option, "a name that is text")
    if isinstance(value, NEVER):
        raise ConfigError(f"options[{name!r}]", value, "an int, text or bytes")
    if isinstance(value, int) and value not in INT:
        raise ConfigError(f"options[{name!r}]", value, "an int of 32 bits")
    return name, value
