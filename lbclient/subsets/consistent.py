"""Consistent subsets: everybody has a random place on a circle, clients go clockwise.

The places depend on nobody else, so a backend more changes at most one connection of
a client. But gaps between random places are uneven, and so are the connections; and
the first backend that a client meets determines all the others, so there are at most
N distinct subsets. Karger et al., "Consistent hashing and random trees" (1997);
CACM 2023, "Consistent subsetting".
"""

from collections.abc import Iterator
from hashlib import blake2b


def consistent(client: int, backends: int, size: int) -> Iterator[int]:
    """The backends clockwise from the client. O(N log N): every place is computed.

    Use it to compare with: `ringsteady` is this with places that are spread evenly,
    `rendezvous` is as steady and has more distinct subsets.
    """
    here = place(b"client", client)
    # Sorted by way to go, and by number where two stand in one place.
    ways = [((place(b"backend", n) - here) % 2**64, n) for n in range(backends)]
    ways.sort()
    return (n for _, n in ways)


def place(kind: bytes, task: int) -> int:
    digest = blake2b(b"%d" % task, digest_size=8, person=kind).digest()
    return int.from_bytes(digest)
