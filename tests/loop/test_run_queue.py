"""Handlers take turns where each has the loop for long; time is a number."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from lbclient.core.criticality import Criticality, adopt
from lbclient.server.overload import run_queue
from lbclient.server.overload.run_queue import TUNING as RUN_QUEUE
from lbclient.server.overload.run_queue import RunQueue
from lbclient.server.overload.stream_turns import StreamTurns

LONG = RUN_QUEUE.slice / 2  # seconds; two of those, and arrivals are looked for


class Task:
    """What a server does with its queue. A look at the clock takes ten microseconds."""

    def __init__(self) -> None:
        self.now = self.ran = 0.0
        self.runs = 1.0  # share of the time: else it waits for a processor
        self.is_overloaded = False
        self.queue = RunQueue(
            self.clock,
            is_overloaded=lambda: self.is_overloaded,
            cpu_time=lambda: self.ran,
        )
        self.began: list[int] = []
        self.passed: list[int] = []  # others took their turns
        self.tasks: list[asyncio.Task[None]] = []

    def clock(self) -> float:
        self.now += 1e-5
        return self.now

    def request(
        self, number: int, cost: float, criticality: Criticality | None = None
    ) -> None:
        self.queue.arrived += 1
        serving = self._serve(number, cost, criticality)
        self.tasks.append(asyncio.ensure_future(serving))

    async def _serve(
        self, number: int, cost: float, criticality: Criticality | None
    ) -> None:
        adopt(criticality)
        turn = self.queue.enter(self.clock())
        if turn is not None and not await turn:
            self.passed.append(number)
            return
        self.began.append(number)
        self.now += cost
        self.ran += self.runs * cost

    async def close(self) -> None:
        """Two that are long make the queue look for arrivals."""
        self.request(-2, LONG)
        self.request(-1, LONG)
        await turns_until(lambda: self.began == [-2, -1])
        await asyncio.sleep(0)  # the turn is over

    async def end(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        # A look that has begun goes on until nothing has come for a while.
        await turns_until(lambda: not self.queue.is_closed)
        await asyncio.sleep(0)


async def turns_until(condition: Callable[[], bool], turns: int = 10_000) -> None:
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came true")


async def test_quick_handlers_never_wait() -> None:
    task = Task()
    for number in range(1000):
        task.request(number, RUN_QUEUE.slice / 10_000)
        assert len(task.queue) == 0
        await asyncio.sleep(0)
    await task.end()
    assert task.began == list(range(1000))


async def test_after_long_handlers_all_that_has_arrived_is_counted_first() -> None:
    task = Task()
    await task.close()
    for number in range(20):
        task.request(number, LONG)
        await asyncio.sleep(0)  # two turns each, as grpcio takes
        await asyncio.sleep(0)
    assert task.began == [-2, -1]
    assert len(task.queue) == 20
    await task.end()


async def test_of_a_burst_those_that_come_behind_long_handlers_wait() -> None:
    """All begin in one turn of the loop: as when a link is whole again."""
    task = Task()
    for number in range(20):
        task.request(number, 5 * LONG)
    await asyncio.sleep(0)
    assert task.began == [0]
    assert len(task.queue) == 19
    await task.end()
    assert task.began == list(range(20))


async def test_a_burst_of_quick_requests_begins_at_once() -> None:
    task = Task()
    task.now = 1000.0  # a clock has any beginning
    for number in range(1000):
        task.request(number, RUN_QUEUE.long / 10)
    await asyncio.sleep(0)
    assert task.began == list(range(1000))
    await task.end()


async def test_nobody_passes_a_queue_that_has_just_been_closed() -> None:
    """By handlers that are just long enough, whose turns leave the next ones alone."""
    task = Task()
    for number in range(100):
        task.now += 2 * RUN_QUEUE.clear
        task.request(number, 1.1 * run_queue.TUNING.long)
        for _ in range(4):
            await asyncio.sleep(0)
        if task.queue.is_closed:
            break
        assert task.queue.clear_until > task.now
    assert task.queue.is_closed
    assert task.queue.clear_until < task.now
    await task.end()


async def test_those_who_wait_begin_one_by_one_in_their_order() -> None:
    task = Task()
    await task.close()
    for number in range(20):
        task.request(number, LONG)
    await turns_until(lambda: 5 in task.began)
    assert task.began == [-2, -1, *range(6)]
    await task.end()
    assert task.began == [-2, -1, *range(20)]


SHEDDABLE, _, CRITICAL, CRITICAL_PLUS = Criticality


async def test_in_an_overload_who_is_more_critical_takes_a_turn() -> None:
    """The first one's of the least critical: those behind wait no longer for it."""
    task = Task()
    await task.close()
    for number, criticality in enumerate((CRITICAL, SHEDDABLE, SHEDDABLE, CRITICAL)):
        task.request(number, LONG, criticality)
    await turns_until(lambda: len(task.queue) == 4)
    task.is_overloaded = True
    for number in range(4, 8):
        task.request(number, LONG, CRITICAL_PLUS)
    task.request(8, LONG, CRITICAL)  # of those waiting nobody is less critical
    await turns_until(lambda: len(task.queue) == 5)
    await task.end()
    assert task.passed == [1, 2, 0, 3]
    assert task.began == [-2, -1, 6, 4, 5, 7, 8]


