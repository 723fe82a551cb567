"""Policies (`core.protocols.Picker`) that choose among ready backends, by name.

A file for each policy; the other files are parts that some policies share.
"""

from collections.abc import Callable
from functools import partial

from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Picker, PickerFactory
from lbclient.pickers.cache_aware import CacheAware
from lbclient.pickers.consistent_hashing import ConsistentHashing
from lbclient.pickers.least_loaded import LeastLoaded
from lbclient.pickers.p2c import P2c
from lbclient.pickers.peak_ewma import PeakEwma
from lbclient.pickers.prequal import Prequal
from lbclient.pickers.random import Random
from lbclient.pickers.round_robin import RoundRobin
from lbclient.pickers.weighted_least_loaded import WeightedLeastLoaded
from lbclient.pickers.weighted_round_robin import WeightedRoundRobin

__all__ = [
    "PICKERS",
    "WITHOUT_SLOW_START",
    "CacheAware",
    "ConsistentHashing",
    "LeastLoaded",
    "P2c",
    "PeakEwma",
    "Prequal",
    "Random",
    "RoundRobin",
    "WeightedLeastLoaded",
    "WeightedRoundRobin",
    "picker_factory",
]

PICKERS: dict[str, Callable[..., Picker]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "p2c": P2c,
    "peak_ewma": PeakEwma,
    "prequal": Prequal,
    "weighted_round_robin": WeightedRoundRobin,
    "weighted_least_loaded": WeightedLeastLoaded,
    "consistent_hashing": ConsistentHashing,
    "cache_aware": CacheAware,
}

# Whoever goes by what is in flight: a cold backend is slow to finish what it has.
WITHOUT_SLOW_START = (LeastLoaded, P2c, PeakEwma, Prequal)


def picker_factory(
    picker: str | PickerFactory,
    slow_start: float | None = None,
    balance_factor: float | None = None,
    miss_cost: float | None = None,
) -> PickerFactory:
    """Returns the factory of that name, or the factory that was given.

    `slow_start` goes to a picker that is named, and None leaves it its default; what
    comes from a factory has its own. Those in `WITHOUT_SLOW_START` have none.
    `balance_factor` goes to consistent hashing, and `miss_cost` to cache aware routing.

    >>> picker_factory("round_robin")
    <class 'lbclient.pickers.round_robin.RoundRobin'>
    """
    if not isinstance(picker, str):
        return picker
    if picker not in PICKERS:
        raise ConfigError("picker", picker, f"one of {', '.join(PICKERS)}")
    factory = PICKERS[picker]
    if balance_factor is not None and factory is ConsistentHashing:
        factory = partial(factory, balance_factor=balance_factor)
    if miss_cost is not None and factory is CacheAware:
        factory = partial(factory, miss_cost=miss_cost)
    if slow_start is None or PICKERS[picker] in WITHOUT_SLOW_START:
        return factory
    return partial(factory, slow_start=slow_start)
