"""Who runs one job after the other goes on when another ends the one that runs."""

import asyncio
import gc

import pytest

from lbclient.background.interruptible import Interruptible


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_an_interrupted_job_lets_its_owner_go_on() -> None:
    jobs = Interruptible()
    owner = asyncio.create_task(jobs.run(for_ever()))
    await asyncio.sleep(0)
    jobs.interrupt()
    await owner
    assert not owner.cancelled()


async def test_it_is_interrupted_with_a_failure() -> None:
    jobs = Interruptible()
    owner = asyncio.create_task(jobs.run(for_ever()))
    await asyncio.sleep(0)
    jobs.interrupt(OSError("of a timer"))
    with pytest.raises(OSError, match="of a timer"):
        await owner


async def test_a_job_ends_with_its_owner() -> None:
    ended = asyncio.Event()

    async def until_cancelled() -> None:
        try:
            await for_ever()
        finally:
            ended.set()

    owner = asyncio.create_task(Interruptible().run(until_cancelled()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert ended.is_set()


async def test_a_cancellation_that_nobody_asked_for_is_raised() -> None:
    async def confused() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Interruptible().run(confused())


async def test_between_jobs_there_is_nothing_to_interrupt() -> None:
    jobs = Interruptible()
    jobs.interrupt()
    assert not jobs.has_begun()

    async def short() -> None:
        pass

    await jobs.run(short())
    jobs.interrupt()
    await jobs.run(short())
    assert jobs.has_begun()


async def test_the_next_job_does_not_end_with_the_failure_of_the_last_one() -> None:
    jobs = Interruptible()

    async def failing() -> None:
        jobs.interrupt(OSError("of a timer"))
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"):
        await jobs.run(failing())
    owner = asyncio.create_task(jobs.run(for_ever()))
    await asyncio.sleep(0)
    jobs.interrupt()
    await owner


async def test_a_cancelled_owner_leaves_no_failure_for_the_next_job() -> None:
    jobs = Interruptible()
    owner = asyncio.create_task(jobs.run(for_ever()))
    await asyncio.sleep(0)
    jobs.interrupt(OSError("of a timer"))
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    owner = asyncio.create_task(jobs.run(for_ever()))
    await asyncio.sleep(0)
    jobs.interrupt()
    await owner


async def test_a_job_that_fails_as_its_owner_is_cancelled_is_no_complaint() -> None:
    told = list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    fails: asyncio.Future[None] = loop.create_future()

    async def job(waits: asyncio.Future[None]) -> None:
        await waits

    owner = asyncio.create_task(Interruptible().run(job(fails)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    fails.set_exception(OSError("channel closed"))
    owner.cancel()
    await asyncio.wait((owner,))  # no traceback keeps the job
    assert owner.cancelled()
    del owner, fails
    gc.collect()
    assert not told