async def test_who_has_given_up_loses_no_turn_to_others() -> None:
    task = Task()
    await task.close()
    for number in range(2):
        task.request(number, LONG, SHEDDABLE)
    await turns_until(lambda: len(task.queue) == 2)
    task.tasks[-2].cancel()
    await turns_until(lambda: len(task.queue) == 1)
    task.is_overloaded = True
    task.request(2, LONG)  # CRITICAL, as it says nothing
    await task.end()
    assert task.passed == [1]
    assert task.began == [-2, -1, 2]


async def test_in_calm_nobody_loses_a_turn() -> None:
    task = Task()
    await task.close()
    for number in range(4):
        task.request(number, LONG, SHEDDABLE if number < 2 else CRITICAL_PLUS)
    await task.end()
    assert task.passed == []
    assert task.began == [-2, -1, 0, 1, 2, 3]


async def test_long_requests_count_one_each() -> None:
    task = Task()
    await task.close()
    for number in range(200):
        task.request(number, LONG)
    await turns_until(lambda: 0 < len(task.queue) <= 100)
    assert task.queue.load(task.now, active=100) == pytest.approx(100, rel=0.01)
    await task.end()


def test_where_nobody_waits_there_is_no_load() -> None:
    assert Task().queue.load(0.0, active=100) == 0.0


async def test_a_crowd_of_quick_requests_is_no_load() -> None:
    """What waits then is less than what is done in a hundredth of a second."""
    task, cost = Task(), RUN_QUEUE.unit / 1000
    await task.close()
    for number in range(400):
        task.request(number, cost)
    await turns_until(lambda: 0 < len(task.queue) <= 100)
    seen = task.queue.load(task.now, active=100)
    await task.end()
    lag = LONG / RUN_QUEUE.unit  # of the two long ones, which still counts a little
    assert seen < 1.0 + lag


async def test_whoever_gives_up_is_left_out() -> None:
    task = Task()
    await task.close()
    for number in range(3):
        task.request(number, LONG)
    await turns_until(lambda: len(task.queue) == 3)
    task.tasks[-2].cancel()
    await task.end()
    assert task.began == [-2, -1, 0, 2]


async def test_who_has_given_up_is_no_load() -> None:
    task = Task()
    await task.close()
    for number in range(100):
        task.request(number, LONG)
    await turns_until(lambda: len(task.queue) == 50)
    for gone in task.tasks[-30:]:
        gone.cancel()
    await turns_until(lambda: len(task.queue) <= 20)
    seen = task.queue.load(task.now, active=100)
    assert seen <= 20
    await task.end()
    assert len(task.queue) == 0


