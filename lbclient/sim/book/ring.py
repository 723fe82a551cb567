"""Places of clients and backends on the ring, and the subsets that follow from them.

CACM 2023, figure 4: six backends and four clients at random places (4a), spread by the
van der Corput sequence (4b), and with backends at exactly even places (4c).
"""

from dataclasses import dataclass
from fractions import Fraction

from lbclient.sim.book.claims import Claim, same
from lbclient.subsets import ALGORITHMS, order, subset
from lbclient.subsets.consistent import place
from lbclient.subsets.properties import balance, choose, diversity
from lbclient.subsets.ring import rank, reverse

SHOWS = ("CACM 2023, figure 4",)
RINGS = {"4a": "consistent", "4b": "ringsteady_unscaled", "4c": "ringsteady"}
CLIENTS, BACKENDS, SIZE = 4, 6, 2  # as in figure 4; `SIZE` backends a client
CONSISTENT = "CACM 2023, Consistent subsetting"
RINGSTEADY = "CACM 2023, Ringsteady subsetting"
MANY = 1000  # clients, for distinct subsets
EQUAL = (20, 64, 100)  # as many clients as backends


@dataclass(frozen=True, slots=True)
class Ring:
    """Places of clients and backends, and subsets, by panel of the figure.

    A place is from 0 to 1, clockwise from the top.
    """

    clients: dict[str, list[float]]
    backends: dict[str, list[float]]
    subsets: dict[str, list[list[int]]]

    def claims(self) -> list[Claim]:
        return [
            same(f"{CONSISTENT}, figure 4a", "frontend 0 takes the first two clockwise",
                 _shown(self.subsets["4a"][0]), "{3, 2}", but=_clockwise(self),
                 departs="the figure's places are random numbers that are not printed;"
                 " ours are taken clockwise from frontend 0, too"),
            Claim(CONSISTENT, f"'at most N distinct subsets', of {MANY} clients on 10",
                  _distinct("consistent", MANY, 10), 1, 10, "10", "at most N"),
            same(RINGSTEADY, "the sequence begins 0, 1/2, 1/4, 3/4, ...",
                 _places(8), "0, 1/2, 1/4, 3/4, 1/8, 5/8, 3/8, 7/8"),
            same(RINGSTEADY, "the place of task 5, by reversing 8 bits",
                 f"{reverse(5, 8)}/256", "160/256"),
            same(f"{RINGSTEADY}, figure 4c", "frontend 1 sees the backends in order",
                 [*order("ringsteady", 1, BACKENDS, BACKENDS)], [1, 5, 3, 0, 4, 2]),
            same(RINGSTEADY, "M = N: 'every frontend task has a distinct subset'; how"
                 f" many of {EQUAL} clients",
                 tuple(_distinct("ringsteady_unscaled", n, n) for n in EQUAL), EQUAL),
            same(RINGSTEADY, "M = N: it starts 'at the same-numbered backend'; for all",
                 all(_starts_alike(n) for n in EQUAL), True),
            same(RINGSTEADY, "M = N: 'ideal connection balance'; utilization",
                 min(_utilization(n) for n in EQUAL), 1.0),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Ring:
    """The result is the same for all seeds, and also if `quick`: it takes no time."""
    return Ring(
        {panel: [_client_at(panel, n) for n in range(CLIENTS)] for panel in RINGS},
        {panel: [_backend_at(panel, n) for n in range(BACKENDS)] for panel in RINGS},
        {
            panel: [subset(name, n, BACKENDS, SIZE) for n in range(CLIENTS)]
            for panel, name in RINGS.items()
        },
    )


def _client_at(panel: str, task: int) -> float:
    return place(b"client", task) / 2**64 if panel == "4a" else float(_place(task))


def _backend_at(panel: str, task: int) -> float:
    if panel == "4a":
        return place(b"backend", task) / 2**64
    return rank(task, BACKENDS) / BACKENDS if panel == "4c" else float(_place(task))


def _place(task: int) -> Fraction:
    bits = task.bit_length()
    return Fraction(reverse(task, bits), 1 << bits)


def _places(count: int) -> str:
    return ", ".join(str(_place(task)) for task in range(count))


def _clockwise(ring: Ring) -> str:
    """Applies the figure's rule to lbclient's places, without its algorithm."""
    here = ring.clients["4a"][0]
    ways = sorted((at - here) % 1.0 for at in ring.backends["4a"])[:SIZE]
    return _shown(
        [n for way in ways for n, at in enumerate(ring.backends["4a"])
         if (at - here) % 1.0 == way]
    )  # fmt: skip


def _shown(numbers: list[int]) -> str:
    return f"{{{', '.join(map(str, numbers))}}}"


def _distinct(name: str, clients: int, backends: int) -> int:
    size = min(20, backends // 2)
    return diversity(choose(ALGORITHMS[name], clients, backends, size)).distinct


def _starts_alike(size: int) -> bool:
    return all(
        next(order("ringsteady_unscaled", n, size, 20)) == n for n in range(size)
    )


def _utilization(size: int) -> float:
    rule = ALGORITHMS["ringsteady_unscaled"]
    return balance(choose(rule, size, size, 20), size).utilization
