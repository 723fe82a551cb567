"""The order of preference by zone and priority: near first, and somewhere to go to.

Backends of one rank are alike to a client: first those of the lowest priority number in
its own zone, then those of that priority elsewhere, then the next priority's. Of a
subset three quarters are of the first rank, where that has so many, three quarters of
what is left of the second, and so on: what does not fit has connections elsewhere.
How many calls go there is decided in `spillover`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from lbclient.core.model import Endpoint, Endpoints
from lbclient.core.protocols import Subset

# Of each four in the order of preference so many are near, while there are any. Ours:
# with 20 connections 15 to spread over, and 5 that can take what is too much.
NEAR, FAR = 3, 1


class Rank(NamedTuple):
    """How much a client prefers a backend: the smaller one first."""

    priority: int
    is_away: bool  # in another zone than the client


def rank(endpoint: Endpoint, zone: str) -> Rank:
    """What an endpoint is to a client in that zone; "": to it all zones are alike."""
    return Rank(endpoint.priority, bool(zone) and endpoint.zone != zone)


def prefer_near(endpoints: Iterable[Endpoint], zone: str) -> Iterator[Endpoint]:
    """The endpoints with three of the first rank, then one that is not, and so on.

    >>> a, b = [Endpoint(f"a{n}:1", zone="a") for n in range(4)], [Endpoint("b:1")]
    >>> [each.address for each in prefer_near([*b, *a], "a")]
    ['a0:1', 'a1:1', 'a2:1', 'b:1', 'a3:1']
    """
    by_rank: dict[Rank, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_rank.setdefault(rank(endpoint, zone), []).append(endpoint)
    order: list[Endpoint] = []
    for one in sorted(by_rank, reverse=True):
        order = list(_mixed(by_rank[one], order))
    return iter(order)


def _mixed(first: list[Endpoint], others: list[Endpoint]) -> Iterator[Endpoint]:
    near, far = iter(first), iter(others)
    for place in range(len(first) + len(others)):
        is_near = place % (NEAR + FAR) < NEAR
        preferred, other = (near, far) if is_near else (far, near)
        yield next(chain(preferred, other))


class PreferNear:
    """A subset with three quarters of the first rank, if there are so many.

    Without a zone and with one priority alone it is the subset within, unchanged.
    """

    def __init__(self, subset: Subset, zone: str) -> None:
        self._subset = subset
        self._zone = zone
        self.has_priorities = False  # by the last endpoints
        self._words = ""

    @property
    def algorithm(self) -> str:
        return str(getattr(self._subset, "algorithm", ""))

    @property
    def goes_by_place(self) -> bool:
        return bool(getattr(self._subset, "goes_by_place", False))

    @property
    def is_random(self) -> bool:
        """Zones and priorities of different size are crowded differently."""
        is_plain = not self._zone and not self.has_priorities
        return is_plain and bool(getattr(self._subset, "is_random", False))

    def workers(self, task: Endpoint, count: int) -> Sequence[int]:
        """As of the subset within, or in order where it says nothing of workers."""
        order = getattr(self._subset, "workers", None)
        return range(count) if order is None else order(task, count)

    def __call__(self, endpoints: Endpoints) -> Iterable[Endpoint]:
        first = min((each.priority for each in endpoints), default=0)
        self.has_priorities = any(each.priority != first for each in endpoints)
        preferred = self._subset(endpoints)
        if not self._zone and not self.has_priorities:
            self._words = ""
            return preferred
        where = f" in zone {self._zone!r}" if self._zone else ""
        of_which = f" of priority {first}" if self.has_priorities else ""
        best = Rank(first, False)
        is_here = any(rank(each, self._zone) == best for each in endpoints)
        share = f"{NEAR} of {NEAR + FAR}" if is_here else "none"
        self._words = f", {share}{of_which}{where}"
        return prefer_near(preferred, self._zone)

    def __repr__(self) -> str:
        return f"{self._subset!r}{self._words}"