async def test_it_tells_how_long_who_comes_now_would_wait() -> None:
    task = Task()
    assert task.queue.wait() == 0.0
    await task.close()
    for number in range(100):
        task.request(number, LONG)
    await turns_until(lambda: len(task.queue) == 50)
    assert task.queue.wait() == pytest.approx(51 * LONG, rel=0.1)
    await task.end()
    assert task.queue.wait() == 0.0


async def test_who_is_refused_at_its_turn_does_not_make_the_wait_look_short() -> None:
    task = Task()
    await task.close()

    async def refuse() -> None:
        turn = task.queue.enter(task.clock())
        assert turn is not None
        await turn
        task.queue.refuse()

    for number in range(40):
        task.request(number, LONG)
        task.tasks.append(asyncio.ensure_future(refuse()))
    await turns_until(lambda: len(task.queue) == 10)
    assert task.queue.wait() == pytest.approx(11 * LONG, rel=0.1)
    await task.end()


async def test_what_comes_while_a_handler_has_the_loop_has_waited_unseen() -> None:
    task = Task()
    assert task.queue.unseen(task.now) == 0.0
    await task.close()
    task.request(1, 0.0)
    assert 0.0 < task.queue.unseen(task.now) <= LONG
    await task.end()
    assert task.queue.unseen(task.now) == 0.0


async def test_a_stall_is_not_followed_by_as_long_a_look_for_arrivals() -> None:
    task = Task()
    task.request(0, 100 * RUN_QUEUE.stall)
    await turns_until(lambda: task.queue.is_closed)
    began_at = task.now
    while task.queue.is_closed:
        task.queue.arrived += 1
        task.now += 5e-5
        await asyncio.sleep(0)
    assert task.now - began_at <= 1.1 * RUN_QUEUE.flood * RUN_QUEUE.stall
    await task.end()


async def test_a_flood_to_refuse_leaves_some_time_to_those_let_in() -> None:
    """Requests arrive in each turn, and none of them gets as far as a handler."""
    task = Task()
    await task.close()
    for number in range(10):
        task.request(number, LONG)
    refusing = 0.0
    while len(task.began) < 12:
        task.queue.arrived += 1
        task.now += 5e-5
        refusing += 5e-5
        await asyncio.sleep(0)
    await task.end()
    assert refusing <= 1.2 * RUN_QUEUE.flood * 12 * LONG


async def test_load_is_forgotten_where_nothing_comes() -> None:
    task = Task()
    for number in range(50):
        task.request(number, 3 * RUN_QUEUE.unit)
        await asyncio.sleep(0)
    await task.end()
    before = task.queue.load(task.now, active=50)
    assert before > 1.0
    assert task.queue.load(task.now + 10.0, active=50) < 0.01 * before


async def test_a_look_leaves_a_thread_the_time_to_hand_over() -> None:
    """Turns of a loop with nothing to do are much quicker."""
    task = Task()
    task.request(0, 2 * RUN_QUEUE.slice)
    await turns_until(lambda: task.queue.is_closed)
    began_at = task.now
    await turns_until(lambda: not task.queue.is_closed)
    assert task.now - began_at >= RUN_QUEUE.quiet
    await task.end()


@pytest.mark.parametrize(("runs", "are_long"), [(1.0, True), (0.1, False)])
async def test_a_turn_that_waits_for_a_processor_is_not_long(
    runs: float, are_long: bool
) -> None:
    """Beside handlers that are long a refusal takes little, and is answered."""
    task = Task()
    task.runs = runs
    await task.close()
    for number in range(20):
        task.request(number, LONG)
    await task.end()
    assert task.queue.is_for_long == are_long


async def test_handlers_of_which_one_in_ten_is_long_are_long_throughout() -> None:
    """Of 1 and 50 ms, by chance: an answer takes little beside these."""
    task, requests, rng = Task(), 600, Random(1)
    await task.close()
    for number in range(requests):
        task.request(number, 0.05 if rng.random() < 0.1 else 0.001)
    seen = []
    for count in range(RUN_QUEUE.cpu_memory, requests):
        await turns_until(lambda count=count: len(task.began) >= count)  # type: ignore[misc]
        seen.append(task.queue.is_for_long)
    await task.end()
    assert all(seen)


