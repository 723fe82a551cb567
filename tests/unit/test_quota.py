"""Whose requests are refused for want of quota, and how many accounts there are."""

from math import inf, nan
from typing import Any

import pytest

from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError
from lbclient.core.quotas.quota import (
    HOLD,
    LONGEST,
    OTHERS,
    RESERVE,
    Quota,
    allot,
    room,
    rooms,
)
from lbclient.core.quotas.quota_account import TUNING as QUOTA_ACCOUNT
from lbclient.core.quotas.quota_account import Account, Payer, Usage
from lbclient.core.quotas.quota_accounts import MOST
from lbclient.core.refusal import Refusal
from tests.held import count_held, held_by

FEW = 100  # objects

CRITICAL, SHEDDABLE = Criticality.CRITICAL, Criticality.SHEDDABLE
COST = 0.01  # CPU seconds of a request
SETTLED = 4 * QUOTA_ACCOUNT.smoothing  # from a sudden start: e^-4 = 2 %


def use(
    quota: Quota,
    customer: str,
    rate: float,
    seconds: float,
    now: float = 0.0,
    of: Criticality = CRITICAL,
) -> float:
    """Offers so many requests a second; returns the share that was let in."""
    count = round(rate * seconds)
    admitted = 0
    for i in range(count):
        if charge := quota.enter(customer, of, now + i / rate):
            charge.pay(COST)
            admitted += 1
    return admitted / count


@pytest.fixture
def quota() -> Quota:
    return Quota({"mail": room(1.0)}, default=room(0.5))


def test_who_stays_within_the_limit_is_never_refused(quota: Quota) -> None:
    assert use(quota, "mail", 0.95 / COST, 60.0) == 1.0


def test_who_wants_ten_times_the_limit_gets_the_limit(quota: Quota) -> None:
    rate = 10 / COST
    use(quota, "mail", rate, SETTLED)
    assert use(quota, "mail", rate, 60.0, SETTLED) == pytest.approx(0.1, rel=0.05)


def test_a_sudden_flood_is_held_at_once(quota: Quota) -> None:
    use(quota, "mail", 0.6 / COST, SETTLED)
    rate = 10 / COST
    assert use(quota, "mail", rate, QUOTA_ACCOUNT.flood[1] / 10, SETTLED) == 1.0
    began_at = SETTLED + QUOTA_ACCOUNT.flood[1] / 10
    assert use(quota, "mail", rate, QUOTA_ACCOUNT.tick, began_at) < 0.15
    for tick in range(1, 10):
        share = use(
            quota,
            "mail",
            rate,
            QUOTA_ACCOUNT.tick,
            began_at + tick * QUOTA_ACCOUNT.tick,
        )
        assert share == pytest.approx(0.1, rel=0.1), tick


def test_a_flood_is_held_the_least_critical_first(quota: Quota) -> None:
    for tenth in range(30):
        use(quota, "mail", 0.3 / COST, 0.1, tenth / 10, SHEDDABLE)
        use(quota, "mail", 0.3 / COST, 0.1, tenth / 10, CRITICAL)
    for tenth in range(30, 60):
        use(quota, "mail", 10 / COST, 0.1, tenth / 10, SHEDDABLE)
        assert use(quota, "mail", 0.3 / COST, 0.1, tenth / 10, CRITICAL) == 1.0


def test_what_is_refused_is_refused_to_all_that_matters_less() -> None:
    """For as long. Cheap requests of the least criticality run into a debt that is
    soon paid, while that of dear ones above them is not."""
    quota = Quota({"mail": room(1.0)})
    plus, cheap, dear = Criticality.CRITICAL_PLUS, 0.001, 1.0
    for i in range(100):  # until it is known what each costs
        for criticality, cost in ((SHEDDABLE, cheap), (CRITICAL, dear), (plus, dear)):
            assert quota.refuses("mail", criticality, 5.0 * i) is None
            quota.admit("mail", criticality, 5.0 * i).pay(cost)
    now, pause = 600.0, 0.5  # seconds: twice the limit, which is no flood
    while quota.refuses("mail", CRITICAL, now) is None:
        quota.admit("mail", CRITICAL, now).pay(dear)
        now += pause
    for _ in range(30):
        assert quota.refuses("mail", plus, now) is None
        quota.admit("mail", plus, now).pay(dear)
        now += pause
    seconds = 0
    while quota.refuses("mail", CRITICAL, now + seconds) is not None:
        assert quota.refuses("mail", SHEDDABLE, now + seconds) is not None, seconds
        seconds += 1
    assert seconds > 5, "the debt of the dear ones is paid"


