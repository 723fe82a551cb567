"""All backends lost in one moment: see `benchmarks.faults.all_lost`."""

import sys

from benchmarks.faults import all_lost

BACKENDS = 120

# Function calls, Python's and C's, in a turn, for each backend; with what the load does
# in it. Some 150 were seen; where each backend looks at all others, 2,700.
MOST = 600


async def test_the_loop_goes_on_turning_and_calls_are_answered_again() -> None:
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        mine, plain, longest = await all_lost.measure(3.0, BACKENDS, lambda: count)
    finally:
        sys.setprofile(before)
    assert longest < MOST * BACKENDS
    assert mine.recovered_after is not None, mine
    assert f"{BACKENDS} of {BACKENDS} backends ready" in mine.said
    assert ", 0 task failures" in mine.said
    assert plain.calls > 0