@pytest.mark.parametrize("cost", [LONG, 1e-4])
async def test_beside_long_handlers_what_was_let_in_unseen_is_in_the_line(
    cost: float,
) -> None:
    """In a flood it is let in before grpcio has it: many in one turn of the loop."""
    task = Task()
    await task.close()
    for number in range(100):
        task.request(number, cost)
    await task.end()
    assert task.queue.wait() == 0.0
    load = task.queue.load(task.now, 0.0)
    for _ in range(5):
        task.queue._intake.ranks.add(object(), Criticality.CRITICAL)
    grew = 5.0 if cost == LONG else 0.0
    assert task.queue.load(task.now, 0.0) == pytest.approx(load + grew, abs=0.3)
    assert task.queue.wait() == pytest.approx(grew and 6 * LONG, rel=0.1)


async def test_what_others_do_in_a_turn_is_not_what_a_handler_takes() -> None:
    """It would be where many handlers go on, as in a proxy."""
    task = Task()
    await task.close()
    loop = asyncio.get_running_loop()

    def go_on() -> None:
        task.now += 10 * LONG
        if len(task.queue):
            loop.call_soon(go_on)

    for number in range(20):
        task.request(number, LONG)
    await asyncio.sleep(0)
    loop.call_soon(go_on)
    await turns_until(lambda: len(task.began) == 20)
    assert f"{LONG:.2f}" in repr(task.queue)
    await task.end()


@pytest.mark.parametrize(
    ("cost", "several"), [(RUN_QUEUE.several / 1.5, 1), (RUN_QUEUE.several / 4.5, 4)]
)
async def test_load_is_how_long_the_last_one_will_wait(
    cost: float, several: int
) -> None:
    """Others go on in between, so it takes longer than what their steps take."""
    task = Task()
    await task.close()
    loop = asyncio.get_running_loop()

    def go_on() -> None:
        task.now += RUN_QUEUE.unit
        if task.queue.is_closed:
            loop.call_soon(go_on)

    for number in range(200):
        task.request(number, cost)
    await asyncio.sleep(0)
    loop.call_soon(go_on)
    await turns_until(lambda: len(task.began) >= 102)
    waiting = len(task.queue)
    each = RUN_QUEUE.unit / several + cost
    load = min(1.0, each / RUN_QUEUE.unit) * waiting
    assert task.queue.load(task.now, active=200) == pytest.approx(load, rel=0.15)
    await task.end()


async def test_handlers_that_take_little_begin_several_in_a_turn() -> None:
    """Of a flood each turn of the loop drops what has come since the last one."""
    task, cost = Task(), RUN_QUEUE.several / 3.5
    await task.close()
    for number in range(200):
        task.request(number, cost)
    await turns_until(lambda: len(task.began) > 102)
    before = len(task.began)
    await asyncio.sleep(0)
    assert len(task.began) - before == 3
    await task.end()
    assert task.began == [-2, -1, *range(200)]


class Stream:
    """One of a `Task` whose handler takes so long for each of its steps."""

    def __init__(self, task: Task, *costs: float) -> None:
        self._task = task
        self._costs = costs
        self.steps = 0
        self._running = asyncio.ensure_future(self._serve())

    async def _serve(self) -> None:
        await StreamTurns(self._task.queue, self._task.clock).run(self._handle())

    async def _handle(self) -> None:
        while True:
            for cost in self._costs:
                self.steps += 1
                self._task.now += cost
                await asyncio.sleep(0)  # a message is sent, or comes

    async def end(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])


