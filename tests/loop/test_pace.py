"""Connections begin in waves."""

import asyncio
from random import Random

from lbclient.client.connect_pacer import AT_ONCE, HOLD, ConnectPacer


async def begun(count: int) -> list[float]:
    """When each of so many connections may begin."""
    loop = asyncio.get_running_loop()
    pacer = ConnectPacer(Random(1))
    times: list[float] = []

    async def begin() -> None:
        await pacer.wait_turn()
        times.append(loop.time())

    await asyncio.gather(*(begin() for _ in range(count)))
    await asyncio.sleep(2 * HOLD)  # the turns end
    return times


async def test_the_first_few_begin_at_once_and_the_others_in_waves() -> None:
    """Timers may be late and never early, so there is a lower bound for a distance."""
    began_at = asyncio.get_running_loop().time()
    times = await begun(3 * AT_ONCE)
    assert times[:AT_ONCE] == [began_at] * AT_ONCE
    assert times[-1] <= began_at + 2 * 1.5 * HOLD
    distances = [
        late - early for early, late in zip(times, times[AT_ONCE:], strict=False)
    ]
    assert min(distances) >= 0.5 * HOLD - 0.002
    assert times[AT_ONCE] > times[AT_ONCE - 1]


async def test_who_was_cancelled_in_the_queue_keeps_nobody_waiting() -> None:
    pacer = ConnectPacer(Random(1))
    for _ in range(AT_ONCE):
        await pacer.wait_turn()
    gone = asyncio.create_task(pacer.wait_turn())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(pacer.wait_turn(), 2)
    await asyncio.sleep(2 * HOLD)
