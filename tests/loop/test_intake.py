"""What is taken from gRPC's core, which is ours here."""

import asyncio
from collections.abc import Callable
from time import thread_time
from typing import Any

import pytest

from lbclient.grpc_seam.intake import TIMED, RequestSource
from lbclient.server.overload.intake import BATCH, BEHIND, EACH_TURN, READY, Intake

AHEAD, MOST = BEHIND


def burn(seconds: float) -> None:
    until = thread_time() + seconds
    while thread_time() < until:
        pass


class Core:
    """Hands over requests as fast as it is asked."""

    drop_seconds = 0.0

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[Any], Any], Callable[[Any], None]]] = []
        self.waiting: list[Any] = []
        self.asked_in_all = 0

    def ask(self, take: Callable[[Any], Any], fail: Callable[[Any], None]) -> None:
        self.asked.append((take, fail))
        self.asked_in_all += 1
        asyncio.get_running_loop().call_soon(self.hand_over)

    def come(self, *requests: Any) -> None:
        self.waiting.extend(requests)
        self.hand_over()

    def hand_over(self) -> None:
        while self.asked and self.waiting:
            take, _ = self.asked.pop(0)
            take(self.waiting.pop(0))

    def end(self) -> None:
        for _, fail in self.asked:
            fail(ConnectionError("no more"))


class Task:
    def __init__(self) -> None:
        self.core = Core()
        self.intake = Intake()
        self.intake.take_from(self.core)

    async def take(self, times: int) -> list[Any]:
        return [await self.next() for _ in range(times)]

    def next(self) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self.intake.next(future)
        return future


async def test_requests_are_served_in_their_order() -> None:
    task = Task()
    task.core.come(*range(10 * AHEAD))
    assert await task.take(10 * AHEAD) == list(range(10 * AHEAD))


async def test_no_more_are_asked_for_than_that() -> None:
    """A core hands over all that was asked for before grpcio serves the next one.

    Beside hundreds of requests that have begun their events would come late.
    """
    task = Task()
    task.core.come(*range(20 * AHEAD))
    most = 0
    for number in range(19 * AHEAD - MOST):
        assert await task.take(1) == [number]
        assert len(task.core.asked) <= AHEAD
        assert len(task.intake) + len(task.core.asked) < MOST
        task.core.hand_over()
        most = max(most, len(task.intake))
    assert AHEAD < most < MOST


async def test_a_burst_is_taken_at_once_where_none_waited() -> None:
    task = Task()
    task.intake.keep_within(READY)
    taking = asyncio.ensure_future(task.take(1))
    task.core.come(*range(READY.ahead))
    assert not task.core.waiting
    assert await taking == [0]
    task.core.come(*range(READY.ahead, 3 * READY.most))
    for number in range(1, READY.most):
        assert await task.take(1) == [number]
        assert len(task.intake) + len(task.core.asked) <= READY.most
        task.core.hand_over()


async def test_who_will_leave_asks_for_few_more() -> None:
    """gRPC's core answers for each before it sends GOAWAY."""
    task = Task()
    task.intake.keep_within(READY)
    task.core.come(*range(2 * READY.ahead))
    await task.take(1)
    task.intake.ask_for_few()
    task.intake.keep_within(READY)  # as an end of overload does
    while task.core.waiting:
        await task.take(1)
        task.core.hand_over()
    assert len(task.core.asked) <= AHEAD


async def test_they_are_asked_for_many_at_a_time() -> None:
    task = Task()
    task.core.come(*range(10 * AHEAD))
    times = before = 0
    for _ in range(9 * AHEAD):
        await task.take(1)
        times += task.core.asked_in_all > before
        before = task.core.asked_in_all
    assert times <= 9 * AHEAD / BATCH + 1


async def test_where_more_waits_than_is_asked_for_it_is_known() -> None:
    task = Task()
    assert not task.intake.was_behind()
    task.core.come(*range(10 * AHEAD))
    await task.take(9 * AHEAD)
    assert task.intake.was_behind()
    assert not task.intake.was_behind()  # since then


async def test_who_holds_so_many_that_none_are_asked_for_is_behind() -> None:
    task = Task()
    task.core.come(*range(MOST + AHEAD))
    await task.take(1)
    while task.intake.asked:
        await asyncio.sleep(0)
        await task.take(1)
    task.intake.was_behind()
    await asyncio.sleep(0)
    assert task.intake.was_behind()


