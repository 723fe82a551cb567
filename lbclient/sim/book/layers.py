"""Retries in a stack of services, the lowest of which refuses all requests.

SRE book, ch. 21, figure 21-2: if every layer retries, attempts multiply. So a layer
that gives up says "don't retry" to the layer above. `Retry` of production decides. A
request is a function call, because time plays no part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import Budget, Failure, Retry
from lbclient.sim.book.claims import Claim

LAYERS = (1, 2, 3, 4)  # that call one another; the last one calls who refuses
SHOWS = ("SRE book, figure 21-2",)
WHERE = "SRE book, ch. 21, Handling Overload Errors"
RULES: dict[str, tuple[float, bool]] = {  # retries a request; who gives up says so
    "all retry, three attempts": (2.0, False),
    "all retry, budget of 10 %": (0.1, False),
    "the lowest retries, three attempts": (2.0, True),
    "the lowest retries, budget of 10 %": (0.1, True),
}
ALL, BEST = "all retry, three attempts", "the lowest retries, budget of 10 %"


@dataclass(frozen=True, slots=True)
class Layers:
    """Attempts at the lowest service for each request: by rule, then layers."""

    growth: dict[str, dict[int, float]]

    def claims(self) -> list[Claim]:
        return [
            Claim(f"{WHERE}, figure 21-2", "three layers that all retry: 'a"
                  " combinatorial explosion'",
                  self.growth[ALL][3], 26.0, 27.0, "",
                  "words; three attempts of three layers are 3 x 3 x 3"),
            Claim(f"{WHERE}, figure 21-2", "only the layer above who refuses retries,"
                  " 10 % budget",
                  self.growth[BEST][3], 1.05, 1.11, "1.1",
                  "a budget has some calls' worth to begin with"),
        ]  # fmt: skip


def run(seed: int, quick: bool) -> Layers:
    requests = 300 if quick else 3000
    return Layers(
        {
            rule: {layers: _growth(layers, *how, requests, seed) for layers in LAYERS}
            for rule, how in RULES.items()
        }
    )


def _growth(layers: int, ratio: float, tells: bool, requests: int, seed: int) -> float:
    received = 0

    def refuse() -> Refusal:
        nonlocal received
        received += 1
        return Refusal.OVERLOADED

    call: Callable[[], Refusal] = refuse
    for _ in range(layers):
        call = _layer(call, ratio, tells, Random(seed))
    for _ in range(requests):
        call()
    return received / requests


def _layer(
    below: Callable[[], Refusal], ratio: float, tells: bool, rng: Random
) -> Callable[[], Refusal]:
    """A service that calls `below` for each of its requests."""
    budget = Budget(ratio)

    def call() -> Refusal:
        budget.deposit()
        retry = Retry(budget, rng)
        while True:
            refusal = below()
            if retry.decide(Failure(refusal), None, is_other=True).delay is None:
                return Refusal.DONT_RETRY if tells else Refusal.OVERLOADED

    return call
