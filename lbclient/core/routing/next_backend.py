"""Chooses the backend of the next attempt: one that the call was not sent to yet.

The SRE book's goes anywhere (ch. 21, "Handling Overload Errors"). "Where a retry goes",
in docs/throttling-and-retries.md, has what this changes.
"""

from collections.abc import Collection, Sequence
from random import Random

from lbclient.core.protocols import N


def two_others(tried: Collection[N], allowed: Sequence[N], rng: Random) -> list[N]:
    """Draws two of the backends that were not tried, the less loaded one first.

    For where the picker insists on a backend that was tried: two choices do nearly as
    well as all. Fewer than two where there are no more.
    """
    others = [node for node in allowed if node not in tried]
    some = rng.sample(others, min(2, len(others)))
    return sorted(some, key=lambda node: node.load.in_flight)
