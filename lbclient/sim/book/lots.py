"""Tables 1 to 5 of CACM 2023: lots of round robin and of Rocksteadier.

Tables 2 to 5 show frontends 10 to 19 and 55 backends. CACM prints its shuffles only in
part and not their seeds. So table 3 is built from the cells that the text names, and
read by the function that reads lbclient's own tables.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

from lbclient.sim.book.claims import Claim, same
from lbclient.subsets import ALGORITHMS, order, subset
from lbclient.subsets.properties import choose, diversity
from lbclient.subsets.ring import first, walk
from lbclient.subsets.rocksteadier import LOT, ROWS, row_by_row, shuffled

SHOWS = tuple(f"CACM 2023, table {number}" for number in range(1, 6))
ROUND_ROBIN = "CACM 2023, Round-robin subsetting, table 1"
ROCKSTEADIER = "CACM 2023, Rocksteadier subsetting"
BACKENDS, LOTS, CLIENT_LOT = 55, 6, 1  # as in tables 2 to 5
READ = {  # from table 3: the backends that a row begins with, and where it wraps to
    13: ([4, 14, 21, 39, 46, 52], [7, 18]),
    19: ([6, 10, 20, 30, 44], [8, 13, 22]),
}
FINAL = (10, 11, 12)  # clients of table 5
PRINTED = (0, 8, 2, 4, 6, 1, 9, 5, 3, 7)  # the order of rows
OURS = (0, 8, 4, 2, 6, 1, 9, 5, 3, 7)  # with 2 and 4 exchanged, as a ring has them


@dataclass(frozen=True, slots=True)
class Lots:
    """The tables, as lbclient computes them.

    `round_robin` is table 1. `columns` are lbclient's shuffled lots of backends in
    their own order, as in table 3, and `reordered` in the order of table 4. `final` are
    the subsets of ten of table 5, by client.
    """

    round_robin: list[list[int]]
    columns: list[tuple[int, ...]]
    reordered: list[tuple[int, ...]]
    final: dict[int, list[int]]

    def claims(self) -> list[Claim]:
        everything = [*order("rocksteadier", 10, BACKENDS, BACKENDS)]
        third = [cell // LOT for cell in (5, 45, 26)]
        lots = [column[0] // LOT for column in self.reordered]
        without, ours = _overlap(permuted=False), _overlap(permuted=True)
        return [
            same(ROUND_ROBIN, "10 backends, 4 each: the subsets of frontends 0 to 4",
                 [sorted(one) for one in self.round_robin],
                 [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9], [2, 3, 4, 5],
                  [6, 7, 8, 9]]),
            same(ROUND_ROBIN, "distinct subsets, N / gcd(k, N)",
                 diversity(choose(ALGORITHMS["round_robin"], 100, 10, 4)).distinct, 5),
            same(f"{ROCKSTEADIER}, table 2", "55 backends in lots of ten: lots,"
                 " and places that are padding",
                 (len(self.columns), LOT * len(self.columns) - BACKENDS), (6, 5)),
            same(f"{ROCKSTEADIER}, table 2", "padding is skipped: backends in a"
                 " frontend's order", sorted(everything) == [*range(BACKENDS)], True),
            *(
                same(f"{ROCKSTEADIER}, table 3", f"frontend {client} reads its row and"
                     " the next", _read(client, len(row + more)), row + more)
                for client, (row, more) in READ.items()
            ),
            same(f"{ROCKSTEADIER}, table 4", "frontend lot 1 takes the lots of backends"
                 " in the order of Ringsteady's frontend 1", lots, [1, 5, 3, 0, 4, 2]),
            same(f"{ROCKSTEADIER}, table 4", "the third row ends '5, 45, 26': the lots"
                 " of these, and the last three of ours", lots[3:], third),
            same(f"{ROCKSTEADIER}, table 5", "the order of the rows", ROWS, PRINTED,
                 but=OURS, departs="2 and 4 are exchanged in print, most likely: the"
                 " second half of a ring's order is the first half plus one. Mean"
                 " utilization differs by less than 0.0001"),
            Claim(f"{ROCKSTEADIER}, table 5", "it reduces the imbalance of frontends 10"
                  " to 12: most connections of a backend, of 3 in table 4, k = 20",
                  ours, 1, without - 1, "fewer", "below those of table 4"),
            Claim(f"{ROCKSTEADIER}, table 5", "subsets of ten of frontends 10 to 12:"
                  " backends that two of them share",
                  sum(map(len, self.final.values()))
                  - len(set().union(*self.final.values())), 0, 0, "",
                  "a picture; different rows have no backend in common"),
            Claim(f"{ROCKSTEADIER}, Subset diversity", "'sufficient' with L = 10:"
                  " distinct subsets of 1,000 clients, 20 of 1,000 backends",
                  _distinct(), 1000, 1000, "", "all"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Lots:
    """The result is the same for all seeds, and also if `quick`: it takes no time."""
    order_of_lots = walk(first(CLIENT_LOT, LOTS), LOTS)
    return Lots(
        [subset("round_robin", client, 10, 4) for client in range(5)],
        [shuffled(CLIENT_LOT, lot) for lot in range(LOTS)],
        [shuffled(CLIENT_LOT, lot) for lot in order_of_lots],
        {client: subset("rocksteadier", client, BACKENDS, 10) for client in FINAL},
    )


def _read(client: int, count: int) -> list[int]:
    """Reads table 3 as lbclient's own; cells that the text does not name are filled."""
    columns = [[-1] * LOT for _ in range(LOTS)]
    for known, (row, more) in READ.items():
        at = known % LOT
        for step, cells in enumerate((row, more)):
            for column, cell in zip(columns, cells, strict=False):
                column[(at + step) % LOT] = cell
    for lot, column in enumerate(columns):
        # From the end: so the last row of the last lot is padding, as in the table.
        rest = sorted({*range(lot * LOT, lot * LOT + LOT)} - {*column})
        for place in range(LOT):
            if column[place] < 0:
                column[place] = rest.pop(0) if place < LOT - 1 else rest.pop()
    return [*islice(row_by_row(columns, client % LOT, BACKENDS), count)]


def _overlap(permuted: bool) -> int:
    """The most connections that frontends 10 to 12 have on one backend, 20 each."""
    columns = [shuffled(CLIENT_LOT, lot) for lot in walk(first(1, LOTS), LOTS)]
    counts = Counter(
        backend
        for client in FINAL
        for backend in islice(
            row_by_row(
                columns,
                ROWS.index(client % LOT) if permuted else client % LOT,
                BACKENDS,
            ),
            20,
        )
    )
    return max(counts.values())


def _distinct() -> int:
    return diversity(choose(ALGORITHMS["rocksteadier"], 1000, 1000, 20)).distinct
