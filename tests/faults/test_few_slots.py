"""Streams of health and load never take what calls need: the short form."""

import pytest

from benchmarks.faults.few_slots import CASES, compare

SECONDS = 1.0


@pytest.mark.parametrize("name", CASES)
async def test_no_call_fails_where_none_of_grpc_aio_does(name: str) -> None:
    ours, theirs = await compare(name, SECONDS)
    assert len(ours.failed()) <= len(theirs.failed()), ours.failed()


@pytest.mark.parametrize(
    "name", ["1 stream, stock with both", "2 streams, stock with both"]
)
@pytest.mark.parametrize("health", ["watch", "off"])
async def test_nor_with_another_setting(name: str, health: str) -> None:
    ours, theirs = await compare(name, SECONDS, health=health)
    assert len(ours.failed()) <= len(theirs.failed()), ours.failed()
