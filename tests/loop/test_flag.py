"""A flag wakes who waits; a wait for the first of several tasks leaves the others."""

import asyncio

from lbclient.background.flag import Flag
from lbclient.background.tasks import until_one_ends


async def test_all_who_wait_are_woken_though_it_is_cleared_at_once() -> None:
    flag = Flag()
    waits = [asyncio.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    flag.set()
    flag.clear()
    await asyncio.gather(*waits)
    assert not flag.is_set()
    assert flag._waiters == []


async def test_nobody_waits_for_what_is_set() -> None:
    flag = Flag()
    flag.set()
    await flag.wait()


async def test_who_is_cancelled_keeps_nobody_waiting() -> None:
    flag = Flag()
    gone, other = (asyncio.create_task(flag.wait()) for _ in range(2))
    await asyncio.sleep(0)
    flag.set()
    gone.cancel()
    await other
    await asyncio.wait((gone,))


async def test_the_first_task_that_ends_is_enough() -> None:
    never = asyncio.create_task(asyncio.Event().wait())
    soon = asyncio.create_task(asyncio.sleep(0.001))
    await until_one_ends(never, soon)
    assert soon.done()
    assert not never.done()
    await until_one_ends(never, soon)  # which has ended
    never.cancel()
    await asyncio.wait((never,))
