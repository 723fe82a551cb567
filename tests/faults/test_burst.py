"""Thousands of calls at the same moment, to a server in a process of its own."""

from benchmarks.faults.burst import compare


async def test_a_burst_that_the_core_does_not_keep_finds_room() -> None:
    row = await compare(2000)
    assert row.holds, row
