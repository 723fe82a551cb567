"""The median, which one outlier does not move."""

from collections.abc import Iterable


def median(numbers: Iterable[float]) -> float:
    """`statistics.median`, without its fractions and decimals, slow to import.

    >>> median([3.0, 1.0, 2.0]), median([4.0, 1.0, 2.0, 3.0])
    (2.0, 2.5)
    """
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2
