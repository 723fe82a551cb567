"""Algorithms that give each client its own few backends, one a file.

`rocksteadier` is the one to use where clients and backends are numbered, and
`rendezvous` where they are not; the others are here to be compared with.
"""

from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from itertools import islice

from lbclient.core.errors import ConfigError
from lbclient.core.protocols import Algorithm
from lbclient.subsets.consistent import consistent
from lbclient.subsets.deterministic import deterministic
from lbclient.subsets.deterministic_leftover import deterministic_leftover
from lbclient.subsets.random import random
from lbclient.subsets.rendezvous import Rendezvous, rendezvous
from lbclient.subsets.ringsteady import ringsteady
from lbclient.subsets.rocksteadier import LOT, rocksteadier
from lbclient.subsets.round_robin import round_robin
from lbclient.subsets.whole import whole

__all__ = [
    "ALGORITHMS",
    "SUBSET_SIZE",
    "Rendezvous",
    "job_offset",
    "order",
    "subset",
    "whole_number",
]

SUBSET_SIZE = 20  # the default of channels; SRE book, ch. 20: typically 20 to 100

ALGORITHMS: dict[str, Algorithm] = {
    "random": random,
    "round_robin": round_robin,
    "deterministic": deterministic,
    "deterministic_leftover": deterministic_leftover,
    "consistent": consistent,
    "ringsteady": ringsteady,
    "ringsteady_unscaled": partial(ringsteady, scaled=False),
    "rocksteadier": rocksteadier,
    "rendezvous": rendezvous,
    "whole": whole,
}

OFFSETS = 2**20  # two of 100 client jobs get the same one in 0.5 % of cases


def subset(
    algorithm: str, client: int, backends: int, size: int, *, offset: int = 0
) -> list[int]:
    """Returns the numbers of the client's backends: the first `size` of its `order`.

    All of them where there are no more than `size`. Raises ConfigError as `order`.

    >>> subset("ringsteady", 1, 6, 4)
    [1, 5, 3, 0]
    """
    preferred = order(algorithm, client, backends, size, offset=offset)
    return list(islice(preferred, min(size, backends)))


def order(
    algorithm: str, client: int, backends: int, size: int, *, offset: int = 0
) -> Iterator[int]:
    """Yields the numbers 0..backends-1 in the client's order of preference.

    The first `size` are its subset, the next ones the replacements. `offset` tells
    one client job from another (`job_offset`). Raises ConfigError for an unknown
    algorithm, for a client or an offset below 0, for backends or a size below 1,
    and for what is no whole number.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError("algorithm", algorithm, f"one of {', '.join(ALGORITHMS)}")
    whole_number("client", client, 0)
    whole_number("backends", backends, 1)
    whole_number("size", size, 1)
    whole_number("offset", offset, 0)
    # Whole lots, so that the clients of one lot stay together.
    return ALGORITHMS[algorithm](client + LOT * offset, backends, size)


def job_offset(job: str) -> int:
    """Returns how far the clients of that job are moved: 0 for "", else 1 to 2**20.

    Every job's tasks are numbered from 0. Without an offset the first tasks of fifty
    small jobs would all choose the same backends. The articles have one job: 0.
    """
    if not job:
        return 0
    name = job.encode("utf-8", "surrogatepass")
    return 1 + int.from_bytes(blake2b(name, digest_size=8).digest()) % OFFSETS


def whole_number(field: str, value: object, low: int) -> None:
    """Raises ConfigError for what is none, or below `low`."""
    if type(value) is not int or value < low:
        raise ConfigError(field, value, f"a whole number, at least {low}")
