"""How many connections change with the sizes of jobs and subsets.

CACM 2023, figure 3, shows subsets of four of ten backends, and then of eleven. Its
random numbers are not printed, so the subsets here differ from the figure's. The claims
are about 1,000 clients and repeat what the text says of each algorithm.
"""

from dataclasses import dataclass
from functools import partial

from lbclient.sim.book.claims import Claim, same
from lbclient.subsets import order
from lbclient.subsets.properties import Churn, Subsets, choose, churn, ideal_churn

SHOWS = ("CACM 2023, figure 3",)
BEFORE, AFTER, SIZE = 10, 11, 4  # backends, and those of a subset, as in figure 3
ALGORITHMS = (
    "random", "round_robin", "deterministic_leftover", "consistent", "rocksteadier",
)  # fmt: skip
PREFIXES = ("random", "consistent", "rocksteadier")  # of which a larger k only adds
MUCH = ("round_robin", "deterministic_leftover")
CHURN = "CACM 2023, Connection churn"
CONSISTENT = "CACM 2023, Consistent subsetting"


@dataclass(frozen=True, slots=True)
class Changed:
    """New connections of each client, by algorithm.

    For one backend more, for twice as many, and for subsets of 5 instead of 4.
    """

    one_more: dict[str, Churn]
    twice: dict[str, Churn]
    larger: dict[str, Churn]

    def claims(self) -> list[Claim]:
        unlucky = self.one_more["deterministic_leftover"]
        share = unlucky.opened.count(SIZE) / len(unlucky.opened)
        steady = self.one_more["rocksteadier"]
        return [
            Claim(f"{CHURN}, figure 3", "deterministic, 10 to 11 backends: 'many"
                  " changes'; of 4, the mean", unlucky.mean, 1.5, 2.5, "",
                  "a picture; 0.364 would do. Other shuffles give 2.0 to 2.4"),
            Claim(f"{CHURN}, figure 3", "'one unlucky frontend' gets 'a completely"
                  " different subset'; share of such clients", share, 0.02, 0.2, "",
                  "a picture of a few clients; any above none, and few"),
            Claim(f"{CHURN}, figure 3", "rocksteadier at the same step, the mean; ideal"
                  f" is {ideal_churn(BEFORE, AFTER, SIZE):.3f}", steady.mean,
                  0.3, 0.42, "", "close to ideal: 15 %"),
            same(CONSISTENT, "a backend more: 'at most one change' of a subset",
                 self.one_more["consistent"].most, 1),
            Claim(CHURN, "'if the backend size doubles, it would be reasonable for half"
                  " of each subset to change'; rocksteadier, the mean share",
                  self.twice["rocksteadier"].mean / SIZE, 0.45, 0.55, "0.5",
                  "10 to 20 backends; 10 % for rounding"),
            Claim(CHURN, "not for half of the clients 'all'; rocksteadier, the most"
                  " that one client changes of 4",
                  self.twice["rocksteadier"].most, 1, 3, "", "below 4"),
            same(CHURN, "frontend churn: none in any of them; connections that 1,000"
                 " clients change when there are 1,001", _frontend_churn(), 0),
            same(CHURN, "subset-size churn, 4 to 5: random 'minimal'; also consistent"
                 " and rocksteadier: the most that one client opens",
                 max(self.larger[name].most for name in PREFIXES), 1),
            Claim(CHURN, "round robin and deterministic: 'high subset-size churn'; the"
                  " mean that a client opens, of 5",
                  min(self.larger[name].mean for name in MUCH), 2, 5, "",
                  "more than twice the one that is needed"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Changed:
    """The result is the same for all seeds: it depends on clients' numbers only."""
    clients = 300 if quick else 1000
    at = {name: partial(_subsets, name, clients) for name in ALGORITHMS}
    before = {name: of(BEFORE, SIZE) for name, of in at.items()}
    after = {name: of(AFTER, SIZE) for name, of in at.items()}
    return Changed(
        {name: churn(before[name], after[name]) for name in ALGORITHMS},
        {name: churn(before[name], at[name](2 * BEFORE, SIZE)) for name in ALGORITHMS},
        {name: churn(before[name], at[name](BEFORE, SIZE + 1)) for name in ALGORITHMS},
    )


def _subsets(name: str, clients: int, backends: int, size: int) -> Subsets:
    return choose(partial(order, name), clients, backends, size)


def _frontend_churn() -> int:
    """Compares the first clients: an algorithm is not told how many there are."""
    few, more = ([_subsets(name, clients, BEFORE, SIZE) for name in ALGORITHMS]
                 for clients in (1000, 1001))  # fmt: skip
    return sum(sum(churn(old, new).opened) for old, new in zip(few, more, strict=True))
