"""Thousands of calls at the same moment, to a server in a process of its own."""

from benchmarks.faults.burst import burst
from benchmarks.faults.fleet import NO_SHEDDING

CALLS = 2000
ROUNDS = 3


async def test_a_burst_that_the_core_does_not_keep_finds_room() -> None:
    """Where the server's process has no CPU while they arrive either may lose some, by
    chance, hence the further rounds. What both lost is added up.
    """
    ours = theirs = 0
    for _ in range(ROUNDS):
        ours += len((await burst("ours", CALLS, NO_SHEDDING)).failed())
        theirs += len((await burst("stock", CALLS, NO_SHEDDING)).failed())
        if ours <= theirs:
            return
    raise AssertionError((ours, theirs))
