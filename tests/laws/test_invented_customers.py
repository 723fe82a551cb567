"""What names that somebody invents cost those who are real: nothing that quotas give.

The attacker sends what it likes under names that it likes; the customers who are
looked at stay within their limit, or want ten times as much and are held.
"""

from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.criticality import Criticality
from lbclient.core.quotas.quota import LONGEST, OTHERS, Quota, room
from lbclient.core.quotas.quota_account import TUNING as QUOTA_ACCOUNT
from lbclient.core.quotas.quota_accounts import MOST
from tests.examples import examples
from tests.held import count_held

LIMIT = 0.5  # CPU seconds a second, of each customer
CPUS = 4.0  # nobody uses more of one task
COST = 0.01  # CPU seconds of a real customer's request
BEGIN, END = 10.0, 30.0  # seconds; when real customers come, after the attacker

LISTED, UNLISTED = ["mail", "calendar"], ["new 0", "new 1", "new 2", "new 3", "new 4"]

Pattern = Callable[[int, Random], str]

PATTERNS: dict[str, Pattern] = {
    "one name": lambda i, rng: "bad",
    "each name once": lambda i, rng: f"bad {i}",
    "each name twice": lambda i, rng: f"bad {i // 2}",
    "a hundred in turn": lambda i, rng: f"bad {i % 100}",
    "as many as there are places, in turn": lambda i, rng: f"bad {i % MOST}",
    "one more than there are places, in turn": lambda i, rng: f"bad {i % (MOST + 1)}",
    "any of twice as many": lambda i, rng: f"bad {rng.randrange(2 * MOST)}",
    "as long as may be": lambda i, rng: f"{i:0{LONGEST}}",
    "too long": lambda i, rng: f"{i:010000}",
    "binary": lambda i, rng: "".join(map(chr, rng.choices(range(256), k=8))),
    "none": lambda i, rng: OTHERS,
}

EACH = 60  # objects that an account keeps alive, at most

Event = tuple[float, str, float]
"""A request: when, whose, and what it costs."""


def attack(pattern: str, rate: float, cost: float, seed: int) -> list[Event]:
    """All places are taken in the first second, then so many requests a second."""
    rng, name = Random(seed), PATTERNS[pattern]
    events = [(i / MOST, name(i, rng), COST) for i in range(MOST)]
    count = int((END - 1.0) * rate)
    events += [(1.0 + i / rate, name(i, rng), cost) for i in range(count)]
    return events


def real(name: str, share: float, cost: float, seed: int) -> list[Event]:
    """Poisson arrivals, at so much of the limit."""
    rng, events, now = Random(seed), [], BEGIN
    while (now := now + rng.expovariate(share * LIMIT / cost)) < END:
        events.append((now, name, cost))
    return events


def play(quota: Quota, events: list[Event]) -> tuple[dict[str, int], dict[str, float]]:
    """Requests refused, and CPU seconds used, by real customer."""
    refused: dict[str, int] = {}
    used: dict[str, float] = {}
    for now, name, cost in sorted(events):
        payer = quota.enter(name, Criticality.CRITICAL, now)
        if payer is None:
            refused[name] = refused.get(name, 0) + 1
        else:
            payer.pay(cost)
            used[name] = used.get(name, 0.0) + cost
    assert count_held(quota) <= EACH * MOST
    return refused, used


