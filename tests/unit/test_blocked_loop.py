"""What blocks an event loop, with a thread whose readings a test makes up."""

import asyncio
import sys
from threading import Lock
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from lbclient.core.counting.line_limit import PERIOD as MINUTE
from lbclient.server.meters import blocked_loop
from lbclient.server.meters.blocked_loop import (
    LATE,
    LONG,
    MOST,
    PERIOD,
    LoopWatch,
    LoopWatches,
    ThreadReading,
    read_thread,
)
from tests.waiting import eventually


def handle() -> FrameType:
    return sys._getframe()


HANDLER = handle()


class Loop:
    """A loop whose only task may hold it."""

    task: Any = None
    running = True
    closed = False

    def is_running(self) -> bool:
        return self.running

    def is_closed(self) -> bool:
        return self.closed


class World:
    """Time passes in looks of `PERIOD`. The loop beats as often, unless it is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.used = self.process = 0.0
        self.loop = Loop()
        find_task = SimpleNamespace(current_task=lambda loop: loop.task)
        monkeypatch.setattr(blocked_loop, "asyncio", find_task)
        any_loop: Any = self.loop
        self.is_asleep = True
        self.watch = LoopWatch(
            any_loop,
            lambda frame: "/search.Search/Search" if frame is HANDLER else "",
            lambda: self.now,
            lambda _: ThreadReading(self.is_asleep, self.used, self.process),
            lambda _: HANDLER if self.is_in_handler else sys._getframe(),
        )
        self.is_in_handler = True

    def go_on(self, seconds: float = PERIOD) -> None:
        """The loop goes round."""
        self.loop.task = None
        end = self.now + seconds
        while self.now < end:
            self.now += PERIOD
            self.watch.beat()
            assert self.watch.look()

    def hold(
        self,
        seconds: float,
        used: float = 0.0,
        process: float | None = None,
        task: str = "a task",
    ) -> None:
        """A task holds the loop, whose thread uses this share of a CPU; and the
        process, the same unless it is given."""
        self.loop.task = task
        end = self.now + seconds
        while self.now < end:
            self.now += PERIOD
            self.used += used * PERIOD
            self.process += (used if process is None else process) * PERIOD
            assert self.watch.look()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_what_blocks_is_told_once_it_is_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.go_on()
    world.hold(2.0)
    assert caplog.messages == []
    world.go_on()
    (line,) = caplog.messages
    assert line.startswith("/search.Search/Search blocked the event loop for 2.")
    assert "test_blocked_loop.py:" in line
    assert "asyncio.to_thread" in line


@pytest.mark.parametrize("after", [None, "another task"])
def test_what_is_just_over_is_told_before_the_next_beat(
    world: World, caplog: pytest.LogCaptureFixture, after: Any
) -> None:
    """A look between the two forgot it."""
    world.go_on()
    world.hold(2.0)
    world.hold(PERIOD, task=after)
    world.go_on()
    (line,) = caplog.messages
    assert line.startswith("/search.Search/Search blocked the event loop for 2.")


def test_told_is_where_most_looks_found_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The last one may come when the handler has just returned, in the same task."""
    world.go_on()
    world.hold(2.0)
    world.is_in_handler = False
    world.hold(PERIOD)
    world.go_on()
    (line,) = caplog.messages
    assert line.startswith("/search.Search/Search blocked the event loop for 2.")
    assert "(handle): " in line


def test_what_does_not_end_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.go_on()
    world.hold(3 * MOST)
    (line,) = caplog.messages
    assert f"has blocked the event loop for {MOST:.0f}." in line
    assert " s so far, in " in line
    world.go_on()
    assert len(caplog.messages) == 1