def test_requests_that_suddenly_cost_ten_times_as_much_are_held_to_the_limit(
    quota: Quota,
) -> None:
    """In half a minute; in the first 5 s they get four times as much."""
    rate, step = 0.8 / COST, 5.0
    assert use(quota, "mail", rate, 30.0) == 1.0
    paid = []
    for began_at in (30.0 + step * number for number in range(8)):
        admitted = 0
        for i in range(round(step * rate)):
            if charge := quota.enter("mail", CRITICAL, began_at + i / rate):
                charge.pay(10 * COST)
                admitted += 1
        paid.append(admitted * 10 * COST / step)
    assert paid[0] < 4.2
    assert paid[5:] == pytest.approx([1.0] * 3, rel=0.05)


def test_a_rare_dear_request_is_no_flood(quota: Quota) -> None:
    """Two at once, each worth 2 s of the limit, every 6 s."""
    for minute in range(20):
        for _ in range(2):
            assert quota.refuses("mail", CRITICAL, 6.0 * minute) is None
            quota.admit("mail", CRITICAL, 6.0 * minute).pay(2.0)


def test_a_flood_that_ends_is_forgotten_as_before(quota: Quota) -> None:
    use(quota, "mail", 10 / COST, QUOTA_ACCOUNT.tick)
    assert (
        use(
            quota,
            "mail",
            0.5 / COST,
            10.0,
            QUOTA_ACCOUNT.tick + 2 * QUOTA_ACCOUNT.smoothing,
        )
        == 1.0
    )


def test_while_nobody_knows_what_anything_costs_all_get_in(quota: Quota) -> None:
    rate = 10 / COST
    assert use(quota, "mail", rate, QUOTA_ACCOUNT.moment) == 1.0
    assert use(quota, "mail", rate, QUOTA_ACCOUNT.tick, QUOTA_ACCOUNT.moment) < 0.25


def test_a_new_customer_costs_what_the_others_do_until_it_is_known(
    quota: Quota,
) -> None:
    use(quota, "calm", 0.4 / COST, SETTLED)
    admitted = 0
    for i in range(100):  # none of which has ended
        if quota.refuses("mail", CRITICAL, SETTLED + i / 1000) is None:
            quota.admit("mail", CRITICAL, SETTLED + i / 1000)
            admitted += 1
    assert admitted == pytest.approx((QUOTA_ACCOUNT.flood[1] + 0.1) / COST, abs=2)


def test_what_has_not_ended_counts_at_once(quota: Quota) -> None:
    """As where each takes long, or waits: a flood is not seen by what it has used."""
    use(quota, "mail", 0.6 / COST, SETTLED)
    admitted = 0
    for i in range(1000):
        if quota.refuses("mail", CRITICAL, SETTLED + i / 1000) is None:
            quota.admit("mail", CRITICAL, SETTLED + i / 1000)
            admitted += 1
    assert admitted <= 1.5 / COST


def test_a_refusal_says_that_it_is_the_quota(quota: Quota) -> None:
    use(quota, "mail", 1000 / COST, 2.0)
    for _ in range(2):
        quota.admit("mail", CRITICAL, 2.0)
    assert quota.refuses("mail", CRITICAL, 2.0) is Refusal.QUOTA


def test_who_is_not_listed_has_the_default_limit_each(quota: Quota) -> None:
    for customer in ("one", "two"):
        use(quota, customer, 5 / COST, SETTLED)
        share = use(quota, customer, 5 / COST, 20.0, SETTLED)
        assert share == pytest.approx(0.1, rel=0.1)


def test_one_customer_at_the_limit_is_nothing_to_the_others(quota: Quota) -> None:
    use(quota, "mail", 10 / COST, 20.0)
    assert quota.refusing() == ["mail"]
    assert use(quota, "calm", 0.4 / COST, 20.0) == 1.0


def test_after_a_burst_all_get_in_again(quota: Quota) -> None:
    use(quota, "mail", 10 / COST, 30.0)
    assert (
        use(quota, "mail", 0.5 / COST, 10.0, 30.0 + 4 * QUOTA_ACCOUNT.smoothing) == 1.0
    )


