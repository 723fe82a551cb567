"""What quotas keep to, whoever asks for what on how many tasks."""

from math import fsum, isclose
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbclient.core.criticality import Criticality
from lbclient.core.quotas.quota import RESERVE, Quota, allot, room
from lbclient.core.quotas.quota_account import TUNING as QUOTA_ACCOUNT
from lbclient.core.quotas.quota_accounts import MOST

CRITICAL = Criticality.CRITICAL
COST = 0.02

usages = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=20)
limits = st.floats(0.0, 1e3)


def allotted(limit: float, usages: list[float]) -> list[float]:
    total = sum(usages)
    return [allot(limit, own, total, len(usages)) for own in usages]


@given(limits, usages)
@example(0.0, [5e-324])  # of which nine tenths are as much
def test_what_tasks_may_give_is_the_limit_together(
    limit: float, usages: list[float]
) -> None:
    shares = allotted(limit, usages)
    assert isclose(fsum(shares), 1.0, rel_tol=1e-9)
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in shares)


@given(limits, usages)
def test_where_a_customer_is_within_the_limit_no_task_need_refuse(
    limit: float, usages: list[float]
) -> None:
    if sum(usages) <= limit * (1.0 - RESERVE):
        for usage, share in zip(usages, allotted(limit, usages), strict=True):
            assert limit * share >= usage * (1.0 - 1e-9)


requests = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", "", "x" * 1000]),
        st.sampled_from(Criticality),
        st.floats(0.0, 1.0),  # seconds since the one before
        st.floats(0.0, 10.0),  # what it costs
    ),
    max_size=100,
)


@given(requests, st.floats(0.0, 5.0), st.floats(0.0, 1.0))
def test_a_criticality_is_refused_only_where_all_below_it_are(
    requests: list[tuple[str, Criticality, float, float]], limit: float, lower: float
) -> None:
    of_one = room(limit, {Criticality.SHEDDABLE_PLUS: lower * limit})
    quota = Quota({"one": of_one}, default=room(limit))
    now = 0.0
    for customer, criticality, gap, cost in requests:
        now += gap
        charge = quota.enter(customer, criticality, now)
        if charge is None:
            for below in range(criticality):
                assert quota.refuses(customer, Criticality(below), now) is not None
        else:
            charge.pay(cost)
    assert len(quota.usage(now)) <= MOST


def spend(
    demand: dict[str, list[float]], limit: float, seconds: int
) -> dict[str, list[float]]:
    """What each of several customers gets in each second, of all tasks together.

    `demand` has CPU seconds a second on each task; the tasks exchange every second.
    """
    tasks = [Quota({}, default=room(limit)) for _ in range(4)]
    got: dict[str, list[float]] = {name: [0.0] * seconds for name in demand}
    rng = Random(9)
    for step in range(round(seconds / QUOTA_ACCOUNT.tick)):
        now = step * QUOTA_ACCOUNT.tick
        if now == int(now):
            exchange(tasks, limit, now)
        for name, rates in demand.items():
            for task, rate in zip(tasks, rates, strict=True):
                count = round(rate * QUOTA_ACCOUNT.tick / COST)
                for at in sorted(
                    now + rng.random() * QUOTA_ACCOUNT.tick for _ in range(count)
                ):
                    if charge := task.enter(name, CRITICAL, at):
                        charge.pay(COST)
                        got[name][int(now)] += COST
    return got


def arrive(
    quota: Quota, rate: float, begin: float, end: float, rng: Random
) -> tuple[int, int]:
    """Poisson arrivals; how many there were, and how many were let in."""
    arrived = admitted = 0
    now = begin + rng.expovariate(rate)
    while now < end:
        arrived += 1
        if charge := quota.enter("one", CRITICAL, now):
            charge.pay(COST)
            admitted += 1
        now += rng.expovariate(rate)
    return arrived, admitted


