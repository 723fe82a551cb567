"""What a supervisor does when processes fail at a bad moment; these are not real."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lbclient.server.workers import supervisor
from lbclient.server.workers.messages import Assignment, UsageHeard, UsageTold
from lbclient.server.workers.supervisor import Supervisor
from tests.waiting import eventually


def assign(number: int, group: int, slot: int) -> Assignment:
    return Assignment("module:make", None, number, group, slot, 1)


class Process:
    """A worker that is ready and ends when the test says so, or when it is told to."""

    period = 0.0  # seconds that it may take to leave
    ports = ()
    listening = ("127.0.0.1:1",)
    failure = None

    def __init__(self, assignment: Assignment, changed: Any, hear: Any) -> None:
        self.hear = hear
        self.heard: list[UsageHeard] = []
        self.slot = assignment.slot
        self.pid = 100 + self.slot
        self.is_ready = self.is_leaving = self.is_quiet = self.has_ended = False
        self.is_hurried = self.is_stuck = self.is_told_of_quiet = False
        self._changed = changed

    def become_ready(self) -> None:
        self.is_ready = True
        self._changed()

    def end(self) -> None:
        self.has_ended = True
        self._changed()

    def serves(self) -> bool:
        return self.is_ready and not (self.is_leaving or self.has_ended)

    def leave(self) -> None:
        self.is_leaving = True
        if not (self.has_ended or self.is_stuck):
            asyncio.get_running_loop().call_soon(self.end)

    def kill(self) -> None:
        self.is_stuck = False
        self.leave()

    def hurry(self) -> None:
        self.is_hurried = True

    def how_it_ended(self) -> str:
        return "ended"

    def tell_siblings(self, *_told: object) -> None:
        pass

    def tell_usage(self, heard: UsageHeard) -> None:
        self.heard.append(heard)

    def all_quiet(self) -> None:
        self.is_told_of_quiet = True

    def become_quiet(self) -> None:
        self.is_quiet = True
        self._changed()


class Started:
    """Makes processes, unless `error` is set."""

    def __init__(self) -> None:
        self.all: list[Process] = []
        self.error: OSError | None = None
        self.failed = 0

    def __call__(self, *words: Any) -> Process:
        if self.error is not None:
            self.failed += 1
            raise self.error
        self.all.append(Process(*words))
        return self.all[-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()
    monkeypatch.setattr(supervisor, "WorkerProcess", made)
    return made


@asynccontextmanager
async def serving(started: Started) -> AsyncIterator[Supervisor]:
    """A supervisor of one worker, which is ready."""
    one = Supervisor(1, assign)
    running = asyncio.create_task(one.run())
    await eventually(lambda: started.all)
    started.all[0].become_ready()
    try:
        yield one
    finally:
        one.leave()
        await running


async def test_a_worker_that_crashes_during_a_reload_is_replaced_once(
    started: Started,
) -> None:
    async with serving(started) as one:
        one.reload()
        await eventually(lambda: len(started.all) == 2)
        old, new = started.all
        old.end()
        await eventually(lambda: one.restarts == 1)
        new.become_ready()  # while the place waits for its pause to end
        await asyncio.sleep(2 * supervisor.PAUSES.after(1))
        assert started.all == [old, new]
        new.end()
        await eventually(lambda: len(started.all) == 3)


async def test_a_process_that_cannot_be_made_is_tried_again(started: Started) -> None:
    async with serving(started) as one:
        started.error = BlockingIOError("no process is free")
        one.reload()
        await eventually(lambda: started.failed == 1)
        assert started.all[0].serves()
        started.all[0].end()
        await eventually(lambda: started.failed == 3)
        started.error = None
        await eventually(lambda: len(started.all) == 2)
        started.all[1].become_ready()


async def test_a_task_whose_first_process_cannot_be_made_ends(started: Started) -> None:
    started.error = BlockingIOError("no process is free")
    with pytest.raises(RuntimeError, match="no process is free"):
        await Supervisor(1, assign).run()


async def test_a_worker_whose_end_cannot_be_noted_has_ended(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    def note(_pid: int) -> None:
        raise PermissionError("read-only")

    one = Supervisor(1, assign, ended=note)
    running = asyncio.create_task(one.run())
    await eventually(lambda: started.all)
    started.all[0].become_ready()
    started.all[0].end()
    await eventually(lambda: len(started.all) == 2)
    started.all[1].become_ready()
    one.on_signal()
    await running
    assert caplog.text.count("PermissionError: read-only") == 2


async def test_what_a_killed_worker_used_is_forgotten(started: Started) -> None:
    one = Supervisor(2, assign)
    running = asyncio.create_task(one.run())
    await eventually(lambda: len(started.all) == 2)
    first, second = started.all
    first.become_ready()
    second.become_ready()
    for worker in (first, second):
        worker.hear(worker, UsageTold("limits", f"of {worker.pid}", {"": 9.0}))
    await eventually(lambda: second.heard)
    assert second.heard[-1].total == {"": 18.0}
    first.end()
    second.hear(second, UsageTold("limits", f"of {second.pid}", {"": 9.0}))
    await eventually(lambda: len(second.heard) == 2)
    assert second.heard[-1].total == {"": 9.0}
    one.leave()
    await running


async def test_a_new_worker_that_hangs_ends_its_reload(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "HANGS_AFTER", 0.01)
    async with serving(started) as one:
        one.reload()
        await eventually(lambda: [new.has_ended for new in started.all[1:]] == [True])
        one.reload()
        await eventually(lambda: [new.has_ended for new in started.all[2:]] == [True])
        assert started.all[0].serves()


async def test_no_worker_is_started_after_the_task_was_told_to_leave(
    started: Started,
) -> None:
    async with serving(started) as one:
        one.reload()
        one.leave()
    assert len(started.all) == 1


async def test_stuck_workers_are_waited_for_together_and_killed_after_a_second_signal(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LATE", 0.01)
    monkeypatch.setattr(Process, "period", 3600.0)
    one = Supervisor(3, assign)
    running = asyncio.create_task(one.run())
    await eventually(lambda: len(started.all) == 3)
    for worker in started.all:
        worker.become_ready()
        worker.is_stuck = True
    one.on_signal()
    one.on_signal()
    assert all(worker.is_hurried for worker in started.all)
    await running
    assert all(worker.has_ended for worker in started.all)


async def test_a_worker_that_leaves_alone_waits_for_all_if_they_leave_meanwhile(
    started: Started,
) -> None:
    one = Supervisor(2, assign)
    running = asyncio.create_task(one.run())
    await eventually(lambda: len(started.all) == 2)
    first, second = started.all
    first.is_stuck = second.is_stuck = first.is_leaving = True
    first.become_ready()
    second.become_ready()
    assert not first.is_told_of_quiet
    one.leave()
    first.become_quiet()
    assert not first.is_told_of_quiet
    second.become_quiet()
    assert first.is_told_of_quiet
    assert second.is_told_of_quiet
    for worker in started.all:
        worker.end()
    await running


async def test_a_task_that_cannot_say_that_it_is_ready_leaves(started: Started) -> None:
    def tell(_listening: object) -> None:
        raise BrokenPipeError

    running = asyncio.create_task(Supervisor(1, assign, tell).run())
    await eventually(lambda: started.all)
    started.all[0].become_ready()
    with pytest.raises(RuntimeError, match="BrokenPipeError"):
        await running
