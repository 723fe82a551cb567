"""The book's tables of active requests: where least-loaded round robin sends the next.

SRE book, ch. 20, "Least-Loaded Round Robin": ten tasks have 0 to 2 active requests. The
picker is the one of production.
"""

from dataclasses import dataclass
from random import Random

from lbclient.core.model import Endpoint, Outcome, Verdict
from lbclient.pickers import LeastLoaded
from lbclient.sim.book.claims import Claim, same
from lbclient.sim.book.resized import Member

SHOWS = ("SRE book, ch. 20, tables of active requests",)
# Active requests of tasks 0 to 9, as the book prints them: at first, and after picks.
FIRST = (2, 1, 0, 0, 1, 0, 2, 0, 0, 1)
SECOND = (2, 1, 1, 0, 1, 0, 2, 0, 0, 1)
THIRD = (2, 1, 1, 1, 1, 1, 2, 1, 1, 1)
WHERE = "SRE book, ch. 20, Least-Loaded Round Robin"


@dataclass(frozen=True, slots=True)
class ActiveRequests:
    """The tables that the picker produces.

    `tables` has the active requests of all tasks after each pick, `picks` the task that
    was picked. Before the last pick the request on task 4 has ended.
    """

    tables: list[tuple[int, ...]]
    picks: list[int]

    def claims(self) -> list[Claim]:
        return [
            same(WHERE, "the first request goes to a task without any: to t2",
                 self.picks[0], 2),
            same(WHERE, "the table after that", self.tables[1], SECOND),
            same(WHERE, "the next four go to t3, t5, t7 and t8", self.picks[1:5],
                 [3, 5, 7, 8]),
            same(WHERE, "the table after that", self.tables[5], THIRD),
            same(WHERE, "the request on t4 ends: the next one goes to", self.picks[5],
                 4),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> ActiveRequests:
    """The result is the same for all seeds: turns begin as in the book."""
    nodes = tuple(Member(Endpoint(f"t{task}:1")) for task in range(len(FIRST)))
    picker = LeastLoaded(_From(1))
    for node, active in zip(nodes, FIRST, strict=True):
        for _ in range(active):
            node.load.begin()
    tables, picks = [_table(nodes)], []
    for number in range(6):
        if number == 5:
            nodes[4].load.finish(Outcome(Verdict.SERVED, 0.1, None), 1.0)
        node = picker.pick(nodes, 1.0)
        node.load.begin()
        picks.append(nodes.index(node))
        tables.append(_table(nodes))
    return ActiveRequests(tables, picks)


class _From(Random):
    """Says where turns begin."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self._turn = turn

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return self._turn


def _table(nodes: tuple[Member, ...]) -> tuple[int, ...]:
    return tuple(node.load.in_flight for node in nodes)
