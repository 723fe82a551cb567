"""A picker's options, checked when it is made."""

from lbclient.core.errors import ConfigError


def between(field: str, value: float, low: float, high: float) -> float:
    """`value`, or ConfigError if it is no number from `low` to `high`."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise ConfigError(field, value, f"a number, {low:g} to {high:g}")
    return float(value)
