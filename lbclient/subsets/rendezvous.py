"""Rendezvous hashing: each pair of client and backend draws a number; highest first.

Nothing is shared between clients but the hash, and one endpoint that comes or goes
moves nobody else in a client's order: the least disruption there can be. What it
does not promise is evenness: how many clients a backend has varies as for random
subsets. Thaler and Ravishankar, "Using name-based mappings to increase hit rates"
(1998); gRFC A68 chooses its random subsets in the same way.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from lbclient.core.model import Endpoint, Endpoints


class Rendezvous:
    """A client's order of preference, the same on every machine and in every run.

    Only addresses count: a changed weight or zone moves nothing.
    """

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        # The id becomes a key of fixed length, so that no pair of id and address
        # can be taken for another pair.
        key = blake2b(_encode(client_id), digest_size=32).digest()
        self._keyed = blake2b(key=key, digest_size=8)
        # By address, of the last endpoints: hashing takes most of the time, and few
        # are new. As bytes alone, of which the garbage collector keeps no count.
        self._drawn: dict[str, bytes] = {}

    def __call__(self, endpoints: Endpoints) -> Sequence[Endpoint]:
        last, draw = self._drawn, self.draw
        addresses = [endpoint.address for endpoint in endpoints]
        self._drawn = drawn = {a: last.get(a) or draw(a) for a in addresses}
        # A sort in reverse keeps equals in order: by address, should two be equal.
        return sorted(endpoints, key=lambda each: drawn[each.address], reverse=True)

    def draw(self, address: str) -> bytes:
        """Returns the number that this client and the backend there draw."""
        drawn = self._keyed.copy()
        drawn.update(_encode(address))
        return drawn.digest()

    def __repr__(self) -> str:
        return f"<rendezvous order of client {self.client_id!r}>"


def rendezvous(client: int, backends: int, size: int) -> Iterator[int]:
    """The same over numbers, for comparison with the other algorithms. O(N log N).

    Use the class in a client: it needs no numbers. Not where there are numbers:
    `rocksteadier` connects evenly, and knows the first k without looking at all.
    """
    begun = blake2b(b"%d/" % client, digest_size=8)

    def drawn(backend: int) -> bytes:
        pair = begun.copy()
        pair.update(b"%d" % backend)
        return pair.digest()

    # A sort in reverse keeps equals in order: ascending, should two ever be equal.
    return iter(sorted(range(backends), key=drawn, reverse=True))


def _encode(text: str) -> bytes:
    # An id from the environment may hold bytes that were no UTF-8.
    return text.encode("utf-8", "surrogatepass")
