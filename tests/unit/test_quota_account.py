"""What one customer is charged, and how far it may run ahead of its limit."""

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.quotas.quota_account import TUNING, Account, Payer, Usage

CRITICAL = Criticality.CRITICAL
COST, LIMIT = 0.01, 100.0  # CPU seconds of a request; CPU seconds a second
MOMENT = TUNING.moment


def make(limit: float = LIMIT, mean: float = COST) -> Account:
    account = Account(Usage(), [Payer() for _ in Criticality])
    account.take([limit] * len(Criticality), mean, 0.0)
    return account


def take(account: Account, now: float) -> None:
    account.take([LIMIT] * len(Criticality), COST, now)


def test_what_a_request_costs_is_looked_at_once_in_a_moment() -> None:
    usage = Usage()
    for now in (0.0, 1.0):
        assert usage.update(now) == 0.0
        assert usage.is_unused
    usage.cpu = 1.0
    assert not usage.is_unused
    usage.requests = 100
    assert usage.update(1.0 + MOMENT / 2) == 0.0
    assert usage.requests == 100
    rate, cpu = usage.read(1.0 + MOMENT)
    assert usage.update(1.0 + MOMENT) == pytest.approx(0.01)
    assert (usage.rate, usage.requests) == (rate, 0)
    assert 0.0 < cpu < rate
    assert not usage.is_unused
    late = Usage()  # of a request that was counted before
    late.update(0.0)
    late.cpu = 1.0
    assert late.update(1.0) == 0.0


def test_limits_are_looked_at_less_often_once_costs_are_known() -> None:
    account, now, pauses = make(), 0.0, []
    for step in range(9):
        if step >= 2:
            account.payers[CRITICAL].requests += 1
            account.payers[CRITICAL].pay(COST)
        pauses.append(account.looks_at - now)
        now = account.looks_at
        take(account, now)
    slower = [min(MOMENT * 2**n, TUNING.tick) for n in range(6)]
    assert pauses == pytest.approx([MOMENT] * 3 + slower, abs=1e-9)


def test_what_is_in_the_bucket_costs_more_when_requests_do() -> None:
    account = make()
    payer = account.payers[CRITICAL]
    take(account, MOMENT)
    for _ in range(20):
        account.admit(CRITICAL, MOMENT)
    payer.pay(20 * COST)
    take(account, 2 * MOMENT)
    now = 3 * MOMENT
    for _ in range(1000):
        account.admit(CRITICAL, now)
    payer.requests = 0
    payer.pay(20 * COST)
    before, each = account.empty_at(now) - now, payer.each
    take(account, now)
    assert payer.each > 1.5 * each
    assert (account.empty_at(now) - now) / before == pytest.approx(payer.each / each)


def test_in_calm_some_requests_are_let_in_unseen() -> None:
    """Up to half of what a flood may be ahead: 0.25 s of the limit, at twice that."""
    account, calm = make(), 0
    for _ in range(700):
        assert not account.refuses(CRITICAL, 0.0)
        account.admit(CRITICAL, 0.0)
        calm += account.spare == int(TUNING.unseen * 0.25 * LIMIT / COST)
        assert account.spare in (0, 156)
    assert calm == pytest.approx(625, abs=1)
    assert repr(account).endswith("within its limit>")


@pytest.mark.parametrize(("refused", "spare"), [(1200, 156), (1300, 0)])
def test_what_comes_and_is_refused_ends_the_calm(refused: int, spare: int) -> None:
    account = make()
    for _ in range(refused):
        account.refuses(CRITICAL, 0.0)
    account.admit(CRITICAL, 0.0)
    assert account.spare == spare


def test_what_was_let_in_unseen_is_charged_at_the_next_look() -> None:
    account = make()
    account.payers[CRITICAL].unsettled = 100
    assert account.empty_at(0.0) == pytest.approx(100 * COST / LIMIT)
    assert account.payers[CRITICAL].requests == 100


def test_however_much_comes_it_is_forgotten_soon() -> None:
    account = make()
    for _ in range(20_000):
        account.refuses(CRITICAL, 0.0)
    assert account.empty_at(0.0) == pytest.approx(0.25 / TUNING.flood_times, rel=0.01)


def test_of_a_flood_those_that_are_let_in_come_to_be_decided_on_one_by_one() -> None:
    """Those of the same turn of the loop were refused with an answer, 60 for each."""
    account, turn, let_in, used_up, now = make(limit=0.1), 60, 0, 0, 0.0
    for at in range(100):
        now = at * 0.02
        asked = [account.is_used_up(CRITICAL, now) for _ in range(turn)]
        for is_used_up in asked:
            if is_used_up:
                account.arrive(CRITICAL, now)
                used_up += 1
            elif not account.refuses(CRITICAL, now):
                account.admit(CRITICAL, now)
                let_in += now > 1.0
    assert let_in == pytest.approx(10, abs=2)
    assert used_up > 0.95 * 100 * turn
    assert not account.is_used_up(CRITICAL, now + 1.0)


def test_who_is_more_critical_need_not_wait_for_that_decision() -> None:
    account = make(limit=0.1)
    while not account.refuses(CRITICAL, 0.0):
        account.admit(CRITICAL, 0.0)
    for now in (0.05, 0.07, 0.09):
        account.refuses(CRITICAL, now)
    later = 0.05 + account.empty_at(0.0)
    account._refused_at = later  # of another criticality, perhaps
    assert not account.is_used_up(CRITICAL, later)
    assert account.is_used_up(CRITICAL, later)
    assert account.is_used_up(Criticality.SHEDDABLE, later)
    assert not account.is_used_up(Criticality.CRITICAL_PLUS, later)
