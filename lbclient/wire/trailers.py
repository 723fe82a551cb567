"""Reads what metadata say of refusals, retries, customers and costs."""

from collections.abc import Iterable
from math import inf
from typing import Any

from lbclient.core.quotas.quota import LONGEST, OTHERS
from lbclient.core.refusal import Refusal
from lbclient.core.retries.ending import Ending
from lbclient.core.retries.retry import parse_pushback
from lbclient.wire.keys import (
    COST_KEY,
    CUSTOMER_KEY,
    LOAD_KEY,
    PUSHBACK_KEY,
    REFUSAL_KEY,
)
from lbclient.wire.reports import parse_report

_REFUSALS: dict[Any, Refusal] = {refusal.value: refusal for refusal in Refusal}


def find_refusal(trailers: Iterable[tuple[str, Any]]) -> Refusal | None:
    """Why a backend did not execute a request; None if it gives no known reason.

    If there are several the last one counts, as with all keys of lbclient.
    """
    found = None
    for key, value in trailers:
        if key == REFUSAL_KEY:
            found = _REFUSALS.get(value)
    return found


def find_cost(trailers: Iterable[tuple[str, Any]]) -> float | None:
    """CPU seconds that a request cost, as its server told; None if it did not."""
    for key, value in trailers:
        if key == COST_KEY:
            return _cost(value)
    return None


def _cost(said: Any) -> float | None:
    """
    >>> _cost("0.25"), _cost("-1"), _cost("nan"), _cost("1e999"), _cost(b"0.25")
    (0.25, None, None, None, None)
    """
    try:
        seconds = float(said) if isinstance(said, str) else -1.0
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < inf else None


def read_trailers(code: int, trailers: Iterable[tuple[str, Any]]) -> Ending:
    """Reads what the status and trailers of a failed attempt say, once."""
    reports, refusal, told = [], None, []
    for key, value in trailers:
        if key == LOAD_KEY:
            reports.append(value)
        elif key == REFUSAL_KEY:
            refusal = _REFUSALS.get(value)  # of several the last, as in `find_refusal`
        elif key == PUSHBACK_KEY:
            told.append(str(value))
    report = parse_report(reports[0]) if reports else None
    pushback = parse_pushback(told) if told else None
    return Ending(code, report, refusal, pushback)


def find_customer(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """The customer who pays for a request, as its server sees it: a name that is too
    long counts as no name."""
    found = OTHERS
    for key, value in metadata or ():
        if key == CUSTOMER_KEY:
            found = str(value)
    return found if len(found) <= LONGEST else OTHERS
