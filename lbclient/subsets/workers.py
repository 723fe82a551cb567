"""Which workers of a task a client prefers, where it does not connect to all of them.

The clients of a task are to be even over its workers, and a client's choice is to stay
as it is while tasks, clients and workers come and go: so it depends on the pair of
client and task alone, and a smaller choice is the beginning of a larger one.

With numbers on both sides the clients of a task take its workers by turns, a golden
section of all workers apart, as any few such steps in a row are even. Without numbers
each client draws.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import gcd

from lbclient.core.model import Endpoint
from lbclient.subsets.rendezvous import Rendezvous
from lbclient.subsets.rocksteadier import LOT, row_from_own

GOLDEN = 0.618  # of a circle; multiples of it leave no gap that is much larger


def by_turns(client: int, task: int, workers: int) -> Sequence[int]:
    """The numbers of a task's workers, from 0, in a numbered client's order.

    >>> [by_turns(client, 7, 4)[0] for client in (0, 3, 8, 13)]
    [1, 3, 2, 0]
    """
    turn = client // LOT * LOT + row_from_own(client, task)
    first = _drawn(task) + turn * _step(workers)
    return [(first + place) % workers for place in range(workers)]


def by_chance(rendezvous: Rendezvous, task: Endpoint, workers: int) -> Sequence[int]:
    """Returns the order in which a client without a number prefers a task's workers: a
    random one, and always the same."""
    draw = rendezvous.draw
    return sorted(range(workers), key=lambda each: draw(f"{task.address} {each}"))


@lru_cache(256)
def _step(workers: int) -> int:
    """The number next to the golden section that leads round to every worker."""
    steps = [step for step in range(1, workers + 1) if gcd(step, workers) == 1]
    return min(steps, key=lambda step: abs(step - workers * GOLDEN))


def _drawn(task: int) -> int:
    """So that the first clients of all tasks do not take the workers of one number."""
    name = b"%d" % task
    return int.from_bytes(blake2b(name, digest_size=8, person=b"workers").digest())
