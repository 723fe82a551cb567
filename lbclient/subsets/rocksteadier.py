"""Rocksteadier: lots of ten on the ring, and a shuffle of its own for each pair.

Ten clients make a lot, and so do ten backends. A lot of clients sees the lots of
backends in the order of the ring, as columns of ten, each shuffled by a generator
that only these two lots determine. A client reads its row from left to right, then
the next row: so the ten clients of a lot share no backend while k is at most N/10,
and a new lot of backends leaves the shuffles of all others alone.

The lot is ten whatever the numbers of clients and backends: a lot that depended on
them would move everybody. The last lot of backends is filled up with places that are
skipped, so a backend that fills such a place moves nobody in any order.

The printed order of rows, 0 8 2 4 ..., is most likely a misprint of the ring's,
which is taken here; which of them it is hardly matters. CACM 2023, "Rocksteadier
subsetting" and tables 2 to 5.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from lbclient.subsets.ring import first, walk

LOT = 10  # CACM 2023: enough for distinct subsets, small enough for good balance
ROWS = tuple(walk(0, LOT))  # ROWS[r] is the client of a lot that starts in row r


def rocksteadier(client: int, backends: int, size: int) -> Iterator[int]:
    """The rows of the client's table, from its own row on. O(k + log N).

    Use it whenever clients and backends are numbered from 0 without gaps: even
    connections, distinct subsets, at most two changes of a client for a backend
    more. Not when there are no such numbers; that is what `rendezvous` is for.

    >>> from itertools import islice
    >>> list(islice(rocksteadier(13, 1_000_000, 20), 4))
    [10, 655376, 327699, 983050]
    """
    client_lot, label = divmod(client, LOT)
    lots = -(-backends // LOT)
    columns = (shuffled(client_lot, lot) for lot in walk(first(client_lot, lots), lots))
    return row_by_row(columns, ROWS.index(label), backends)


def row_from_own(client: int, backend: int) -> int:
    """How many rows after its own one a client comes to a backend's, 0 to 9.

    The clients of a lot that have a backend in their subsets differ in this.
    """
    client_lot, label = divmod(client, LOT)
    row = shuffled(client_lot, backend // LOT).index(backend)
    return (row - ROWS.index(label)) % LOT


def row_by_row(
    columns: Iterable[Sequence[int]], row: int, backends: int
) -> Iterator[int]:
    """Yields a table row by row, from `row` on and around, without what is no backend.

    >>> list(row_by_row([[0, 2, 1], [4, 3, 5]], row=1, backends=5))
    [2, 3, 1, 0, 4]
    """
    seen: list[Sequence[int]] = []
    for column in columns:
        seen.append(column)
        if column[row] < backends:
            yield column[row]
    for step in range(1, len(seen[0])):
        at = (row + step) % len(seen[0])
        for column in seen:
            if column[at] < backends:
                yield column[at]


@lru_cache(1024)  # who looks at many clients asks ten times for the same
def shuffled(client_lot: int, lot: int) -> tuple[int, ...]:
    """The tasks of a lot of backends, in the order that this lot of clients sees."""
    pair = blake2b(b"%d/%d" % (client_lot, lot), digest_size=8, person=b"rocksteadier")
    chance = int.from_bytes(pair.digest())
    tasks = list(range(lot * LOT, lot * LOT + LOT))
    # Fisher and Yates, with the digits of one number: 2**64 is 5 * 10**12 times 10!.
    for place in range(LOT - 1):
        chance, step = divmod(chance, LOT - place)
        other = place + step
        tasks[place], tasks[other] = tasks[other], tasks[place]
    return tuple(tasks)
