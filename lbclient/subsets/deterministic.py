"""Deterministic subsets: clients that follow each other share out one shuffled list.

Clients go by rounds of N / k, rounded down. Each round shuffles the backends with its
own seed and cuts the list into subsets, one a client, so that nobody in a round has a
backend in common. What does not fill a subset is left over: when k does not divide N,
connections differ by more than the one that the book's prose promises.

Everything depends on N and k through the shuffle and the cut: one backend more gives
most clients mostly other backends. The book's code divides by zero when k is above N;
here every client is then a round of its own and has all backends.
SRE book, ch. 20, "A Subset Selection Algorithm: Deterministic Subsetting".
"""

from collections.abc import Iterable, Iterator
from random import Random


def deterministic(client: int, backends: int, size: int) -> Iterator[int]:
    """The client's cut of its round's list, then the rest of the list. O(N).

    Use it for a backend job that is never resized; where it is, each step reconnects
    nearly everybody: `rocksteadier` does not.

    >>> from itertools import islice
    >>> list(islice(deterministic(1, 12, 3), 3))
    [5, 1, 7]
    """
    seed, place = divmod(client, max(1, backends // size))
    order = shuffled(range(backends), seed)
    # A replacement is the next in the list, and another one in every round, so that
    # the load of a backend that is down goes to many.
    start = place * size
    yield from order[start:]
    yield from order[:start]


def shuffled(numbers: Iterable[int], seed: int) -> list[int]:
    """The shuffle of the book's day, Python 2's, which gives the rounds it prints."""
    rng = Random(seed)
    order = list(numbers)
    # Random.random() is the same in all versions of Python, shuffle() is not.
    for last in range(len(order) - 1, 0, -1):
        other = int(rng.random() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order