@pytest.mark.parametrize("rate", [2.5, 12.5, 125.0, 500.0])
def test_chance_is_not_taken_for_a_flood(rate: float) -> None:
    """Of Poisson arrivals at 0.9 of the limit, so many a second, 0.5 % at most."""
    quota = Quota({"one": room(rate * COST)})
    arrived, admitted = arrive(quota, 0.9 * rate, 0.0, 2e4 / rate, Random(5))
    assert arrived - admitted < 0.005 * arrived


@pytest.mark.slow
@pytest.mark.parametrize(
    "rates",
    [
        (0.0, 0.0, 100.0, 0.0),
        (0.0, 45.0, 45.0, 0.0),
        (40.0, 40.0, 20.0, 0.0),
        (24.0, 24.0, 24.0, 24.0),
        (400.0, 40.0, 40.0, 0.0),
    ],
)
def test_a_customer_gets_the_limit_whatever_it_asks_for(
    rates: tuple[float, ...],
) -> None:
    """By criticality, a second, of Poisson arrivals; the limit is worth 50.

    What was lower got in between two of the others: up to 1.37 times the limit.
    """
    quota, rng, seconds = Quota({"one": room(50.0 * COST)}), Random(3), 200.0
    coming = sorted(
        (rng.uniform(0.0, seconds), kind)
        for kind, rate in zip(Criticality, rates, strict=True)
        for _ in range(round(rate * seconds))
    )
    got = [0.0] * len(rates)
    for now, kind in coming:
        if payer := quota.enter("one", kind, now):
            payer.pay(COST)
            got[kind] += 1 / seconds
    assert sum(got) == pytest.approx(50.0, rel=0.03)
    room_left = 50.0
    for kind in reversed(Criticality):  # the most critical first
        assert got[kind] == pytest.approx(min(rates[kind], room_left), abs=1.6)
        room_left -= got[kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "seconds"), [(2.5, 4.0), (12.5, 0.8), (125.0, 0.35), (500.0, 0.26)]
)
@pytest.mark.parametrize("before", [0.6, 0.9])
def test_a_sudden_flood_gets_little_more_than_the_limit(
    rate: float, seconds: float, before: float
) -> None:
    """Ten times the limit: some seconds' worth, the mean of twenty; 8 are let in."""
    leaked = 0.0
    for seed in range(20):
        rng, quota = Random(seed), Quota({"one": room(rate * COST)})
        arrive(quota, before * rate, 0.0, 20.0, rng)
        _, admitted = arrive(quota, 10.0 * rate, 20.0, 23.0, rng)
        leaked += (admitted / rate - 3.0) / 20
    assert leaked < seconds


def exchange(tasks: list[Quota], limit: float, now: float) -> None:
    seen = [task.usage(now) for task in tasks]
    shares: list[dict[str, float]] = [{} for _ in tasks]
    for name in set().union(*seen):
        given = allotted(limit, [usage.get(name, 0.0) for usage in seen])
        for one, share in zip(shares, given, strict=True):
            one[name] = share
    for task, one in zip(tasks, shares, strict=True):
        task.take(one, now)


@pytest.mark.parametrize(
    "rates", [[2.5] * 4, [10.0, 0.0, 0.0, 0.0], [5.0, 4.0, 1.0, 0.0]]
)
def test_over_four_tasks_one_gets_the_limit_and_the_others_all_they_want(
    rates: list[float],
) -> None:
    """One wants ten times the limit of 1 CPU, however it is spread.

    At most the reserve lies idle, where nobody asks for it.
    """
    calm = [0.2] * 4
    got = spend({"wild": rates, "calm": calm, "odd": [0.7, 0.0, 0.0, 0.1]}, 1.0, 120)
    late = {name: sum(amounts[30:]) / 90 for name, amounts in got.items()}
    assert 0.97 * (1.0 - RESERVE) <= late["wild"] <= 1.05
    assert late["calm"] == pytest.approx(0.8, rel=0.03)
    assert late["odd"] == pytest.approx(0.8, rel=0.03)
