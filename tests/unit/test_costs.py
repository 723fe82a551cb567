"""Sums of what requests cost, and who pays."""

from lbclient.core.quotas.costs import MOST, Costs
from lbclient.core.quotas.quota_account import Payer


def test_a_slow_machines_seconds_are_worth_less_to_all_who_count() -> None:
    costs, payer = Costs(factor=0.5), Payer()
    request = costs.begin("mail", payer)
    request.method = costs.of_method(("unary_unary", "/search.Search/Query"))
    request.pay(2.0)
    assert request.cpu == payer.cpu == 1.0
    assert costs.by_customer() == {"": 0.0, "mail": 1.0}
    assert costs.by_method() == {("unary_unary", "/search.Search/Query"): 1.0}


def test_no_sum_goes_down_when_the_factor_does() -> None:
    costs = Costs(factor=2.0)
    costs.begin("mail").pay(1.0)
    costs.factor = 0.5
    assert costs.by_customer()["mail"] == 2.0
    costs.begin("mail").pay(1.0)
    assert costs.by_customer()["mail"] == 2.5


def test_customers_are_bounded_and_those_that_are_listed_have_a_place() -> None:
    costs = Costs(1.0, ["mail"])
    for number in range(10 * MOST):
        costs.begin(f"invented {number}").pay(1.0)
    for name in ("mail", "", "x" * 101, "not\nprintable"):
        costs.begin(name).pay(1.0)
    told = costs.by_customer()
    assert len(told) == MOST + 2
    assert told["mail"] == told["invented 0"] == 1.0
    assert told[""] == 9 * MOST + 3


def test_what_comes_before_its_handler_begins_is_in_no_methods_sum() -> None:
    costs = Costs()
    total = costs.of_method(("unary_unary", "/a/b"))
    request = costs.begin("")
    request.pay(1.0)
    request.method = total
    request.pay(1.0)
    assert costs.by_method() == {("unary_unary", "/a/b"): 1.0}
    assert costs.of_method(("unary_unary", "/a/b")) is total
