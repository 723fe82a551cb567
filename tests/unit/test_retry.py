"""What is sent again after which failure, when, and what the budget allows."""

from collections.abc import Callable
from random import Random

import pytest

from lbclient.core.refusal import Refusal
from lbclient.core.retries.retry import (
    ATTEMPTS,
    BURST,
    LONGEST_PAUSE,
    NEVER,
    PAUSE,
    RATIO,
    RESENDS,
    Budget,
    Decision,
    Failure,
    Retry,
    RetryPolicy,
    parse_attempt,
    parse_pushback,
)

OVERLOADED = Failure(Refusal.OVERLOADED)
UNSENT = Failure(is_sent=False)
LOST = Failure()  # it may have been executed
NO_DEADLINE = None

Begin = Callable[..., Retry]


@pytest.fixture
def begin() -> Begin:
    """A request of a client with a full budget, which it pays into."""
    budget = full()

    def begin(attempts: int = ATTEMPTS, is_idempotent: bool = False) -> Retry:
        budget.deposit()
        return Retry(budget, Random(1), attempts, lambda: is_idempotent)

    return begin


def full() -> Budget:
    budget = Budget()
    for _ in range(round(2 * BURST / RATIO)):
        budget.deposit()
    return budget


def spent() -> Budget:
    budget = Budget()
    while budget.withdraw():
        pass
    return budget


@pytest.mark.parametrize("failure", [OVERLOADED, UNSENT, Failure(Refusal.QUOTA)])
def test_a_retry_is_held_back_like_any_request(begin: Begin, failure: Failure) -> None:
    """What no backend has seen is no new request, and what may not be retried anyway is
    not asked about: to be asked counts."""
    asked = []

    def is_throttled() -> bool:
        asked.append(failure)
        return True

    decision = begin().decide(failure, NO_DEADLINE, True, is_throttled)
    assert asked == [failure] * (failure is OVERLOADED)
    assert ("throttled" in decision.reason) is (failure is OVERLOADED)
    assert (decision.delay is None) is (failure is not UNSENT)


def test_an_overloaded_task_is_left_for_another_at_once(begin: Begin) -> None:
    decision = begin().decide(OVERLOADED, NO_DEADLINE, is_other=True)
    assert decision == Decision(0.0, "attempt 2 of 3 at once", attempt=1)


def test_where_there_is_no_other_the_next_attempt_waits_by_chance() -> None:
    """Longer each time, up to a bound, and all of it chance."""
    retry, rng = Retry(full(), Random(1), attempts=10), Random(1)
    for attempt in range(9):
        most = min(PAUSE * 2**attempt, LONGEST_PAUSE)
        decision = retry.decide(OVERLOADED, NO_DEADLINE, is_other=False)
        assert decision.delay == rng.uniform(0.0, most)
        assert decision.reason.endswith("as there is no other backend")


def test_a_request_has_three_attempts(begin: Begin) -> None:
    retry = begin()
    for attempt in range(1, ATTEMPTS):
        assert retry.decide(OVERLOADED, NO_DEADLINE, is_other=True).delay == 0.0
        assert retry.attempt == attempt
    last = retry.decide(OVERLOADED, NO_DEADLINE, is_other=True)
    assert last == Decision(None, "all 3 attempts failed")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(Refusal.DONT_RETRY), "the backend said not to retry"),
        (Failure(pushback=NEVER), "the backend said not to retry"),
        (Failure(Refusal.QUOTA), "the customer is out of quota everywhere"),
        (
            Failure(Refusal.QUOTA, pushback=1.0),
            "the customer is out of quota everywhere",
        ),
        (LOST, "it may have been executed, and is not idempotent"),
        (Failure(is_answered=True), "the application has answered"),
        (Failure(is_sent=False, pushback=NEVER), "the backend said not to retry"),
    ],
)
def test_some_failures_are_final(begin: Begin, failure: Failure, reason: str) -> None:
    decision = begin().decide(failure, NO_DEADLINE, is_other=True)
    assert decision == Decision(None, reason)


