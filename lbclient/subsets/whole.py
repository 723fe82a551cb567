"""No subsetting: every client may use every backend.

The order starts at the client's own number, lest all clients of a job that starts
connect to backend 0 first. A channel takes all of it; who takes the first 20 has 20
consecutive ones.
"""

from collections.abc import Iterator
from itertools import chain


def whole(client: int, backends: int, size: int) -> Iterator[int]:
    """All backends in turn from the client's number on. O(k).

    Use it with k = N, when M x N connections are few enough to afford.

    >>> list(whole(7, 5, 5))
    [2, 3, 4, 0, 1]
    """
    start = client % backends
    return chain(range(start, backends), range(start))
