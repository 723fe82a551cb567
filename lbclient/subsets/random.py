"""Random subsets: each client shuffles all the backends, and takes the first k.

A client knows nothing of the others, so a backend's connections vary as chance has
it: with 300 clients of 300 backends, 30 each, from half the mean to one and a half.
SRE book, ch. 20, "A Subset Selection Algorithm: Random Subsetting"; CACM 2023.
"""

from collections.abc import Iterator
from random import Random


def random(client: int, backends: int, size: int) -> Iterator[int]:
    """A shuffle seeded with the client's number. O(k), whatever N is.

    Use it as the measure that other algorithms must beat; with k above three quarters
    of N the connections are even enough for use. Growing k moves nobody.
    """
    rng = Random(client)
    # Fisher and Yates from the front, for a list 0..backends-1 that is never made:
    # `moved` has the few places that no longer hold their own number.
    moved: dict[int, int] = {}
    for place in range(backends):
        # Random.random() is the same in all versions of Python, shuffle() is not.
        other = place + int(rng.random() * (backends - place))
        yield moved.get(other, other)
        moved[other] = moved.pop(place, place)
