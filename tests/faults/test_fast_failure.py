"""A backend that fails fast attracts no calls, by real processes: the short form.

`python -m benchmarks.faults --only fast_failure` runs all pickers and statuses.
"""

import pytest

from benchmarks.faults import fast_failure
from benchmarks.faults.fast_failure import DEFAULT, SHORT, meetings
from benchmarks.faults.fleet import Ended, Tally
from benchmarks.faults.row import Row
from lbclient.pickers import PICKERS

SECONDS = 4.0


@pytest.mark.parametrize(("kind", "status", "pickers"), SHORT)
async def test_one_of_five_that_fails_fast_meets_few_calls(
    kind: str, status: str, pickers: list[str]
) -> None:
    """Of 2,000 calls it met 1,537 with UNIMPLEMENTED; here are 400."""
    for row in await fast_failure.one_fails(kind, status, pickers, SECONDS):
        assert row.holds, row
        assert row.theirs is not None
        assert row.theirs.failed > row.theirs.calls / 10, "it keeps its share there"


def test_what_a_client_could_not_know_is_one_meeting() -> None:
    """Here a tenth of a second passes until it hears of the first three calls."""
    ends = [(0.00, 0.10), (0.02, 0.08), (0.09, 0.01), (0.10, 0.01), (0.20, 0.01)]
    tally = Tally(Ended(at, took, "INTERNAL", "", "1") for at, took in ends)
    tally.append(Ended(0.01, 0.01, "OK", "", "2"))
    tally.append(Ended(0.30, 0.01, "UNAVAILABLE", "overloaded: too late", ""))
    assert meetings(tally) == 3


def has_no_ejection(row: Row) -> bool:
    return row.ours.said.startswith("0 ejections")


async def test_keys_that_bring_three_times_the_errors_cost_no_share() -> None:
    row = await fast_failure.keys_differ("stock", 0.3, 0.9, SECONDS)
    assert has_no_ejection(row), row


async def test_where_all_fail_none_is_singled_out() -> None:
    assert has_no_ejection(await fast_failure.all_fail("ours", SECONDS))


async def test_one_that_is_well_again_has_its_share_again() -> None:
    row = await fast_failure.mended("stock", SECONDS)
    assert row.ours.failed == 0, row
    assert row.holds, row


def test_the_long_form_has_every_status_and_every_picker() -> None:
    long = fast_failure.combinations(fast_failure.LONG)
    for kind in ("stock", "ours"):
        met = {(status, picker) for k, status, ps in long if k == kind for picker in ps}
        assert {status for status, _ in met} >= set(fast_failure.STATUSES)
        assert {picker for _, picker in met} == set(PICKERS)
        assert (fast_failure.UNREGISTERED, DEFAULT) in met
