"""Deterministic subsets whose leftovers take turns: better balance, the same churn.

As `deterministic`, but a round chooses the N mod k backends that it leaves out before
it shuffles the others, and the next round goes on after them: so all are left out
equally often. Which round starts where is open in the text; round 0 starts at 0.
CACM 2023, "Deterministic subsetting".
"""

from collections.abc import Iterator

from lbclient.subsets.deterministic import shuffled


def deterministic_leftover(client: int, backends: int, size: int) -> Iterator[int]:
    """The client's cut of its round's list, the rest of it, the leftovers. O(N).

    Use it instead of `deterministic`, for a backend job that is never resized. For k
    above N every client has all backends.

    >>> from itertools import islice
    >>> [sorted(islice(deterministic_leftover(c, 10, 4), 8)) for c in (0, 2, 4)]
    [[2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 6, 7, 8, 9]]
    """
    size = min(size, backends)
    seed, place = divmod(client, backends // size)
    left = backends % size
    skip = seed * left % backends
    ring = [*range(skip, backends), *range(skip)]
    order = shuffled(sorted(ring[left:]), seed)
    start = place * size
    yield from order[start:]
    yield from order[:start]
    # Last, because they are the same for all of the round, and few.
    yield from ring[:left]
