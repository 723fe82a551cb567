"""Which lost calls a restart in order is forgiven: few that crossed GOAWAY.

gRPC's core cancels a request that arrives after the server has sent GOAWAY and before
the client has read it. That happens with `server.stop(10)` of grpc.aio as well, and
cannot be prevented from Python. nginx turns such a cancellation into a 502.
"""

from collections import Counter
from math import sqrt

# Counts of rare events vary by their square root. So many of those may two counts of
# equal servers differ by; chance exceeds that in one run of forty.
DEVIATIONS = 2.0


def has_crossed(ending: str) -> bool:
    """Takes "STATUS: words".

    >>> has_crossed("CANCELLED: CANCELLED"), has_crossed("UNAVAILABLE: refused")
    (True, False)
    """
    return ending.startswith("CANCELLED: ") or "status: 502" in ending


def is_no_worse(ours: Counter[str], theirs: Counter[str]) -> bool:
    """Whether a restart of our servers lost no more calls than one of grpc.aio's.

    Both count the calls of all clients of a run by "STATUS: words". Each lost call of
    ours must have crossed GOAWAY. One call and what chance explains are no difference.

    >>> is_no_worse(Counter({"OK": 9, "CANCELLED: x": 1}), Counter({"OK": 10}))
    True
    >>> is_no_worse(Counter({"OK": 9, "UNAVAILABLE: x": 1}), Counter({"OK": 10}))
    False
    >>> is_no_worse(Counter({"CANCELLED: x": 9}), Counter({"CANCELLED: x": 1}))
    False
    """
    lost = lost_of(ours)
    if not all(has_crossed(ending) for ending in lost):
        return False
    n, of_theirs = lost.total(), lost_of(theirs).total()
    return n - of_theirs <= 1 + DEVIATIONS * sqrt(n + of_theirs)


def lost_of(ended: Counter[str]) -> Counter[str]:
    """Those that failed."""
    return Counter({ending: n for ending, n in ended.items() if ending != "OK"})
