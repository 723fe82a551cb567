"""What quotas keep to, whoever asks for what on how many tasks."""

from math import fsum, isclose
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbclient.criticality import Criticality
from lbclient.quota import MOST, RESERVE, TICK, Quota, allot, room

CRITICAL = Criticality.CRITICAL
COST = 0.02

usages = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=20)
limits = st.floats(0.0, 1e3)


@given(limits, usages)
def test_what_tasks_may_give_is_the_limit_together(
    limit: float, usages: list[float]
) -> None:
    shares = allot(limit, usages)
    assert isclose(fsum(shares), 1.0, rel_tol=1e-9)
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in shares)


@given(limits, usages)
def test_where_a_customer_is_within_the_limit_no_task_need_refuse(
    limit: float, usages: list[float]
) -> None:
    if sum(usages) <= limit * (1.0 - RESERVE):
        for usage, share in zip(usages, allot(limit, usages), strict=True):
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
    quota = Quota({"one": of_one}, Random(1), default=room(limit))
    now = 0.0
    for customer, criticality, gap, cost in requests:
        now += gap
        if quota.refuses(customer, criticality, now) is not None:
            for below in range(criticality):
                assert quota.refuses(customer, Criticality(below), now) is not None
        else:
            quota.charge(customer, criticality, cost)
    assert len(quota.usage(now)) <= MOST


def spend(
    demand: dict[str, list[float]], limit: float, seconds: int
) -> dict[str, list[float]]:
    """What each of several customers gets in each second, of all tasks together.

    `demand` has CPU seconds a second on each task; the tasks exchange every second.
    """
    tasks = [Quota({}, Random(i), default=room(limit)) for i in range(4)]
    got: dict[str, list[float]] = {name: [0.0] * seconds for name in demand}
    rng = Random(9)
    for step in range(round(seconds / TICK)):
        now = step * TICK
        if now == int(now):
            exchange(tasks, limit, now)
        for name, rates in demand.items():
            for task, rate in zip(tasks, rates, strict=True):
                for _ in range(round(rate * TICK / COST)):
                    at = now + rng.random() * TICK
                    if task.refuses(name, CRITICAL, at) is None:
                        task.charge(name, CRITICAL, COST)
                        got[name][int(now)] += COST
    return got


def exchange(tasks: list[Quota], limit: float, now: float) -> None:
    seen = [task.usage(now) for task in tasks]
    shares: list[dict[str, float]] = [{} for _ in tasks]
    for name in set().union(*seen):
        allotted = allot(limit, [usage.get(name, 0.0) for usage in seen])
        for one, share in zip(shares, allotted, strict=True):
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
    got = spend({"wild": rates, "calm": calm, "odd": [0.7, 0.0, 0.0, 0.1]}, 1.0, 60)
    late = {name: sum(amounts[30:]) / 30 for name, amounts in got.items()}
    assert 0.97 * (1.0 - RESERVE) <= late["wild"] <= 1.05
    assert late["calm"] == pytest.approx(0.8, rel=0.03)
    assert late["odd"] == pytest.approx(0.8, rel=0.03)