def test_what_is_sheddable_gives_way_within_the_same_limit(quota: Quota) -> None:
    for tenth in range(300):
        use(quota, "mail", 10 / COST, 0.1, tenth / 10, SHEDDABLE)
        use(quota, "mail", 0.5 / COST, 0.1, tenth / 10, CRITICAL)
    assert use(quota, "mail", 0.5 / COST, QUOTA_ACCOUNT.tick / 2, 30.0, CRITICAL) == 1.0
    assert use(quota, "mail", 10 / COST, QUOTA_ACCOUNT.tick / 2, 30.0, SHEDDABLE) < 0.1


def test_a_criticality_may_have_a_lower_limit_of_its_own() -> None:
    limits = {"mail": room(1.0, {SHEDDABLE: 0.2})}
    quota = Quota(limits)
    use(quota, "mail", 1 / COST, SETTLED, of=SHEDDABLE)
    share = use(quota, "mail", 1 / COST, 30.0, SETTLED, of=SHEDDABLE)
    assert share == pytest.approx(0.2, rel=0.1)


def test_a_limit_of_nothing_lets_nothing_in() -> None:
    quota = Quota({}, default=room(0.0))
    assert quota.refuses("anybody", CRITICAL, 0.0) is Refusal.QUOTA


@pytest.mark.parametrize(
    ("total", "below"),
    [(-1.0, {}), (1.0, {SHEDDABLE: 2.0}), (1.0, {CRITICAL: -0.1}), (float("nan"), {})],
)
def test_limits_that_contradict_themselves_are_refused(
    total: float, below: dict[Criticality, float]
) -> None:
    with pytest.raises(ConfigError, match="quota"):
        room(total, below)


def test_limits_are_by_criticality_if_wanted() -> None:
    said = {"a": {"total": 4, "sheddable_plus": 1.0}, "b": 2, "c": 0}
    assert rooms(said) == {"a": (1.0, 1.0, 4.0, 4.0), "b": (2.0,) * 4, "c": (0.0,) * 4}


ONE = "CPU seconds a second, 0 to 1000000"
NAMES = "customers' names of 1 to 100 characters"


