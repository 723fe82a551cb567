"""Round robin: the first client takes the first k backends, the next the next k.

Nobody balances connections better, and little else is good: there are only
N / gcd(k, N) distinct subsets, each of consecutive numbers, so that a rolling restart
takes whole subsets out; and all of them change with N and with k.
CACM 2023, "Round-robin subsetting" and table 1.
"""

from collections.abc import Iterator
from itertools import chain


def round_robin(client: int, backends: int, size: int) -> Iterator[int]:
    """Consecutive backends from (client x size) on. O(k).

    Use it to see what perfect balance is, or where nothing is ever resized and
    restarts do not go by number.

    >>> list(round_robin(2, 10, 4))
    [8, 9, 0, 1, 2, 3, 4, 5, 6, 7]
    """
    start = client * size % backends
    return chain(range(start, backends), range(start))
