"""The book's list of limits: what five customers get that all want more.

SRE book, ch. 21, "Per-Customer Limits": the limits of customers add up to more than the
fleet's 10,000 CPUs. The accounts are the ones of production, of a single task that is
the whole fleet. A request costs 20 CPU seconds, which keeps requests few.
"""

from dataclasses import dataclass
from random import Random

from lbclient.core.criticality import Criticality
from lbclient.core.quotas.quota import Quota, room, rooms
from lbclient.sim.book.claims import ANY, Claim

SHOWS = ("SRE book, ch. 21, list of limits",)
WHERE = "SRE book, ch. 21, Per-Customer Limits"
CPUS = 10_000  # of the fleet, as in the book
# CPU seconds a second, as the book lists them.
LISTED = {"Gmail": 4000.0, "Calendar": 4000.0, "Android": 3000.0, "Google+": 2000.0}
OTHERS = "another user"
LIMITS = {**LISTED, OTHERS: 500.0}
COST = 20.0  # CPU seconds a request
WARM_UP, SECONDS = 20.0, 40.0  # seconds before the measurement, and of it
MUCH, LITTLE = 3.0, 0.8  # times the limit that a customer wants


@dataclass(frozen=True, slots=True)
class CustomerLimits:
    """CPU seconds a second that each customer gets.

    `all_want_more`: each customer wants `MUCH` times its limit. `one_wants_more`: only
    Gmail does, and the others want `LITTLE`; beside it what they want.
    """

    all_want_more: dict[str, float]
    one_wants_more: dict[str, float]
    wanted: dict[str, float]

    def claims(self) -> list[Claim]:
        got = self.one_wants_more
        refused = max(
            1.0 - got[name] / self.wanted[name] for name in LIMITS if name != "Gmail"
        )
        return [
            *(
                Claim(WHERE, f"{name} wants {MUCH:g} times its limit, and gets",
                      self.all_want_more[name], 0.95 * limit, 1.07 * limit,
                      f"up to {limit:,.0f}", "5 %: Poisson arrivals for 40 s")
                for name, limit in LIMITS.items()
            ),
            Claim(WHERE, "limits 'may add up to more than the 10,000 CPUs'",
                  sum(LIMITS.values()), CPUS + 1, ANY, "more than 10,000"),
            Claim(WHERE, "errors only to 'misbehaving customers': the share that is"
                  " refused of any other's requests", refused, 0, 0.005, "0",
                  "by chance, of Poisson arrivals at 0.8 of the limit"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> CustomerLimits:
    seconds = SECONDS / 2 if quick else SECONDS
    greedy = dict.fromkeys(LIMITS, MUCH)
    one = {**dict.fromkeys(LIMITS, LITTLE), "Gmail": MUCH}
    all_got, _ = _play(greedy, seed, seconds)
    one_got, wanted = _play(one, seed, seconds)
    return CustomerLimits(all_got, one_got, wanted)


def _play(
    wants: dict[str, float], seed: int, seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    """What each customer gets, and what it wants, in CPU seconds a second."""
    rng = Random(seed)
    quota = Quota(rooms(LISTED), room(LIMITS[OTHERS]))
    got, wanted = dict.fromkeys(wants, 0.0), dict.fromkeys(wants, 0.0)
    rate = {name: times * LIMITS[name] / COST for name, times in wants.items()}
    names, rates = [*rate], [*rate.values()]
    now = 0.0
    while now < WARM_UP + seconds:
        now += rng.expovariate(sum(rates))
        name = rng.choices(names, rates)[0]
        payer = quota.enter(name, Criticality.CRITICAL, now)
        if payer is not None:
            payer.pay(COST)
        if now >= WARM_UP:
            wanted[name] += COST / seconds
            got[name] += COST / seconds if payer is not None else 0.0
    return got, wanted
