"""Simulations side by side: as many processes as this machine has processors."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

R = TypeVar("R")


def played(play: Callable[..., R], games: Iterable[tuple[Any, ...]]) -> Iterator[R]:
    """What `play` returns for each of these arguments, in their order.

    `play` is a function of a module, and what it takes and returns can be pickled. What
    it measures of time is not to be used, as others play beside it.
    """
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(play, *words) for words in games]
        for future in futures:
            yield future.result()
