"""What a simulated backend lets in, by production's own `Pressure`."""

from random import Random

from lbclient.core.criticality import DEFAULT, Criticality
from lbclient.core.overload.admission import LOAD
from lbclient.core.overload.overload_signals import Pressure
from lbclient.core.overload.queue_delay import QueueDelay
from lbclient.core.overload.refused_shares import RefusedShares
from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import ATTEMPTS

HOPELESS = 1e6  # a load of which nothing gets in


class SimulatedAdmission:
    """Decides which requests one backend refuses for load. Owned by the backend.

    `attempts` are the requests that it decided on, by the number of their attempt.
    `overloads` counts those refused for load, as the backend answers them.
    """

    __slots__ = ("_pressure", "_shares", "attempts", "overloads", "refuses_all")

    def __init__(self, rng: Random, delay: QueueDelay | None, *, is_on: bool) -> None:
        """`delay`: of requests that nobody has looked at, where that is known. Not
        `is_on`: it refuses nothing but all."""
        self._pressure = Pressure(LOAD.target, rng, delay=delay) if is_on else None
        self._shares = RefusedShares()
        self.attempts = [0] * ATTEMPTS
        self.overloads = 0
        self.refuses_all = False

    def refusal(self, attempt: int, load: float, now: float) -> Refusal | None:
        """Why a request with this number of its attempt is refused; None: it is not.

        `load` is in requests that run or want to, for each processor.
        """
        self.attempts[attempt] += 1
        if self._pressure is None:
            return Refusal.OVERLOADED if self.refuses_all else None
        self._pressure.observe(self._seen(load), now)
        return self._pressure.refuses(Criticality.CRITICAL, attempt, now)

    def _seen(self, load: float) -> float:
        return HOPELESS if self.refuses_all else load

    def sample(
        self, now: float, load: float, received: int, active: int
    ) -> tuple[float, ...]:
        """Once a tick. Returns the refused shares by criticality, which are reported.

        `received` counts all requests that ever came, `active` those that are there.
        """
        pressure = self._pressure
        if pressure is not None:
            pressure.sample(now, self._seen(load))
        arrived, refused = [0] * len(Criticality), [0] * len(Criticality)
        arrived[DEFAULT], refused[DEFAULT] = received, self.overloads
        is_calm = pressure is None or pressure.is_calm(active)
        self._shares.sample(now, arrived, refused, 0, is_calm)
        return tuple(self._shares.shares())

    def __repr__(self) -> str:
        return f"<admission: {self._pressure!r}, {self.overloads} refused>"
