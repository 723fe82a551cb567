"""The book's example of deterministic subsets: ten clients, 3 of 12 backends each.

SRE book, ch. 20, prints three shuffled lists, made with the generator of Python 2, and
the subsets of the first round. No client uses the last six entries of the third list.
CACM's variant chooses leftovers first.
"""

from dataclasses import dataclass

from lbclient.sim.book.claims import Claim, same
from lbclient.subsets import subset
from lbclient.subsets.deterministic import shuffled
from lbclient.subsets.properties import balance

SHOWS = ("SRE book, ch. 20, shuffled lists",)
CLIENTS, BACKENDS, SIZE = 10, 12, 3  # as in the book; `SIZE` backends a client
PRINTED = (  # the shuffled lists of rounds 0 to 2
    [0, 6, 3, 5, 1, 7, 11, 9, 2, 4, 8, 10],
    [8, 11, 4, 0, 5, 6, 10, 3, 2, 7, 9, 1],
    [8, 3, 7, 2, 1, 4, 9, 10, 6, 5, 0, 11],
)
USED = 6  # entries of round 2, by clients 8 and 9
CACM = "CACM 2023, Deterministic subsetting"
WHERE = "SRE book, ch. 20, Deterministic Subsetting"


@dataclass(frozen=True, slots=True)
class Shuffles:
    """The list of each round, and the subset of each client.

    Also by round, the backends that CACM's variant leaves over.
    """

    rounds: list[list[int]]
    subsets: list[list[int]]
    leftovers: list[list[int]]

    def claims(self) -> list[Claim]:
        last, printed = self.rounds[2], PRINTED[2]
        found = balance(self.subsets, BACKENDS)
        cut = [printed[n : n + SIZE] for n in range(0, BACKENDS, SIZE)]
        return [
            same(WHERE, "round 0", self.rounds[0], PRINTED[0]),
            same(WHERE, "round 1", self.rounds[1], PRINTED[1]),
            same(WHERE, "round 2, what clients 8 and 9 use", last[:USED],
                 printed[:USED]),
            same(WHERE, "round 2, what nobody uses", last[USED:], printed[USED:],
                 but=[5, 6, 9, 0, 10, 11],
                 departs="the same generator and seed give this; the book's list cannot"
                 " be had from it"),
            same(WHERE, "subset i is the i-th part of the list, for client i of each"
                 " round: clients 8 and 9", self.subsets[8:], cut[:2]),
            same(WHERE, "each backend is 'assigned to exactly two or three clients'",
                 f"{found.least} to {found.most}", "2 to 3"),
            same(CACM, "leftovers of each group of 2 frontends, 4 of 10 backends each",
                 self.leftovers, [[0, 1], [2, 3]]),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Shuffles:
    """The result is the same for all seeds, and also if `quick`: it takes no time."""
    return Shuffles(
        [shuffled(range(BACKENDS), number) for number in range(len(PRINTED))],
        [subset("deterministic", client, BACKENDS, SIZE) for client in range(CLIENTS)],
        [_leftovers(group) for group in range(2)],
    )


def _leftovers(group: int) -> list[int]:
    """The backends that neither of the two clients of a group uses."""
    taken = {
        backend
        for client in (2 * group, 2 * group + 1)
        for backend in subset("deterministic_leftover", client, 10, 4)
    }
    return sorted({*range(10)} - taken)