def test_what_may_have_been_executed_is_retried_if_it_is_idempotent(
    begin: Begin,
) -> None:
    retry = begin(is_idempotent=True)
    assert retry.decide(LOST, NO_DEADLINE, is_other=True).delay == 0.0


def test_idempotent_or_not_an_answer_is_final(begin: Begin) -> None:
    retry = begin(is_idempotent=True)
    answered = Failure(is_answered=True)
    assert retry.decide(answered, NO_DEADLINE, is_other=True).delay is None


def test_beside_overloaded_a_pushback_of_never_is_for_stock_clients(
    begin: Begin,
) -> None:
    """They keep no budget, so the server keeps it; this one has its own."""
    failure = Failure(Refusal.OVERLOADED, pushback=NEVER)
    decision = begin().decide(failure, NO_DEADLINE, is_other=True)
    assert decision == Decision(0.0, "attempt 2 of 3 at once", attempt=1)


def test_pushback_is_obeyed_to_the_millisecond(begin: Begin) -> None:
    failure = Failure(Refusal.OVERLOADED, pushback=0.25)
    for is_other in (True, False):
        assert begin().decide(failure, NO_DEADLINE, is_other).delay == 0.25


@pytest.mark.parametrize("left", [0.25, 0.1, 0.0, -1.0])
def test_no_attempt_begins_after_the_deadline(begin: Begin, left: float) -> None:
    retry = begin()
    failure = Failure(Refusal.OVERLOADED, pushback=0.25)
    delay, reason, *_ = retry.decide(failure, left, is_other=True)
    assert delay is None
    assert reason == f"{max(0.0, left):.3f} s left, 0.250 s to wait"
    assert retry.decide(failure, 0.26, is_other=True).delay == 0.25


def test_what_was_never_sent_costs_neither_attempt_nor_budget() -> None:
    retry = Retry(spent(), Random(1))
    for _ in range(RESENDS):
        assert retry.decide(UNSENT, NO_DEADLINE, is_other=True).delay == 0.0
        assert retry.attempt == 0
    last = retry.decide(UNSENT, NO_DEADLINE, is_other=True)
    assert last == Decision(None, f"not sent in {RESENDS + 1} tries")


def test_without_another_backend_only_the_first_resend_is_at_once() -> None:
    """A server that has few streams for a connection counts an ended one for a while:
    six tries in a row would all come too early."""
    decisions = []
    for seed in range(200):
        retry = Retry(spent(), Random(seed))
        tries = [retry.decide(UNSENT, 60.0, is_other=False) for _ in range(RESENDS)]
        decisions.append([one.delay or 0.0 for one in tries])
    first, *later = zip(*decisions, strict=True)
    assert set(first) == {0.0}
    for n, delays in enumerate(later):
        assert PAUSE * 2**n * 0.9 < max(delays) <= PAUSE * 2**n
        assert min(delays) < PAUSE * 2**n * 0.1
    retry = Retry(spent(), Random(1))
    retry.decide(UNSENT, 60.0, is_other=False)
    pauses = [retry.decide(UNSENT, 1e-9, is_other=False).delay for _ in range(4)]
    assert all(pause is not None and pause <= 1e-9 / 2 for pause in pauses)


def test_without_budget_there_is_no_retry() -> None:
    retry = Retry(spent(), Random(1))
    decision = retry.decide(OVERLOADED, NO_DEADLINE, is_other=True)
    assert decision == Decision(None, "the client's retry budget is spent")
    assert retry.attempt == 0


def test_a_clients_first_request_can_be_retried() -> None:
    budget = Budget()
    assert not budget.withdraw()
    budget.deposit()
    assert budget.withdraw()
    assert not budget.withdraw()