@asynccontextmanager
async def streaming(*costs: float, streams: int = 4) -> AsyncIterator[Any]:
    """A task and its streams, which have gone on for a while."""
    task = Task()
    serving = [Stream(task, *costs) for _ in range(streams)]
    try:
        await turns_until(lambda: all(stream.steps > 10 for stream in serving))
        yield task, serving
    finally:
        for stream in serving:
            await stream.end()
    await task.end()
    assert task.queue.streams == 0


async def test_who_is_new_takes_turns_with_streams_that_go_on() -> None:
    """However many there are: or streams without end would leave nothing to others."""
    async with streaming(LONG, streams=40) as (task, streams):
        await turns_until(lambda: len(task.queue) == 40)
        before = sum(stream.steps for stream in streams)
        for number in range(20):
            task.request(number, LONG)
        await turns_until(lambda: 19 in task.began)
        taken = sum(stream.steps for stream in streams) - before
    assert task.began == list(range(20))
    assert 18 <= taken <= 22


async def test_streams_are_as_much_load_as_keeps_who_is_new_waiting() -> None:
    async with streaming(RUN_QUEUE.unit, streams=40) as (task, _):
        await turns_until(lambda: len(task.queue) == 40)
        assert task.queue.load(task.now, active=40) == pytest.approx(1.0, abs=0.1)
        assert task.queue.of_streams() == pytest.approx(40.0, abs=0.1)
        for number in range(10):
            task.request(number, RUN_QUEUE.unit)
        await turns_until(lambda: len(task.queue) == 50)
        assert task.queue.load(task.now, active=50) == pytest.approx(21.0, abs=0.1)


async def test_streams_that_do_nothing_are_no_load() -> None:
    """A turn that takes long is one handler's doing, however many streams are open."""
    task = Task()
    task.queue.streams = 1000
    task.request(0, RUN_QUEUE.stall)
    await turns_until(lambda: task.queue.is_closed)
    assert task.queue.load(task.now, active=1001) <= 1.0
    await task.end()


async def test_steps_of_streams_are_load_where_nobody_is_new() -> None:
    async with streaming(3 * RUN_QUEUE.unit, streams=1) as (task, _):
        assert 0.5 < task.queue.load(task.now, active=1) <= 1.0


async def test_a_stream_that_gives_the_loop_back_soon_never_waits() -> None:
    """To wait takes as long as what the others do, for each of its messages."""
    async with streaming(LONG) as (task, streams):
        cheap = Stream(task, 0.0)
        before = sum(stream.steps for stream in streams)
        await turns_until(lambda: cheap.steps > 1000)
        taken = sum(stream.steps for stream in streams) - before
        await cheap.end()
    assert taken < 500


async def test_a_stream_that_becomes_dear_waits() -> None:
    async with streaming(LONG) as (task, streams):
        changing = Stream(task, *[0.0] * 50, *[LONG] * 1000)
        await turns_until(lambda: changing.steps > 60)
        before = [stream.steps for stream in (changing, *streams)]
        await turns_until(lambda: changing.steps > before[0] + 50)
        taken = [stream.steps for stream in streams]
        await changing.end()
    assert all(after - then > 40 for then, after in zip(before[1:], taken, strict=True))


async def test_a_stream_is_cancelled_while_it_waits_for_its_turn() -> None:
    ended: list[str] = []

    async def handle(task: Task) -> None:
        try:
            while True:
                task.now += LONG
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def serve(task: Task) -> None:
        await StreamTurns(task.queue, task.clock).run(handle(task))

    async with streaming(LONG) as (task, _):
        before = len(task.queue)
        one = asyncio.ensure_future(serve(task))
        await turns_until(lambda: len(task.queue) > before)
        one.cancel()
        await asyncio.wait([one])
        assert one.cancelled()
    assert ended == ["cancelled"]


async def test_what_a_stream_returns_and_raises_is_its_handlers() -> None:
    task = Task()
    turns = StreamTurns(task.queue, task.clock)

    async def answer() -> str:
        await asyncio.sleep(0)
        return "done"

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("its own")

    assert await turns.run(answer()) == "done"
    with pytest.raises(KeyError, match="its own"):
        await turns.run(fail())
