"""Ringsteady: clients and backends on one ring, both evenly spread over it.

A client takes the backends that follow it clockwise. Its subset is spread over all
of the backends' numbers, so a rolling restart takes out a small part of it at a time.
A backend more changes one connection of a client at most; two if backends are scaled.

Scaling the clients too gives every backend the same number of connections, but then
each new client moves the others: never do that to a job that is resized.
CACM 2023, "Ringsteady subsetting" and "Frontend and backend scaling".
"""

from collections.abc import Iterator

from lbclient.core.errors import ConfigError
from lbclient.subsets.ring import first, walk


def ringsteady(
    client: int,
    backends: int,
    size: int,
    *,
    scaled: bool = True,
    clients: int | None = None,
) -> Iterator[int]:
    """The ring of all backends, from the client's place on it. O(k + log N).

    Use it to understand `rocksteadier`, which has the same virtues and more distinct
    subsets: here there are as many as backends, and neighbours share all but one.

    `scaled` spaces the backends evenly: better balance for many clients, a little
    more churn. `clients` spaces that many clients evenly. Raises ConfigError if the
    client is none of them.

    >>> list(ringsteady(1, 6, 2))
    [1, 5, 3, 0, 4, 2]
    """
    if clients is not None and client >= clients:
        raise ConfigError("client", client, f"below the number of clients, {clients}")
    return walk(first(client, backends, scaled=scaled, clients=clients), backends)
