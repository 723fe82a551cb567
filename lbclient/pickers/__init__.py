"""Policies that choose among ready backends, one a file."""

from lbclient.errors import ConfigError
from lbclient.pickers.round_robin import RoundRobin
from lbclient.protocols import PickerFactory

__all__ = [
    "PICKERS",
    "RoundRobin",
    "picker_factory",
]

PICKERS: dict[str, PickerFactory] = {
    "round_robin": RoundRobin,
}


def picker_factory(picker: str | PickerFactory) -> PickerFactory:
    """The factory of that name, or the factory that was given.

    >>> picker_factory("round_robin")
    <class 'lbclient.pickers.round_robin.RoundRobin'>
    """
    if not isinstance(picker, str):
        return picker
    if picker not in PICKERS:
        raise ConfigError("picker", picker, f"one of {', '.join(PICKERS)}")
    return PICKERS[picker]
