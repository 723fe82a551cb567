"""However attempts fail, requests do not multiply."""

from math import ceil
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import RATIO, RESENDS, Budget, Failure, Retry

pushbacks = st.none() | st.floats(-1.0, 10.0)
failures = st.builds(
    Failure,
    refusal=st.none() | st.sampled_from(Refusal),
    is_sent=st.booleans(),
    is_answered=st.booleans(),
    pushback=pushbacks,
)
lefts = st.none() | st.floats(-1.0, 20.0)
steps = st.lists(st.tuples(failures, lefts, st.booleans()), max_size=30)


class Endless(Budget):
    def withdraw(self) -> bool:
        return True


@given(steps, st.integers(1, 5), st.booleans())
def test_a_request_is_sent_as_often_as_it_has_attempts_and_resends(
    steps: list[tuple[Failure, float | None, bool]], attempts: int, idempotent: bool
) -> None:
    retry = Retry(Endless(), Random(1), attempts, lambda: idempotent)
    seen = resent = 0  # attempts that a backend saw, and others
    for failure, left, is_other in steps:
        seen += failure.is_sent
        resent += not failure.is_sent
        delay, reason, *_ = retry.decide(failure, left, is_other)
        assert reason
        if delay is None:
            break
        assert delay >= 0.0
        assert left is None or delay < left
        assert not failure.is_answered
        if failure.pushback is not None and failure.pushback >= 0.0:
            assert delay == failure.pushback
        assert not failure.is_never()
        if failure.is_sent:
            assert failure.refusal not in (Refusal.DONT_RETRY, Refusal.QUOTA)
            assert failure.refusal is not None or idempotent
        assert retry.attempt == seen
    assert seen <= attempts
    assert resent <= RESENDS + 1


@given(st.lists(st.integers(0, 12), max_size=200))
def test_retries_are_a_tenth_of_the_requests_rounded_up(tries: list[int]) -> None:
    """From a client's first request on: `tries[i]` are wanted after the i-th one."""
    budget = Budget()
    taken = 0
    for requests, wanted in enumerate(tries, start=1):
        budget.deposit()
        taken += sum(budget.withdraw() for _ in range(wanted))
        assert taken <= ceil(RATIO * requests)


@given(st.integers(0, 3000), st.integers(1, 300), st.integers(0, 20))
def test_what_was_saved_up_adds_a_burst_at_most(
    before: int, requests: int, burst: int
) -> None:
    budget = Budget(RATIO, burst)
    for _ in range(before):
        budget.deposit()
    taken = 0
    for _ in range(requests):
        budget.deposit()
        while budget.withdraw():
            taken += 1
    assert taken < RATIO * requests + burst + 1.0


def sent(requests: int, refusal: Refusal) -> int:
    """What a fleet gets that refuses all, from one client."""
    budget, rng = Budget(), Random(1)
    total = 0
    for _ in range(requests):
        budget.deposit()
        retry = Retry(budget, rng)
        total += 1
        while retry.decide(Failure(refusal), None, is_other=True).delay is not None:
            total += 1
    return total


def test_a_fleet_that_refuses_all_gets_a_tenth_more() -> None:
    requests = 10_000
    assert sent(requests, Refusal.OVERLOADED) <= 1.1 * requests
    assert sent(requests, Refusal.OVERLOADED) >= 1.09 * requests
    assert sent(requests, Refusal.DONT_RETRY) == requests


def lowest(layers: int, requests: int) -> int:
    """Requests to the lowest of some layers, which refuses all.

    A handler whose own request was refused for good says "don't retry" to its caller.
    """
    budgets = [Budget() for _ in range(layers)]
    rng = Random(1)
    count = 0

    def call(layer: int) -> Refusal:
        nonlocal count
        if layer == layers:
            count += 1
            return Refusal.OVERLOADED
        budgets[layer].deposit()
        retry = Retry(budgets[layer], rng)
        refusal = call(layer + 1)
        while retry.decide(Failure(refusal), None, is_other=True).delay is not None:
            refusal = call(layer + 1)
        return Refusal.DONT_RETRY

    for _ in range(requests):
        call(0)
    return count


def test_three_layers_deep_only_the_lowest_client_retries() -> None:
    requests = 10_000
    assert lowest(3, requests) <= 1.1 * requests + 1
