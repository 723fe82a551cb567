"""How much of the demand could be met with the CPU that refusing the rest leaves.

The loop's thread of a server does all that takes time, but for what handlers do in
threads. Of a second it can have what the kernel did not give to others while it wanted
to run; where a quota holds, no more than what the process's other threads leave of it.
From that comes off what the requests took that were refused:

    left    = available - refused * cost of a refusal - what dropping took
    allowed = left / cost of a request that is served

all in requests a second, and no more than is offered, nor than the capacity where that
is not bound by the loop's thread but by what handlers wait for. Serving is measured in
the same surroundings, of a bare grpcio server that has just enough to do, which is the
capacity, too; refusing once, where it is quiet, of a server that refuses all, as fast
as it can. What dropping takes, without an answer, is timed by the server under test: it
is 0.03 to 0.1 ms each, the more of them come at once the less. What the loop takes to
wake up for them is not in it, and what the core ends by itself is taken to cost
nothing. So a server that is idle while it refuses, that answers refusals at more cost
than is needed, or that serves who has stopped waiting, is below what is allowed. One
that serves at less cost than grpcio may be above it.

CRITICAL is to have all that would fit of it. But what the loop does not take in the
core ends, of whatever criticality. So to serve all CRITICAL a server has to take in all
SHEDDABLE, too, and drop it, of which it can do no more than `servable` says.
"""

from collections.abc import Callable
from typing import NamedTuple

BUSY = 0.9  # share of the time; a loop's thread that is, is what bounds the capacity


class Served(NamedTuple):
    """By a bare server that has just enough to do."""

    capacity: float  # requests a second
    cost: float  # seconds of the loop's thread, each
    busy: float  # share of the time in which that thread ran or wanted to


class Refusing(NamedTuple):
    """Seconds of the loop's thread, each."""

    answered: float
    unanswered: float


def available(ran: float, waited: float, others: float, quota: float) -> float:
    """What the loop's thread could have of each second; all are shares of a core.

    `ran` and `waited` are the loop's thread's, `others` what other threads ran.

    >>> available(0.5, 0.25, 0.1, float("inf"))
    0.75
    >>> available(0.25, 0.0, 0.25, 0.5)
    0.25
    """
    return max(ran, min(1.0 - waited, quota - others))


def allowed(served: Served, available: float, refusing: float) -> float:
    """Requests a second that can be served while refusing takes that of each second.

    >>> of_cpu, of_threads = Served(98.0, 0.01, 1.0), Served(200.0, 0.0005, 0.1)
    >>> allowed(of_cpu, 1.0, 0.2), allowed(of_threads, 1.0, 0.2)
    (80.0, 200.0)
    """
    left = available - refusing
    fits = max(0.0, left) / served.cost
    return fits if served.busy >= BUSY else min(served.capacity, fits)


def servable(share: float, served: Served, cost: float, available: float) -> float:
    """Requests a second, of those criticalities that have this share of the load.

    All others are taken in, too, and refused at that cost.

    >>> dear, cheap = Served(98.0, 0.01, 1.0), Served(5000.0, 0.0002, 1.0)
    >>> round(servable(0.5, dear, 0.0002, 1.0)), servable(0.5, cheap, 0.0002, 1.0)
    (98, 2500.0)
    """
    return share * available / (share * served.cost + (1.0 - share) * cost)


def fitting(
    offered: dict[str, float], goodput: float, most: Callable[[float], float]
) -> dict[str, float]:
    """Of what was served, what each criticality would have, the highest first.

    `most` is what is `servable` of a share of the load.

    >>> offered = {"CRITICAL": 50.0, "SHEDDABLE": 150.0}
    >>> fitting(offered, 80.0, most=lambda share: 98.0)
    {'CRITICAL': 50.0, 'SHEDDABLE': 30.0}
    >>> offered = {"CRITICAL_PLUS": 0.2, "CRITICAL": 2.0, "SHEDDABLE": 9.0}
    >>> fitting(offered, 0.9, most=lambda share: 9.0)["SHEDDABLE"]
    0.0
    """
    fits: dict[str, float] = {}
    total, demand, taken = sum(offered.values()), 0.0, 0.0
    for name, rate in offered.items():
        demand += rate
        room = min(demand, goodput, most(demand / max(total, 1e-9)))
        fits[name] = max(0.0, room - taken)
        taken = max(taken, room)
    return fits