def make() -> Quota:
    return Quota({name: room(LIMIT) for name in LISTED}, default=room(LIMIT))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [17.0, 1000.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_who_is_within_the_limit_is_not_refused(pattern: str, rate: float) -> None:
    """It was 44 % of five new customers at 0.4 of their limit, at 17 requests/s."""
    events = attack(pattern, rate, min(COST, CPUS / rate), seed=1)
    for seed, name in enumerate([*LISTED, *UNLISTED]):
        events += real(name, 0.4, COST, seed)
    refused, _ = play(make(), events)
    assert not set(refused) & {*LISTED, *UNLISTED}


@examples(40)
@given(
    st.sampled_from(sorted(PATTERNS)),
    st.floats(1.0, 300.0),  # requests a second of the attacker
    st.floats(1e-4, 10.0),  # CPU seconds of each
    st.floats(
        5.0, QUOTA_ACCOUNT.flood[0] / QUOTA_ACCOUNT.moment / 1.5
    ),  # requests a second of the real customer
    st.sampled_from([*LISTED, *UNLISTED]),
    st.integers(0, 2**32),
)
def test_what_others_cost_is_no_reason_to_refuse(
    pattern: str, rate: float, dear: float, real_rate: float, name: str, seed: int
) -> None:
    """A newcomer is taken to cost what others do, for 0.05 s, and may be ahead by eight
    requests then whatever they cost. It was refused for up to 9 s.
    """
    rng, cost = Random(seed), 0.4 * LIMIT / real_rate
    events = attack(pattern, rate, dear, seed)
    count = int((END - BEGIN) * real_rate)
    at = [BEGIN + (i + rng.random() / 2) / real_rate for i in range(count)]
    refused, _ = play(make(), events + [(now, name, cost) for now in at])
    assert name not in refused


def test_eight_requests_at_once_of_a_newcomer_get_in_whatever_others_cost() -> None:
    quota = make()
    play(quota, attack("a hundred in turn", 20.0, 0.1, seed=6))
    for name in ("mail", "new 0"):
        let_in = [quota.enter(name, Criticality.CRITICAL, END) for _ in range(20)]
        assert None not in let_in[: int(QUOTA_ACCOUNT.flood[0])]
        assert None in let_in, "it is taken to cost what they do"


@pytest.mark.parametrize("share", [0.4, 0.8])
@pytest.mark.slow
def test_of_a_busy_newcomer_a_few_are_refused_once(share: float) -> None:
    """400 requests/s and more, among names of a thousand times its cost."""
    cost, most = LIMIT / 1000, 0
    for seed in range(10):
        events = attack("a hundred in turn", 8.0, 0.5, seed)
        events += real("new 0", share, cost, seed)
        refused, _ = play(make(), events)
        most = max(most, refused.get("new 0", 0))
    assert most <= 1.5 * share * QUOTA_ACCOUNT.moment * LIMIT / cost, (
        "all of its first 0.05 s"
    )


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("rate", [17.0, 1000.0])
def test_who_wants_more_gets_the_limit_whoever_else_comes(
    pattern: str, rate: float
) -> None:
    """An attacker cannot make an account that is ahead of its limit be forgotten."""
    quota = make()
    events = attack(pattern, rate, min(COST, CPUS / rate), seed=2)
    for seed, name in enumerate(["mail", "new 0"]):
        events += real(name, 10.0, COST, seed)
    _, used = play(quota, events)
    for name in ("mail", "new 0"):
        beyond = used[name] - LIMIT * (END - BEGIN)
        assert (
            beyond < 2.0 * QUOTA_ACCOUNT.smoothing * QUOTA_ACCOUNT.flood[1] * LIMIT
        ), name
        assert beyond > -0.1 * LIMIT * (END - BEGIN), name
    assert quota.forgotten == 0


@pytest.mark.slow
@pytest.mark.parametrize("times", [0.5, 4.0])
def test_places_are_short_only_where_a_thousand_limits_are_used(times: float) -> None:
    """So many times that, by names that come once. Some are forgotten then; but not who
    is further ahead than those.
    """
    low = CPUS / MOST
    cost = 0.2 * low
    quota, rng, used, began_at = Quota({}, default=room(low)), Random(3), 0.0, 0.0
    for i in range(20_000):
        now = i * cost / (times * CPUS)
        if payer := quota.enter(f"bad {i}", Criticality.CRITICAL, now):
            payer.pay(cost)
        if rng.random() < 0.1 and (
            payer := quota.enter("greedy", Criticality.CRITICAL, now)
        ):
            payer.pay(cost)
            used += cost
        if i == 3 * MOST:  # by then it is known what a request costs
            used, began_at = 0.0, now
    assert used < 1.5 * low * (now - began_at)
    assert (quota.forgotten > 0) is (times > 1.0)


def test_who_names_nobody_shares_with_all_who_name_nobody() -> None:
    """As nobody can tell them apart; and with no one else."""
    refused, _ = play(
        make(),
        attack("none", 200.0, COST, seed=4)
        + real(OTHERS, 0.4, COST, 1)
        + real("new 0", 0.4, COST, 2),
    )
    assert refused[OTHERS] > 0
    assert "new 0" not in refused


@pytest.mark.slow
def test_without_a_default_limit_names_take_places_and_nothing_else() -> None:
    quota = Quota({"mail": room(LIMIT)}, default=room(inf))
    refused, _ = play(
        quota, attack("each name once", 500.0, COST, 5) + real("mail", 0.4, COST, 1)
    )
    assert not refused
    assert quota.forgotten == 0
