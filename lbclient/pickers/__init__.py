"""Policies that choose among ready backends, one a file."""

from collections.abc import Callable
from functools import partial

from lbclient.errors import ConfigError
from lbclient.pickers.least_loaded import LeastLoaded
from lbclient.pickers.round_robin import RoundRobin
from lbclient.pickers.weighted_least_loaded import WeightedLeastLoaded
from lbclient.pickers.weighted_round_robin import WeightedRoundRobin
from lbclient.protocols import Picker, PickerFactory

__all__ = [
    "PICKERS",
    "LeastLoaded",
    "RoundRobin",
    "WeightedLeastLoaded",
    "WeightedRoundRobin",
    "picker_factory",
]

PICKERS: dict[str, Callable[..., Picker]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "weighted_round_robin": WeightedRoundRobin,
    "weighted_least_loaded": WeightedLeastLoaded,
}


def picker_factory(
    picker: str | PickerFactory, slow_start: float | None = None
) -> PickerFactory:
    """The factory of that name, or the factory that was given.

    `slow_start` goes to a picker that is named, and None leaves it its default; what
    comes from a factory has its own. "least_loaded" has none.

    >>> picker_factory("round_robin")
    <class 'lbclient.pickers.round_robin.RoundRobin'>
    """
    if not isinstance(picker, str):
        return picker
    if picker not in PICKERS:
        raise ConfigError("picker", picker, f"one of {', '.join(PICKERS)}")
    factory = PICKERS[picker]
    if slow_start is None or factory is LeastLoaded:
        return factory
    return partial(factory, slow_start=slow_start)
