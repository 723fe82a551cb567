"""The probability with which a client refuses a request itself.

SRE book, ch. 21, equation 21-1: max(0, (requests - K accepts) / (requests + 1)). It is
computed by the throttle of production, which is told how many requests were accepted
and refused.
"""

from dataclasses import dataclass
from random import Random

from lbclient.core.criticality import Criticality
from lbclient.core.model import Verdict
from lbclient.core.throttles.throttle import INACTIVE_BELOW, PROBED, WINDOW, Throttle
from lbclient.sim.book.claims import Claim, same
from lbclient.sim.book.overload import KS

SHOWS = ("SRE book, equation 21-1",)
WHERE = "SRE book, ch. 21, Client-Side Throttling, equation 21-1"
REQUESTS = 1000  # in two minutes
ACCEPTED = range(0, REQUESTS + 1, 20)


@dataclass(frozen=True, slots=True)
class Probability:
    """The probability by K, and by how many of `REQUESTS` were accepted."""

    ours: dict[float, dict[int, float]]

    def claims(self) -> list[Claim]:
        apart = max(
            abs(found - equation(k, REQUESTS, accepted))
            for k, by_accepted in self.ours.items()
            for accepted, found in by_accepted.items()
            if k * accepted > PROBED
        )
        few = round(INACTIVE_BELOW * WINDOW) - 60
        return [
            Claim(WHERE, "half of the requests accepted, K = 2: none refused",
                  self.ours[2.0][500], 0, 0, "0"),
            Claim(WHERE, "a tenth accepted, K = 2", self.ours[2.0][100],
                  0.7992, 0.7993, "0.7992", "the equation's, to 4 digits"),
            Claim(WHERE, "the most that ours is off, for K = 1.1, 1.5 and 2, and all"
                  f" that is accepted from {PROBED / min(KS):.0f} of {REQUESTS:,} on",
                  apart, 0, 1e-9, "0", "rounding"),
            Claim(WHERE, "nothing accepted", self.ours[2.0][0], 0.935, 0.945, "0.999",
                  f"1 - {PROBED:.0f} / {REQUESTS:,}",
                  "a request every two seconds goes out whatever is refused, or a"
                  " client would hear of the recovery too late"),
            same(WHERE, f"{few} requests in two minutes, all refused",
                 f"{probability(2.0, few, 0):.3f}", f"{few / (few + 1):.3f}",
                 but="0.000",
                 departs="so few say too little; such clients go by what the backends"
                 " say they refuse"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Probability:
    """The result is the same for all seeds: nothing is random."""
    return Probability(
        {
            k: {accepted: probability(k, REQUESTS, accepted) for accepted in ACCEPTED}
            for k in KS
        }
    )


def equation(k: float, requests: int, accepts: int) -> float:
    return max(0.0, (requests - k * accepts) / (requests + 1))


def probability(k: float, requests: int, accepts: int) -> float:
    """The probability of a throttle after accepted requests and then refused ones."""
    throttle = Throttle(Random(0), k)
    for number in range(requests):
        verdict = Verdict.SERVED if number < accepts else Verdict.REJECTED
        throttle.observe(Criticality.CRITICAL, verdict, 1.0)
    return throttle.probability(Criticality.CRITICAL, 1.0)
