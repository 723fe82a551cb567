"""What a call costs, in counts, which no neighbour on the machine can change.

Times are `benchmarks.overhead`'s business.
"""

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import lbclient
from lbclient.config import ChannelConfig

PACKAGE = str(Path(lbclient.__file__).parent)
SERVER = str(Path(PACKAGE) / "server")
QUIET = ChannelConfig(health_interval=60)  # no report comes while it is counted
CALLS = 100


async def ready_stub(
    start: Any, search: Any, eventually: Any, backends: int
) -> tuple[lbclient.Channel, Any]:
    tasks = [await start(lbclient.server) for _ in range(backends)]
    target = "ipv4:" + ",".join(task.address for task in tasks)
    channel = lbclient.insecure_channel(target, config=QUIET)
    await channel.channel_ready()
    await eventually(
        lambda: {b.state for b in channel.statistics().backends} == {"ready"}
    )
    return channel, search.SearchStub(channel)


async def test_a_unary_call_on_a_ready_backend_makes_no_task_but_grpcios(
    start: Any, search: Any, eventually: Any
) -> None:
    channel, stub = await ready_stub(start, search, eventually, backends=2)
    before = asyncio.all_tasks()
    calls = [stub.Search(search.Query(text="x"), timeout=5) for _ in range(3)]
    made = asyncio.all_tasks() - before
    await asyncio.gather(*calls)
    await channel.close()
    assert len(made) == 3


async def functions_called(method: Any, request: Any) -> float:
    """Of the client, per call: the pick, done callbacks, feedback and all."""
    counted = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal counted
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE) and SERVER not in path:
            counted += 1

    await method(request, timeout=5)
    sys.setprofile(profile)
    try:
        for _ in range(CALLS):
            await method(request, timeout=5)
    finally:
        sys.setprofile(None)
    return counted / CALLS


async def test_a_call_runs_few_functions_however_many_backends_there_are(
    start: Any, search: Any, eventually: Any
) -> None:
    """It was 32 with 2 backends and 35 with 20, of which some update the picker: a
    function for each backend that it looks at would show.
    """
    query = search.Query(text="x")
    for backends in (2, 20):
        channel, stub = await ready_stub(start, search, eventually, backends)
        calls = await functions_called(stub.Search, query)
        await channel.close()
        assert calls <= 42