async def test_a_busy_loop_knows_it_too() -> None:
    """Each third time grpcio serves a batch before the core's events come."""
    task = Task()
    task.core.come(*range(30 * BATCH))
    for number in range(28):
        await task.take(BATCH)
        if number % 3:
            await asyncio.sleep(0)  # the core hands over
    assert task.intake.was_behind()


@pytest.mark.parametrize("at_once", [1, BATCH])
async def test_what_comes_a_few_at_a_time_leaves_none_behind(at_once: int) -> None:
    """However many come in all: the loop is not behind."""
    task = Task()
    for number in range(100):
        taking = asyncio.ensure_future(task.take(at_once))
        await asyncio.sleep(0)
        task.core.come(*range(at_once))
        assert await taking == list(range(at_once))
        if number == 0:
            task.intake.was_behind()  # at first all is asked for
    assert not task.intake.was_behind()


async def test_who_comes_while_nothing_waits_is_served_at_once() -> None:
    task = Task()
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.core.come("CRITICAL")
    assert await taking == ["CRITICAL"]


async def test_in_one_turn_of_the_loop_grpcio_gets_some_and_not_all() -> None:
    """Before others begin the loop looks for who has come since."""
    task = Task()
    task.next().cancel()  # the core is asked
    task.core.come(*range(AHEAD))
    served = [task.next() for _ in range(EACH_TURN)]
    assert all(future.done() for future in served)
    further = task.next()
    assert not further.done()
    await asyncio.sleep(0)
    assert await further == EACH_TURN


async def test_who_gave_up_waiting_takes_no_request() -> None:
    """As grpcio does when it stops."""
    task = Task()
    task.next().cancel()
    task.core.come(1)
    assert await task.take(1) == [1]


async def test_the_end_of_the_core_is_the_end() -> None:
    task = Task()
    task.core.come(1, 2, 3)
    assert await task.take(1) == [1]
    task.intake.close()
    assert len(task.intake) == 0
    task.core.come(4)
    task.core.end()
    with pytest.raises(ConnectionError):
        await task.take(1)
    assert task.intake.dropped_at_stop == 3


async def test_a_core_that_ends_later_than_the_queue_is_heard() -> None:
    """All that it was asked for came in between."""
    task = Task()
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    task.intake.close()
    task.core.come(*range(len(task.core.asked)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.core.end()
    with pytest.raises(ConnectionError):
        await taking


async def test_a_stop_waits_until_the_core_has_answered() -> None:
    """What it answers later would come to a loop that may be closed."""
    task = Task()
    taking = asyncio.ensure_future(task.take(1))
    await asyncio.sleep(0)
    task.intake.close()
    ending = asyncio.ensure_future(task.intake.ended())
    await asyncio.sleep(0)
    assert task.intake.asked
    assert not ending.done()
    task.core.end()
    await ending
    assert not task.intake.asked
    with pytest.raises(ConnectionError):
        await taking


@pytest.mark.parametrize("is_kept", [False, True])
async def test_what_it_takes_to_take_a_request_that_nobody_keeps_is_timed(
    is_kept: bool,
) -> None:
    class Request:
        def __del__(self) -> None:
            if not is_kept:
                burn(0.004)  # as gRPC's core, which ends the call

    async def request_call() -> Request:
        come = asyncio.get_running_loop().create_future()
        burn(0.002)  # to ask for it takes time, too
        asyncio.get_running_loop().call_soon(come.set_result, None)
        await come
        return Request()

    source, taken, failed = RequestSource(request_call), list[int](), list[Any]()

    def take(request: Request) -> bool:
        taken.append(id(request))
        return is_kept

    for _ in range(TIMED):
        source.ask(take, failed.append)
    assert source.drop_seconds == 0.0
    for _ in range(3):  # until all have come and are answered
        await asyncio.sleep(0)
    assert (len(taken), failed) == (TIMED, [])
    assert (source.drop_seconds >= 0.006) != is_kept


async def test_what_is_asked_for_meanwhile_is_not_of_what_a_drop_takes() -> None:
    async def request_call() -> object:
        come = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(come.set_result, None)
        await come
        return object()

    source, failed = RequestSource(request_call), list[Any]()

    def take(_: object) -> bool:
        if source._asked < 3 * TIMED:
            source.ask(take, failed.append)
            burn(0.01)
        return False

    for _ in range(2 * TIMED):
        source.ask(take, failed.append)
    for _ in range(10):
        await asyncio.sleep(0)
    assert failed == []
    assert 0.0 < source.drop_seconds < 0.005
