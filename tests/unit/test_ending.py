"""What the end of an attempt means, for its backend, for the throttle, for its call."""

import grpc
import pytest

from lbclient import wire
from lbclient.core.model import LoadReport, Verdict
from lbclient.core.refusal import Refusal
from lbclient.core.retries.ending import UNAVAILABLE, VERDICTS, Ending
from lbclient.core.throttles.throttling import weighed, weighed_for_customer
from lbclient.v1 import load_pb2

NUMBERS = {code.name: code.value[0] for code in grpc.StatusCode}
REPORT = LoadReport(0.5)
SERVED, REJECTED = Verdict.SERVED, Verdict.REJECTED
FAILED, ABANDONED = Verdict.FAILED, Verdict.ABANDONED


def test_each_status_of_grpc_has_a_verdict() -> None:
    assert sorted(VERDICTS) == sorted(NUMBERS.values())
    assert NUMBERS["UNAVAILABLE"] == UNAVAILABLE
    others = {
        "CANCELLED": ABANDONED,
        "RESOURCE_EXHAUSTED": REJECTED,
        "UNKNOWN": FAILED,
        "DEADLINE_EXCEEDED": FAILED,
        "INTERNAL": FAILED,
        "UNAVAILABLE": FAILED,
        "DATA_LOSS": FAILED,
    }
    for name, number in NUMBERS.items():
        assert VERDICTS[number] is others.get(name, SERVED), name


@pytest.mark.parametrize(
    ("name", "refusal", "is_cut_off", "goes_on"),
    [
        ("OK", None, False, False),
        ("OK", Refusal.OVERLOADED, True, False),
        ("UNAVAILABLE", None, False, True),
        ("UNAVAILABLE", Refusal.DONT_RETRY, False, True),  # thought of, and denied
        ("RESOURCE_EXHAUSTED", None, False, False),
        ("RESOURCE_EXHAUSTED", Refusal.QUOTA, False, False),
        ("RESOURCE_EXHAUSTED", Refusal.OVERLOADED, False, True),
        ("INTERNAL", None, False, False),
        ("CANCELLED", None, False, False),
        ("CANCELLED", None, True, True),
    ],
)
def test_what_may_be_sent_again(
    name: str, refusal: Refusal | None, is_cut_off: bool, goes_on: bool
) -> None:
    ending = Ending(NUMBERS[name], REPORT, refusal, None, is_cut_off)
    assert ending.may_be_retried() is goes_on


@pytest.mark.parametrize(
    ("ending", "verdict", "is_answer", "for_all", "for_customer"),
    [
        (Ending(5), SERVED, True, SERVED, SERVED),
        (Ending(14), FAILED, True, FAILED, FAILED),
        (
            Ending(14, refusal=Refusal.OVERLOADED),
            *(REJECTED, False, REJECTED, ABANDONED),
        ),
        (
            Ending(14, refusal=Refusal.DONT_RETRY),
            *(REJECTED, False, REJECTED, ABANDONED),
        ),
        (Ending(8, refusal=Refusal.QUOTA), REJECTED, False, ABANDONED, REJECTED),
        (Ending(8), REJECTED, True, ABANDONED, ABANDONED),
        (Ending(1, is_cut_off=True), REJECTED, False, REJECTED, ABANDONED),
        (Ending(1), ABANDONED, True, ABANDONED, ABANDONED),
        (
            Ending(14, refusal=Refusal.DECLINED),
            *(Verdict.DECLINED, False, ABANDONED, ABANDONED),
        ),
        # With another status the word is not a refusal of ours.
        (Ending(13, refusal=Refusal.DECLINED), FAILED, True, FAILED, FAILED),
        (Ending(13, refusal=Refusal.OVERLOADED), FAILED, True, FAILED, FAILED),
    ],
)
def test_what_an_ending_teaches(
    ending: Ending,
    verdict: Verdict,
    is_answer: bool,
    for_all: Verdict,
    for_customer: Verdict,
) -> None:
    outcome = ending._replace(report=REPORT).outcome(0.2)
    assert outcome[:3] == (verdict, 0.2, REPORT)
    assert outcome.is_answer is is_answer
    assert weighed(outcome) is for_all
    assert weighed_for_customer(outcome) is for_customer


def test_trailers_are_read_whole() -> None:
    report = load_pb2.LoadReport(eps=1.0).SerializeToString()
    trailers = [
        (wire.LOAD_KEY, report),
        (wire.LOAD_KEY, b"\xff"),
        (wire.REFUSAL_KEY, "soon"),
        (wire.REFUSAL_KEY, "overloaded"),
        (wire.PUSHBACK_KEY, "250"),
    ]
    ending = wire.read_trailers(14, trailers)
    assert ending == Ending(14, LoadReport(eps=1.0), Refusal.OVERLOADED, 0.25)
    assert wire.read_trailers(14, ()) == Ending(14)