def test_one_line_a_minute_counts_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(6):
        world.go_on()
        world.hold(2.0)
    world.go_on()
    assert len(caplog.messages) == 1
    world.go_on(MINUTE)
    world.hold(2.0)
    world.go_on()
    assert caplog.messages[-1].endswith("; 5 more times since this was last logged")
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    "held",
    [
        {"seconds": LONG / 2},
        {"seconds": 3.0, "used": 1.0},  # it computes, or waits for a processor
        {"seconds": 3.0, "used": 0.2, "process": 1.0},  # others keep Python's lock
        {"seconds": 3.0, "task": None},  # it waits in its selector
    ],
)
def test_no_warning_of_what_does_not_block(
    world: World, caplog: pytest.LogCaptureFixture, held: dict[str, Any]
) -> None:
    for _ in range(3):
        world.go_on()
        world.hold(**held)
    world.go_on()
    assert caplog.messages == []


def test_a_thread_that_is_runnable_is_throttled_and_not_blocked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Some kernels do not count as waiting what a control group keeps from it."""
    world.is_asleep = False
    world.go_on()
    world.hold(3.0)
    world.go_on()
    assert caplog.messages == []


def test_tasks_that_hold_it_for_less_each_are_not_one_that_does(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.go_on()
    for number in range(10):
        world.hold(LONG / 2, task=f"{number}")
    world.go_on()
    assert caplog.messages == []


def test_no_warning_where_the_whole_process_stood_still(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks stood still, too: by SIGSTOP, or as the machine was paused."""
    world.go_on()
    world.loop.task = "a task"
    for _ in range(4):
        world.now += 60.0
        assert world.watch.look()
    world.go_on()
    assert caplog.messages == []


def test_a_loop_that_does_not_run_is_not_blocked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two `run_until_complete`, as notebooks and some test runners do."""
    world.go_on()
    world.loop.running = False
    world.hold(3.0)
    world.loop.running = True
    world.go_on()
    assert caplog.messages == []


def test_a_loop_that_is_closed_or_collected_is_looked_at_no_more(
    world: World,
) -> None:
    world.go_on()
    world.loop.closed = True
    assert not world.watch.look()
    world.loop.closed = False
    del world.loop
    assert not world.watch.look()


def test_a_thread_that_is_unknown_has_no_reading() -> None:
    assert read_thread(2**31 - 1) is None


def test_the_limits_fit_together() -> None:
    assert LATE < PERIOD < LONG < MOST


async def test_a_forked_process_looks_by_a_thread_of_its_own() -> None:
    """What a thread of the parent held as it forked would be held for ever."""
    loops = LoopWatches()
    loop = asyncio.get_running_loop()
    before = loops.enter(loop, lambda frame: "")
    first = loops._thread
    loops._changing = Lock()
    loops._changing.acquire()
    loops._process = -1
    after = loops.enter(loop, lambda frame: "")
    assert after is not before
    assert loops._thread is not first
    for watch in (before, after):
        loops.leave(watch)


async def test_servers_of_one_loop_share_a_watch() -> None:
    loops = LoopWatches()
    loop = asyncio.get_running_loop()
    first, second = (loops.enter(loop, lambda frame: "") for _ in range(2))
    assert first is second
    assert repr(first) == "<of 2 servers, not blocked>"
    for watch in (first, second):
        loops.leave(watch)
    await eventually(lambda: repr(loops) == "<0 loops>")


async def test_a_loop_in_the_place_of_one_that_is_gone_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It got the id of the other while that was looked at, and was dropped for it."""
    loops = LoopWatches()
    loop = asyncio.get_running_loop()
    looks = []

    def looked(watch: LoopWatch) -> bool:
        looks.append(watch)
        if watch is first:
            loops._watches[id(loop)] = second
        return watch is second

    monkeypatch.setattr(blocked_loop, "_looked", looked)
    first, second = (LoopWatch(loop, lambda frame: "") for _ in range(2))
    first.users = second.users = 1
    loops._watches[id(loop)] = first
    loops.leave(loops.enter(loop, lambda frame: ""))
    await eventually(lambda: second in looks)
    loops.leave(second)
    await eventually(lambda: repr(loops) == "<0 loops>")