@pytest.mark.parametrize(
    ("quotas", "said"),
    [
        (["a"], "quotas = ['a']: want CPU seconds a second, by customer: {'mail': 4"),
        (4.0, "quotas = 4.0: want CPU seconds a second, by customer"),
        ({"": 1.0}, f"quotas = '': want {NAMES}"),
        ({7: 1.0}, f"quotas = 7: want {NAMES}"),
        ({"a" * 101: 1.0}, NAMES),  # it would have no account of its own
        ({"a": -1.0}, f"quotas['a'] = -1.0: want {ONE}"),
        ({"a": nan}, f"quotas['a'] = nan: want {ONE}"),
        ({"a": inf}, f"quotas['a'] = inf: want {ONE}"),
        ({"a": 10**400}, ONE),
        ({"a": True}, f"quotas['a'] = True: want {ONE}"),
        ({"a": "much"}, f"quotas['a'] = 'much': want {ONE}"),
        ({"a": None}, f"quotas['a'] = None: want {ONE}"),
        ({"a": {}}, "quotas['a'] = {}: want a 'total', the limit of this customer's"),
        ({"a": {"CRITICAL": 1.0}}, "quotas['a'] = {'CRITICAL': 1.0}: want a 'total'"),
        ({"a": {"total": False}}, f"quotas['a']['total'] = False: want {ONE}"),
        ({"a": {"total": 1.0, "URGENT": 1.0}}, "quotas['a'] = 'URGENT': want one of"),
        ({"a": {"total": 1.0, 2: 1.0}}, "quotas['a'] = 2: want one of SHEDDABLE"),
        (
            {"a": {"total": 1.0, "SHEDDABLE": nan}},
            f"quotas['a']['SHEDDABLE'] = nan: want {ONE}",
        ),
        (
            {"a": {"total": 1.0, "SHEDDABLE": 2.0}},
            "quotas['a']['SHEDDABLE'] = 2.0: want CPU seconds a second, 0 to 1: what",
        ),
        (
            {"a": {"total": 1.0, "CRITICAL": 0.5, "critical": 0.4}},
            "quotas['a'] = 'critical': want one limit for CRITICAL, not two",
        ),
    ],
)
def test_a_wrong_limit_is_named_with_its_customer(quotas: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rooms(quotas)
    assert said in str(caught.value)


def test_usage_fades_when_nothing_comes_any_more(quota: Quota) -> None:
    use(quota, "mail", 0.5 / COST, 60.0)
    now = quota.usage(60.0)["mail"]
    assert quota.usage(60.0)["mail"] == now == pytest.approx(0.5, rel=0.02)
    assert quota.usage(60.0 + 5 * QUOTA_ACCOUNT.smoothing)["mail"] < 0.05 * now


def test_the_fleets_word_holds_for_a_while_and_then_the_fallback() -> None:
    quota = Quota({"mail": room(4.0)}, fallback=0.5)
    rate = 8 / COST

    def share(begins: float) -> float:
        use(quota, "mail", rate, SETTLED, begins)
        return use(quota, "mail", rate, 30.0, begins + SETTLED)

    assert share(0.0) == pytest.approx(0.5 * 4 / 8, rel=0.05)
    quota.take({"mail": 0.25}, 100.0)
    assert share(100.0) == pytest.approx(0.25 * 4 / 8, rel=0.05)
    assert share(100.0 + HOLD) == pytest.approx(0.5 * 4 / 8, rel=0.05)


def test_whom_the_fleet_does_not_know_yet_has_the_fallback() -> None:
    quota = Quota({"mail": room(1.0)}, fallback=1.0)
    quota.take({"calendar": 0.1}, 0.0)
    assert use(quota, "mail", 0.95 / COST, 60.0) == 1.0


def test_millions_of_names_have_a_thousand_accounts(quota: Quota) -> None:
    for i in range(5 * MOST):
        if i == MOST:
            most = count_held(quota)
        quota.refuses(f"customer {i}", CRITICAL, 0.0)
    assert len(quota.usage(0.0)) == MOST + len(("mail", OTHERS))
    assert count_held(quota) <= most + FEW
    assert quota.forgotten == quota.pooled == 0, "nobody was ahead of the limit"


def fill(quota: Quota, now: float, *, prefix: str = "customer") -> None:
    """Takes all places, and nobody in them is ahead for long."""
    for i in range(MOST):
        use(quota, f"{prefix} {i}", 1.0, 1.0, now)


def test_who_comes_when_all_places_are_taken_has_an_account(quota: Quota) -> None:
    fill(quota, 0.0)
    for name in ("late", "later"):
        assert use(quota, name, 0.4 / COST, 20.0, 1.0) == 1.0
        use(quota, name, 5 / COST, SETTLED, 30.0)
        share = use(quota, name, 5 / COST, 20.0, 30.0 + SETTLED)
        assert share == pytest.approx(0.1, rel=0.1)


def test_the_account_that_is_ahead_least_makes_way(quota: Quota) -> None:
    fill(quota, 0.0)
    use(quota, "customer 0", 5 / COST, 2.0, 1.0)  # it is ahead, and not the last
    use(quota, "customer 1", 0.1 / COST, 0.5, 2.5)  # it is not ahead, but the last
    fill(quota, 3.0, prefix="new")
    names = set(quota.usage(3.0))
    assert "customer 0" in names
    assert not names & {f"customer {i}" for i in range(1, MOST)}
    assert "new 0" not in names, "one had to"
    assert "mail" in names  # it is in the list of limits, so it stays
    assert use(quota, "customer 0", 5 / COST, 1.0, 3.0) < 0.3
    assert quota.forgotten > 0, "those new ones came at the same moment"


def test_who_is_ahead_is_not_forgotten_for_those_who_are_not(quota: Quota) -> None:
    """A flood that is held stays held, however many names are invented meanwhile."""
    use(quota, "greedy", 5 / COST, SETTLED)
    admitted = 0
    for i in range(5 * MOST):
        now = SETTLED + i / 500
        assert quota.enter(f"customer {i}", CRITICAL, now) is not None
        if charge := quota.enter("greedy", CRITICAL, now):
            charge.pay(COST)
            admitted += 1
    assert admitted == pytest.approx(0.5 / COST * 5 * MOST / 500, rel=0.1)
    assert quota.forgotten == 0


def test_if_all_are_ahead_one_is_forgotten_and_counted() -> None:
    quota = Quota({}, default=room(1e-6))
    for i in range(3 * MOST):  # what one costs is known of those that went
        charge = quota.enter(f"customer {i}", CRITICAL, i * QUOTA_ACCOUNT.moment)
        assert charge is not None
        charge.pay(COST)
    assert quota.forgotten > 0
    assert len(held_by(quota, Account)) == MOST + len((OTHERS,))


def test_a_queue_of_places_is_put_right_once_for_each_request(quota: Quota) -> None:
    """All accounts have been used since: the first new name finds that out, and the
    next one does not again."""
    fill(quota, 0.0)
    fill(quota, 10.0)
    looked = []

    class Watched(Account):
        __slots__ = ()

        def empty_at(self, now: float) -> float:
            looked.append(now)
            return super().empty_at(now)

    for account in held_by(quota, Account):
        account.__class__ = Watched
    for i in range(100):
        quota.enter(f"new {i}", CRITICAL, 20.0)
    assert len(looked) <= MOST + 100


def test_a_name_that_is_too_long_has_no_account(quota: Quota) -> None:
    quota.refuses("x" * LONGEST, CRITICAL, 0.0)
    quota.refuses("x" * 10_000, CRITICAL, 0.0)
    assert set(quota.usage(0.0)) == {"mail", OTHERS, "x" * LONGEST}
    assert quota.pooled == 1


def test_a_request_that_goes_on_is_paid_for_when_the_account_has_gone() -> None:
    quota = Quota({}, default=room(1.0))
    payer = quota.enter("long", CRITICAL, 0.0)
    assert payer is not None
    for number in range(MOST):
        quota.enter(f"customer {number}", CRITICAL, 1.0)
    now = 61.0
    assert payer not in held_by(quota, Payer), "its account has gone"
    for _ in range(100):
        now += 1.0
        payer.pay(1.0)
    assert quota.usage(now)["long"] == pytest.approx(1.0, rel=0.5)
    now += 60.0
    payer.pay(60.0)
    assert quota.enter("long", CRITICAL, now) is not None, "one comes again"
    payer.pay(1.0)
    assert held_by(quota, Payer).count(payer) == 1, "its new account has it"


def test_what_nobody_goes_on_with_is_forgotten() -> None:
    quota = Quota({}, default=room(1.0))
    for number in range(3 * MOST):
        if number == MOST:
            most = count_held(quota)
        quota.enter(f"customer {number}", CRITICAL, float(number))
    assert len(held_by(quota, Account)) == MOST + len((OTHERS,))
    assert count_held(quota) <= most + FEW


def test_a_cost_without_an_account_is_paid_by_the_shared_one(quota: Quota) -> None:
    quota.refuses(OTHERS, CRITICAL, 0.0)
    quota.admit("unheard of", CRITICAL, 0.0).pay(1.0)
    assert quota.usage(1.0)[OTHERS] > 0.0


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_no_share_of_what_has_no_limit_is_a_limit(share: float) -> None:
    quota = Quota({"mail": room(1.0)}, fallback=share)
    assert use(quota, "unheard of", 10 / COST, 5.0) == 1.0


def test_below_the_limit_each_task_may_give_more_than_it_does() -> None:
    for usage in (0.5, 0.1, 0.0):
        assert allot(1.0, usage, 0.6, 3) >= usage + 0.1


def test_a_task_that_gives_nothing_yet_may_begin() -> None:
    assert allot(1.0, 0.0, 5.0, 2) == RESERVE / 2


def test_accounts_read_as_english(quota: Quota) -> None:
    use(quota, "mail", 10 / COST, 20.0)
    assert repr(quota) == "<2 accounts, 1 at their limits>"


def test_an_account_reads_as_english() -> None:
    account = Account(Usage(), [Payer() for _ in Criticality])
    assert repr(account) == "<0 requests, 0.000 CPU seconds of late, within its limit>"
    account.take([0.0] * 4, 1.0, 0.0)
    assert account.refuses(CRITICAL, 0.0)
    account.payers[CRITICAL].requests = 3
    account.payers[CRITICAL].cpu = 0.12
    assert repr(account) == "<3 requests, 0.120 CPU seconds of late, at its limit>"


def test_who_is_admitted_pays_from_its_own_account(quota: Quota) -> None:
    for customer in ("mail", "new"):
        assert quota.refuses(customer, CRITICAL, 0.0) is None
        quota.admit(customer, CRITICAL, 0.0).pay(COST)
    used = quota.usage(1.0)
    assert used["mail"] == used["new"] > 0.0
    assert used[OTHERS] == 0.0