def test_a_long_calm_saves_up_no_more_than_a_burst() -> None:
    budget = full()
    taken = 0
    while budget.withdraw():
        taken += 1
    assert taken == BURST


def test_a_ratio_of_nothing_allows_no_retry() -> None:
    budget = Budget(ratio=0.0)
    for _ in range(1000):
        budget.deposit()
    assert not budget.withdraw()
    assert repr(budget) == "<0.0 retries to spend>"


def test_a_budget_reads_as_english() -> None:
    assert repr(full()) == f"<{BURST:.1f} retries to spend>"
    assert repr(spent()) == "<0.0 retries to spend>"


@pytest.mark.parametrize(
    ("values", "pushback"),
    [
        ([], None),
        (["0"], 0.0),
        (["1500"], 1.5),
        (["-1"], NEVER),
        (["1", "1"], NEVER),
        (["+5"], NEVER),
        (["1.5"], NEVER),
        (["\u0661"], NEVER),
        (["9" * 10_000], NEVER),
        ([""], NEVER),
        (["5\n"], NEVER),
    ],
)
def test_pushback_that_is_no_number_means_never(
    values: list[str], pushback: float | None
) -> None:
    assert parse_pushback(values) == pushback


@pytest.mark.parametrize(
    "text", ["", "-1", "100", "1e3", "two", "9" * 10_000, "\u0662", "1\n"]
)
def test_an_absurd_attempt_is_a_first_one_and_is_told(text: str) -> None:
    assert parse_attempt(text) == (0, False)


def test_the_attempts_of_a_request_read_as_english(begin: Begin) -> None:
    retry = begin()
    assert repr(retry) == "<attempt 1 of 3, not sent 0 times>"
    retry.decide(Failure(is_sent=False), None, True)
    retry.decide(Failure(refusal=Refusal.OVERLOADED), None, True)
    assert repr(retry) == "<attempt 2 of 3, not sent 1 times>"


def test_the_requests_of_a_channel_share_the_budget_that_all_of_them_bring() -> None:
    attempts = {"/a.B/C": 2}
    policy = RetryPolicy(Budget(burst=1), Random(1), attempts, {"/a.B/D"}.__contains__)
    assert policy.left(5) == 0.5
    first = policy.begin("/a.B/C", sent=10).decide(OVERLOADED, None, is_other=True)
    assert first.reason == "attempt 2 of 2 at once"
    assert policy.left(15) == 0.5
    second = policy.begin("/a.B/D", sent=15).decide(LOST, None, is_other=True)
    assert second.reason == "attempt 2 of 3 at once"
    third = policy.begin("/a.B/C", sent=15).decide(OVERLOADED, None, is_other=True)
    assert third.reason == "the client's retry budget is spent"


def test_a_hedge_is_taken_from_the_budget_and_is_attempt_two() -> None:
    policy = RetryPolicy(Budget(), Random(1), 2, lambda path: True)
    hedge = policy.hedge("/a.B/C", 1)
    assert hedge is not None
    assert hedge.attempt == 1
    assert hedge.decide(LOST, NO_DEADLINE, is_other=True).delay is None
    assert policy.hedge("/a.B/C", 2) is None


@pytest.mark.parametrize(("pushback", "delay"), [(0.0, 0.0), (0.5, 0.5), (-0.1, None)])
def test_a_pushback_below_nothing_alone_means_never(
    begin: Begin, pushback: float, delay: float | None
) -> None:
    """Of nothing, it is obeyed too, where there is no other backend."""
    failure = Failure(pushback=pushback)
    request = begin(is_idempotent=True)
    assert request.decide(failure, NO_DEADLINE, is_other=False).delay == delay


def test_what_was_never_sent_is_told_apart_from_a_retry(begin: Begin) -> None:
    assert begin().decide(UNSENT, NO_DEADLINE, is_other=True).is_resend
    assert not begin().decide(OVERLOADED, NO_DEADLINE, is_other=True).is_resend
