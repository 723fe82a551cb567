"""Policies that choose among ready backends, one a file."""

from lbclient.errors import ConfigError
from lbclient.pickers.least_loaded import LeastLoaded
from lbclient.pickers.round_robin import RoundRobin
from lbclient.pickers.weighted_least_loaded import WeightedLeastLoaded
from lbclient.pickers.weighted_round_robin import WeightedRoundRobin
from lbclient.protocols import PickerFactory

__all__ = [
    "PICKERS",
    "LeastLoaded",
    "RoundRobin",
    "WeightedLeastLoaded",
    "WeightedRoundRobin",
    "picker_factory",
]

PICKERS: dict[str, PickerFactory] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "weighted_round_robin": WeightedRoundRobin,
    "weighted_least_loaded": WeightedLeastLoaded,
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
